"""Entries that say something impossible: none of them makes messages pass for expired."""

from __future__ import annotations

import struct

import pytest
from tests.store.damaged_stores import files_of, overwrite, verified
from tests.store.held_stores import (
    CONFIG,
    ENTRIES_OF_A_FILE,
    MESSAGES,
    QUEUES,
    ROOT,
    Held,
    drop_segments,
    expected,
    rebuild,
    upkeep,
)
from tests.store.records import messages_in

from cometmq.store.errors import CorruptionError
from cometmq.store.messages.reading import Filter, ReadStatus
from cometmq.store.starting.swap import remove_tree

NO_ENTRIES = {
    "ones": b"\xff" * 12,
    "a negative offset": b"\x80",
    "a negative size": struct.pack(">qi", 100, -95),
    "no size": bytes(12),
    "an offset behind the log": b"\x11",
}
OLD_ENTRIES = {
    "what keeps an offset": struct.pack(">qi", 0, 1),
    "an entry of long ago": struct.pack(">qi", 95, 95),
}
FIRST_KEPT = (28, 55, 83)
"""The first message left in the ordinary queue, by the number of segments gone, less one."""


def damage(held: Held, queue: str, entry_size: int, index: int, data: bytes) -> None:
    number, place = divmod(index, ENTRIES_OF_A_FILE)
    path = list(files_of(held.disk, queue))[number]
    overwrite(held.disk, path, place * entry_size, data)


@pytest.mark.parametrize(("topic", "queue", "entry_size"), QUEUES)
@pytest.mark.parametrize("data", [*NO_ENTRIES.values(), *OLD_ENTRIES.values()])
@pytest.mark.parametrize("gone", [1, 2])
def test_no_message_in_front_of_what_is_damaged_passes_for_expired(
    gone: int, data: bytes, topic: str, queue: str, entry_size: int
) -> None:
    first_kept = FIRST_KEPT[gone - 1] - (topic != "T" and gone == 1)
    for index in range(first_kept, 2 * ENTRIES_OF_A_FILE, 5):
        held = Held()
        held.stop(clean=True)
        damage(held, queue, entry_size, index, data)
        drop_segments(held, gone)
        held.opened()
        assert held.store.min_offset(topic, 0) == first_kept, index
        upkeep(held)
        assert len(list(files_of(held.disk, queue))) == 3 - first_kept // ENTRIES_OF_A_FILE
        found: list[bytes] = []
        for offset in range(first_kept, MESSAGES):
            if offset == index:
                with pytest.raises(CorruptionError):
                    held.store.read(topic, 0, offset, 1)
                continue
            result = held.store.read(topic, 0, offset, 1)
            found += [message.body for message in messages_in(result.slices)]
            assert found[-1:] == [expected(topic)[offset]], index


@pytest.mark.parametrize(("topic", "queue", "entry_size"), QUEUES)
@pytest.mark.parametrize("data", [NO_ENTRIES["ones"], NO_ENTRIES["an offset behind the log"]])
def test_what_is_damaged_among_what_has_expired_holds_nothing_up(
    data: bytes, topic: str, queue: str, entry_size: int
) -> None:
    for index in range(0, FIRST_KEPT[1] - 2, 5):
        held = Held()
        held.stop(clean=True)
        damage(held, queue, entry_size, index, data)
        drop_segments(held, 2)
        held.opened()
        assert held.store.min_offset(topic, 0) == FIRST_KEPT[1]
        assert held.bodies(topic) == expected(topic)[FIRST_KEPT[1] :]


def test_a_sector_of_entries_of_long_ago_hides_none_in_front_of_it() -> None:
    held = Held()
    held.stop(clean=True)
    old = b"".join(struct.pack(">qiq", 95 * number, 95, 0) for number in range(25))
    for index in (FIRST_KEPT[0], FIRST_KEPT[0] + 2, ENTRIES_OF_A_FILE, ENTRIES_OF_A_FILE + 9):
        size = min(25, ENTRIES_OF_A_FILE - index % ENTRIES_OF_A_FILE) * 20
        damage(held, QUEUES[0][1], 20, index, old[:size])
        drop_segments(held, 1 if index == FIRST_KEPT[0] else 0)
        held.opened()
        assert held.store.min_offset("T", 0) == FIRST_KEPT[0]
        held.stop(clean=True)


@pytest.mark.parametrize("wanted", [None, Filter(codes=[0]), Filter(matches=lambda _: True)])
@pytest.mark.parametrize(("topic", "queue", "entry_size"), QUEUES)
@pytest.mark.parametrize("data", [b"\x80", OLD_ENTRIES["an entry of long ago"]])
def test_a_read_gives_what_is_in_front_of_it_and_the_next_one_is_told(
    data: bytes, topic: str, queue: str, entry_size: int, wanted: Filter | None
) -> None:
    held = Held()
    held.stop(clean=True)
    index = FIRST_KEPT[0] + 30
    damage(held, queue, entry_size, index, data)
    drop_segments(held, 1)
    held.opened()
    result = held.store.read(topic, 0, index - 5, 32, wanted=wanted)
    assert [m.body for m in messages_in(result.slices)] == expected(topic)[index - 5 : index]
    assert (result.status, result.next_begin_offset) == (ReadStatus.FOUND, index)
    with pytest.raises(CorruptionError, match="`cometmq store rebuild`"):
        held.store.read(topic, 0, index, 32, wanted=wanted)
    result = held.store.read(topic, 0, index + 1, 5, wanted=wanted)
    assert [m.body for m in messages_in(result.slices)] == expected(topic)[index + 1 : index + 6]


