from __future__ import annotations

import errno
from random import Random

import pytest
from hypothesis import given, strategies as st
from tests.crash.disk import Moment, Operation, SimulatedFileSystem
from tests.store.queue_model import (
    EVERYTHING,
    all_entries,
    at_once,
    files_below,
    open_queues,
    small_config,
)

from cometmq.store.config import StoreConfig
from cometmq.store.errors import MissingEntriesError, StoreFormatError
from cometmq.store.log.segments import Segments
from cometmq.store.queues.consume_queue import ENTRY, Boundary, ConsumeQueue
from cometmq.store.queues.consume_queues import ConsumeQueues
from cometmq.store.queues.entry_search import PRE_BLANK_SIZE
from cometmq.store.queues.queue_ends import NO_RECORD, QueueEnd, QueueKey, load_queue_ends


def queues_on(disk: SimulatedFileSystem, *, clean: bool = True) -> ConsumeQueues:
    return open_queues(disk, small_config(10), clean=clean)


def filled(
    count: int, *, written: int = 0
) -> tuple[SimulatedFileSystem, ConsumeQueues, ConsumeQueue]:
    disk = SimulatedFileSystem()
    queues = queues_on(disk)
    queue = queues.simple.get("t", 0)
    for n in range(count):
        queue.append(n * 100, 100, n)
        if n + 1 == written:
            queues.write_behind(EVERYTHING, EVERYTHING)
    return disk, queues, queue


def offsets(data: bytes) -> list[int]:
    return [entry[2] for entry in ENTRY.iter_unpack(data)]


def test_entries_have_apaches_layout() -> None:
    _, _, queue = filled(0)
    queue.append(0, 139, 2598919)
    assert queue.read(0, 1).hex() == "00000000000000000000008b000000000027a807"
    queue.append(139, 100, -2147483648)
    assert queue.read(1, 1)[12:].hex() == "ffffffff80000000"


def test_a_read_takes_from_the_file_and_the_tail_as_one() -> None:
    _, _, queue = filled(9, written=5)
    assert offsets(queue.read(3, 4)) == [3, 4, 5, 6]
    assert offsets(queue.read(5, 99)) == [5, 6, 7, 8]


def test_the_entries_of_one_turn_go_into_their_files_piece_by_piece() -> None:
    disk, queues, queue = filled(0)
    turn = b"".join(ENTRY.pack(n * 100, 100, n) for n in range(25))
    queue.extend(turn, 25)
    for budget, written in ((1, 10), (1, 20), (0, 20)):
        queues.write_behind(EVERYTHING, budget)
        assert queue.written == written
        assert offsets(queue.read(written, 99)) == list(range(written, 25))
    queue.extend(ENTRY.pack(2500, 100, 25), 1)
    assert offsets(queue.read(20, 99)) == list(range(20, 26))
    assert queues.write_behind(EVERYTHING, 1)
    assert queues.settled_offset is None
    queue.extend(turn[:20], 1)
    queue.cut_to(26)
    assert queues.settled_offset is None
    queues.close()
    assert offsets(queues_on(disk).simple.get("t", 0).read(20, 99)) == list(range(20, 26))


def test_a_read_ends_with_its_file() -> None:
    _, _, queue = filled(25, written=25)
    assert offsets(queue.read(7, 99)) == [7, 8, 9]
    assert offsets(queue.read(10, 99)) == list(range(10, 20))


def test_a_read_of_a_file_that_is_gone_is_empty() -> None:
    disk, queues, queue = filled(25, written=25)
    queues.close()
    disk.remove("/store/consumequeue/t/0/00000000000000000200")
    assert queue.read(12, 1) == queue.read_cached(12, 1) == b""
    assert offsets(queue.read(21, 1)) == [21]


def test_a_cached_read_gives_the_same_or_nothing() -> None:
    _, _, queue = filled(9, written=5)
    assert queue.read_cached(6, 2) == queue.read(6, 2)
    found = queue.read_cached(3, 4)
    assert found is None or found == queue.read(3, 4)


