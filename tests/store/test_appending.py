"""The quick way of a put: it makes of each message what the careful way makes."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings, strategies as st
from tests.crash.disk import SimulatedFileSystem
from tests.store.records import HOST

from cometmq.proto.java import tags_code
from cometmq.proto.record import encode_record
from cometmq.proto.sysflag import SysFlag
from cometmq.store.config import Flush, StoreConfig
from cometmq.store.consume_queue import ENTRY
from cometmq.store.dispatch import UNIQUE_ID, TagsCodes
from cometmq.store.errors import MessageIllegalError, StoreNotWriteableError
from cometmq.store.log_scan import LogScan
from cometmq.store.message_store import MessageStore
from cometmq.store.turn import Appended, Origin

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
    """What `encode_record` makes of it, which knows nothing of a quick way."""
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
    """The log holds exactly these records, and each queue an entry for each of its own."""
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
        # Of what the messages of a batch share, the first one's counts.
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
