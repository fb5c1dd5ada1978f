"""Zeros ahead of the records: never over a record, never a send's work; their sync counts."""

from __future__ import annotations

import errno
from random import Random
from threading import Thread

import pytest
from tests.crash.disk import Moment, Operation, SimulatedFileSystem
from tests.store.records import record, refuse

from cometmq.store.config import Flush, StoreConfig
from cometmq.store.disk.sync import Syncer
from cometmq.store.errors import StoreNotWriteableError
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.log.segments import Segments
from cometmq.store.log.turn import Origin, Turn
from cometmq.store.log.zero_ahead import ZeroAhead
from cometmq.store.message_store import MessageStore

PAGE = 4096
SIZE = 16 * PAGE
LOG = "/s/commitlog"


class Filled:
    """A log with zeros ahead, on a simulated disk that notes where something is written."""

    def __init__(self, ahead: int = 8 * PAGE) -> None:
        self.disk = SimulatedFileSystem()
        self.disk.make_directories(LOG)
        self.segments = Segments(self.disk, LOG, SIZE)
        self.syncer = Syncer(0, note=list[int]().append, on_change=lambda: None)
        self.zeros = ZeroAhead(self.disk, self.syncer, ahead)
        self.log = CommitLog(self.segments, self.syncer, 0, hot_size=SIZE, zeros=self.zeros)
        self.bodies: list[bytes] = []

    def put(self, *bodies: bytes) -> None:
        turn = Turn(self.log.end_offset, SIZE)
        for body in bodies:
            place = turn.place(len(record(0, body)))
            data = record(place, body)
            turn.add(place, len(data), [data])
        self.log.append(turn)
        self.bodies += bodies

    def writes_of_a_step(self) -> int:
        before = self.disk.operations
        self.zeros.step()
        return self.disk.operations - before

    def log_bytes(self) -> bytes:
        return b"".join(bytes(self.segments.view(segment)) for segment in self.segments)


def test_so_many_bytes_behind_the_end_are_filled_and_synced_a_piece_at_a_time() -> None:
    filled = Filled()
    filled.put(b"first")
    assert filled.writes_of_a_step() == 2 * 8  # A write and a sync for each page here.
    assert filled.writes_of_a_step() == 0
    assert filled.zeros.asks_at == 9 * PAGE - 7 * PAGE
    filled.put(b"x" * 2 * PAGE)
    assert filled.writes_of_a_step() == 2 * 2


def test_nothing_is_filled_behind_the_end_of_a_segment() -> None:
    filled = Filled(ahead=100 * PAGE)
    filled.put(b"first")
    filled.zeros.step()
    assert filled.zeros.asks_at == SIZE
    assert filled.writes_of_a_step() == 0
    filled.put(b"x" * 10 * PAGE)
    filled.put(b"y" * 10 * PAGE)
    filled.zeros.step()
    assert [segment.start for segment in filled.segments] == [0, SIZE]
    assert filled.zeros.asks_at == 2 * SIZE


@pytest.mark.parametrize("seed", range(30))
def test_whatever_is_put_and_filled_the_log_holds_what_was_put(seed: int) -> None:
    random = Random(seed)
    filled = Filled(ahead=random.choice((PAGE, 3 * PAGE, 8 * PAGE, 40 * PAGE)))
    plain = Filled()
    for _ in range(80):
        body = random.randbytes(random.choice((10, 1000, 5000, 3 * PAGE)))
        filled.put(body)
        plain.put(body)
        if random.random() < 0.5:
            filled.zeros.step()
    assert filled.log_bytes() == plain.log_bytes()


def test_a_turn_that_catches_up_waits_for_the_piece_that_is_being_written() -> None:
    filled = Filled()
    filled.put(b"first")
    writer = Thread(target=filled.zeros.make_way, args=(2 * PAGE,))

    def catch_up(operation: Operation) -> None:
        if operation.verb == "write" and operation.moment is Moment.BEFORE:
            filled.disk.hook = None
            writer.start()
            writer.join(0.05)
            assert writer.is_alive()

    filled.disk.hook = catch_up
    filled.zeros.step()
    writer.join()