def test_nothing_is_read_outside_of_the_queue() -> None:
    _, queues, queue = filled(5, written=5)
    queues.correct_min(200)
    assert queue.read(1, 1) == queue.read(-1, 1) == queue.read(5, 1) == b""
    assert queue.read_cached(1, 1) == b""


def test_a_queue_whose_records_are_all_gone_keeps_its_offset() -> None:
    disk, queues, queue = filled(25, written=25)
    queues.correct_min(2500)
    assert sum(queues.expire(EVERYTHING, at_once)) == 2
    assert (queue.min_offset, queue.max_offset) == (25, 25)
    again = queues_on(disk)
    again.correct_min(2500)
    assert again.simple.get("t", 0).min_offset == again.simple.get("t", 0).next_offset == 25


@pytest.mark.parametrize(
    ("is_batch", "end"), [(False, (7999, NO_RECORD, 7999, 4000)), (True, (1, NO_RECORD, 7999, 0))]
)
def test_the_blank_entries_that_keep_an_offset_take_no_memory(
    is_batch: bool, end: tuple[int, int, int, int]
) -> None:
    disk = SimulatedFileSystem()
    config = StoreConfig(consume_queue_file_size=4000 * 20, batch_consume_queue_file_size=460)
    queues = open_queues(disk, config)
    queues.ends.is_whole = True
    queue = (queues.batch if is_batch else queues.simple).get("t", 0)
    queue.hold_at(7999)
    assert queue.written == queue.end
    assert queues.settled_offset is None
    queues.take_unsynced().sync()
    queues.take_ends()()
    ends = load_queue_ends(disk, "/store")
    assert ends == {queue.key: QueueEnd(*end)}
    queues.close()
    queues = open_queues(disk.power_cut(Random(1)), config)
    queue = (queues.batch if is_batch else queues.simple).get("t", 0)
    queues.correct_min(0)
    assert (queue.min_offset, queue.max_offset, queue.next_offset) == (7999, 7999, 7999)
    heads = {queue.head(index) for index in range(queue.start, queue.end)}
    assert heads == {(0, PRE_BLANK_SIZE)}
    assert queue.start == (0 if is_batch else 4000)


def test_nor_do_those_in_front_of_the_first_message_that_the_log_has() -> None:
    _, queues, queue = filled(0)
    assert queue.place(17, 500, 100, 3)
    assert (queue.start, queue.written, queue.end) == (10, 17, 18)
    assert queues.settled_offset == 500
    assert {queue.head(index) for index in range(10, 17)} == {(0, PRE_BLANK_SIZE)}
    assert queue.head(17) == (500, 100)


def test_the_last_file_of_a_queue_is_never_removed() -> None:
    disk, queues, _ = filled(20, written=20)
    queues.correct_min(1 << 40)
    assert sum(queues.expire(EVERYTHING, at_once)) == 1
    assert len(files_below(disk, "/store/consumequeue")) == 1


def test_cutting_everything_keeps_the_queues_offset() -> None:
    disk, queues, queue = filled(25, written=25)
    queues.correct_min(2000)
    list(queues.expire(EVERYTHING, at_once))
    queues.truncate(2000)
    assert (queue.min_offset, queue.max_offset) == (20, 20)
    again = queues_on(disk)
    assert again.simple.get("t", 0).max_offset == 20


def test_placing_a_record_twice_changes_nothing() -> None:
    _, _, queue = filled(0)
    assert queue.place(0, 0, 100, 7)
    assert not queue.place(0, 0, 100, 7)
    assert (queue.max_offset, queue.next_offset) == (1, 1)


def test_a_record_of_a_topic_made_again_replaces_the_old_entries() -> None:
    _, _, queue = filled(5, written=3)
    assert queue.place(0, 1000, 50, 1)
    assert all_entries(queue) == [(1000, 50, 1)]


def test_one_whose_messages_had_expired_is_served_from_its_first_again() -> None:
    _, queues, queue = filled(5, written=3)
    queues.correct_min(300)
    assert queue.min_offset == 3
    assert queue.place(1, 1000, 50, 1)
    assert (queue.min_offset, queue.max_offset) == (1, 2)


