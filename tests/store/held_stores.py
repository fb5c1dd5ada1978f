"""A store with long queues on a simulated disk, and ways to damage and to mend it.

The tests of lost and damaged queues begin with such a store, and damage one of `QUEUES` in it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.crash.disk import Killed, Operation, SimulatedFileSystem
from tests.store.damaged_stores import files_of, overwrite, repaired
from tests.store.records import HOST, messages_in

from cometmq.store.config import StoreConfig
from cometmq.store.log.turn import Origin
from cometmq.store.looking.inspection import inspect
from cometmq.store.mending import rebuilding
from cometmq.store.mending.repair_plan import Plan
from cometmq.store.message_store import MessageStore

ROOT = "/s"
BATCHES = "Batches"
SIMPLE_QUEUE = f"{ROOT}/consumequeue/T/0"
BATCH_QUEUE = f"{ROOT}/batchconsumequeue/{BATCHES}/0"
QUEUES = [("T", SIMPLE_QUEUE, 20), (BATCHES, BATCH_QUEUE, 46)]
"""Their topics, folders and sizes of an entry."""
ENTRIES_OF_A_FILE = 40
CONFIG = StoreConfig(
    segment_size=8192,
    consume_queue_file_size=ENTRIES_OF_A_FILE * 20,
    batch_consume_queue_file_size=ENTRIES_OF_A_FILE * 46,
    index_slots=16,
    index_items=4096,
    checkpoint_interval_ms=1,
    disk_used_percent_force=100,
    disk_used_percent_max=100,
)
RARE = replace(CONFIG, checkpoint_interval_ms=100_000)
ENTRY_SIZES = {"T": 20, BATCHES: 46}
MESSAGES = 110
"""In each queue: two full files and a half."""
TAIL = 12
"""Messages after the last checkpoint, see `killed`."""


class Held:
    """A store on a simulated disk, with messages in an ordinary queue and in one of batches."""

    def __init__(self) -> None:
        self.disk = SimulatedFileSystem()
        self.now_ms = 1000
        self.store = self.opened()
        for number in range(MESSAGES):
            self.put(b"T%d" % number)
            self.put(b"O%d" % number, topic="Other")
            self.put(b"B%d" % number, topic=BATCHES)

    def opened(self, config: StoreConfig = CONFIG) -> MessageStore:
        """Open the store; the topics do not say which of them are ordinary ones."""
        self.now_ms += 1000
        self.store = MessageStore.open(
            ROOT,
            config,
            now_ms=self.now_ms,
            filesystem=self.disk,
            is_batch_topic=lambda topic: topic == BATCHES or None,
            threads=False,
        )
        return self.store

    def put(self, body: bytes, topic: str = "T") -> int:
        self.now_ms += 1
        put = self.store.put(topic, 0, body, b"", Origin(self.now_ms, self.now_ms, HOST))
        self.store.commit()
        self.store.run_jobs()
        self.store.advance()
        return put.queue_offset

    def stop(self, *, clean: bool) -> None:
        """End the process, cleanly or some time after its last checkpoint."""
        if clean:
            assert self.store.close(self.now_ms)
            return
        for _ in range(8):
            self.now_ms += 1000
            self.store.tick(self.now_ms)
            self.store.run_jobs()
        self.disk = self.disk.kill()

    def bodies(self, topic: str = "T") -> list[bytes]:
        return bodies(self.store, topic)


def bodies(store: MessageStore, topic: str = "T") -> list[bytes]:
    found: list[bytes] = []
    offset = store.min_offset(topic, 0)
    while offset < store.max_offset(topic, 0):
        result = store.read(topic, 0, offset, 32)
        found += [message.body for message in messages_in(result.slices)]
        offset = result.next_begin_offset
    return found


def expected(topic: str) -> list[bytes]:
    return [b"%c%d" % (topic[0].encode(), number) for number in range(MESSAGES)]


def upkeep(held: Held, seconds: int = 20) -> None:
    for _ in range(seconds):
        held.now_ms += 1000
        while held.store.tick(held.now_ms):
            held.store.run_jobs()
        held.store.run_jobs()


def killed(topic: str, tail: int = TAIL) -> Held:
    """A killed store with records of a queue after its last checkpoint."""
    held = Held()
    held.stop(clean=False)
    held.opened(RARE)
    for number in range(tail):
        held.put(b"%c%d" % (topic[0].encode(), MESSAGES + number), topic)
    held.put(b"last", "Other")
    held.disk = held.disk.kill()
    return held


def kill_behind_the_list(held: Held) -> None:
    """Kill it when the list of the queues' ends is written, but not yet the checkpoint."""

    def kill(operation: Operation) -> None:
        if operation.path.endswith("/checkpoint.new"):
            raise Killed(operation)

    held.disk.hook = kill
    with pytest.raises(Killed):
        held.stop(clean=False)
    held.disk.hook = None
    held.disk = held.disk.kill()


# Mending


def rebuild(held: Held) -> rebuilding.Rebuilt:
    store, done = inspect(held.disk, ROOT, CONFIG), rebuilding.Rebuilt()
    for _ in rebuilding.rebuild(store, done, held.now_ms):
        pass
    return done


def repair(held: Held, *, cut: bool) -> Plan:
    return repaired(held.disk, ROOT, CONFIG, cut=cut)


# Damages


def remove_all(disk: SimulatedFileSystem, queue: str) -> None:
    for path in list(files_of(disk, queue)):
        disk.remove(path)
    disk.remove_directory(queue)


def remove_last(disk: SimulatedFileSystem, queue: str) -> None:
    disk.remove(list(files_of(disk, queue))[-1])


def drop_segments(held: Held, count: int) -> None:
    """Let the first segments of the log expire while nobody has it open."""
    for path in list(files_of(held.disk, f"{ROOT}/commitlog"))[:count]:
        held.disk.remove(path)


def blank(held: Held, queue: str, entry_size: int, first: int, behind: int) -> None:
    """Overwrite some entries of a queue with zeros."""
    for index in range(first, behind):
        number, place = divmod(index, ENTRIES_OF_A_FILE)
        path = list(files_of(held.disk, queue))[number]
        overwrite(held.disk, path, place * entry_size, bytes(entry_size))


def hole(held: Held, queue: str, entry_size: int) -> None:
    blank(held, queue, entry_size, 85, MESSAGES - 1)


def too_short(held: Held, queue: str, entry_size: int) -> None:
    held.disk.open(next(iter(files_of(held.disk, queue)))).resize(7 * entry_size)


def too_long(held: Held, queue: str, entry_size: int) -> None:
    held.disk.open(next(iter(files_of(held.disk, queue)))).resize(100_000)


def behind_the_end(held: Held, queue: str, entry_size: int) -> None:
    overwrite(held.disk, list(files_of(held.disk, queue))[-1], 32 * entry_size, b"garbage")
