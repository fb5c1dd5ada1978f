"""Bulk reads return what reads return, only more of it at a time."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings, strategies as st
from tests.store.records import messages_in
from tests.store.test_message_store import BATCHES, CONFIG, Opened

from cometmq.proto.java import string_hash
from cometmq.store.disk.cold import Cold
from cometmq.store.errors import CorruptionError
from cometmq.store.messages import bulk_reading
from cometmq.store.messages.bulk_reading import RangeSize
from cometmq.store.messages.reading import Filter, ReadStatus
from cometmq.store.queues.consume_queue import ConsumeQueue

if TYPE_CHECKING:
    from cometmq.proto.message import StoredMessage
    from cometmq.store.messages.reading import ReadResult

WHOLE = 1 << 40
TOPICS = ("T", "T", "T", "U", "V")


def filled(*, hot_size: int, count: int = 150, seed: int = 1) -> Opened:
    """A store with three topics in one log of several segments."""
    opened = Opened(replace(CONFIG, hot_size=hot_size))
    random = Random(seed)
    for number in range(count):
        opened.put(
            random.randbytes(random.choice((0, 10, 100, 700))),
            topic=random.choice(TOPICS),
            queue_id=random.choice((0, 0, 1)),
            properties=b"TAGS\x01%c\x02N\x01%d\x02" % (97 + number % 3, number),
        )
    opened.sync()
    return opened


def read(opened: Opened, *args: Any, **options: Any) -> ReadResult:
    """Read; fetch what is only on the disk, as a thread would."""
    reader = opened.store.reader.in_bulk
    fetched: list[tuple[Cold, bytes]] = []
    while (result := reader.read(*args, **options, fetched=fetched or None)).cold:
        fetched += [opened.store.fetch(cold) for cold in result.cold]
    return result


def size_of(opened: Opened, *args: Any) -> RangeSize:
    found = opened.store.reader.in_bulk.size_of(*args)
    assert isinstance(found, RangeSize)
    return found


def all_of(
    opened: Opened, topic: str, queue_id: int, size_max: int, **options: Any
) -> list[StoredMessage]:
    """Read a whole queue in bulk."""
    found: list[StoredMessage] = []
    offset = opened.store.min_offset(topic, queue_id)
    while offset < opened.store.max_offset(topic, queue_id):
        result = read(opened, topic, queue_id, offset, WHOLE, size_max, **options)
        messages = list(messages_in(result.slices))
        assert len(messages) == result.record_count
        assert sum(message.size for message in messages) == result.size
        assert result.size <= size_max or result.record_count == 1
        assert result.next_begin_offset > offset
        found += messages
        offset = result.next_begin_offset
    return found


@pytest.mark.parametrize("hot_size", [0, 5000, 1 << 30])
@pytest.mark.parametrize("is_cold", [False, True])
@settings(max_examples=15)
@given(seed=st.integers(0, 1000), size_max=st.sampled_from([1, 500, 4000, 1 << 20]))
def test_a_queue_is_read_whole_whatever_of_it_is_in_memory(
    hot_size: int, is_cold: bool, seed: int, size_max: int
) -> None:
    opened = filled(hot_size=hot_size, seed=seed)
    expected = {key: opened.bodies(*key) for key in (("T", 0), ("T", 1), ("U", 0), ("V", 1))}
    opened.disk.is_cold = is_cold
    for key, bodies in expected.items():
        found = all_of(opened, *key, size_max)
        assert [message.body for message in found] == bodies
        assert [message.queue_offset for message in found] == list(range(len(bodies)))


@pytest.mark.parametrize("hot_size", [0, 1 << 30])
def test_what_is_hot_or_in_memory_all_the_same_is_there_at_once(hot_size: int) -> None:
    opened = filled(hot_size=hot_size)
    result = opened.store.reader.in_bulk.read("T", 0, 0, WHOLE, WHOLE)
    assert (result.record_count > 32, result.cold) == (True, ())


def test_what_is_not_in_memory_is_fetched() -> None:
    opened = filled(hot_size=0)
    opened.disk.is_cold = True
    result = opened.store.reader.in_bulk.read("T", 0, 0, WHOLE, WHOLE)
    assert result.cold
    assert all(cold.physical_offset >= 0 for cold in result.cold)


def test_neighbours_in_the_log_are_a_slice_of_the_map() -> None:
    opened = Opened()
    opened.put_all(*[b"x" * 50] * 60)
    result = read(opened, "T", 0, 0, WHOLE, WHOLE)
    assert isinstance(result.slices[0], memoryview)
    assert (len(result.slices), result.record_count) == (1, 60)


def test_a_range_ends_where_it_is_said_to() -> None:
    opened = filled(hot_size=1 << 30)
    result = read(opened, "T", 0, 3, 7, WHOLE)
    assert [message.queue_offset for message in messages_in(result.slices)] == [3, 4, 5, 6]
    assert result.next_begin_offset == 7


def test_only_wanted_tags_are_given_and_what_is_left_out_is_passed() -> None:
    opened = filled(hot_size=0)
    wanted = Filter(frozenset({string_hash("b")}))
    found = all_of(opened, "T", 0, 3000, wanted=wanted)
    assert {message.tags for message in found} == {"b"}
    every = all_of(opened, "T", 0, 1 << 20)
    assert [m.queue_offset for m in found] == [m.queue_offset for m in every if m.tags == "b"]
    nothing = read(opened, "T", 0, 0, 5, WHOLE, wanted=Filter(frozenset({7})))
    assert (nothing.status, nothing.next_begin_offset) == (ReadStatus.NO_MATCHED_MESSAGE, 5)


def test_what_only_the_record_tells_is_looked_for_as_by_a_pull() -> None:
    opened = filled(hot_size=0)
    wanted = Filter(matches=lambda message: message.properties["N"].endswith("7"))
    found = all_of(opened, "T", 0, 1 << 20, wanted=wanted)
    assert found
    assert all(message.properties["N"].endswith("7") for message in found)


def test_outside_of_the_queue_it_says_where_to_go_on() -> None:
    opened = filled(hot_size=1 << 30)
    end = opened.store.max_offset("T", 0)
    for offset, status, next_offset in (
        (end, ReadStatus.OFFSET_OVERFLOW_ONE, end),
        (end + 5, ReadStatus.OFFSET_OVERFLOW_BADLY, end),
        (-1, ReadStatus.OFFSET_TOO_SMALL, 0),
    ):
        result = read(opened, "T", 0, offset, WHOLE, 100)
        assert (result.status, result.next_begin_offset) == (status, next_offset)
    assert read(opened, "X", 0, 0, WHOLE, 100).status is ReadStatus.NO_MESSAGE_IN_QUEUE


def test_records_far_apart_are_read_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_reading, "_GAP_MAX", 100)
    opened = filled(hot_size=0)
    bodies = filled(hot_size=0).bodies("V")  # Of another store: what was read stays warm.
    opened.disk.is_cold = True
    result = opened.store.reader.in_bulk.read("V", 0, 0, WHOLE, WHOLE)
    assert len(result.cold) > 5
    assert [m.body for m in all_of(opened, "V", 0, WHOLE)] == bodies
    monkeypatch.setattr(bulk_reading, "_RANGES_MAX", 3)
    result = opened.store.reader.in_bulk.read("V", 0, 0, WHOLE, WHOLE)
    assert len(result.cold) == 3
    assert [m.body for m in all_of(opened, "V", 0, WHOLE)] == bodies


def test_many_pieces_leave_as_one() -> None:
    opened = Opened()
    for number in range(200):
        opened.put(b"%d" % number, topic="TU"[number % 2])
    opened.sync()
    found = all_of(opened, "T", 0, WHOLE)
    assert len(found) == 100
    assert len(read(opened, "T", 0, 0, WHOLE, WHOLE).slices) == 1
    assert len(read(opened, "T", 0, 0, 40, WHOLE).slices) == 40


def test_batches_are_read_as_by_a_pull() -> None:
    opened = Opened()
    inner = b"INNER_NUM\x013\x02"
    opened.put(b"abc", topic=BATCHES, properties=inner, sys_flag=0xC0)
    opened.put(b"single", topic=BATCHES)
    opened.sync()
    result = read(opened, BATCHES, 0, 1, WHOLE, WHOLE)
    assert [message.body for message in messages_in(result.slices)] == [b"abc", b"single"]
    assert result.next_begin_offset == 4


@pytest.mark.parametrize("hot_size", [0, 1 << 30])
def test_an_entry_that_leads_to_no_record_is_an_error(hot_size: int) -> None:
    opened = Opened(replace(CONFIG, hot_size=hot_size))
    opened.put_all(b"0", b"1", b"2")
    queue = opened.store.queues.simple.find("T", 0)
    assert queue is not None
    queue.append(5, 100, 0)
    queue.append(1, 1 << 30, 0)
    with pytest.raises(CorruptionError, match=r"message 3 of T/0: .* a record of 100 bytes here"):
        read(opened, "T", 0, 3, 4, WHOLE)
    with pytest.raises(
        CorruptionError, match="message 4 of T/0 names a record of 1073741824 bytes "
    ):
        read(opened, "T", 0, 4, 5, WHOLE)
    queue.append(0, 0, 0)
    with pytest.raises(CorruptionError, match="zeros in place of the entry of message 5 of T/0"):
        read(opened, "T", 0, 5, 6, WHOLE)


def test_the_bytes_of_a_range_are_those_of_its_records() -> None:
    opened = filled(hot_size=1 << 30)
    sizes = [message.size for message in all_of(opened, "T", 0, WHOLE)]
    count = size_of(opened, "T", 0, 0, WHOLE, WHOLE)
    assert count == RangeSize(len(sizes), sum(sizes))
    assert size_of(opened, "T", 0, 5, 50, WHOLE) == RangeSize(50, sum(sizes[5:50]))
    for most in (sum(sizes[5:40]), sum(sizes[5:40]) + 1, sum(sizes[5:41]) - 1):
        assert size_of(opened, "T", 0, 5, WHOLE, most) == RangeSize(40, sum(sizes[5:40]))
    assert size_of(opened, "T", 0, 5, WHOLE, 0) == RangeSize(6, sizes[5])
    assert size_of(opened, "T", 0, len(sizes), WHOLE, 0) == RangeSize(len(sizes), 0)
    assert size_of(opened, "X", 0, 3, WHOLE, 0) == RangeSize(3, 0)


def test_sizes_are_counted_so_far_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = filled(hot_size=1 << 30)
    monkeypatch.setattr(bulk_reading, "SIZED_MAX", 40)
    assert size_of(opened, "T", 0, 0, WHOLE, WHOLE).end_offset == 40


def test_what_is_cold_of_the_entries_is_fetched_before_they_are_counted() -> None:
    opened = filled(hot_size=0)
    opened.reopen()
    expected = size_of(opened, "T", 0, 0, WHOLE, WHOLE)
    opened.disk.is_cold = True
    reader = opened.store.reader.in_bulk
    fetched: list[tuple[Cold, bytes]] = []
    rounds = 0
    while isinstance(found := reader.size_of("T", 0, 0, WHOLE, WHOLE, fetched=fetched), Cold):
        fetched.append(opened.store.fetch(found))
        rounds += 1
    assert found == expected
    assert rounds > 1  # A file holds 30 of them.


def test_batches_are_counted_with_their_first_message() -> None:
    opened = Opened()
    inner = b"INNER_NUM\x013\x02"
    for _ in range(4):
        opened.put(b"abc", topic=BATCHES, properties=inner, sys_flag=0xC0)
    opened.sync()
    size = next(messages_in(read(opened, BATCHES, 0, 0, WHOLE, WHOLE).slices)).size
    assert size_of(opened, BATCHES, 0, 0, WHOLE, WHOLE) == RangeSize(12, 4 * size)
    assert size_of(opened, BATCHES, 0, 4, WHOLE, 2 * size) == RangeSize(9, 2 * size)


def test_about_as_many_entries_are_looked_at_as_fit_into_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There may be ten times as many before the range's end."""
    opened = Opened(replace(CONFIG, hot_size=1 << 30))
    for number in range(400):
        opened.put(b"x" * (100 if number < 300 else 10), topic="T", queue_id=0)
    opened.sync()
    asked: list[int] = []
    plain = ConsumeQueue.read_cached

    def note(self: ConsumeQueue, queue_offset: int, count: int) -> bytes | bytearray | None:
        asked.append(count)
        return plain(self, queue_offset, count)

    monkeypatch.setattr(ConsumeQueue, "read_cached", note)
    size = size_of(opened, "T", 0, 0, 1, WHOLE).size
    asked.clear()
    result = read(opened, "T", 0, 0, WHOLE, 100 * size)
    assert result.record_count == 100
    assert asked == [bulk_reading.SAMPLED, bulk_reading.SAMPLED + 112]
    assert len(all_of(opened, "T", 0, 100 * size)) == 400