def test_an_entry_that_has_another_tag_is_replaced_with_all_behind_it() -> None:
    _, _, queue = filled(5, written=3)
    assert queue.place(3, 300, 100, 77)
    assert all_entries(queue)[3:] == [(300, 100, 77)]


def test_a_gap_is_refused_because_the_entries_would_stand_at_wrong_offsets() -> None:
    _, _, queue = filled(5)
    with pytest.raises(MissingEntriesError, match=r"ends at queue offset 5.*number 7"):
        queue.place(7, 700, 100, 0)


def test_a_queue_that_starts_late_gets_entries_that_nobody_is_served() -> None:
    disk, queues, queue = filled(0)
    queue.place(13, 4000, 100, 7)
    assert (queue.min_offset, queue.max_offset) == (13, 14)
    assert queue.read(12, 1) == b""
    queues.write_behind(EVERYTHING, EVERYTHING)
    blank = ENTRY.pack(0, PRE_BLANK_SIZE, 0)
    assert files_below(disk, "/store/consumequeue") == {
        "/store/consumequeue/t/0/00000000000000000200": blank * 3
        + ENTRY.pack(4000, 100, 7)
        + bytes(6 * 20)
    }
    again = queues_on(disk).simple.get("t", 0)
    assert (again.min_offset, again.max_offset) == (13, 14)


def test_a_queue_without_entries_restarts_where_the_log_does() -> None:
    _, queues, queue = filled(25, written=25)
    queues.correct_min(2500)
    list(queues.expire(EVERYTHING, at_once))
    queues.expect_all(2500)
    queue.place(33, 9000, 100, 1)
    assert (queue.min_offset, queue.max_offset) == (33, 34)
    queue.place(4, 9100, 100, 1)
    assert (queue.min_offset, queue.max_offset) == (4, 5)


