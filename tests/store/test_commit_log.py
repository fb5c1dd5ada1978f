"""Appending turns, each wholly or not at all, and what a failing disk must not leave."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from tests.crash.content import BLOCK
from tests.crash.disk import Moment, Operation, Partial, SimulatedFileSystem
from tests.store.records import record, refuse

from cometmq.proto.message import read_message
from cometmq.store.disk.cold import Cold, fetch
from cometmq.store.disk.sync import Syncer
from cometmq.store.errors import StoreNotWriteableError, SyncFailedError
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.log.log_scan import LogScan
from cometmq.store.log.record_search import data_end
from cometmq.store.log.segments import Segments
from cometmq.store.log.turn import Turn

SIZE = 4096
LOG = "/s/commitlog"


class Log:
    """A log on a simulated disk, and what a test does with it."""

    def __init__(self, *, hot_size: int = 1 << 20, maps_warm: bool = True) -> None:
        self.disk = SimulatedFileSystem()
        self.disk.make_directories(LOG)
        self.segments = Segments(self.disk, LOG, SIZE)
        self.syncer = Syncer(0, note=list[int]().append, on_change=lambda: None)
        self.log = CommitLog(self.segments, self.syncer, 0, hot_size=hot_size, maps_warm=maps_warm)

    def turn(self, *bodies: bytes) -> Turn:
        turn = Turn(self.log.end_offset, SIZE)
        for body in bodies:
            place = turn.place(len(record(0, body)))
            data = record(place, body)
            turn.add(place, len(data), [data])
        return turn

    def put(self, *bodies: bytes) -> None:
        self.log.append(self.turn(*bodies))

    def bodies(self) -> list[bytes]:
        scan = LogScan(self.segments, 0)
        found = [message.body for message in scan]
        assert scan.problem is None
        assert scan.end_offset == self.log.end_offset
        assert data_end(self.segments, scan.end_offset) == scan.end_offset
        return found


def test_the_records_of_a_turn_are_written_at_once_and_read_back() -> None:
    log = Log()
    log.put(b"one", b"two")
    before = log.disk.operations
    log.put(b"three", b"four", b"five")
    assert log.disk.operations - before == 1
    assert log.bodies() == [b"one", b"two", b"three", b"four", b"five"]


def test_a_record_that_does_not_fit_goes_to_the_next_segment_behind_a_blank_one() -> None:
    log = Log()
    body = b"x" * 1200
    log.put(*[body] * 5)
    log.put(*[body] * 5)
    assert [segment.start for segment in log.segments] == [0, SIZE, 2 * SIZE, 3 * SIZE]
    assert log.bodies() == [body] * 10
    first = log.segments.file(next(iter(log.segments))).read(SIZE, 0)
    used = 3 * len(record(0, body))
    assert first[used : used + 8] == (SIZE - used).to_bytes(4, "big") + b"\xcb\xd4\x31\x94"
    assert not any(first[used + 8 :])


def test_a_record_needs_eight_bytes_more_than_itself() -> None:
    overhead = len(record(0, b""))
    fits = Log()
    fits.put(b"x" * (SIZE - overhead - 8))
    assert len(fits.segments) == 1
    fits.put(b"y")
    assert fits.bodies() == [b"x" * (SIZE - overhead - 8), b"y"]
    rolls = Log()
    rolls.put(b"a")
    rolls.put(b"x" * (SIZE - 2 * overhead - 1 - 7))
    assert len(rolls.segments) == 2


def test_a_full_disk_refuses_the_turn_that_needs_a_segment_and_nothing_of_it_stays() -> None:
    log = Log()
    body = b"x" * 1200
    log.put(*[body] * 3)
    total = log.disk.total
    log.disk.total = total - log.disk.space("/").free
    with pytest.raises(StoreNotWriteableError, match="the disk is full"):
        log.put(body, body)
    assert log.bodies() == [body] * 3
    log.disk.total = total
    log.put(b"again")
    assert log.bodies() == [body] * 3 + [b"again"]


@pytest.mark.parametrize("written", [0, 1, 8, 91, 100, 250])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_what_a_failed_write_left_is_erased_before_the_turn_is_refused(
    written: int, code: int
) -> None:
    log = Log()
    log.put(b"before")
    log.disk.hook = refuse("write", code=code, partial=written)
    with pytest.raises(StoreNotWriteableError):
        log.put(b"lost 1", b"lost 2", b"lost 3")
    assert log.bodies() == [b"before"]
    log.put(b"after")
    assert log.bodies() == [b"before", b"after"]


@pytest.mark.parametrize("number", [1, 2])
def test_a_turn_over_two_segments_is_refused_as_a_whole(number: int) -> None:
    log = Log()
    body = b"x" * 1200
    log.put(body, body)
    log.segments.obtain(SIZE)
    left = number

    def hook(operation: Operation) -> None:
        nonlocal left
        if operation.verb == "write" and operation.moment is Moment.BEFORE:
            left -= 1
            if left == 0:
                raise Partial(700, OSError(errno.EIO, "refused"))

    log.disk.hook = hook
    with pytest.raises(StoreNotWriteableError, match="failed a write"):
        log.put(body, body, body)
    log.disk.hook = None
    assert log.bodies() == [body] * 2
    log.put(body, body)
    assert log.bodies() == [body] * 4


def test_while_what_was_refused_cannot_be_erased_nothing_is_written() -> None:
    log = Log()
    log.put(b"before")
    log.disk.hook = refuse("write", partial=300, times=3)
    for _ in range(2):
        with pytest.raises(StoreNotWriteableError):
            log.put(b"lost 1", b"lost 2", b"lost 3")
    log.put(b"after")
    assert log.bodies() == [b"before", b"after"]


def test_what_could_not_be_erased_at_once_is_erased_in_front_of_the_next_turn() -> None:
    log = Log()
    log.put(b"before")
    left = [Partial(written, OSError(errno.EIO, "refused")) for written in (0, 300)]

    def hook(operation: Operation) -> None:
        if operation.verb == "write" and operation.moment is Moment.BEFORE and left:
            raise left.pop()

    log.disk.hook = hook
    with pytest.raises(StoreNotWriteableError):
        log.put(b"lost 1", b"lost 2", b"lost 3")
    log.put(b"after")
    assert log.bodies() == [b"before", b"after"]


def test_when_the_erasing_cannot_be_synced_it_is_final() -> None:
    log = Log()
    log.put(b"before")
    writes = 0

    def hook(operation: Operation) -> None:
        nonlocal writes
        if operation.moment is Moment.BEFORE and operation.verb == "write":
            writes += 1
            if writes == 1:
                raise Partial(300, OSError(errno.EIO, "refused"))
        elif operation.verb == "sync":
            raise OSError(errno.EIO, "refused")

    log.disk.hook = hook
    with pytest.raises(SyncFailedError):
        log.put(b"lost 1", b"lost 2", b"lost 3")
    assert log.syncer.failure is not None


def test_a_sparse_segment_of_another_program_is_given_its_blocks_before_it_is_written() -> None:
    log, size, path = Log(), 2 * BLOCK, f"{LOG}/{0:020d}"
    file = log.disk.open(path, create=True)
    file.resize(size)
    file.close()
    log = _reopened(log, size)
    log.disk.total = log.disk.total - log.disk.space("/").free + BLOCK
    with pytest.raises(StoreNotWriteableError, match="the disk is full"):
        log.put(b"x")  # There would be room for this one, but not for all that follow.
    log.disk.total += 1 << 20
    log.put(b"x")
    assert log.bodies() == [b"x"]
    assert log.disk.room_of(path) == size


def _reopened(log: Log, size: int) -> Log:
    log.segments = Segments(log.disk, LOG, size)
    log.log = CommitLog(log.segments, log.syncer, 0, hot_size=1 << 20)
    return log


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        (memoryview, {"hot_size": 1 << 20}),
        (memoryview, {"hot_size": 0}),
        (bytes, {"hot_size": 0, "maps_warm": False}),
    ],
)
def test_what_is_hot_or_in_memory_comes_from_the_map_and_what_may_not_be_mapped_is_copied(
    kind: type[bytes | memoryview], how: Any
) -> None:
    log = Log(**how)
    log.put(b"body")
    size = log.log.end_offset
    found = log.log.find(0, size)
    assert isinstance(found, kind)
    assert read_message(bytes(found)).body == b"body"
    assert log.log.find(SIZE, 1) is None


def test_what_was_in_memory_is_asked_for_again_after_a_moment() -> None:
    log = Log(hot_size=0)
    log.put(b"body")
    size = log.log.end_offset
    assert isinstance(log.log.find(0, size), memoryview)
    log.disk.is_cold = True
    assert isinstance(log.log.find(0, size), memoryview)
    log.log.forget_warm()
    assert log.log.find(0, size) == Cold(f"{LOG}/{0:020d}", 0, size, 0)


def test_what_only_the_disk_has_is_fetched_by_whoever_can_wait() -> None:
    disk = SimulatedFileSystem()
    file = disk.open("/f", create=True)
    file.write(b"0123456789", 0)
    assert fetch(disk, Cold("/f", 2, 3, 2)) == b"234"
    assert fetch(disk, Cold("/gone", 2, 3, 2)) == b""
