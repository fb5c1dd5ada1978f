"""Reading a store that another process has open, that was killed, or that was shut down."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.crash.disk import SimulatedFileSystem
from tests.store.records import HOST, messages_in

from cometmq.proto.sysflag import SysFlag
from cometmq.store.config import Flush, StoreConfig
from cometmq.store.errors import NotAStoreError
from cometmq.store.log.turn import Origin
from cometmq.store.looking.store_reader import StoreReader
from cometmq.store.message_store import MessageStore
from cometmq.store.messages.reading import ReadStatus
from cometmq.store.queues.consume_queue import Boundary

if TYPE_CHECKING:
    from tests.crash.disk import Operation

ROOT = "/s"
CONFIG = StoreConfig(
    segment_size=8192,
    consume_queue_file_size=20 * 10,
    batch_consume_queue_file_size=46 * 5,
    index_slots=16,
    index_items=300,
    flush=Flush.ASYNC,
    retention_size_max=4 * 8192,
    checkpoint_bytes=8192,
)


class Broker:
    """A store that is written while others read it."""

    def __init__(self, config: StoreConfig = CONFIG) -> None:
        self.disk = SimulatedFileSystem()
        self.now_ms = 1_700_000_000_000
        self.count = 0
        self.store = MessageStore.open(
            ROOT,
            config,
            now_ms=self.now_ms,
            filesystem=self.disk,
            is_batch_topic=lambda topic: topic == "Batches",
            threads=False,
        )

    def put(self, count: int) -> None:
        for _ in range(count):
            self.count += 1
            body = b"%06d" % self.count * 20
            self.store.put("T", 1, body, b"", Origin(self.now_ms, self.now_ms, HOST))
            origin = Origin(self.now_ms, self.now_ms, HOST, int(SysFlag.INNER_BATCH))
            self.store.put("Batches", 0, body, b"INNER_NUM\x013\x02", origin)
            self.store.commit()

    def upkeep(self, seconds: int = 3) -> None:
        for _ in range(seconds):
            self.now_ms += 1000
            while self.store.tick(self.now_ms):
                self.store.run_jobs()
            self.store.run_jobs()


def read_only(disk: SimulatedFileSystem) -> SimulatedFileSystem:
    """The disk as seen by another process that may not change it."""

    def refuse(operation: Operation) -> None:
        raise AssertionError(operation)

    other = disk.other_process()
    other.hook = refuse
    return other


def numbers(reader: StoreReader, topic: str, queue_id: int) -> list[int]:
    found: list[int] = []
    offset = reader.min_offset(topic, queue_id)
    while offset < reader.max_offset(topic, queue_id):
        result = reader.read(topic, queue_id, offset, 8)
        assert result.status is ReadStatus.FOUND
        found += [int(message.body[:6]) for message in messages_in(result.slices)]
        offset = result.next_begin_offset
    return found


def test_a_store_in_use_is_read_without_a_lock_and_without_changing_a_byte() -> None:
    broker = Broker()
    broker.put(30)
    broker.upkeep()
    reader = StoreReader(ROOT, filesystem=read_only(broker.disk))
    broker.disk.hook = None
    assert reader.opened_by is not None
    assert (reader.topics(), reader.queues("T")) == (["Batches", "T"], [1])
    assert numbers(reader, "T", 1) == list(range(1, 31))
    assert numbers(reader, "Batches", 0) == list(range(1, 31))
    assert reader.max_offset("Batches", 0) == 90
    broker.put(5)
    broker.upkeep()
    assert reader.max_offset("T", 1) == 30
    reader.refresh()
    assert numbers(reader, "T", 1) == list(range(1, 36))
    reader.close()


def test_segments_that_go_and_come_while_it_reads_are_noticed() -> None:
    broker = Broker()
    broker.put(10)  # Too little for a checkpoint, which would write the queues.
    broker.upkeep(1)
    reader = StoreReader(ROOT, filesystem=broker.disk.other_process())
    assert reader.max_offset("T", 1) == 0  # Not written yet.
    broker.put(230)
    broker.upkeep(40)
    assert broker.store.first_offset > 0
    result = reader.read("T", 1, 0, 8)
    assert result.status in (ReadStatus.OFFSET_TOO_SMALL, ReadStatus.NO_MESSAGE_IN_QUEUE)
    reader.refresh()
    kept = numbers(reader, "T", 1)
    assert kept == list(range(kept[0], 241))
    reader.close()


def test_what_expires_again_right_behind_a_second_look_is_no_damage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = Broker()
    broker.put(150)
    broker.upkeep(40)
    reader = StoreReader(ROOT, filesystem=broker.disk.other_process())
    look, looks = StoreReader.refresh, 0

    def look_and_expire(self: StoreReader) -> None:
        nonlocal looks
        look(self)
        looks += 1
        if looks == 1:
            broker.put(100)
            broker.upkeep(40)

    monkeypatch.setattr(StoreReader, "refresh", look_and_expire)
    broker.put(100)
    broker.upkeep(40)
    assert reader.read("Batches", 0, 0, 8).status is ReadStatus.OFFSET_TOO_SMALL
    assert reader.min_offset("Batches", 0) == broker.store.min_offset("Batches", 0)
    assert looks == 2
    reader.close()


@pytest.mark.parametrize("clean", [True, False])
def test_a_store_that_nobody_has_open_is_served_as_far_as_it_is_surely_right(clean: bool) -> None:
    broker = Broker(replace(CONFIG, retention_size_max=None))
    broker.put(60)
    broker.upkeep(5)
    broker.put(3)
    broker.now_ms += 1
    disk = broker.disk
    if clean:
        assert broker.store.close(broker.now_ms)
    else:
        broker.upkeep(2)
        disk = disk.kill()
    reader = StoreReader(ROOT, filesystem=read_only(disk))
    assert reader.opened_by is None
    assert numbers(reader, "T", 1) == list(range(1, 64 if clean else 61))
    assert reader.read("nothing", 0, 0, 1).status is ReadStatus.NO_MESSAGE_IN_QUEUE
    reader.close()


def test_a_folder_that_is_no_store_is_refused() -> None:
    disk = SimulatedFileSystem()
    with pytest.raises(NotAStoreError, match="no such folder"):
        StoreReader(ROOT, filesystem=disk)


@pytest.fixture(params=["open", "killed", "stopped"])
def with_keys(request: pytest.FixtureRequest) -> tuple[Broker, StoreReader]:
    """A store with three keys, in several index files, and its reader."""
    config = replace(CONFIG, retention_size_max=None)
    broker = Broker(config)
    for number in range(60):
        broker.now_ms += 1000
        broker.count += 1
        properties = b"KEYS\x01k%d\x02TAGS\x01even\x02UNIQ_KEY\x01U%d\x02" % (
            number % 3,
            number,
        )
        origin = Origin(broker.now_ms, broker.now_ms, HOST)
        for topic in ("T", "U"):
            broker.store.put(topic, 1, b"%06d" % broker.count, properties, origin)
        inner = Origin(broker.now_ms, broker.now_ms, HOST, int(SysFlag.INNER_BATCH))
        broker.store.put("Batches", 0, b"x", b"INNER_NUM\x013\x02", inner)
        broker.store.commit()
    broker.upkeep(70)
    disk = broker.disk
    if request.param == "stopped":
        assert broker.store.close(broker.now_ms)
    elif request.param == "killed":
        disk = disk.kill()
    return broker, StoreReader(ROOT, config, filesystem=read_only(disk))


START_MS = 1_700_000_000_000


def test_records_are_found_by_key_whoever_has_the_newest_slots(
    with_keys: tuple[Broker, StoreReader],
) -> None:
    _, reader = with_keys
    found = reader.query("T", "k1", 100)
    messages = [reader.find_record(offset) for offset in found]
    assert [m.queue_offset for m in messages if m] == list(range(58, 0, -3))
    assert {m.topic for m in messages if m} == {"T"}
    assert reader.query("T", "k1", 4) == found[:4]
    begin, end = START_MS + 20_000, START_MS + 29_000
    assert len(reader.query("T", "even", 100, begin_ms=begin, end_ms=end, kind="T")) == 10
    assert len(reader.query("T", "U7", 9)) == 1
    assert reader.query("T", "U77", 9) == reader.query("V", "k1", 9) == []
    reader.close()


def test_queue_offsets_are_found_by_time(with_keys: tuple[Broker, StoreReader]) -> None:
    _, reader = with_keys
    for boundary, expected in ((Boundary.LOWER, 10), (Boundary.UPPER, 9)):
        assert reader.offset_by_time("T", 1, START_MS + 10_500, boundary) == expected
        assert reader.offset_by_time("Batches", 0, START_MS + 10_500, boundary) == 3 * expected
    assert reader.offset_by_time("T", 1, START_MS + 1 << 40, Boundary.LOWER) == 60
    assert reader.offset_by_time("nothing", 0, START_MS, Boundary.LOWER) == 0
    reader.close()


def test_a_physical_offset_at_which_no_record_begins_finds_nothing(
    with_keys: tuple[Broker, StoreReader],
) -> None:
    _, reader = with_keys
    first = reader.find_record(0)
    assert first is not None
    assert first.queue_offset == 0
    assert reader.find_record(1) is None
    assert reader.find_record(-1) is None
    assert reader.find_record(1 << 50) is None
    reader.close()


def test_a_store_without_an_index_finds_nothing_by_key() -> None:
    broker = Broker(replace(CONFIG, index=False))
    broker.put(3)
    broker.upkeep()
    reader = StoreReader(ROOT, filesystem=read_only(broker.disk))
    assert reader.query("T", "k", 9) == []
