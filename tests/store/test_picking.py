"""Joining records that are apart in the log: each is as its entry says, or there is an error."""

from __future__ import annotations

import struct

import pytest

from cometmq.proto.record import MAGIC_V1, MAGIC_V2
from cometmq.store.errors import CorruptionError
from cometmq.store.messages.picking import picked

MAGICS = (MAGIC_V2, MAGIC_V1)
START = 7_000_000
ALIKE = (100, 100, 100, 100)
UNLIKE = (100, 36, 120, 100)
BOTH = pytest.mark.parametrize("sizes", [ALIKE, UNLIKE], ids=["of one size", "of several"])


def stretch(sizes: tuple[int, ...], *, mixed: bool = False) -> tuple[bytearray, tuple[int, ...]]:
    """Make a piece of the log with records of these sizes, each followed by other bytes.

    The records are of one kind, or mixed, as if some had a topic with a long name.
    """
    piece, offsets = bytearray(), list[int]()
    for number, size in enumerate(sizes):
        offsets.append(START + len(piece))
        head = struct.pack(">iI20xq", size, MAGICS[number % 2] if mixed else MAGIC_V1, offsets[-1])
        piece += head + bytes([number]) * (size - len(head)) + b"\xff" * (17 + number)
    return piece, tuple(offsets)


@BOTH
@pytest.mark.parametrize("mixed", [False, True])
def test_records_are_joined_in_the_order_of_their_entries(
    sizes: tuple[int, ...], mixed: bool
) -> None:
    piece, offsets = stretch(sizes, mixed=mixed)
    expected = b"".join(
        piece[offset - START : offset - START + size]
        for offset, size in zip(offsets, sizes, strict=True)
    )
    assert picked(memoryview(piece), START, offsets, sizes) == expected
    assert len(expected) == sum(sizes)


@BOTH
@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize(
    "byte", [0, 3, 4, 7, 28, 35], ids=["size", "its end", "magic", "its end", "place", "its end"]
)
def test_a_record_that_is_not_what_its_entry_says_is_named(
    sizes: tuple[int, ...], number: int, byte: int
) -> None:
    piece, offsets = stretch(sizes)
    piece[offsets[number] - START + byte] ^= 1
    with pytest.raises(CorruptionError, match="a ConsumeQueue names a record") as raised:
        picked(memoryview(piece), START, offsets, sizes)
    assert raised.value.position == offsets[number]


@BOTH
def test_an_entry_that_leads_out_of_the_piece_is_left_to_the_careful_way(
    sizes: tuple[int, ...],
) -> None:
    piece, offsets = stretch(sizes)
    behind, before = START + len(piece) - 50, START - 1
    assert picked(memoryview(piece), START, (*offsets[:3], behind), sizes) is None
    assert picked(memoryview(piece), START, (before, *offsets[1:]), sizes) is None


def test_a_size_that_no_record_has_is_left_to_the_careful_way() -> None:
    piece, offsets = stretch(ALIKE)
    assert picked(memoryview(piece), START, offsets, (10, 10, 10, 10)) is None
    assert picked(memoryview(piece), START, offsets, (100, 10, 100, 100)) is None
