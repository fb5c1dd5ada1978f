"""The façade: what puts return, what is readable when, limits, full disks and failed syncs."""

from __future__ import annotations

import errno
import re
from dataclasses import replace
from random import Random
from threading import Event
from typing import TYPE_CHECKING

import pytest
from tests.crash.disk import Moment, Operation, Partial, SimulatedFileSystem
from tests.store.records import HOST, messages_in, refuse

from cometmq.proto.message import read_message
from cometmq.proto.sysflag import TransactionType
from cometmq.store.config import Flush, StoreConfig
from cometmq.store.disk.cold import Cold
from cometmq.store.errors import (
    MessageIllegalError,
    NotAStoreError,
    PropertiesTooLongError,
    StoreBusyError,
    StoreFormatError,
    StoreNotWriteableError,
    SyncFailedError,
)
from cometmq.store.index.index_format import HEADER_SIZE, IndexHeader
from cometmq.store.log.turn import Origin
from cometmq.store.message_store import MessageStore
from cometmq.store.messages.reading import Filter, ReadStatus
from cometmq.store.queues.consume_queue import Boundary
from cometmq.store.upkeep.checkpoint import Longs, load_checkpoint

if TYPE_CHECKING:
    from cometmq.store.messages.reading import ReadResult

ROOT = "/s"
CONFIG = StoreConfig(
    segment_size=16384,
    consume_queue_file_size=600,
    batch_consume_queue_file_size=460,
    index_slots=50,
    index_items=100,
    disk_used_percent_force=100,
    disk_used_percent_max=100,
)
BATCHES = "Batches"


class Opened:
    """A store on a simulated disk."""

    def __init__(self, config: StoreConfig = CONFIG) -> None:
        self.disk = SimulatedFileSystem()
        self.config = config
        self.now_ms = 1000
        self.store = self.open()

    def open(self) -> MessageStore:
        return MessageStore.open(
            ROOT,
            self.config,
            now_ms=self.now_ms,
            filesystem=self.disk,
            is_batch_topic=lambda topic: topic == BATCHES,
            threads=False,
        )

    def reopen(self) -> None:
        assert self.store.close(self.now_ms)
        self.store = self.open()

    def put(
        self,
        body: bytes = b"body",
        *,
        topic: str = "T",
        queue_id: int = 0,
        properties: bytes = b"",
        sys_flag: int = 0,
    ) -> int:
        """Put one message a millisecond later than the last; return its queue offset."""
        self.now_ms += 1
        origin = Origin(self.now_ms, self.now_ms, HOST, sys_flag)
        return self.store.put(topic, queue_id, body, properties, origin).queue_offset

    def is_taken(self, body: bytes) -> bool:
        """Put and commit a message; return whether there was room for it."""
        self.put(body)
        try:
            self.store.commit()
        except StoreNotWriteableError as error:
            return "the disk is full" not in str(error)
        return True

    def put_all(self, *bodies: bytes, topic: str = "T") -> None:
        for body in bodies:
            self.put(body, topic=topic)
        self.sync()

    def sync(self) -> None:
        end = self.store.commit()
        self.store.run_jobs()
        assert self.store.advance() == end

    def bodies(self, topic: str = "T", queue_id: int = 0) -> list[bytes]:
        """All bodies of a queue."""
        found: list[bytes] = []
        offset = self.store.min_offset(topic, queue_id)
        while offset < self.store.max_offset(topic, queue_id):
            result = self.store.read(topic, queue_id, offset, 32)
            assert result.status is ReadStatus.FOUND
            found += bodies_of(result)
            offset = result.next_begin_offset
        return found


def bodies_of(result: ReadResult) -> list[bytes]:
    found = [message.body for message in messages_in(result.slices)]
    assert len(found) == result.record_count
    return found


@pytest.fixture
def opened() -> Opened:
    return Opened()


# Durability and visibility


def test_with_sync_flush_nothing_is_readable_before_the_disk_confirmed_it(opened: Opened) -> None:
    opened.put(b"one")
    end = opened.store.commit()
    assert opened.store.max_offset("T", 0) == 0
    assert opened.store.read("T", 0, 0, 1).status is ReadStatus.NO_MESSAGE_IN_QUEUE
    assert opened.store.find_record(0) is None
    assert opened.store.advance() < end
    opened.store.run_jobs()
    assert opened.store.advance() == end
    assert opened.bodies() == [b"one"]
    assert opened.store.find_record(0) is not None


