"""Messages of every kind, made from numbers, to be recognized whether we or Apache wrote them.

A message's number decides all of its content and is in its body. So a log shows by itself which
messages are in it, in which order, and whether one is lost or doubled.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from cometmq.proto.batch import BatchItem, encode_batch
from cometmq.proto.compression import Compression, compress
from cometmq.proto.host import pack_host
from cometmq.proto.message import StoredMessage
from cometmq.proto.message_id import decode_offset_id
from cometmq.proto.properties import encode_properties
from cometmq.proto.sysflag import SysFlag
from cometmq.store.config import Flush, StoreConfig
from cometmq.store.log.turn import Origin

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.interop.apache_client import BrokerClient

    from cometmq.store.message_store import MessageStore

PLAIN, BATCHES, INNER, TRANSACTIONS = "io_plain", "io_batches", "io_inner", "io_transactions"
LONG = "%RETRY%" + "io_long_group_" * 9 + "_topic"
SCHEDULE = "SCHEDULE_TOPIC_XXXX"
TOPICS = {PLAIN: 4, BATCHES: 1, INNER: 2, TRANSACTIONS: 1, LONG: 1}
"""The topics, with the number of queues of each."""
assert len(LONG) > 127

IPV4, IPV6 = pack_host("127.0.0.1", 10911), pack_host("fd00::1:2", 65535)

SEGMENT_SIZE = 65536
QUEUE_FILE_SIZE = 30 * 20
BATCH_QUEUE_FILE_SIZE = 20 * 46
INDEX_SLOTS = 150
INDEX_ITEMS = 301

APACHE_SETTINGS = {
    "mappedFileSizeCommitLog": str(SEGMENT_SIZE),
    "mappedFileSizeConsumeQueue": str(QUEUE_FILE_SIZE),
    "mapperFileSizeBatchConsumeQueue": str(BATCH_QUEUE_FILE_SIZE),
    "maxHashSlotNum": str(INDEX_SLOTS),
    "maxIndexNum": str(INDEX_ITEMS),
    "timerWheelEnable": "false",  # Its 38 MB are not needed here.
}


def store_config(**changes: Any) -> StoreConfig:
    settings: dict[str, Any] = {
        "segment_size": SEGMENT_SIZE,
        "consume_queue_file_size": QUEUE_FILE_SIZE,
        "batch_consume_queue_file_size": BATCH_QUEUE_FILE_SIZE,
        "index_slots": INDEX_SLOTS,
        "index_items": INDEX_ITEMS,
        "flush": Flush.ASYNC,
    }
    return StoreConfig(**{**settings, **changes})


class Message(NamedTuple):
    """What is sent."""

    topic: str
    queue_id: int
    body: bytes
    properties: dict[str, str]
    sys_flag: int = 0
    born_host: bytes = IPV4


def message(number: int) -> Message:
    """The message of a number."""
    body = b"number %d;" % number
    properties = {
        "KEYS": f"key{number} shared{number % 50}",
        "UNIQ_KEY": f"7F0000010001{number:020X}",
        "TAGS": ("TagA", "TagB", "标签😀", "")[number % 4],
    }
    if not properties["TAGS"]:
        del properties["TAGS"]
    plain = Message(PLAIN, number % 4, body + b"." * (number * 7 % 300), properties)
    match number % 16:
        case 1:
            delayed = {"DELAY": "18", "REAL_TOPIC": PLAIN, "REAL_QID": "0"}
            return plain._replace(topic=SCHEDULE, queue_id=17, properties=properties | delayed)
        case 3:
            return plain._replace(properties={})
        case 5:
            kind = (Compression.ZLIB, Compression.LZ4, Compression.ZSTD)[number // 16 % 3]
            body, flags = compress(body + b"long " * 300, kind)
            return plain._replace(body=body, sys_flag=flags)
        case 7:
            return plain._replace(topic=LONG, queue_id=0, born_host=IPV6)
        case 9 | 10 | 11 as case:
            flags = int(SysFlag.TRANSACTION_PREPARED) * (case - 8)
            return plain._replace(topic=TRANSACTIONS, queue_id=0, sys_flag=flags)
        case 13:
            return plain._replace(body=body + b"\0\xff" * 2500)
        case 14:
            inner = encode_batch(INNER, [BatchItem(b"%d" % n) for n in range(3)])
            flags = int(SysFlag.NEEDS_UNWRAP | SysFlag.INNER_BATCH)
            more = {"INNER_NUM": "3", "IO_NUMBER": str(number)}
            return Message(INNER, number // 16 % 2, inner, properties | more, flags)
        case 15:
            return plain._replace(topic=INNER, queue_id=number // 16 % 2)
        case _:
            return plain


class Known(NamedTuple):
    """A stored message: where it is, and what it must be."""

    number: int
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    body: bytes
    properties: dict[str, str]
    sys_flag: int = 0

    @property
    def has_entry(self) -> bool:
        return self.sys_flag & 0xC in (0, 8)

    @property
    def keys(self) -> list[str]:
        """The keys that find the message; nothing finds a rolled-back one."""
        if self.sys_flag & 0xC == 0xC:
            return []
        unique = self.properties.get("UNIQ_KEY", "")
        return [key for key in (unique, *self.properties.get("KEYS", "").split(" ")) if key]

    def check(self, stored: StoredMessage) -> None:
        """Compare what was found with what was sent; a broker may add properties."""
        assert stored.physical_offset == self.physical_offset
        assert (stored.topic, stored.queue_id) == (self.topic, self.queue_id)
        assert stored.queue_offset == self.queue_offset
        assert stored.body == self.body
        assert stored.is_body_intact()
        assert self.properties.items() <= stored.properties.items()

    def to_line(self) -> str:
        return json.dumps([*self[:5], self.sys_flag])

    @classmethod
    def from_line(cls, line: str) -> Known:
        number, topic, queue_id, queue_offset, physical_offset, sys_flag = json.loads(line)
        sent = message(number)
        if topic == BATCHES:
            sent = batched(number)
        body, properties = sent.body, sent.properties
        return cls(
            number, topic, queue_id, queue_offset, physical_offset, body, properties, sys_flag
        )


def number_in(body: bytes, properties: dict[str, str], sys_flag: int) -> int:
    """The number of a message that is found somewhere."""
    if "IO_NUMBER" in properties:
        return int(properties["IO_NUMBER"])
    if sys_flag & SysFlag.COMPRESSED:
        return int(properties["UNIQ_KEY"][12:], 16)
    found = re.match(rb"number (\d+);", body)
    assert found is not None, body
    return int(found[1])


# Writing by our store.


def clock(start_ms: int) -> Iterator[int]:
    """Yield times that stay the same for three turns and then go on, so that messages share one."""
    while True:
        for _ in range(3):
            yield start_ms
        start_ms += 7


def write_turn(store: MessageStore, first: int, times: Iterator[int]) -> list[Known]:
    """Put and commit one turn, of one to eight messages, whose numbers begin with `first`."""
    now_ms = next(times)
    turn: list[Known] = []
    if first % 5 == 0:
        turn += _put_batch(store, first, 3, now_ms)
    for number in range(first + len(turn), first + 1 + first % 8):
        sent = message(number)
        origin = Origin(now_ms, now_ms - 5, sent.born_host, sent.sys_flag)
        properties = encode_properties(sent.properties)
        appended = store.put(sent.topic, sent.queue_id, sent.body, properties, origin, flag=number)
        turn.append(_known(number, sent, appended.queue_offset, appended.physical_offset))
    store.commit()
    store.tick(now_ms)
    return turn


def write_prepared(store: MessageStore, number: int, now_ms: int) -> Known:
    """Write a message without an entry, the first half of a transaction, as a turn of its own."""
    number = number * 16 + 9
    sent = message(number)
    assert sent.sys_flag == SysFlag.TRANSACTION_PREPARED
    origin = Origin(now_ms, now_ms, IPV4, sent.sys_flag)
    properties = encode_properties(sent.properties)
    appended = store.put(sent.topic, sent.queue_id, sent.body, properties, origin)
    store.commit()
    return _known(number, sent, appended.queue_offset, appended.physical_offset)


def write(store: MessageStore, first: int, count: int, start_ms: int) -> list[Known]:
    """Write at least `count` messages."""
    written: list[Known] = []
    times = clock(start_ms)
    while len(written) < count:
        written += write_turn(store, first + len(written), times)
    return written


def _put_batch(store: MessageStore, first: int, count: int, now_ms: int) -> list[Known]:
    messages = [batched(number) for number in range(first, first + count)]
    items = [(0, each.body, encode_properties(each.properties)) for each in messages]
    put = store.put_batch(BATCHES, 0, items, Origin(now_ms, now_ms, IPV4))
    return [
        _known(first + n, each, put.queue_offset + n, put.physical_offsets[n])
        for n, each in enumerate(messages)
    ]


def batched(number: int) -> Message:
    """The message of a number as part of a batch."""
    properties = {"UNIQ_KEY": f"7F0000010002{number:020X}", "TAGS": "Batched"}
    return Message(BATCHES, 0, b"number %d;" % number, properties)


def _known(number: int, sent: Message, queue_offset: int, physical_offset: int) -> Known:
    return Known(
        number,
        sent.topic,
        sent.queue_id,
        queue_offset,
        physical_offset,
        sent.body,
        sent.properties,
        sent.sys_flag,
    )


# Writing through Apache.


def sendable(number: int) -> Message:
    """The message of a number as a client may send it."""
    sent = message(number)
    if sent.topic not in (PLAIN, INNER) or sent.sys_flag or not sent.properties:
        return Message(PLAIN, number % 4, b"number %d;" % number, {"KEYS": f"key{number}"})
    return sent


def send(client: BrokerClient, first: int, count: int) -> list[Known]:
    """Send through a broker: messages, batches and inner batches."""
    known: list[Known] = []
    while len(known) < count:
        number = first + len(known)
        if number % 9 == 0:
            known += _send_batch(client, number)
        elif number % 9 == 5:
            known.append(_send_inner_batch(client, number))
        else:
            known.append(_send_one(client, number))
    return known


def _send_one(client: BrokerClient, number: int) -> Known:
    sent = sendable(number)
    answer = client.send(sent.topic, sent.queue_id, sent.body, sent.properties)
    place = decode_offset_id(answer.msg_id).physical_offset
    return Known(
        number, sent.topic, answer.queue_id, answer.queue_offset, place, sent.body, sent.properties
    )


def _send_batch(client: BrokerClient, first: int) -> list[Known]:
    messages = [batched(number) for number in range(first, first + 3)]
    items = [BatchItem(each.body, encode_properties(each.properties)) for each in messages]
    answer = client.send_batch(BATCHES, 0, items, {})
    places = [decode_offset_id(text).physical_offset for text in answer.msg_id.split(",")]
    return [
        Known(
            first + n,
            BATCHES,
            0,
            answer.queue_offset + n,
            places[n],
            each.body,
            each.properties,
        )
        for n, each in enumerate(messages)
    ]


def _send_inner_batch(client: BrokerClient, number: int) -> Known:
    items = [BatchItem(b"%d" % n) for n in range(4)]
    properties = {"UNIQ_KEY": f"7F0000010003{number:020X}", "IO_NUMBER": str(number)}
    answer = client.send_batch(INNER, 0, items, properties)
    flags = int(SysFlag.NEEDS_UNWRAP | SysFlag.INNER_BATCH)
    place = decode_offset_id(answer.msg_id).physical_offset
    body = encode_batch(INNER, items)
    properties |= {"INNER_NUM": "4", "INNER_BASE": str(answer.queue_offset)}
    return Known(number, INNER, 0, answer.queue_offset, place, body, properties, flags)


def queues_of(known: Iterable[Known]) -> Counter[tuple[str, int]]:
    """Return the queues that have entries, and how many each has."""
    return Counter((each.topic, each.queue_id) for each in known if each.has_entry)
