"""The quick way of a put writes the same bytes for each message as the careful way."""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import given, settings, strategies as st
from tests.crash.disk import SimulatedFileSystem
from tests.store.records import HOST

from cometmq.proto.batch import split_batch
from cometmq.proto.java import tags_code
from cometmq.proto.record import encode_record
from cometmq.proto.sysflag import SysFlag
from cometmq.store.config import Flush, StoreConfig
from cometmq.store.errors import MessageIllegalError, StoreBusyError, StoreNotWriteableError
from cometmq.store.log.log_scan import LogScan
from cometmq.store.log.turn import Appended, AppendedBatch, Origin
from cometmq.store.message_store import MessageStore
from cometmq.store.messages.dispatch import UNIQUE_ID, TagsCodes
from cometmq.store.queues.consume_queue import ENTRY

ROOT = "/s"
CONFIG = StoreConfig(
    segment_size=16384,
    consume_queue_file_size=2000,
    index_slots=50,
    index_items=100,
    flush=Flush.ASYNC,
    message_size_max=8192,
)
IPV6 = bytes(range(16)) + b"\0\0\x2a\x9f"


class Message(NamedTuple):
    topic: str
    queue_id: int
    body: bytes
    properties: bytes
    born_host: bytes
    sys_flag: int
    flag: int


ENDS = [
    b"",
    b"TAGS\x01TagA\x02",
    b"TAGS\x01TagA\x02WAIT\x01true\x02",
    b"WAIT\x01true\x02TAGS\x01TagB",
    b"TAGS\x01\x02",
    b"TAGS\x01TagA\x02TAGS\x01TagB\x02",
    b"KEYS\x01a b\x02",
    b"a\x01zero\0\x02",
    b"long\x01" + b"x" * 300 + b"\x02",
    b"longer\x01" + b"x" * 1100 + b"\x02",
]


def with_unique_id(number: int, end: bytes) -> bytes:
    return b"UNIQ_KEY\x01%032X\x02%b" % (number, end)


PROPERTIES = st.one_of(
    st.builds(with_unique_id, st.integers(0, 5), st.sampled_from(ENDS)),
    st.sampled_from([*ENDS, b"KEYS\x01k\x02UNIQ_KEY\x01u\x02TAGS\x01TagA\x02", UNIQUE_ID]),
)
MESSAGES = st.builds(
    Message,
    st.sampled_from(["T", "Other", "T" * 127, "%RETRY%" + "g" * 200, "SCHEDULE_TOPIC_XXXX"]),
    st.integers(0, 1),
    st.sampled_from([b"", b"body", bytes(range(256)) * 16]),
    PROPERTIES,
    st.sampled_from([HOST, HOST, HOST, IPV6]),
    st.sampled_from([0, 0, 0, 1, 2, 0x4, 0x8, 0xC, 0x10]),
    st.integers(-5, 5),
)


def opened() -> MessageStore:
    return MessageStore.open(
        ROOT, CONFIG, now_ms=1, filesystem=SimulatedFileSystem(), threads=False
    )


def expected(message: Message, queue_offset: int, physical_offset: int) -> bytes:
    """What `encode_record` makes of it, which has no quick way."""
    return encode_record(
        topic=message.topic.encode(),
        body=message.body,
        properties=message.properties,
        queue_id=message.queue_id,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        born_timestamp=5,
        born_host=message.born_host,
        store_timestamp=7,
        store_host=CONFIG.store_host,
        sys_flag=message.sys_flag,
        flag=message.flag,
        record_crc=0 in message.properties,
    )


def check(store: MessageStore, records: dict[int, bytes], ends: dict[tuple[str, int], int]) -> None:
    """Check that the log has exactly these records, and each queue an entry for each of its own."""
    scan = LogScan(store.segments, 0)
    found = {message.physical_offset: message for message in scan}
    assert (scan.problem, scan.end_offset) == (None, store.end_offset)
    assert {offset: message.raw for offset, message in found.items()} == records
    for (topic, queue_id), end in ends.items():
        queue = store.queues.simple.get(topic, queue_id)
        assert (queue.end, queue.next_offset) == (end, end)
        for number in range(end):
            offset, size, code = ENTRY.unpack(queue.read(number, 1))
            message = found[offset]
            assert (message.topic, message.queue_id) == (topic, queue_id)
            assert (message.queue_offset, message.size) == (number, size)
            assert code == tags_code((message.tags or "").encode())


@settings(max_examples=150, deadline=None)
@given(st.lists(MESSAGES, min_size=1, max_size=30), st.integers(1, 8))
def test_every_record_and_entry_is_right_however_often_its_like_came(
    messages: list[Message], turn: int
) -> None:
    store = opened()
    records: dict[int, bytes] = {}
    ends: dict[tuple[str, int], int] = {}
    for number, message in enumerate(messages, 1):
        origin = Origin(7, 5, message.born_host, message.sys_flag)
        put = store.put(*message[:4], origin, message.flag)
        has_entry = not message.sys_flag & SysFlag.TRANSACTION_PREPARED
        queue_offset = ends.get(message[:2], 0) if has_entry else 0
        assert put.queue_offset == queue_offset
        if has_entry:
            ends[message[:2]] = queue_offset + 1
        records[put.physical_offset] = expected(message, queue_offset, put.physical_offset)
        assert put.size == len(records[put.physical_offset])
        if number % turn == 0:
            store.commit()
    store.commit()
    check(store, records, ends)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(MESSAGES, min_size=1, max_size=6), min_size=1, max_size=6))
