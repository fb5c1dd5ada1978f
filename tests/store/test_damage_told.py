"""A read returns the messages before damage first, and then says which message is damaged."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.store.damaged_stores import overwrite
from tests.store.held_stores import BATCHES, CONFIG, ENTRIES_OF_A_FILE, MESSAGES, ROOT, Held

from cometmq.store.errors import CorruptionError
from cometmq.store.looking.store_reader import StoreReader
from cometmq.store.messages.reading import Filter

if TYPE_CHECKING:
    from cometmq.store.disk.cold import Cold

WHOLE = 1 << 30
QUEUE = f"{ROOT}/consumequeue/T/0"
SECOND = f"{ENTRIES_OF_A_FILE * 20:020d}"
WAYS = {
    "a pull": None,
    "a pull by tag": Filter(codes=[0]),
    "a pull by content": Filter(matches=lambda _: True),
    "in bulk": None,
    "in bulk by tag": Filter(codes=[0]),
    "in bulk by content": Filter(matches=lambda _: True),
    "the files": None,
}
EACH_WAY = pytest.mark.parametrize("way", WAYS)
HOT_OR_COLD = pytest.mark.parametrize("hot_size", [0, 1 << 30], ids=["cold", "hot"])
OF_BOTH_KINDS = pytest.mark.parametrize("topic", ["T", BATCHES])


def read(held: Held, way: str, topic: str, offset: int, count: int = 1) -> int:
    """Read, fetching cold data as needed; return up to where was read."""
    if way == "the files":
        reader = StoreReader(ROOT, CONFIG, filesystem=held.disk.other_process())
        return reader.read(topic, 0, offset, count).next_begin_offset
    store, wanted = held.store, WAYS[way]
    fetched: list[tuple[Cold, bytes]] = []
    while True:
        if way.startswith("in bulk"):
            result = store.reader.in_bulk.read(
                topic, 0, offset, offset + count, WHOLE, wanted=wanted, fetched=fetched or None
            )
        else:
            result = store.read(topic, 0, offset, count, wanted=wanted, fetched=fetched or None)
        if not result.cold:
            return result.next_begin_offset
        fetched += [store.fetch(each) for each in result.cold]


def damaged_entry(index: int, data: bytes, hot_size: int) -> Held:
    held = Held()
    held.stop(clean=True)
    number, place = divmod(index, ENTRIES_OF_A_FILE)
    overwrite(held.disk, f"{QUEUE}/{number * ENTRIES_OF_A_FILE * 20:020d}", place * 20, data)
    held.opened(replace(CONFIG, hot_size=hot_size))
    return held


@EACH_WAY
@HOT_OR_COLD
def test_zeros_in_place_of_an_entry_are_told_with_the_message_and_their_place(
    hot_size: int, way: str
) -> None:
    held = damaged_entry(47, bytes(20), hot_size)
    what = f"{QUEUE}/{SECOND}: at byte 140: zeros in place of the entry of message 47 of T/0;"
    with pytest.raises(CorruptionError, match=f"{what} `cometmq store rebuild`"):
        read(held, way, "T", 47)
    read(held, way, "T", 46)


@EACH_WAY
@HOT_OR_COLD
def test_an_entry_that_leads_behind_the_log_is_told_with_the_message_and_its_place(
    hot_size: int, way: str
) -> None:
    held = damaged_entry(47, b"\x11", hot_size)
    what = f"{QUEUE}/{SECOND}: at byte 140: the entry of message 47 of T/0 names a record of"
    assert read(held, way, "T", 45, 5) == 47  # The messages before it come first.
    with pytest.raises(CorruptionError, match=what):
        read(held, way, "T", 47, 5)


@EACH_WAY
@HOT_OR_COLD
@OF_BOTH_KINDS
@pytest.mark.parametrize("magic", [bytes(4), bytes.fromhex("daa320a6"), bytes.fromhex("cbd43194")])
def test_a_record_with_a_wrong_magic_is_told_and_not_served(
    magic: bytes, topic: str, hot_size: int, way: str
) -> None:
    held = Held()
    queue = held.store.queues.find(topic, 0)
    assert queue is not None
    place, _ = queue.head(7)
    held.stop(clean=True)
    held.opened(replace(CONFIG, hot_size=hot_size))
    path = f"{ROOT}/commitlog/{place - place % CONFIG.segment_size:020d}"
    overwrite(held.disk, path, place % CONFIG.segment_size + 4, magic)
    what = f"commitlog: at byte {place}: message 7 of {topic}/0: .* the magic 0x{magic.hex()}"
    for first, count in ((5, 3), (5, 5), (6, 1)):
        assert read(held, way, topic, first, count) == 7  # The messages before it come first.
    for count in (1, 5):
        with pytest.raises(CorruptionError, match=what):
            read(held, way, topic, 7, count)
    assert read(held, way, topic, 8, MESSAGES - 8) > 8