@given(st.lists(st.integers(0, 30)), st.integers(0, 25), st.integers(-2, 33))
def test_lookup_by_time_follows_the_boundary(times: list[int], gone: int, time: int) -> None:
    times.sort()
    _, queues, queue = filled(len(times))
    queues.correct_min(gone * 100)
    first = min(gone, len(times))
    kept = times[first:]

    def store_time_of(physical_offset: int, size: int) -> int:
        assert size == 100
        return times[physical_offset // 100]

    lower = queue.offset_by_time(time, Boundary.LOWER, store_time_of)
    upper = queue.offset_by_time(time, Boundary.UPPER, store_time_of)
    assert lower == first + sum(each < time for each in kept)
    assert upper == first + max(0, sum(each <= time for each in kept) - 1)


def test_lookup_by_time_gives_the_first_message_when_a_record_is_unreadable() -> None:
    _, queues, queue = filled(9)
    queues.correct_min(200)
    assert queue.offset_by_time(5, Boundary.LOWER, lambda _at, _size: -1) == 2


def test_a_full_disk_keeps_entries_in_memory_until_there_is_room() -> None:
    disk = SimulatedFileSystem()
    queues = queues_on(disk)
    queue = queues.simple.get("t", 0)
    for n in range(15):
        queue.append(n * 100, 100, n)
    disk.total = 0
    assert not queues.write_behind(EVERYTHING, EVERYTHING)
    assert queues.write_error is not None
    assert queues.write_error.errno == errno.ENOSPC
    assert offsets(queue.read(0, 10)) == list(range(10))
    assert queues.settled_offset == 0
    disk.total = 1 << 30
    assert queues.write_behind(EVERYTHING, EVERYTHING)
    assert queues.write_error is None
    assert offsets(queue.read(0, 10)) == list(range(10))
    assert queues_on(disk).simple.get("t", 0).max_offset == 15


def test_a_failed_sync_is_reported() -> None:
    disk = SimulatedFileSystem()
    queues = queues_on(disk)
    queues.simple.get("t", 0).append(0, 100, 0)
    queues.write_behind(EVERYTHING, EVERYTHING)

    def refuse(operation: Operation) -> None:
        if operation.verb == "sync" and operation.moment is Moment.BEFORE:
            raise OSError(errno.EIO, "refused")

    disk.hook = refuse
    with pytest.raises(OSError, match="refused"):
        queues.take_unsynced().sync()


def test_syncing_what_was_removed_meanwhile_is_no_error() -> None:
    _, queues, _ = filled(5, written=5)
    unsynced = queues.take_unsynced()
    queues.destroy("t")
    unsynced.sync()
    queues.take_unsynced().sync()


def test_a_file_of_another_size_is_named_and_left_alone() -> None:
    disk, queues, _ = filled(25, written=25)
    path = "/store/consumequeue/t/0/00000000000000000200"
    disk.open(path).resize(100)
    queues.close()
    with pytest.raises(StoreFormatError, match=r"0200: 100 bytes.*files of 200 bytes"):
        queues_on(disk).simple.get("t", 0)
    assert disk.open(path).size() == 100


def test_an_empty_last_file_is_one_that_was_not_used_yet() -> None:
    disk, _, _ = filled(10, written=10)
    disk.open("/store/consumequeue/t/0/00000000000000000200", create=True)
    again = queues_on(disk)
    queue = again.simple.get("t", 0)
    assert queue.max_offset == 10
    queue.append(1000, 100, 10)
    assert again.write_behind(EVERYTHING, EVERYTHING)
    assert disk.open("/store/consumequeue/t/0/00000000000000000200").size() == 200


def test_behind_a_torn_entry_nothing_is_trusted() -> None:
    """An entry half in a lost sector reads as a small offset, with the right size."""
    disk, queues, _ = filled(5, written=5)
    file = disk.open("/store/consumequeue/t/0/00000000000000000000")
    file.write(ENTRY.pack(150, 100, 5) + ENTRY.pack(600, 100, 6), 5 * ENTRY.size)
    queues.close()
    again = queues_on(disk, clean=False)
    again.truncate(1000)
    assert again.simple.get("t", 0).max_offset == 5
    assert file.read(200, 5 * ENTRY.size) == bytes(100)


def test_a_torn_entry_behind_a_hole_is_none_though_its_record_may_have_expired() -> None:
    """The torn entry is the first of the next file; those in between were lost with it."""
    disk, queues, _ = filled(3, written=3)
    queues.close()
    disk.make_directories("/store/commitlog")
    disk.open("/store/commitlog/00000000000000004096", create=True).resize(4096)
    file = disk.open("/store/consumequeue/t/0/00000000000000000200", create=True)
    file.write(ENTRY.pack(0, 100, 10), 0)
    again = queues_on(disk, clean=False)
    again.expect_records(Segments(disk, "/store/commitlog", 4096))
    again.truncate(1000)
    assert again.simple.get("t", 0).max_offset == 3
    assert len(files_below(disk, "/store/consumequeue/t/0")) == 1


def test_what_stands_behind_the_listed_end_and_leads_in_front_of_its_record_is_none() -> None:
    """These are old contents of the disk, from a queue whose messages have expired."""
    disk, queues, _ = filled(10, written=10)
    queues.close()
    disk.make_directories("/store/commitlog")
    disk.open("/store/commitlog/00000000000000004096", create=True).resize(4096)
    file = disk.open("/store/consumequeue/t/0/00000000000000000200", create=True)
    for place in range(10):
        file.write(ENTRY.pack(40 * place, 40, 10), place * ENTRY.size)
    again = queues_on(disk, clean=False)
    again.ends.known = {QueueKey(is_batch=False, topic="t", queue_id=0): QueueEnd(10, 900, 10)}
    again.expect_records(Segments(disk, "/store/commitlog", 4096))
    again.truncate(1000)
    assert again.simple.get("t", 0).max_offset == 10
    assert len(files_below(disk, "/store/consumequeue/t/0")) == 1


def test_a_queue_whose_first_file_was_lost_with_its_records_begins_at_its_first_offset() -> None:
    """Of two files, neither synced, a power cut may keep only the name of the second."""
    disk, queues, _ = filled(13, written=13)
    queues.close()
    disk.remove("/store/consumequeue/t/0/00000000000000000000")
    again = queues_on(disk, clean=False)
    again.truncate(0)
    queue = again.simple.get("t", 0)
    assert (queue.min_offset, queue.max_offset, queue.next_offset) == (0, 0, 0)
    assert queue.place(0, 0, 100, 7)
    assert queue.max_offset == 1


def test_a_queue_that_only_has_entries_nobody_is_served_goes_on_where_the_log_does() -> None:
    disk, queues, queue = filled(0)
    queue.place(13, 4000, 100, 7)
    assert queues.write_behind(EVERYTHING, EVERYTHING)
    queues.close()
    again = queues_on(disk, clean=False)
    again.truncate(4000)
    again_queue = again.simple.get("t", 0)
    assert again_queue.max_offset == 0
    with pytest.raises(MissingEntriesError):
        again_queue.place(13, 4000, 100, 7)
    again.expect_all(4000)
    assert again_queue.place(13, 4000, 100, 7)
    assert (again_queue.min_offset, again_queue.max_offset) == (13, 14)


def test_an_expired_file_stays_until_the_next_one_holds_an_entry_that_is_on_the_disk() -> None:
    """Otherwise a power cut may keep the removal but lose what should keep the queue's offset."""
    disk, queues, queue = filled(23, written=23)
    queues.correct_min(2200)
    assert sum(queues.expire(1000, at_once)) == 0
    assert sum(queues.expire(1001, at_once)) == 1
    assert sum(queues.expire(EVERYTHING, at_once)) == 1
    assert (queue.min_offset, queue.max_offset) == (22, 23)
    assert list(files_below(disk, "/store")) == ["/store/consumequeue/t/0/00000000000000000400"]


def test_a_gap_in_the_log_itself_is_refused_even_when_it_is_read_from_its_first() -> None:
    _, queues, queue = filled(3)
    queues.expect_all(0)
    assert queue.place(0, 0, 100, 0)
    with pytest.raises(MissingEntriesError, match=r"t/0 ends at queue offset 1.*number 7"):
        queue.place(7, 700, 100, 7)


def test_a_queue_without_a_record_keeps_its_offset_when_the_log_is_read_from_its_first() -> None:
    _, queues, queue = filled(5, written=5)
    queues.correct_min(9000)
    queues.expect_all(9000)
    assert (queue.min_offset, queue.max_offset) == (5, 5)
    assert queue.place(8, 9000, 100, 0)
    assert (queue.min_offset, queue.max_offset) == (8, 9)


def test_a_front_file_that_is_gone_already_does_not_stop_expiry() -> None:
    """A power cut may undo the removal of one file but not that of the next."""
    disk, queues, queue = filled(35, written=35)
    disk.remove("/store/consumequeue/t/0/00000000000000000200")
    queues.correct_min(3100)
    assert sum(queues.expire(EVERYTHING, at_once)) == 3
    assert queue.min_offset == 31
    assert list(files_below(disk, "/store")) == ["/store/consumequeue/t/0/00000000000000000600"]


@pytest.mark.parametrize("is_loaded", [True, False])
def test_where_the_log_is_read_for_a_queue_that_lost_its_first_file_it_begins_with_the_log(
    is_loaded: bool,
) -> None:
    disk, queues, _ = filled(25, written=25)
    queues.take_unsynced().sync()
    queues.ends.is_whole = True
    queues.take_ends()()
    disk.remove("/store/consumequeue/t/0/" + "0" * 20)
    queues = queues_on(disk, clean=False)
    queues.ends.known = load_queue_ends(disk, "/store") or {}
    queues.correct_min(300)
    if is_loaded:
        queue = queues.simple.get("t", 0)
        assert (queue.min_offset, queue.read(3, 1)) == (0, b"")
    queues.ends.known = {}  # As `forget_cut` leaves it.
    queues.expect_all(300)
    queue = queues.simple.get("t", 0)
    for n in range(3, 25):
        queue.place(n, n * 100, 100, n)
    assert queue.min_offset == 3
    assert offsets(queue.read(3, 99)) == list(range(3, 25))