def test_what_nobody_wants_is_not_read_past_it() -> None:
    held = Held()
    held.stop(clean=True)
    damage(held, QUEUES[0][1], 20, 50, b"\x80")
    held.opened()
    nobody = Filter(codes=[7])
    result = held.store.read("T", 0, 40, 32, wanted=nobody)
    assert (result.status, result.next_begin_offset) == (ReadStatus.NO_MATCHED_MESSAGE, 50)
    with pytest.raises(CorruptionError):
        held.store.read("T", 0, 50, 32, wanted=nobody)


@pytest.mark.parametrize("data", [b"\x80", OLD_ENTRIES["an entry of long ago"]])
def test_much_at_once_ends_in_front_of_it_too(data: bytes) -> None:
    held = Held()
    held.stop(clean=True)
    index = FIRST_KEPT[0] + 3
    damage(held, QUEUES[0][1], 20, index, data)
    drop_segments(held, 1)
    held.opened()
    bulk = held.store.reader.in_bulk
    for wanted in (None, Filter(codes=[0])):
        result = bulk.read("T", 0, FIRST_KEPT[0], MESSAGES, 1 << 20, wanted=wanted)
        assert (result.record_count, result.next_begin_offset) == (3, index)
        with pytest.raises(CorruptionError, match="`cometmq store rebuild`"):
            bulk.read("T", 0, index, MESSAGES, 1 << 20, wanted=wanted)
    result = bulk.read("T", 0, FIRST_KEPT[0], MESSAGES, 1 << 20, wanted=Filter(codes=[7]))
    assert (result.status, result.next_begin_offset) == (ReadStatus.NO_MATCHED_MESSAGE, index)


@pytest.mark.parametrize(("topic", "queue", "entry_size"), QUEUES)
def test_a_file_in_front_of_a_lost_one_is_not_taken_for_expired_by_what_is_no_entry(
    topic: str, queue: str, entry_size: int
) -> None:
    held = Held()
    held.stop(clean=False)
    held.disk.remove(f"{ROOT}/queue_ends.json")
    damage(held, queue, entry_size, ENTRIES_OF_A_FILE - 1, NO_ENTRIES["ones"])
    first, lost, _ = files_of(held.disk, queue)
    held.disk.remove(lost)
    drop_segments(held, 1)
    held.opened()
    first_kept = FIRST_KEPT[0] - (topic != "T")
    assert held.store.min_offset(topic, 0) == first_kept
    upkeep(held)
    assert first in files_of(held.disk, queue)
    result = held.store.read(topic, 0, first_kept, 5)
    found = [message.body for message in messages_in(result.slices)]
    assert found == expected(topic)[first_kept : first_kept + 5]


@pytest.mark.parametrize("in_next_file", [False, True])
@pytest.mark.parametrize("has_index", [False, True])
@pytest.mark.parametrize(("topic", "queue", "entry_size"), QUEUES)
def test_an_entry_that_leads_behind_the_log_gives_no_number_out(
    topic: str, queue: str, entry_size: int, has_index: bool, in_next_file: bool
) -> None:
    """It is one more than a clean store had: the next message would get the number after it."""
    held = Held()
    if in_next_file:
        for number in range(MESSAGES, 3 * ENTRIES_OF_A_FILE):
            held.put(b"%c%d" % (topic[0].encode(), number), topic)
    end, size = held.store.end_offset, 100
    held.stop(clean=True)
    count = 3 * ENTRIES_OF_A_FILE if in_next_file else MESSAGES
    data = struct.pack(">qi", end, size)
    if entry_size > 20:
        data += struct.pack(">qqqh", 0, held.now_ms, count, 1)
    number, place = divmod(count, ENTRIES_OF_A_FILE)
    path = f"{queue}/{number * ENTRIES_OF_A_FILE * entry_size:020d}"
    held.disk.open(path, create=True).resize(ENTRIES_OF_A_FILE * entry_size)
    overwrite(held.disk, path, place * entry_size, data.ljust(entry_size, b"\0"))
    if not has_index:
        remove_tree(held.disk, f"{ROOT}/index")
    held.opened()
    problem = rf"{path}: at byte {place * entry_size}: not an entry: it leads past the log"
    with pytest.raises(CorruptionError, match=problem):
        held.put(b"next", topic)
    with pytest.raises(CorruptionError, match=problem):
        held.store.read(topic, 0, 5, 1)
    assert held.put(b"next", "Other") == MESSAGES
    held.stop(clean=True)
    assert not verified(held.disk, ROOT, CONFIG).is_sound
    rebuild(held)
    held.opened()
    assert held.put(b"next", topic) == count