def test_with_async_flush_a_commit_is_readable_at_once_and_synced_after_the_interval() -> None:
    opened = Opened(replace(CONFIG, flush=Flush.ASYNC))
    opened.put(b"one")
    end = opened.store.commit()
    assert opened.bodies() == [b"one"]
    opened.store.tick(5000)
    opened.store.run_jobs()
    assert opened.store.advance() == end
    opened.put(b"two")
    end = opened.store.commit()
    opened.store.tick(5199)
    opened.store.run_jobs()
    assert opened.store.advance() < end
    opened.store.tick(5200)
    opened.store.run_jobs()
    assert opened.store.advance() == end


def test_a_clock_that_is_set_back_stops_no_flush() -> None:
    opened = Opened(replace(CONFIG, flush=Flush.ASYNC))
    for now_ms in (500_000, 5000):
        opened.put()
        end = opened.store.commit()
        opened.store.tick(now_ms)
        opened.store.run_jobs()
        assert opened.store.advance() == end


def test_least_pages_put_a_flush_off_until_the_thorough_interval() -> None:
    config = replace(
        CONFIG, flush=Flush.ASYNC, flush_least_pages=1, flush_thorough_interval_ms=9000
    )
    opened = Opened(config)
    opened.store.tick(1)
    opened.put(b"one")
    end = opened.store.commit()
    opened.store.tick(8999)
    opened.store.run_jobs()
    assert opened.store.advance() == 0
    opened.store.tick(9000)
    opened.store.run_jobs()
    assert opened.store.advance() == end


def test_a_failed_sync_is_final(opened: Opened) -> None:
    opened.put_all(b"safe")
    opened.put(b"unsure")
    opened.store.commit()
    opened.disk.hook = refuse("sync")
    opened.store.run_jobs()
    opened.store.advance()
    assert opened.store.failure is not None
    assert opened.bodies() == [b"safe"]
    for _ in range(2):
        with pytest.raises(SyncFailedError):
            opened.put(b"more")
        opened.store.run_jobs()
        opened.store.tick(1)  # It takes puts again if no reason to refuse them is left.
    assert not opened.store.close(1)
    assert opened.disk.exists(f"{ROOT}/abort")


def test_a_commit_that_is_refused_takes_every_offset_of_its_turn_back(opened: Opened) -> None:
    opened.put_all(b"kept")
    opened.put(b"lost 1")
    opened.put(b"lost 2", queue_id=1)
    opened.disk.hook = refuse("write", partial=70)
    with pytest.raises(StoreNotWriteableError):
        opened.store.commit()
    assert opened.put(b"next") == 1
    assert opened.put(b"next", queue_id=1) == 0
    opened.sync()
    assert opened.bodies() == [b"kept", b"next"]
    assert opened.bodies(queue_id=1) == [b"next"]


def test_behind_a_refused_turn_of_the_next_file_no_record_crosses_the_end_of_this_one(
    opened: Opened,
) -> None:
    bodies, unique = [b"x" * 3000] * 5, b"UNIQ_KEY\x01a\x02"
    for body in bodies:
        opened.put(body, properties=unique)
    opened.sync()
    opened.put(b"x" * 3000, properties=unique)
    opened.disk.hook = refuse("write")
    with pytest.raises(StoreNotWriteableError):
        opened.store.commit()
    for number in range(5):
        bodies.append(b"%d" % number * 250)
        opened.put(bodies[-1], properties=unique)
    opened.sync()
    opened.reopen()
    assert opened.bodies() == bodies


@pytest.mark.parametrize("seed", range(30))
def test_a_refused_turn_that_is_erased_in_two_tries_is_erased_for_good(
    opened: Opened, seed: int
) -> None:
    """The first try writes the zeros and fails; the second finds zeros that no sync has seen."""
    opened.put_all(b"kept")
    left = [Partial(4000, OSError(errno.EIO, "refused")) for _ in range(2)]

    def hook(operation: Operation) -> None:
        if operation.verb == "write" and operation.moment is Moment.BEFORE and left:
            raise left.pop()

    opened.disk.hook = hook
    opened.put(b"refused")
    opened.put(b"ghost")
    with pytest.raises(StoreNotWriteableError):
        opened.store.commit()
    opened.put(b"instead")  # As long as what was refused, and not synced.
    opened.store.commit()
    opened.disk = opened.disk.power_cut(Random(seed))
    opened.store = opened.open()
    assert opened.bodies() in ([b"kept"], [b"kept", b"instead"])


