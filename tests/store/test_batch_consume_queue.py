from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, strategies as st
from tests.crash.disk import SimulatedFileSystem
from tests.store.queue_model import EVERYTHING, files_below, open_queues, small_config

from cometmq.store.errors import CorruptionError, MissingEntriesError
from cometmq.store.log.segments import Segments
from cometmq.store.queues import consume_queues
from cometmq.store.queues.batch_consume_queue import (
    BATCH_ENTRY_SIZE,
    BatchConsumeQueue,
    BatchEntry,
)
from cometmq.store.queues.consume_queue import Boundary
from cometmq.store.queues.consume_queues import ConsumeQueues

FOLDER = "/store/batchconsumequeue"

sizes = st.lists(st.integers(1, 9), max_size=40)


def queues_on(disk: SimulatedFileSystem, *, clean: bool = True) -> ConsumeQueues:
    return open_queues(disk, small_config(7), clean=clean)


def entries(batch_sizes: list[int]) -> list[BatchEntry]:
    """One record of each size, stored 10 ms apart."""
    return [
        BatchEntry(n * 100, 100, 0, 1000 + n * 10, sum(batch_sizes[:n]), size)
        for n, size in enumerate(batch_sizes)
    ]


def filled(
    batch_sizes: list[int], *, written: bool = False
) -> tuple[SimulatedFileSystem, ConsumeQueues, BatchConsumeQueue]:
    disk = SimulatedFileSystem()
    queues = queues_on(disk)
    queue = queues.batch.get("t", 0)
    for entry in entries(batch_sizes):
        queue.append(entry)
    if written:
        assert queues.write_behind(EVERYTHING, EVERYTHING)
    return disk, queues, queue


def test_entries_have_apaches_layout() -> None:
    disk, *_ = filled([4, 1], written=True)
    (content,) = files_below(disk, "/store/batchconsumequeue").values()
    assert len(content) == 7 * BATCH_ENTRY_SIZE
    assert content[46:92].hex() == (
        "0000000000000064"
        "00000064"
        "0000000000000000"
        "00000000000003f2"
        "0000000000000004"
        "0001"
        "ffffffff"
        "00000000"
    )


@given(sizes, st.booleans(), st.integers(-1, 400))
def test_a_message_is_found_in_the_record_that_holds_it(
    batch_sizes: list[int], written: bool, offset: int
) -> None:
    _, _, queue = filled(batch_sizes, written=written)
    assert (queue.min_offset, queue.max_offset) == (0, sum(batch_sizes))
    holding = [e for e in entries(batch_sizes) if e.base_offset <= offset < e.end_offset]
    assert queue.read(offset, 1) == holding
    if holding:
        assert queue.entry(queue.index_of(offset)) == holding[0]


def test_a_read_goes_on_to_the_end_of_the_file() -> None:
    _, _, queue = filled([3] * 20, written=True)
    assert queue.read(4, 99) == entries([3] * 20)[1:7]
    assert queue.read(21, 2) == entries([3] * 20)[7:9]


@given(sizes, st.integers(0, 5000))
def test_the_minimum_is_the_first_message_of_the_first_record_in_the_log(
    batch_sizes: list[int], gone: int
) -> None:
    _, queues, queue = filled(batch_sizes)
    queues.correct_min(gone)
    kept = [entry for entry in entries(batch_sizes) if entry.physical_offset >= gone]
    assert queue.min_offset == (kept[0].base_offset if kept else sum(batch_sizes))
    assert queue.max_offset == sum(batch_sizes)


@given(sizes, st.integers(980, 1420))
def test_lookup_by_time_gives_the_first_message_of_a_record(
    batch_sizes: list[int], time: int
) -> None:
    _, _, queue = filled(batch_sizes)
    made = entries(batch_sizes)
    lower = next((e.base_offset for e in made if e.store_time >= time), sum(batch_sizes))
    upper = max((e.base_offset for e in made if e.store_time <= time), default=0)
    assert queue.offset_by_time(time, Boundary.LOWER) == lower
    assert queue.offset_by_time(time, Boundary.UPPER) == upper