def test_the_records_of_a_batch_are_those_of_its_messages(batches: list[list[Message]]) -> None:
    store = opened()
    records: dict[int, bytes] = {}
    ends: dict[tuple[str, int], int] = {}
    for batch in batches:
        first = batch[0]
        place = ("T", first.queue_id)
        # For what the messages of a batch share, the first one counts.
        batch = [
            Message(*place, each.body[:100], each.properties, first.born_host, 1, each.flag)
            for each in batch
        ]
        items = [(each.flag, each.body, each.properties) for each in batch]
        put = store.put_batch(*place, items, Origin(7, 5, first.born_host, 1))
        assert put.queue_offset == ends.get(place, 0)
        for message, offset in zip(batch, put.physical_offsets, strict=True):
            end = ends.get(place, 0)
            records[offset] = expected(message, end, offset)
            ends[place] = end + 1
        store.commit()
    check(store, records, ends)


MORE = b"MSG_REGION\x01R\x02TRACE_ON\x01true\x02"


def batch_of(batch: list[Message]) -> bytes:
    """Return the body of a send of a batch."""
    items = [
        struct.pack(">Iiii", 0, 0, each.flag, len(each.body))
        + each.body
        + struct.pack(">H", len(each.properties))
        + each.properties
        for each in batch
    ]
    return b"".join([struct.pack(">I", 4 + len(item)) + item for item in items])


def put_split(store: MessageStore, queue_id: int, raw: bytes, origin: Origin) -> AppendedBatch:
    return store.put_batch("T", queue_id, split_batch(raw, MORE), origin)


def ids_of(store: MessageStore, key: str) -> list[int]:
    return store.query("T", key, 99, begin_ms=0, end_ms=9, now_ms=7)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(MESSAGES, min_size=1, max_size=6), min_size=1, max_size=6))
def test_a_batch_that_is_put_as_it_came_becomes_what_its_messages_become(
    batches: list[list[Message]],
) -> None:
    quick, careful = opened(), opened()
    for batch in batches:
        raw = batch_of([each._replace(body=each.body[:100]) for each in batch])
        origin = Origin(7, 5, batch[0].born_host, 1)
        expected = put_split(careful, batch[0].queue_id, raw, origin)
        found = quick.put_raw_batch("T", batch[0].queue_id, raw, MORE, origin)
        assert (found or put_split(quick, batch[0].queue_id, raw, origin)) == expected
        quick.commit()
        careful.commit()
    records = [[each.raw for each in LogScan(store.segments, 0)] for store in (quick, careful)]
    assert records[0] == records[1]
    for queue_id in (0, 1):
        queues = [store.queues.simple.get("T", queue_id) for store in (quick, careful)]
        assert queues[0].read(0, 99) == queues[1].read(0, 99)
    for key in (f"{3:032X}", "a", "u"):
        assert ids_of(quick, key) == ids_of(careful, key)


ALIKE = [
    Message("T", 0, b"body %d" % number, with_unique_id(number, ENDS[1]), HOST, 0, 0)
    for number in range(3)
]
TWO = batch_of(ALIKE[:2])


def test_batches_that_are_alike_are_put_as_they_come() -> None:
    store = opened()
    origin = Origin(7, 5, HOST)
    assert store.put_raw_batch("T", 0, TWO, MORE, origin) is None, "nothing like it came before"
    put_split(store, 0, TWO, origin)
    found = store.put_raw_batch("T", 0, batch_of(ALIKE), MORE, origin)
    assert found is not None
    assert found.queue_offset == 2
    assert len(found.physical_offsets) == 3


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        TWO[:-1],
        TWO + b"\0",
        TWO[:-1] + b"x",
        TWO[: len(TWO) // 2] + b"\0\0\0\0" + TWO[len(TWO) // 2 + 4 :],
        TWO.replace(b"UNIQ_KEY", b"UNIQ_KEX"),
        TWO.replace(b"0\x02TAGS", b"\0\x02TAGS"),
        TWO.replace(b"TagA", b"TagB"),
        batch_of([each._replace(body=bytes(3000)) for each in ALIKE]),
        batch_of([ALIKE[0]._replace(properties=with_unique_id(1, ENDS[4]))]),
    ],
)
def test_of_a_batch_that_is_not_alike_nothing_is_put_as_it_came(raw: bytes) -> None:
    store = opened()
    put_split(store, 0, TWO, Origin(7, 5, HOST))
    before = store.pending_size
    assert store.put_raw_batch("T", 0, raw, MORE, Origin(7, 5, HOST)) is None
    assert store.pending_size == before
    store.commit()
    assert store.max_offset("T", 0) == 2


