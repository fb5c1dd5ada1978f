"""Entries wait in memory for a while, never more of them than the settings allow."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.crash.disk import SimulatedFileSystem
from tests.store.records import HOST

from cometmq.store.config import Flush, StoreConfig
from cometmq.store.errors import StoreBusyError
from cometmq.store.log.turn import Origin
from cometmq.store.message_store import MessageStore

CONFIG = StoreConfig(
    segment_size=1 << 20,
    consume_queue_file_size=200,
    index=False,
    flush=Flush.ASYNC,
    consume_queue_unwritten_size_max=20 * 1000,
)


class Busy:
    """A store with puts to many queues."""

    def __init__(self, config: StoreConfig = CONFIG) -> None:
        self.disk = SimulatedFileSystem()
        self.store = MessageStore.open("/s", config, now_ms=1, filesystem=self.disk, threads=False)
        self.now_ms = 1

    def put(self, queues: int) -> None:
        for queue_id in range(queues):
            self.store.put("T", queue_id, b"", b"", Origin(self.now_ms, self.now_ms, HOST))
        self.store.commit()

    def tick(self) -> None:
        self.now_ms += 1
        self.store.tick(self.now_ms)
        self.store.run_jobs()

    def written(self) -> int:
        """How many queues have a file."""
        return len(self.disk.list("/s/consumequeue/T"))


def test_entries_wait_for_their_interval() -> None:
    busy = Busy()
    busy.put(500)
    for _ in range(50):
        busy.tick()
    assert busy.written() == 0
    busy.now_ms += CONFIG.consume_queue_write_interval_ms
    for _ in range(20):
        busy.tick()
    assert busy.written() == 500


def test_when_half_of_what_may_wait_does_they_are_written_at_once() -> None:
    busy = Busy()
    busy.put(501)
    for _ in range(2):
        busy.tick()
    assert busy.written() == 501
    busy.put(499)
    for _ in range(50):
        busy.tick()
    assert busy.written() == 501, "what is written does not count any more"


def test_when_more_wait_than_may_puts_are_refused_until_some_are_written() -> None:
    busy = Busy()
    busy.put(1001)
    busy.tick()
    assert busy.written() == 256
    with pytest.raises(StoreBusyError, match=r"20020 bytes of ConsumeQueue entries wait.*20000"):
        busy.put(1)
    for _ in range(4):
        busy.tick()
    busy.put(1)
    assert busy.store.max_offset("T", 0) == 2


def test_entries_in_front_of_a_checkpoint_are_written_at_once() -> None:
    busy = Busy(replace(CONFIG, checkpoint_bytes=10_000))
    busy.put(200)
    for _ in range(10):
        busy.tick()
    assert busy.written() == 200