@pytest.mark.parametrize("base", [-(1 << 62), -1, 12, 1 << 62])
@pytest.mark.parametrize("boundary", Boundary)
def test_lookup_by_time_refuses_an_entry_whose_messages_cannot_be(
    base: int, boundary: Boundary
) -> None:
    *_, queue = filled([])
    for number, entry in enumerate(entries([4, 4, 4])):
        queue.append(entry._replace(base_offset=base) if number == 1 else entry)
    with pytest.raises(CorruptionError, match=r"do not fit the entries around them"):
        queue.offset_by_time(1010, boundary)


@given(sizes, st.integers(0, 4000), st.integers(0, 1 << 32), st.booleans())
def test_after_a_power_cut_the_log_gives_every_entry_back(
    batch_sizes: list[int], checkpoint: int, seed: int, synced: bool
) -> None:
    disk, queues, _ = filled(batch_sizes, written=True)
    checkpoint = min(checkpoint, len(batch_sizes) * 100)
    if synced:
        queues.take_unsynced().sync()
    again = queues_on(disk.power_cut(Random(seed)), clean=False)
    again.truncate(checkpoint if synced else 0)
    queue = again.batch.get("t", 0)
    for entry in entries(batch_sizes):
        if entry.physical_offset >= (checkpoint if synced else 0):
            assert queue.place(entry)
    assert not any(queue.place(entry) for entry in entries(batch_sizes))
    assert queue.next_offset == queue.max_offset == sum(batch_sizes)
    found: list[BatchEntry] = []
    while data := queue.read(found[-1].end_offset if found else 0, 5):
        found += data
    assert found == entries(batch_sizes)


def test_a_record_of_a_topic_made_again_replaces_the_old_entries() -> None:
    _, _, queue = filled([3, 3, 3])
    again = BatchEntry(900, 100, 0, 5000, 0, 2)
    assert queue.place(again)
    assert queue.read(0, 9) == [again]
    assert queue.max_offset == 2


def test_a_gap_is_refused_because_messages_would_be_lost() -> None:
    _, _, queue = filled([3, 3])
    with pytest.raises(MissingEntriesError, match=r"ends at queue offset 6.*number 8"):
        queue.place(BatchEntry(900, 100, 0, 5000, 8, 2))


def test_a_queue_may_start_at_any_message() -> None:
    _, _, queue = filled([])
    assert queue.place(BatchEntry(900, 100, 0, 5000, 800, 2))
    assert (queue.min_offset, queue.max_offset) == (800, 802)


def test_a_loaded_queue_goes_on_where_it_ended() -> None:
    disk, *_ = filled([3, 4], written=True)
    assert queues_on(disk).batch.get("t", 0).next_offset == 7


def test_an_entry_that_cannot_be_read_is_empty() -> None:
    _, _, queue = filled([3])
    assert queue.entry(5) == BatchEntry(0, 0, 0, 0, 0, 0)


class EveryHundredth:
    """A log with a record at every hundredth offset."""

    def __init__(self, segments: Segments) -> None:
        assert not segments

    def __call__(self, *entry: int) -> bool:
        return entry[2] % 100 == 0


def test_where_all_of_the_last_file_is_torn_the_one_before_is_cut_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A torn entry may be below the cut, and the entries before it may not have been synced."""
    disk, *_ = filled([1] * 17, written=True)
    first, _, last = (disk.open(path) for path in sorted(files_below(disk, FOLDER)))
    first.write(bytes(4 * BATCH_ENTRY_SIZE), 3 * BATCH_ENTRY_SIZE)
    last.write((50).to_bytes(8, "big"), 0)
    queues = queues_on(disk, clean=False)
    monkeypatch.setattr(consume_queues, "RecordCheck", EveryHundredth)
    queues.expect_records(Segments(disk, "/store/commitlog", 4096))
    queues.truncate(300)
    queue = queues.batch.get("t", 0)
    assert (queue.start, queue.end, queue.max_offset) == (0, 3, 3)
    assert len(files_below(disk, FOLDER)) == 1
