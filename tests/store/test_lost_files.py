"""It is noticed if a queue lost entries with a file, or with bytes of one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.crash.disk import SimulatedFileSystem
from tests.store.damaged_stores import (
    BATCHES,
    ROOT,
    SMALL,
    open_small_store,
    small_store,
)
from tests.store.records import HOST, messages_in

from cometmq.store.errors import CorruptionError
from cometmq.store.log.turn import Origin
from cometmq.store.looking.inspection import inspect
from cometmq.store.looking.store_reader import StoreReader
from cometmq.store.mending.rebuilding import Rebuilt, rebuild
from cometmq.store.message_store import MessageStore
from cometmq.store.messages.reading import ReadResult

CONFIG = replace(SMALL, consume_queue_file_size=5 * 20, batch_consume_queue_file_size=2 * 46)
FIRST = f"{ROOT}/consumequeue/T/0/{0:020d}"
FIRST_OF_BATCHES = f"{ROOT}/batchconsumequeue/{BATCHES}/0/{0:020d}"
SECOND = f"{ROOT}/consumequeue/T/0/{5 * 20:020d}"
SECOND_OF_BATCHES = f"{ROOT}/batchconsumequeue/{BATCHES}/0/{2 * 46:020d}"
AGAIN = "`cometmq store rebuild` rebuilds the queue"


def opened(disk: SimulatedFileSystem) -> MessageStore:
    return open_small_store(disk, CONFIG)


def read(store: MessageStore, queue_offset: int, *, in_bulk: bool) -> ReadResult:
    if in_bulk:
        return store.reader.in_bulk.read("T", 0, queue_offset, queue_offset + 32, 1 << 20)
    return store.read("T", 0, queue_offset, 32)


@pytest.mark.parametrize("in_bulk", [False, True], ids=["pull", "bulk"])
@pytest.mark.parametrize(
    ("size", "problem", "entries"),
    [(None, "missing", 0), (0, "too short", 0), (50, "too short", 2), (99, "too short", 4)],
)
def test_what_a_lost_file_had_is_an_error_and_the_rest_is_read(
    size: int | None, problem: str, entries: int, in_bulk: bool
) -> None:
    store = opened(small_store(CONFIG))
    expected = [read(store, offset, in_bulk=in_bulk) for offset in range(20)]
    disk = small_store(CONFIG)
    if size is None:
        disk.remove(SECOND)
    else:
        disk.open(f"{ROOT}/abort", create=True).close()  # After a clean stop it would be refused.
        disk.open(SECOND).resize(size)
    store = opened(disk)
    assert store.max_offset("T", 0) == 20
    for offset in range(5 + entries, 10):
        with pytest.raises(CorruptionError, match=f"{SECOND}: .* is {problem}; {AGAIN}"):
            read(store, offset, in_bulk=in_bulk)
    for offset in (*range(5), *range(10, 20)):
        assert read(store, offset, in_bulk=in_bulk) == expected[offset]
    for offset in range(5, 5 + entries):
        result = read(store, offset, in_bulk=in_bulk)
        assert result.next_begin_offset == 5 + entries
        assert [m.queue_offset for m in messages_in(result.slices)] == [*range(offset, 5 + entries)]
    assert store.read("T", 1, 0, 32).record_count == 5


@pytest.mark.parametrize("in_bulk", [False, True], ids=["pull", "bulk"])
@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("paths", [[FIRST], [FIRST, SECOND]])
def test_what_the_first_files_had_does_not_pass_for_expired(
    paths: list[str], is_clean: bool, in_bulk: bool
) -> None:
    disk = small_store(CONFIG)
    for path in paths:
        disk.remove(path)
    if not is_clean:
        disk.open(f"{ROOT}/abort", create=True).close()
    store = opened(disk)
    assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (0, 20)
    for offset in range(5 * len(paths)):
        with pytest.raises(CorruptionError, match=f"{FIRST}: .* is missing; {AGAIN}|{SECOND}: "):
            read(store, offset, in_bulk=in_bulk)
    for offset in range(5 * len(paths), 20):
        assert read(store, offset, in_bulk=in_bulk).slices
    for _ in range(10):
        store.put("T", 0, b"behind", b"", Origin(1, 1, HOST))
    store.commit()
    store.run_jobs()
    store.advance()
    assert store.close(1_700_000_200_000)
    store = opened(disk)
    assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (0, 30)
    with pytest.raises(CorruptionError, match=AGAIN):
        read(store, 0, in_bulk=in_bulk)
    assert store.close(1_700_000_300_000)
    for _ in rebuild(inspect(disk, ROOT, CONFIG), Rebuilt(), 1):
        pass
    store = opened(disk)
    for offset in range(30):
        assert read(store, offset, in_bulk=in_bulk).slices


def test_what_a_batch_queues_first_file_had_does_not_pass_for_expired() -> None:
    disk = small_store(CONFIG)
    disk.remove(FIRST_OF_BATCHES)
    store = opened(disk)
    assert store.max_offset(BATCHES, 0) == 16
    for offset in range(4):
        with pytest.raises(CorruptionError, match=f"{FIRST_OF_BATCHES}: .* is missing; {AGAIN}"):
            store.read(BATCHES, 0, offset, 32)
    assert store.read(BATCHES, 0, 4, 32).record_count == 2


def test_a_batch_queue_does_not_pass_over_a_lost_file() -> None:
    disk = small_store(CONFIG)
    disk.remove(SECOND_OF_BATCHES)
    store = opened(disk)
    assert store.max_offset(BATCHES, 0) == 16
    for offset in range(4, 8):
        with pytest.raises(CorruptionError, match=f"{SECOND_OF_BATCHES}: .* is missing; {AGAIN}"):
            store.read(BATCHES, 0, offset, 32)
    assert store.read(BATCHES, 0, 8, 32).record_count == 2


def test_files_that_expired_for_another_process_are_no_loss() -> None:
    disk = small_store(CONFIG)
    reader = StoreReader(ROOT, CONFIG, filesystem=disk)
    assert reader.min_offset("T", 0) == 0
    for number in range(2):
        disk.remove(f"{ROOT}/consumequeue/T/0/{number * 100:020d}")
    assert reader.read("T", 0, 0, 32).next_begin_offset == 5
    reader.close()