def test_a_turn_in_front_of_the_piece_that_is_being_written_does_not_wait() -> None:
    filled = Filled()
    filled.put(b"first")
    inside: list[int] = []

    def put_meanwhile(operation: Operation) -> None:
        if operation.verb == "write" and operation.moment is Moment.BEFORE and not inside:
            inside.append(1)
            filled.put(b"meanwhile")  # In the thread that holds the lock: it would wait for ever.

    filled.disk.hook = put_meanwhile
    filled.zeros.step()
    filled.put(b"last")
    assert inside
    assert filled.log_bytes().count(b"meanwhile") == 1


def test_zeros_that_cannot_be_written_are_nobody_elses_business() -> None:
    filled = Filled()
    filled.put(b"first")
    filled.disk.hook = refuse("write", code=errno.ENOSPC, partial=100)
    filled.zeros.step()
    filled.disk.hook = None
    assert filled.syncer.failure is None
    filled.put(b"x" * 10 * PAGE)
    assert filled.writes_of_a_step() == 0  # Not in this segment any more,
    filled.put(b"x" * 10 * PAGE)
    assert filled.writes_of_a_step() > 0  # but in the next one.
    filled.zeros.make_way(filled.log.end_offset)


def test_a_file_that_cannot_be_opened_once_more_is_not_filled() -> None:
    filled = Filled()
    filled.put(b"first")
    filled.disk.read_only = True
    filled.zeros.step()
    filled.disk.read_only = False
    assert filled.syncer.failure is None
    filled.put(b"second")


def test_a_sync_of_zeros_that_fails_is_final() -> None:
    filled = Filled()
    filled.put(b"first")
    filled.disk.hook = refuse("sync")
    filled.zeros.step()
    assert filled.syncer.failure is not None
    filled.disk.hook = None
    filled.syncer.request(filled.log.end_offset)
    filled.syncer.step()
    assert filled.syncer.synced_offset == 0  # It would seem to work, without the lost pages.
    assert filled.writes_of_a_step() == 0


def test_after_a_refused_turn_the_segment_before_goes_on_without_zeros_where_others_are() -> None:
    filled = Filled()
    filled.put(b"x" * 10 * PAGE)
    filled.disk.hook = refuse("write")
    with pytest.raises(StoreNotWriteableError):
        filled.put(b"y" * 10 * PAGE)
    filled.disk.hook = None
    filled.zeros.step()
    filled.put(b"z")
    filled.zeros.step()
    filled.put(b"w" * 10 * PAGE)
    filled.zeros.step()
    data = filled.log_bytes()
    assert data.count(b"x") >= 10 * PAGE
    assert b"y" not in data
    assert data.count(b"w") >= 10 * PAGE


@pytest.mark.parametrize(
    ("flush", "size", "fills"),
    [(Flush.SYNC, 4096, True), (Flush.SYNC, 0, False), (Flush.ASYNC, 4096, False)],
)
def test_a_store_fills_only_while_sends_wait_for_a_sync(
    flush: Flush, size: int, *, fills: bool
) -> None:
    disk = SimulatedFileSystem()
    config = StoreConfig(segment_size=SIZE, flush=flush, zero_ahead_size=size)
    store = MessageStore.open("/s", config, now_ms=1, filesystem=disk, threads=False)
    store.put("T", 0, b"body", b"", Origin(1, 1, config.store_host))
    end = store.commit()
    wrote: list[str] = []

    def note(operation: Operation) -> None:
        if operation.verb == "write" and operation.moment is Moment.BEFORE:
            wrote.append(operation.path.split("/")[2])

    disk.hook = note
    store.run_jobs()
    assert ("commitlog" in wrote) is fills
    if flush is Flush.SYNC:
        assert store.advance() == end
    disk.hook = None
    assert store.close(1)
    again = MessageStore.open("/s", config, now_ms=1, filesystem=disk, threads=False)
    assert again.end_offset == end
    again.close(1)
