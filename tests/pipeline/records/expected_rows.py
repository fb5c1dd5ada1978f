"""The rows that records must become, by `cometmq.proto`'s own reading; and random records."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from cometmq.proto.batch import unwrap_batch
from cometmq.proto.compression import Compression, compress
from cometmq.proto.host import pack_host
from cometmq.proto.message_list import MessageList
from cometmq.proto.properties import decode_properties
from cometmq.proto.record import encode_record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.proto.message import StoredMessage

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
MOMENTS = st.integers(-62_135_596_800_000, 253_402_300_799_999) | I64

NAMES = st.sampled_from([b"TAGS", b"KEYS", b"UNIQ_KEY", b"KEYSX", b"a", b"MSG_REGION", b"\xc3\xb6"])
PAIRS = st.tuples(NAMES | st.binary(max_size=12), st.binary(max_size=20)).map(
    lambda pair: b"%b\x01%b\x02" % pair
)
TIDY_PAIRS = st.tuples(NAMES, st.text("abcö", min_size=1, max_size=20)).map(
    lambda pair: b"%b\x01%b\x02" % (pair[0], pair[1].encode())
)
PROPERTIES = (
    st.lists(TIDY_PAIRS, max_size=9).map(b"".join)
    | st.lists(PAIRS, max_size=5).map(b"".join)
    | st.text("\0\1\2aT", max_size=30).map(str.encode)
    | st.binary(max_size=30)
)
HOSTS = st.sampled_from(
    [pack_host("10.0.0.2", 40000), pack_host("::1", 1), pack_host("2001:db8::7", 65535)]
    + [pack_host("255.1.2.3", 0)] * 3
)
BODIES = st.binary(max_size=300) | st.just(b"ab" * 500)


@st.composite
def records(draw: st.DrawFn) -> bytes:
    """A sound record of any kind but an inner batch."""
    body = draw(BODIES)
    kind = draw(st.sampled_from([None, None, None, *Compression]))
    flags = draw(I32) & 0x7FFF_F80E
    if kind is not None:
        body, added = compress(body, kind)
        flags |= added
    topic = draw(st.sampled_from([b"orders", b"T" * 200]) | st.binary(min_size=1, max_size=140))
    return encode_record(
        topic=topic,
        body=body,
        properties=draw(PROPERTIES),
        queue_id=draw(I32),
        queue_offset=draw(I64),
        physical_offset=draw(I64),
        born_timestamp=draw(MOMENTS),
        born_host=draw(HOSTS),
        store_timestamp=draw(MOMENTS),
        store_host=draw(HOSTS),
        sys_flag=flags,
        flag=draw(I32),
        reconsume_times=draw(I32),
        prepared_transaction_offset=draw(I64),
    )


def expected_rows(data: bytes, *, decompress: bool = True) -> list[dict[str, Any]]:
    """Return the rows of an answer as `cometmq.proto` reads it, message by message."""
    return [row for message in MessageList(data) for row in _rows(message, decompress=decompress)]


def _rows(message: StoredMessage, *, decompress: bool) -> Iterator[dict[str, Any]]:
    body = message.plain_body(size_max=1 << 26) if decompress else message.body
    row = _row(message) | {"body": body} | of_properties(message, message.properties_raw)
    if not message.is_inner_batch:
        yield row
        return
    for inner in unwrap_batch(message, message.plain_body(size_max=1 << 26)):
        yield (
            row
            | of_properties(message, inner.item.properties)
            | {
                "queue_offset": inner.queue_offset,
                "body": inner.item.body,
                "body_size": len(inner.item.body),
                "flag": inner.item.flag,
            }
        )


def of_properties(message: StoredMessage, raw: bytes) -> dict[str, Any]:
    properties = decode_properties(raw)
    return {
        "message_id": properties.get("UNIQ_KEY") or message.offset_id,
        "unique_key": properties.get("UNIQ_KEY"),
        "key": properties.get("KEYS"),
        "tag": properties.get("TAGS"),
        "properties": list(properties.items()),
    }


def _row(message: StoredMessage) -> dict[str, Any]:
    return {
        "topic": message.topic_raw.decode("utf-8", "replace"),
        "broker": None,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "physical_offset": message.physical_offset,
        "size": message.size,
        "offset_id": message.offset_id,
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "born_time": moment(message.born_timestamp),
        "store_time": moment(message.store_timestamp),
        "born_host": str(message.born_address),
        "store_host": str(message.store_address),
        "reconsume_times": message.reconsume_times,
        "prepared_offset": message.prepared_transaction_offset,
        "body_crc": _signed(message.body_crc),
        "body_size": message.body_end - message.body_start,
    }


def moment(milliseconds: int) -> datetime | None:
    try:
        return EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None


def _signed(number: int) -> int:
    return number - (1 << 32) if number >= 1 << 31 else number