def test_on_a_full_disk_puts_are_refused_until_there_is_room(opened: Opened) -> None:
    body = b"x" * 3000
    opened.put_all(body, body)
    opened.store.run_jobs()
    total = opened.disk.total
    opened.disk.total = total - opened.disk.space("/").free
    stored = 2
    while opened.is_taken(body):
        opened.sync()
        stored += 1
    assert 2 < stored < 20
    assert opened.bodies() == [body] * stored
    opened.disk.total = total
    opened.put_all(body)
    opened.reopen()
    assert opened.bodies() == [body] * (stored + 1)


def test_a_log_whose_next_file_finds_no_room_is_told_and_tried_again_with_no_put_in_between(
    opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    body = b"x" * 3000
    opened.put_all(body)
    opened.store.run_jobs()
    total = opened.disk.total
    opened.disk.total = total - opened.disk.space("/").free
    assert opened.store.figures().refusal is None
    while opened.is_taken(body):
        opened.sync()
    assert not opened.is_taken(body)
    why = r"the next file of the log, of 16384 bytes, cannot be created: .*; make room"
    for now_ms in (10_000, 20_000):
        assert re.search(why, str(opened.store.figures().refusal))
        opened.store.tick(now_ms)
        opened.store.run_jobs()
    opened.disk.total = total
    opened.store.tick(30_000)
    opened.store.run_jobs()
    assert opened.store.figures().refusal is None
    told, over = (each.getMessage() for each in caplog.records if each.name.endswith(".segments"))
    assert re.fullmatch(f"puts are refused: {why}.*", told)
    assert over.startswith("puts are accepted again")
    assert opened.is_taken(body)


def test_while_the_queues_cannot_be_written_puts_are_refused_and_nothing_is_lost(
    opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    opened.put_all(b"one")
    total = opened.disk.total
    opened.disk.total = total - opened.disk.space("/").free
    opened.store.tick(1)
    opened.store.tick(60_001)
    with pytest.raises(StoreNotWriteableError, match="the queues or the index"):
        opened.put(b"two")
    assert opened.bodies() == [b"one"]
    opened.disk.total = total
    opened.store.tick(60_002)
    opened.put_all(b"two")
    told, over = (each.getMessage() for each in caplog.records)
    assert re.fullmatch("puts are refused: the queues or the index cannot be written: .*", told)
    assert over.startswith("puts are accepted again")
    opened.reopen()
    assert opened.bodies() == [b"one", b"two"]


def test_puts_can_be_refused_from_outside(opened: Opened) -> None:
    opened.store.refuse_puts("the partition is 91 % full")
    with pytest.raises(StoreNotWriteableError, match="91 %"):
        opened.put()
    opened.store.tick(1)
    with pytest.raises(StoreNotWriteableError, match="91 %"):
        opened.put()
    opened.store.refuse_puts(None)
    opened.put()


def test_a_turn_and_what_waits_for_the_disk_have_a_limit() -> None:
    opened = Opened(replace(CONFIG, turn_size_max=1000, unsynced_size_max=2000))
    for _ in range(4):
        opened.put(b"x" * 100)
    with pytest.raises(StoreBusyError):
        opened.put(b"x" * 200)
    assert 0 < opened.store.pending_size <= 1000
    opened.store.commit()
    for _ in range(4):
        opened.put(b"x" * 100)
    opened.store.commit()
    with pytest.raises(StoreBusyError):
        opened.put(b"x" * 400)
    opened.sync()
    opened.put(b"x" * 400)


def test_what_was_put_but_not_committed_is_not_stored(opened: Opened) -> None:
    opened.put_all(b"one")
    opened.put(b"never")
    opened.reopen()
    assert opened.bodies() == [b"one"]
    assert opened.put(b"two") == 1


# What is taken and what is not


def test_messages_over_a_limit_are_refused_and_change_nothing(opened: Opened) -> None:
    opened.config = replace(CONFIG, message_size_max=5000)
    opened.reopen()
    with pytest.raises(MessageIllegalError, match="body of 5001 bytes, over 5000"):
        opened.put(b"x" * 5001)
    with pytest.raises(PropertiesTooLongError, match="32768 bytes, over 32767"):
        opened.put(properties=b"x" * 32768)
    for topic in ("x" * 128, "", "a/b", "..", "a\ud800", "%RETRY%" + "x" * 249):
        with pytest.raises(MessageIllegalError, match="topic"):
            opened.put(topic=topic)
    with pytest.raises(MessageIllegalError, match="segment"):
        opened.put(properties=b"x" * 16384)
    assert opened.store.pending_size == 0
    assert opened.put(topic="x" * 127) == 0
    assert opened.put(topic="%RETRY%" + "x" * 248) == 0
    assert opened.put(b"x" * 5000) == 0
    opened.sync()
    opened.reopen()
    assert len(opened.bodies("%RETRY%" + "x" * 248)) == 1


MADE_UP = b"__CRC32#\x010123456789\x02"


@pytest.mark.parametrize("room", range(12))
def test_a_message_that_leaves_no_room_for_the_end_of_its_file_is_refused_or_kept(
    room: int,
) -> None:
    """This holds also if its record has all that it may have: two IPv6 hosts and a checksum."""
    host = bytes(15) + b"\1\0\0\x2a\x9f"
    opened = Opened(replace(CONFIG, segment_size=4096, record_crc=True, store_host=host))
    opened.put(b"first")
    opened.sync()
    overhead = opened.store.end_offset - len(b"first")
    body = b"x" * (4096 - overhead - len(host) + len(HOST) - room)
    try:
        opened.store.put("T", 0, body, b"", Origin(1, 1, host))
    except MessageIllegalError:
        body = b""
        assert room <= 10
    opened.sync()
    opened.reopen()
    assert opened.bodies() == [b"first", *filter(None, [body])]


@pytest.mark.parametrize("before", [b"", b"A\x01b\x02"])
@pytest.mark.parametrize("topic", ["T", BATCHES, "x" * 127])
def test_a_checksum_that_the_sender_made_up_is_not_stored(
    opened: Opened, before: bytes, topic: str
) -> None:
    opened.put(properties=before + MADE_UP, topic=topic)
    assert stored_properties(opened, topic) == [before]
    opened.disk = opened.disk.kill()
    opened.store = opened.open()
    assert opened.bodies(topic) == [b"body"]


def test_nor_is_one_of_a_message_of_a_batch(opened: Opened) -> None:
    made_up = [(0, b"body", MADE_UP), (0, b"body", b""), (0, b"body", b"A\x01b\x02" + MADE_UP)]
    opened.store.put_batch("T", 0, made_up, Origin(1, 1, HOST))
    assert stored_properties(opened, "T") == [b"", b"", b"A\x01b\x02"]
    opened.disk = opened.disk.kill()
    opened.store = opened.open()
    assert opened.bodies() == [b"body"] * 3


@pytest.mark.parametrize("begin", [b"x", b"A\x01b\x02x", b"A\x01"])
def test_a_property_that_only_ends_like_one_is_stored_and_refuses_no_start(
    opened: Opened, begin: bytes
) -> None:
    opened.put(properties=begin + MADE_UP)
    assert stored_properties(opened, "T") == [begin + MADE_UP]
    opened.disk = opened.disk.kill()
    opened.store = opened.open()
    assert opened.bodies() == [b"body"]


def test_properties_are_measured_without_such_a_checksum(opened: Opened) -> None:
    opened.config = replace(CONFIG, segment_size=65536)
    opened.disk = SimulatedFileSystem()
    opened.store = opened.open()
    longest = b"A\x01" + b"x" * 32764 + b"\x02"
    opened.put(properties=longest + MADE_UP)
    with pytest.raises(PropertiesTooLongError, match="32768 bytes, over 32767"):
        opened.put(properties=b"B" + longest + MADE_UP)
    assert stored_properties(opened, "T") == [longest]


def stored_properties(opened: Opened, topic: str) -> list[bytes]:
    """Bring to the disk what was put; return the properties of all messages of a queue."""
    opened.sync()
    found = opened.store.read(topic, 0, 0, 32)
    return [message.properties_raw for message in messages_in(found.slices)]


def test_each_record_may_end_with_its_own_checksum() -> None:
    opened = Opened(replace(CONFIG, record_crc=True))
    opened.put(properties=b"A\x01b")
    with pytest.raises(PropertiesTooLongError):
        opened.put(properties=b"x" * 32760)
    opened.sync()
    record = opened.store.find_record(0)
    assert record is not None
    assert not isinstance(record, Cold)
    assert read_message(bytes(record)).is_record_intact()


def test_prepared_and_rolled_back_messages_reach_no_consumer(opened: Opened) -> None:
    for sys_flag in (0x4, 0xC, 0x8, 0x0):
        opened.put(b"%d" % sys_flag, sys_flag=sys_flag, properties=b"KEYS\x01k\x02")
    opened.sync()
    assert opened.bodies() == [b"8", b"0"]
    found = opened.store.query("T", "k", 9, begin_ms=0, end_ms=9999, now_ms=1)
    bodies = [read_message(bytes(record_at(opened, offset))).body for offset in found]
    assert bodies == [b"0", b"8", b"4"]


def record_at(opened: Opened, physical_offset: int) -> bytes:
    record = opened.store.find_record(physical_offset)
    assert record is not None
    assert not isinstance(record, Cold)
    return bytes(record)


def test_a_batch_gets_consecutive_offsets_in_one_segment(opened: Opened) -> None:
    opened.put_all(b"x" * 9000)
    origin = Origin(1, 1, HOST)
    batch = [(number, b"%d" % number * 1000, b"") for number in range(8)]
    placed = opened.store.put_batch("T", 0, batch, origin)
    opened.sync()
    assert placed.queue_offset == 1
    assert {offset // CONFIG.segment_size for offset in placed.physical_offsets} == {1}
    assert opened.bodies()[1:] == [body for _, body, _ in batch]


def test_batches_that_apache_refuses_are_refused(opened: Opened) -> None:
    opened.config = replace(CONFIG, message_size_max=100)
    opened.reopen()
    one = (0, b"x" * 60, b"")
    for topic, sys_flag, batch in (
        ("%RETRY%g", 0, [one]),
        ("T", 0x4, [one]),
        ("T", 0, [one, one]),
        ("T", 0, [(0, b"", b"INNER_NUM\x012\x02")]),
        (BATCHES, 0, [one]),
    ):
        with pytest.raises(MessageIllegalError):
            opened.store.put_batch(topic, 0, batch, Origin(1, 1, HOST, sys_flag))
    assert opened.store.pending_size == 0


def test_an_inner_batch_stays_one_record_of_a_batch_topic(opened: Opened) -> None:
    inner = b"INNER_NUM\x013\x02"
    assert opened.put(b"abc", topic=BATCHES, properties=inner, sys_flag=0xC0) == 0
    assert opened.put(b"single", topic=BATCHES) == 3
    assert opened.put(b"def", topic=BATCHES, properties=inner, sys_flag=0xC0) == 4
    opened.sync()
    for _ in range(2):
        assert opened.store.max_offset(BATCHES, 0) == 7
        result = opened.store.read(BATCHES, 0, 1, 9)
        assert (bodies_of(result), result.next_begin_offset) == ([b"abc", b"single", b"def"], 7)
        first = read_message(record_at(opened, result.last_physical_offset))
        assert first.properties == {"INNER_NUM": "3", "INNER_BASE": "4"}
        opened.reopen()
    for topic, properties, sys_flag in (
        ("T", inner, 0xC0),
        ("T", inner, 0),
        (BATCHES, b"", 0xC0),
        (BATCHES, inner, 0),
        (BATCHES, b"INNER_NUM\x010\x02", 0xC0),
        (BATCHES, b"INNER_NUM\x0132768\x02", 0xC0),
        (BATCHES, b"INNER_NUM\x01x\x02", 0xC0),
        (BATCHES, b"INNER_NUM\x01%b\x02" % (b"9" * 5000), 0xC0),
        (BATCHES, inner, 0xC4),
        (BATCHES, b"", 0xC),
    ):
        with pytest.raises(MessageIllegalError):
            opened.put(topic=topic, properties=properties, sys_flag=sys_flag)


# Reading


def test_a_read_outside_of_a_queue_says_where_to_go_on(opened: Opened) -> None:
    opened.put_all(b"0", b"1", b"2")
    for offset, status, next_offset in (
        (3, ReadStatus.OFFSET_OVERFLOW_ONE, 3),
        (9, ReadStatus.OFFSET_OVERFLOW_BADLY, 3),
        (-1, ReadStatus.OFFSET_TOO_SMALL, 0),
    ):
        result = opened.store.read("T", 0, offset, 1)
        assert (result.status, result.next_begin_offset) == (status, next_offset)
    result = opened.store.read("U", 0, 5, 1)
    assert (result.status, result.next_begin_offset) == (ReadStatus.NO_MESSAGE_IN_QUEUE, 0)


def test_records_of_a_read_share_a_slice_neighbours_in_the_log_or_not(opened: Opened) -> None:
    opened.put_all(b"0", b"1", b"2")
    opened.put_all(b"elsewhere", topic="U")
    opened.put_all(b"3", b"4")
    result = opened.store.read("T", 0, 0, 3)
    assert (len(result.slices), result.record_count) == (1, 3)
    assert isinstance(result.slices[0], memoryview)  # From the map: a copy would be bytes.
    result = opened.store.read("T", 0, 0, 32)
    assert (len(result.slices), result.record_count, result.next_begin_offset) == (1, 5, 5)
    assert bodies_of(result) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_read_stops_at_its_limits_but_returns_at_least_one_record() -> None:
    opened = Opened(replace(CONFIG, read_size_max=2500, read_count_max=4))
    opened.put_all(b"x" * 3000, *[b"y" * 1000] * 3, *[b"z"] * 10)
    found: list[int] = []
    offset = 0
    while offset < 14:
        result = opened.store.read("T", 0, offset, 32)
        offset = result.next_begin_offset
        found.append(result.record_count)
    assert found == [1, 2, 4, 4, 3]


def test_only_messages_of_the_wanted_tags_are_returned(opened: Opened) -> None:
    for number in range(100):
        opened.put(b"%d" % number, properties=b"TAGS\x01%c\x02" % (97 + number % 10))
    opened.sync()
    wanted = Filter(codes={ord("c")})
    result = opened.store.read("T", 0, 0, 3, wanted=wanted)
    assert bodies_of(result) == [b"2", b"12", b"22"]
    assert result.next_begin_offset == 32  # The next wanted one.
    opened.reopen()
    nothing = opened.store.read("T", 0, 0, 3, wanted=Filter(codes={1}))
    assert nothing.status is ReadStatus.NO_MATCHED_MESSAGE
    assert nothing.next_begin_offset == 30  # The end of the first file of the queue.


def test_messages_can_be_chosen_by_what_they_hold(opened: Opened) -> None:
    opened.put_all(*[b"%d" % number for number in range(10)])
    wanted = Filter(matches=lambda message: int(message.body) % 3 == 0)
    assert bodies_of(opened.store.read("T", 0, 1, 32, wanted=wanted)) == [b"3", b"6", b"9"]


def test_cold_records_are_fetched_by_the_caller_and_then_returned() -> None:
    opened = Opened(replace(CONFIG, hot_size=1))
    opened.put_all(*[b"%d" % number for number in range(20)])
    opened.reopen()
    opened.disk.is_cold = True
    found: list[bytes] = []
    offset = 0
    fetches = 0
    while offset < 20:
        result = opened.store.read("T", 0, offset, 32)
        fetched: list[tuple[Cold, bytes]] = []
        while result.cold:
            assert not result.slices
            fetched += [opened.store.fetch(cold) for cold in result.cold]
            fetches += 1
            result = opened.store.read("T", 0, offset, 32, fetched=fetched)
        found += bodies_of(result)
        offset = result.next_begin_offset
    assert found == [b"%d" % number for number in range(20)]
    assert 0 < fetches < 20
    cold = opened.store.find_record(0)
    assert isinstance(cold, Cold)
    assert opened.store.find_record(0, [opened.store.fetch(cold)]) is not None
    wanted = Filter(matches=lambda message: message.body == b"7")
    fetched = []
    while (result := opened.store.read("T", 0, 0, 9, wanted=wanted, fetched=fetched)).cold:
        fetched += [opened.store.fetch(cold) for cold in result.cold]
    assert bodies_of(result) == [b"7"]


def test_entries_that_are_cold_are_fetched_by_the_caller_as_well() -> None:
    opened = Opened(CONFIG)  # All records are hot.
    opened.put_all(*[b"%d" % number for number in range(20)])
    opened.reopen()
    opened.disk.is_cold = True
    first, cold = opened.store.read("T", 0, 3, 8).cold
    path = f"{ROOT}/consumequeue/T/0/{0:020d}"
    assert (first.path, first.position) == (path, 0)
    assert (cold.path, cold.position, cold.size) == (path, 60, 160)
    fetched = [opened.store.fetch(each) for each in (first, cold)]
    result = opened.store.read("T", 0, 3, 8, fetched=fetched)
    assert bodies_of(result) == [b"%d" % number for number in range(3, 11)]


@pytest.mark.parametrize("topics", [["T"], ["T", "U"]], ids=["neighbours", "apart"])
def test_as_much_is_read_of_what_is_old_as_of_what_is_new_while_it_is_in_memory(
    topics: list[str],
) -> None:
    opened = Opened(replace(CONFIG, hot_size=1, read_cold_count_max=3))
    for number in range(20):
        for topic in topics:
            opened.put(b"%d" % number, topic=topic)
    opened.sync()
    result = opened.store.read("T", 0, 0, 32)
    assert bodies_of(result) == [b"%d" % number for number in range(20)]
    opened.disk.is_cold = True
    opened.store.tick(opened.now_ms)
    assert opened.store.read("T", 0, 0, 32).cold
    fetched = [opened.store.fetch(cold) for cold in opened.store.read("T", 0, 0, 32).cold]
    result = opened.store.read("T", 0, 0, 32, fetched=fetched)
    assert bodies_of(result) == [b"0", b"1", b"2"]


def test_queue_offsets_are_found_by_time(opened: Opened) -> None:
    opened.put_all(*[b"%d" % number for number in range(10)])  # Stored at 1001 to 1010.
    for time, boundary, offset in (
        (1005, Boundary.LOWER, 4),
        (1005, Boundary.UPPER, 4),
        (0, Boundary.LOWER, 0),
        (9999, Boundary.LOWER, 10),
        (9999, Boundary.UPPER, 9),
    ):
        assert opened.store.offset_by_time("T", 0, time, boundary) == offset
    assert opened.store.offset_by_time("U", 0, 1005, Boundary.LOWER) == 0


@pytest.mark.parametrize(
    ("topic", "folder"), [("T", "consumequeue"), (BATCHES, "batchconsumequeue")]
)
def test_neither_a_time_nor_a_message_is_found_by_waiting_for_the_disk(
    topic: str, folder: str
) -> None:
    opened = Opened(replace(CONFIG, hot_size=1))
    for number in range(10):  # Stored at 1001 to 1010.
        opened.put(b"%d" % number, topic=topic)
    opened.sync()
    opened.reopen()
    opened.disk.is_cold = True
    opened.store.tick(opened.now_ms)
    fetched: list[tuple[Cold, bytes]] = []
    while isinstance(
        found := opened.store.offset_by_time(topic, 0, 1005, Boundary.LOWER, fetched), Cold
    ):
        fetched.append(opened.store.fetch(found))
    assert found == 4
    assert fetched[0][0].path.startswith(f"{ROOT}/{folder}/{topic}/0/")
    assert len(set(fetched)) == len(fetched)
    fetched = []
    while (result := opened.store.read(topic, 0, 7, 1, fetched=fetched or None)).cold:
        fetched += [opened.store.fetch(cold) for cold in result.cold]
    assert bodies_of(result) == [b"7"]
    assert fetched[0][0].path.startswith(f"{ROOT}/{folder}/{topic}/0/")
    assert len(set(fetched)) == len(fetched)


def test_messages_are_found_by_key_right_after_their_commit(opened: Opened) -> None:
    for number in range(5):
        opened.put(b"%d" % number, properties=b"KEYS\x01k%d all\x02" % number)
    opened.sync()
    ask = opened.store.query
    assert len(ask("T", "all", 9, begin_ms=0, end_ms=9999, now_ms=1)) == 5
    assert len(ask("T", "all", 2, begin_ms=0, end_ms=9999, now_ms=1)) == 2
    (offset,) = ask("T", "k3", 9, begin_ms=0, end_ms=9999, now_ms=1)
    assert read_message(record_at(opened, offset)).body == b"3"
    assert ask("U", "k3", 9, begin_ms=0, end_ms=9999, now_ms=1) == []


def test_without_an_index_nothing_is_found_by_key() -> None:
    opened = Opened(replace(CONFIG, index=False))
    opened.put(properties=b"KEYS\x01k\x02")
    opened.sync()
    assert opened.store.query("T", "k", 9, begin_ms=0, end_ms=9999, now_ms=1) == []
    opened.reopen()
    assert not opened.disk.exists(f"{ROOT}/index")


def test_a_physical_offset_at_which_no_record_begins_finds_nothing(opened: Opened) -> None:
    opened.put_all(b"one", b"two")
    end = opened.store.end_offset
    starts = [offset for offset in range(-5, end + 50) if opened.store.find_record(offset)]
    assert starts == [0, end // 2]


# Opening


def test_a_folder_that_holds_something_else_is_refused_and_not_touched() -> None:
    disk = SimulatedFileSystem()
    disk.make_directories("/home")
    disk.open("/home/letter.txt", create=True).close()
    before = disk.operations
    with pytest.raises(NotAStoreError, match=r"/home: holds letter\.txt"):
        MessageStore.open("/home", CONFIG, now_ms=1, filesystem=disk, threads=False)
    assert disk.operations == before


def test_a_new_volume_is_an_empty_folder() -> None:
    disk = SimulatedFileSystem()
    disk.make_directories("/volume/lost+found")
    MessageStore.open("/volume", CONFIG, now_ms=1, filesystem=disk, threads=False).close(1)
    assert disk.exists("/volume/commitlog")


def test_a_refused_store_is_left_as_it_was_and_unlocked(opened: Opened) -> None:
    opened.put_all(b"one")
    assert opened.store.close(1)
    opened.disk.open(f"{ROOT}/commitlog/notes", create=True).close()
    before = opened.disk.operations
    with pytest.raises(StoreFormatError, match="commitlog/notes"):
        opened.open()
    assert opened.disk.operations == before
    opened.disk.remove(f"{ROOT}/commitlog/notes")
    opened.store = opened.open()
    assert opened.bodies() == [b"one"]


def test_a_read_only_disk_is_an_error_that_names_the_file(opened: Opened) -> None:
    opened.put_all(b"one")
    assert opened.store.close(1)
    opened.disk.read_only = True
    with pytest.raises(OSError, match="lock") as refusal:
        opened.open()
    assert refusal.value.errno == errno.EROFS


def test_the_segment_size_of_a_store_stays_what_it_was_made_with(opened: Opened) -> None:
    opened.put_all(b"one")
    opened.config = replace(CONFIG, segment_size=65536)
    opened.reopen()
    assert opened.store.segments.size == CONFIG.segment_size
    opened.put_all(b"x" * 9000, b"y" * 9000)
    opened.reopen()
    assert [len(body) for body in opened.bodies()] == [3, 9000, 9000]


def test_the_next_segment_is_made_ahead_of_need(opened: Opened) -> None:
    opened.put_all(b"x" * 3000)
    assert len(opened.disk.list(f"{ROOT}/commitlog")) == 1
    opened.put_all(b"x" * 3000, b"x" * 3000)
    opened.store.run_jobs()
    assert len(opened.disk.list(f"{ROOT}/commitlog")) == 2
    opened.put_all(b"x" * 3000, b"x" * 3000)
    opened.reopen()
    assert len(opened.bodies()) == 5


def test_threads_sync_and_call_back() -> None:
    told = Event()
    disk = SimulatedFileSystem()
    store = MessageStore.open(ROOT, CONFIG, now_ms=1, filesystem=disk, on_change=told.set)
    store.put("T", 0, b"one", b"", Origin(1, 1, HOST))
    end = store.commit()
    assert told.wait(10)
    assert store.advance() == end
    assert store.max_offset("T", 0) == 1
    assert store.close(2)


def test_a_deleted_topic_begins_anew(opened: Opened) -> None:
    opened.put_all(b"old")
    opened.store.delete_topics(["T"])
    assert opened.store.max_offset("T", 0) == 0
    opened.put_all(b"new")
    opened.reopen()
    assert opened.bodies() == [b"new"]


def test_a_rolled_back_message_has_no_key_when_the_log_is_read_back_either(opened: Opened) -> None:
    for flags in (0, int(TransactionType.ROLLED_BACK)):
        opened.put(properties=b"KEYS\x01k\x02", sys_flag=flags)
    opened.sync()
    for _ in range(2):
        found = opened.store.query("T", "k", 9, begin_ms=0, end_ms=9999, now_ms=opened.now_ms)
        assert found == [0]
        opened.disk = opened.disk.kill()
        opened.store = opened.open()


def numbers_for_apache(opened: Opened) -> tuple[Longs, list[IndexHeader]]:
    """Return what the checkpoint tells Apache, and the headers of the index files."""
    headers = [
        IndexHeader.unpack(opened.disk.open(f"{ROOT}/index/{entry.name}").read(HEADER_SIZE, 0))
        for entry in opened.disk.list(f"{ROOT}/index")
    ]
    return load_checkpoint(opened.disk, f"{ROOT}/checkpoint").longs, headers


def test_apache_is_told_to_fill_again_each_index_file_that_it_would_remove(opened: Opened) -> None:
    for number in range(60):
        opened.put(properties=b"KEYS\x01a%d b%d\x02TAGS\x01t\x02" % (number, number))
    opened.sync()
    opened.reopen()
    longs, (first, newest) = numbers_for_apache(opened)
    assert longs.index_timestamp == longs.queues_timestamp == first.end_time
    assert longs.queues_offset == newest.begin_offset
    assert longs.confirm_offset == opened.store.end_offset


def test_with_one_index_file_apache_is_told_to_read_everything_and_without_any_nothing(
    opened: Opened,
) -> None:
    opened.put_all(b"no key")
    opened.reopen()
    longs, headers = numbers_for_apache(opened)
    assert (headers, longs.queues_offset) == ([], opened.store.end_offset)
    opened.put(properties=b"KEYS\x01k\x02")
    opened.sync()
    opened.reopen()
    longs, _ = numbers_for_apache(opened)
    assert longs.index_timestamp == 0
    assert 0 < longs.queues_offset < opened.store.end_offset