@pytest.mark.parametrize(
    ("topic", "origin"),
    [
        ("T", Origin(7, 5, IPV6)),
        ("T", Origin(7, 5, HOST, SysFlag.TRANSACTION_PREPARED)),
        ("T", Origin(7, 5, HOST, SysFlag.TRANSACTION_COMMITTED)),
        ("T", Origin(7, 5, HOST, SysFlag.INNER_BATCH)),
        ("%RETRY%g", Origin(7, 5, HOST)),
        ("Other", Origin(7, 5, HOST)),
    ],
)
def test_of_what_needs_care_nothing_is_put_as_it_came(topic: str, origin: Origin) -> None:
    store = opened()
    store.put("%RETRY%g", 0, b"", with_unique_id(0, ENDS[1]) + MORE, Origin(7, 5, HOST))
    put_split(store, 0, TWO, Origin(7, 5, HOST))
    assert store.put_raw_batch(topic, 0, TWO, MORE, origin) is None
    store.refuse_puts("an operator says so")
    assert store.put_raw_batch("T", 0, TWO, MORE, Origin(7, 5, HOST)) is None


QUICK = b"UNIQ_KEY\x010123\x02TAGS\x01TagA\x02"


def put(store: MessageStore, body: bytes = b"body", flag: int = 0) -> Appended:
    return store.put("T", 0, body, QUICK, Origin(1, 1, HOST), flag)


def test_a_put_that_could_be_quick_is_refused_like_any_other() -> None:
    store = opened()
    put(store)
    with pytest.raises(MessageIllegalError, match="body of 8193 bytes"):
        put(store, bytes(8193))
    with pytest.raises(MessageIllegalError, match="does not fit its field"):
        put(store, flag=1 << 40)
    store.refuse_puts("an operator says so")
    with pytest.raises(StoreNotWriteableError, match="an operator says so"):
        put(store)
    store.refuse_puts(None)
    assert put(store).queue_offset == 1
    store.commit()
    assert store.max_offset("T", 0) == 2


def test_a_turn_that_is_taken_back_leaves_the_end_of_its_segment_where_it_is() -> None:
    store = opened()
    for size in (8000, 6000):
        put(store, bytes(size))
        store.commit()
    for _ in range(2):
        assert put(store, bytes(4000)).physical_offset == CONFIG.segment_size
        store.take_back()


def test_a_topic_that_was_deleted_begins_anew_for_a_put_that_was_quick() -> None:
    store = opened()
    for _ in range(3):
        put(store)
    store.commit()
    store.delete_topics(["T"])
    assert [put(store).queue_offset for _ in range(3)] == [0, 1, 2]
    store.commit()
    assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (0, 3)


def test_properties_that_end_alike_are_remembered_up_to_a_bound() -> None:
    codes = TagsCodes()
    for number in range(5000):
        tags = b"Tag%d" % number
        properties = b"UNIQ_KEY\x01u\x02TAGS\x01%b\x02" % tags
        assert codes.code_of(properties) == codes.code_of(properties) == tags_code(tags)
    assert len(codes.known) <= 1024
    before = dict(codes.known)
    assert codes.code_of(b"TAGS\x01T\x02") == tags_code(b"T")
    assert codes.code_of(QUICK + b"a\x01" + b"x" * 256) == tags_code(b"TagA")
    assert codes.known == before


def test_each_turn_may_hold_as_much_as_the_one_before() -> None:
    config = replace(CONFIG, turn_size_max=10_000, segment_size=1 << 20)
    store = MessageStore.open(
        ROOT, config, now_ms=1, filesystem=SimulatedFileSystem(), threads=False
    )
    properties = with_unique_id(0, ENDS[1])
    for _ in range(50):
        store.put("T", 0, bytes(4000), properties, Origin(7, 5, HOST))
        store.commit()  # Not even half of what it might hold is used.
        with suppress(StoreBusyError):
            while store.put("T", 0, bytes(100), properties, Origin(7, 5, HOST)).size:
                pass
        assert config.turn_size_max - 2 * 300 < store.pending_size <= config.turn_size_max
        assert store.commit() == store.end_offset


def test_a_segment_is_made_ahead_as_soon_as_the_one_before_is_half_full() -> None:
    disk = SimulatedFileSystem()
    store = MessageStore.open(ROOT, CONFIG, now_ms=1, filesystem=disk, threads=False)
    for number in range(100):
        store.put("T", 0, bytes(900), with_unique_id(number, ENDS[1]), Origin(7, 5, HOST))
        end = store.commit()
        store.run_jobs()
        made = [int(entry.name) for entry in disk.list(f"{ROOT}/commitlog")]
        begun = end - end % CONFIG.segment_size
        ahead = [begun] if end - begun < CONFIG.segment_size // 2 else [begun + CONFIG.segment_size]
        assert made[-1:] == ahead, end
