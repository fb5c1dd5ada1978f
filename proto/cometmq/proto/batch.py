"""Several messages in one send: the body of SEND_BATCH_MESSAGE, and of an inner batch.

The items stand back to back. Each is

====  ====  ==========================================
at    size  field (big-endian)
====  ====  ==========================================
0     4     size of the item, this field included
4     4     magic, written as 0 and not read
8     4     body CRC, written as 0 and not read
12    4     the user's flag
16    4, n  body: length, bytes, never compressed
..    2, n  properties: length, see `properties`
====  ====  ==========================================

The other fields of a record (topic, queue, hosts, times) are in the send's header, for all items.

A broker stores each item as a separate record or, for topics with batch queues, the whole body as
one record: an inner batch, which consumers unwrap.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import msgspec

from cometmq.proto import property_names as names
from cometmq.proto.errors import LocalProtocolError, MessageError
from cometmq.proto.properties import PROPERTIES_SIZE_MAX, property_finder, remove_property
from cometmq.proto.sysflag import TRANSACTION_MASK, SysFlag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from cometmq.proto.buffer import Buffer
    from cometmq.proto.message import StoredMessage

RETRY_TOPIC_PREFIX: Final = "%RETRY%"
"""The prefix of the name of a group's retry topic."""

_HEAD = struct.Struct(">I4x4xiI")
assert _HEAD.size == 20
ITEM_HEAD_SIZE: Final = _HEAD.size
"""Bytes of an item before its body."""
unpack_item_head: Callable[[bytes, int], tuple[int, int, int]] = _HEAD.unpack_from
"""Return the size, the flag and the body's length of the item that begins at a place."""
_U16 = struct.Struct(">H")
_pack_head, _pack_u16 = _HEAD.pack, _U16.pack
_SEPARATOR: Final = 2
_EMPTY_SIZE: Final = _HEAD.size + _U16.size

_find_delay = property_finder(names.DELAY.encode())
_find_wait = property_finder(names.WAIT.encode())


class BatchItem(msgspec.Struct, frozen=True, gc=False):
    """One message of a batch."""

    body: bytes
    properties: bytes = b""
    flag: int = 0


class InnerMessage(msgspec.Struct, frozen=True, gc=False):
    """One message of an inner batch, with the queue offset that the batch gives it."""

    queue_offset: int
    item: BatchItem


def encode_batch(topic: str, items: Iterable[BatchItem], sys_flag: int = 0) -> bytes:
    """Return the body of a batch to a topic, to be sent with these flags.

    Refuses what a broker would refuse or treat otherwise than the sender meant: no items, a retry
    topic, delayed items, items that differ in waiting for the store, compression, transactions.
    """
    if topic.startswith(RETRY_TOPIC_PREFIX):
        raise LocalProtocolError(f"batch: must not go to a retry topic: {topic!r}")
    if sys_flag & (SysFlag.COMPRESSED | TRANSACTION_MASK):
        raise LocalProtocolError(
            f"batch: must not be compressed or in a transaction: flags {sys_flag:#x}"
        )
    items = list(items)
    waits: set[bool] = set()
    for item in items:
        if _find_delay(item.properties) not in (None, b"0"):
            raise LocalProtocolError("batch: must not hold a delayed message")
        waits.add((_find_wait(item.properties) or b"true").lower() == b"true")
    if not items:
        raise LocalProtocolError("batch: no messages")
    if len(waits) > 1:
        raise LocalProtocolError("batch: some messages wait for the store, others do not")
    return encode_items(items)


def encode_items(items: Iterable[BatchItem]) -> bytes:
    """Return messages as `encode_batch` does, without looking at their properties."""
    parts: list[bytes] = []
    for item in items:
        body, properties = item.body, item.properties
        body_size, properties_size = len(body), len(properties)
        if properties_size > PROPERTIES_SIZE_MAX:
            raise LocalProtocolError(
                f"batch: properties of {properties_size} bytes, over {PROPERTIES_SIZE_MAX}"
            )
        size = _EMPTY_SIZE + body_size + properties_size
        try:
            head = _pack_head(size, item.flag, body_size)
        except struct.error as error:
            raise LocalProtocolError(f"batch: a number does not fit its field: {error}") from None
        parts += (head, body, _pack_u16(properties_size), properties)
    return b"".join(parts)


def decode_batch(raw: Buffer | None) -> Iterator[BatchItem]:
    """Yield the messages of a batch's body; raises like `split_batch`, before the first one."""
    for flag, body, properties in split_batch(b"" if raw is None else bytes(raw)):
        yield BatchItem(body, properties, flag)


def split_batch(raw: bytes, more: bytes = b"") -> list[tuple[int, bytes, bytes]]:
    """Return the flag, body and properties of each message in a batch's body.

    `more` is added to the properties of each, as by `join_properties`. Raises a `MessageError`,
    with the place, if the lengths of an item do not agree, and also for an empty body: a batch has
    at least one message.
    """
    if not raw:
        raise MessageError("batch: no messages")
    messages: list[tuple[int, bytes, bytes]] = []
    size_all = len(raw)
    apart = b"\x02" + more
    start: int = 0
    while start < size_all:
        try:
            size, flag, body_size = unpack_item_head(raw, start)
            body_end: int = start + 20 + body_size
            properties_size = raw[body_end] << 8 | raw[body_end + 1]
        except (struct.error, IndexError):
            raise MessageError(f"batch item at {start}: cut short") from None
        properties_start = body_end + 2
        end = properties_start + properties_size
        if end - start != size:
            raise MessageError(
                f"batch item at {start}: says {size} bytes, but its parts have {end - start}"
            )
        if end > size_all or properties_size > PROPERTIES_SIZE_MAX:
            raise MessageError(f"batch item at {start}: properties of {properties_size} bytes")
        properties = raw[properties_start:end]
        if more:
            properties += more if not properties or raw[end - 1] == _SEPARATOR else apart
        messages.append((flag, raw[start + 20 : body_end], properties))
        start = end
    return messages


def batch_properties(raw: bytes) -> list[bytes]:
    """Return the properties of each message in a batch's body; raises like `split_batch`."""
    found: list[bytes] = []
    start, size_all = 0, len(raw)
    while start < size_all:
        try:
            size, _, body_size = unpack_item_head(raw, start)
            body_end: int = start + 20 + body_size
            properties_start = body_end + 2
            end = properties_start + (raw[body_end] << 8 | raw[body_end + 1])
        except (struct.error, IndexError):
            break
        if end - start != size or end > size_all or end - properties_start > PROPERTIES_SIZE_MAX:
            break
        found.append(raw[properties_start:end])
        start = end
    if start < size_all or not found:
        split_batch(raw)  # It raises with what is wrong.
        raise MessageError(f"batch item at {start}: cannot be read")
    return found


def without_property(raw: bytes, name: bytes) -> bytes:
    """Return a batch's body without this property in any message; raises like `split_batch`."""
    if name + b"\x01" not in raw:
        return raw
    return encode_items(
        BatchItem(item.body, remove_property(item.properties, name), item.flag)
        for item in decode_batch(raw)
    )


def unwrap_batch(message: StoredMessage, body: bytes) -> list[InnerMessage]:
    """Return the messages of an inner batch; `body` is its body, decompressed.

    Raises a `MessageError` if their number is not the one in the record.
    """
    first = message.queue_offset
    inner = [InnerMessage(first + index, item) for index, item in enumerate(decode_batch(body))]
    count = message.find(names.INNER_NUM)
    if count != str(len(inner)):
        raise MessageError(f"inner batch: {len(inner)} messages, {count} announced")
    return inner
