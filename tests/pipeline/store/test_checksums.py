"""The checksums in records: a wrong one makes a record damage, wherever the wrong byte is."""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st
from tests.pipeline.store.logs import change, found, write_log
from tests.store.records import record

from cometmq.pipeline.records.layout import lay_out
from cometmq.pipeline.store.checksums import (
    WRONG_BODY,
    WRONG_RECORD,
    fastest_crc32,
    wrong_checksums,
)
from cometmq.pipeline.store.scan import Damage
from cometmq.proto.record import RECORD_CRC_SIZE, check_record_crc

PROPERTIES_AT = 92
"""In a record with a topic of one letter and no body."""
BODIES = [b"one", b"body of two", b"three"]


def wrong_in(*records: bytes) -> dict[int, str]:
    borders = np.cumsum([0, *map(len, records)])
    layout, good = lay_out(np.frombuffer(b"".join(records), np.uint8), borders)
    assert good.all()
    return wrong_checksums(layout)


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize("properties", [b"", b"TAGS\x01a\x02", b"TAGS\x01a\x02KEYS\x01k"])
@pytest.mark.parametrize("bit", [1, 0x10, 0x80])
def test_each_wrong_byte_of_a_record_with_a_checksum_makes_that_record_damage(
    tmp_path: Path, properties: bytes, bit: int
) -> None:
    places = write_log(tmp_path, BODIES, properties=properties, record_crc=True)
    first, place, end = places
    log = (tmp_path / "commitlog" / f"{0:020d}").read_bytes()
    for at in range(place, end):
        change(tmp_path, at, bytes([log[at] ^ bit]))
        left, damages = found(tmp_path)
        assert left == [first, end], at - place
        assert [each[:2] for each in damages] == [(place, end)], at - place
        change(tmp_path, at, log[at : at + 1])
    assert found(tmp_path) == (places, [])


def test_without_one_a_wrong_property_is_not_seen_but_a_wrong_body_is(tmp_path: Path) -> None:
    first, place, end = places = write_log(tmp_path, BODIES)
    change(tmp_path, end - 2, b"b")
    assert found(tmp_path) == (places, [])
    change(tmp_path, place + 90, b"?")
    assert found(tmp_path) == ([first, end], [Damage(place, end, WRONG_BODY)])


def test_a_log_without_checksums_compared_has_all_that_looks_like_a_record(tmp_path: Path) -> None:
    places = write_log(tmp_path, BODIES, record_crc=True)
    change(tmp_path, places[2] - RECORD_CRC_SIZE - 2, b"b")
    assert found(tmp_path, checksums=False) == (places, [])
    assert found(tmp_path) == (
        [places[0], places[2]],
        [Damage(places[1], places[2], WRONG_RECORD)],
    )


def test_a_log_ends_before_a_last_record_whose_own_checksum_is_wrong(tmp_path: Path) -> None:
    *before, last = write_log(tmp_path, BODIES, record_crc=True)
    change(tmp_path, last + 110, b"?")
    places, _ = found(tmp_path)
    assert places == before


@given(
    properties=st.sampled_from(
        (
            b"",
            b"a\x01b\x02",
            b"a\x01b",
            b"x__CRC32#\x010123456789\x02",
            b"a\x01__CRC32#\x010123456789\x02",
        )
    ),
    record_crc=st.booleans(),
    back=st.integers(1, 60),
    byte=st.integers(0, 255),
)
def test_a_record_is_judged_as_the_protocol_judges_it(
    properties: bytes, record_crc: bool, back: int, byte: int
) -> None:
    whole = record(0, b"", properties=properties, record_crc=record_crc)
    assert wrong_in(whole) == {}
    at = max(len(whole) - back, PROPERTIES_AT)
    assume(at < len(whole))
    changed = whole[:at] + bytes([byte]) + whole[at + 1 :]
    named = changed[:-RECORD_CRC_SIZE] + b"__CRC32#\x01" + changed[-11:]
    is_wrong = check_record_crc(changed) is False
    is_wrong |= check_record_crc(changed) is None and check_record_crc(named) is True
    expected = {0: WRONG_RECORD} if is_wrong else {}
    assert wrong_in(changed, record(0, record_crc=True)) == expected


def test_one_that_a_sender_copied_is_none_where_no_other_record_has_one() -> None:
    """Apache's brokers keep it unless they add their own; ours removes it."""
    copied = record(0, properties=b"a\x01b\x02__CRC32#\x010123456789\x02")
    assert wrong_in(record(0), copied, record(0)) == {}
    assert wrong_in(copied, record(0, record_crc=True)) == {0: WRONG_RECORD}
    assert wrong_in(copied) == {0: WRONG_RECORD}


def test_several_wrong_ones_are_named_in_their_order() -> None:
    sound = record(0, record_crc=True)
    wrong_body = flipped(record(0), 88)
    assert wrong_in(flipped(sound, 20), sound, wrong_body, flipped(sound, 90)) == {
        0: WRONG_RECORD,
        2: WRONG_BODY,
        3: WRONG_BODY,
    }


def test_checksums_are_the_same_where_an_executor_has_but_the_standard_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    body = bytes(range(256)) * 5
    ours = fastest_crc32()(memoryview(body))
    monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
    assert fastest_crc32() is zlib.crc32
    assert ours == zlib.crc32(body)
