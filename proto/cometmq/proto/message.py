"""A stored message, read in place: a view of a record that decodes a field when it is accessed.

`read_message` checks once that all lengths agree; after that, no field can reach outside its
record. The view holds the buffer on which it was made, so a message that is kept keeps a whole
answer alive: keep `message.body` instead. For the layout see `record`.
"""

from __future__ import annotations

import mmap
import struct

import msgspec

from cometmq.proto import property_names as names
from cometmq.proto.buffer import RecordBuffer
from cometmq.proto.checksum import crc31
from cometmq.proto.compression import decompress
from cometmq.proto.errors import MessageError
from cometmq.proto.host import PACKED_IPV4_SIZE, PACKED_IPV6_SIZE, Host, unpack_host
from cometmq.proto.java import text_of
from cometmq.proto.message_id import encode_offset_id
from cometmq.proto.properties import (
    PROPERTIES_SIZE_MAX,
    decode_properties,
    find_property,
    property_finder,
)
from cometmq.proto.record import (
    HEAD_SIZE,
    HOSTS_MASK,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PHYSICAL_OFFSET_AT,
    RECORD_SCAN,
    STORE_TIMESTAMP_AT,
    TOPIC_SIZE_V1_MAX,
    TOPIC_SIZE_V2_MAX,
    check_record_crc,
)
from cometmq.proto.sysflag import SysFlag

_INNER_BATCH = (SysFlag.NEEDS_UNWRAP | SysFlag.INNER_BATCH).value
_scan = RECORD_SCAN.unpack_from
_BODY_CRC_AT = 8
_QUEUE_ID_AT = 12
_FLAG_AT = 16
_BORN_TIMESTAMP_AT = 40
_BORN_HOST_AT = 48
# These three stand after the hosts, whose sizes differ, so they are counted back from the body.
_STORE_HOST_END = 16
_RECONSUME_TIMES_FROM_BODY = 16
_PREPARED_OFFSET_FROM_BODY = 12
_BORN_IPV6 = SysFlag.BORN_HOST_IPV6.value
_STORE_IPV6 = SysFlag.STORE_HOST_IPV6.value
_IPV6_MORE = PACKED_IPV6_SIZE - PACKED_IPV4_SIZE
_U32 = struct.Struct(">I")
_U16 = struct.Struct(">H")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_PLACE = struct.Struct(">12xi12xq20xq")
_find_tags = property_finder(names.TAGS.encode())
_find_keys = property_finder(names.KEYS.encode())
_find_unique_id = property_finder(names.UNIQ_KEY.encode())


class StoredMessage(msgspec.Struct, frozen=True, gc=False, eq=False):
    """A view of one record in its buffer, made by `read_message`, which has checked its bounds.

    Two views are equal only if they are the same object: compare `raw`.
    """

    buffer: RecordBuffer
    start: int
    end: int
    queue_offset: int
    sys_flag: int
    body_start: int
    body_end: int
    topic_start: int
    topic_end: int

    @property
    def size(self) -> int:
        """The size of the record."""
        return self.end - self.start

    @property
    def raw(self) -> bytes:
        """The bytes of the record."""
        return self.buffer[self.start : self.end]

    @property
    def version(self) -> int:
        """1, or 2 for a topic length of two bytes."""
        # Between the body and the topic there is only the topic's length, and the versions differ
        # only in its size.
        return self.topic_start - self.body_end

    @property
    def body_crc(self) -> int:
        """The checksum that was stored with the body."""
        return self._i32(_BODY_CRC_AT)

    @property
    def queue_id(self) -> int:
        """The queue of the topic."""
        return self._i32(_QUEUE_ID_AT)

    @property
    def flag(self) -> int:
        """The user's flag."""
        return self._i32(_FLAG_AT)

    @property
    def physical_offset(self) -> int:
        """The place of the record in the log."""
        return self._i64(PHYSICAL_OFFSET_AT)

    @property
    def place(self) -> tuple[int, int, int]:
        """The queue id, the physical offset and the store timestamp in one call."""
        place: tuple[int, int, int] = _PLACE.unpack_from(self.buffer, self.start)
        return (*place[:2], self.store_timestamp) if self.sys_flag & 0x10 else place

    @property
    def born_timestamp(self) -> int:
        """When its producer made it, ms."""
        return self._i64(_BORN_TIMESTAMP_AT)

    @property
    def born_host(self) -> bytes:
        """The producer's host, packed."""
        at = self.start + _BORN_HOST_AT
        size = PACKED_IPV6_SIZE if self.sys_flag & _BORN_IPV6 else PACKED_IPV4_SIZE
        return self.buffer[at : at + size]

    @property
    def store_timestamp(self) -> int:
        """When a broker stored it, ms."""
        return self._i64(STORE_TIMESTAMP_AT + (_IPV6_MORE if self.sys_flag & _BORN_IPV6 else 0))

    @property
    def store_host(self) -> bytes:
        """The broker's host, packed."""
        end = self.body_start - _STORE_HOST_END
        size = PACKED_IPV6_SIZE if self.sys_flag & _STORE_IPV6 else PACKED_IPV4_SIZE
        return self.buffer[end - size : end]

    @property
    def reconsume_times(self) -> int:
        """How often it was delivered again."""
        return self._i32(self.body_start - _RECONSUME_TIMES_FROM_BODY - self.start)

    @property
    def prepared_transaction_offset(self) -> int:
        """The physical offset of the half message that this one commits; otherwise 0."""
        return self._i64(self.body_start - _PREPARED_OFFSET_FROM_BODY - self.start)

    @property
    def body(self) -> bytes:
        """The body as it is stored, compressed if the flags say so. See `plain_body`."""
        return self.buffer[self.body_start : self.body_end]

    def plain_body(self, *, size_max: int) -> bytes:
        """Return the body as its producer gave it: decompressed, up to `size_max` bytes.

        Raises a `MessageError` if the body does not decompress within that, and a
        `MissingLibraryError` if the library for it is not installed. An inner batch is not
        unwrapped: see `batch`.
        """
        return decompress(self.body, self.sys_flag, size_max)

    @property
    def topic_raw(self) -> bytes:
        """The topic's bytes."""
        return self.buffer[self.topic_start : self.topic_end]

    @property
    def topic(self) -> str:
        """The topic; raises a `MessageError` if it is not UTF-8."""
        try:
            return self.buffer[self.topic_start : self.topic_end].decode()
        except UnicodeDecodeError as error:
            raise MessageError(
                f"record at {self.start}: topic is not UTF-8: {error.reason}"
            ) from None

    @property
    def properties_raw(self) -> bytes:
        """The properties' bytes."""
        return self.buffer[self.topic_end + 2 : self.end]

    @property
    def properties(self) -> dict[str, str]:
        """All properties, decoded at each access."""
        return decode_properties(self.properties_raw)

    @property
    def tags(self) -> str | None:
        """The tag, if there is one."""
        raw = self.buffer[self.topic_end + 2 : self.end]
        # `_find_tags` without the call in the common case: consumers need the tag of each message.
        _, found, rest = raw.rpartition(b"\x02TAGS\x01")
        tags = (found and rest.partition(b"\x02")[0]) or _find_tags(raw)
        if tags is None:
            return None
        try:
            return tags.decode()  # Without arguments it is faster.
        except UnicodeDecodeError:
            return text_of(tags)

    @property
    def keys(self) -> list[str]:
        """The keys under which the message is indexed."""
        raw = _find_keys(self.properties_raw)
        if raw is None:
            return []
        return [key for key in text_of(raw).split(" ") if key]

    @property
    def is_inner_batch(self) -> bool:
        """Whether the body is a batch that a consumer must unwrap: see `batch`."""
        return self.sys_flag & _INNER_BATCH == _INNER_BATCH

    @property
    def unique_id(self) -> str | None:
        """The id that its producer gave it, if it did."""
        raw = _find_unique_id(self.properties_raw)
        return None if raw is None else text_of(raw)

    @property
    def offset_id(self) -> str:
        """The id by which a broker finds the record: the broker's host and the physical offset."""
        return encode_offset_id(self.store_host, self.physical_offset)

    @property
    def message_id(self) -> str:
        """The id that users see: the producer's, otherwise the offset id."""
        return self.unique_id or self.offset_id

    @property
    def born_address(self) -> Host:
        """The producer's host, unpacked."""
        return unpack_host(self.born_host)

    @property
    def store_address(self) -> Host:
        """The broker's host, unpacked."""
        return unpack_host(self.store_host)

    def find(self, name: str) -> str | None:
        """Return one property without decoding the others."""
        raw = find_property(self.properties_raw, name.encode())
        return None if raw is None else text_of(raw)

    def is_body_intact(self) -> bool:
        """Return whether the body has the checksum that was stored with it."""
        return crc31(self.body) == self.body_crc

    def is_record_intact(self) -> bool | None:
        """Return whether the whole record matches the checksum at its end; `None` without one."""
        return check_record_crc(self.raw)

    def __repr__(self) -> str:
        return (
            f"<StoredMessage {self.topic_raw.decode('utf-8', 'replace')!r}, queue {self.queue_id},"
            f" offset {self.queue_offset}, id {self.message_id},"
            f" body of {self.body_end - self.body_start} bytes>"
        )

    def _i32(self, at: int) -> int:
        value: int = _I32.unpack_from(self.buffer, self.start + at)[0]
        return value

    def _i64(self, at: int) -> int:
        value: int = _I64.unpack_from(self.buffer, self.start + at)[0]
        return value


def read_message(buffer: RecordBuffer, start: int = 0) -> StoredMessage:
    """Return a view of the record at `start`; what follows it does not matter.

    Raises a `MessageError`, with the place, if a part of the record is missing or its lengths do
    not agree, and also if `start` is outside the buffer. The checksums are not checked. A
    memoryview or a bytearray is a TypeError, because what is read in place must not change: copy
    the record first. `MessageList` does that for a whole answer.
    """
    if buffer.__class__ is not bytes and not isinstance(buffer, bytes | mmap.mmap):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers without a type checker
        raise TypeError(f"read_message reads bytes or a map of a file, not {type(buffer).__name__}")
    sys_flag: int
    body_size: int
    topic_size: int
    properties_size: int
    try:
        if start < 0:  # Python would count from the end.
            raise IndexError
        size, magic, queue_offset, sys_flag, body_size = _scan(buffer, start)
        body_start = start + HEAD_SIZE
        if sys_flag & HOSTS_MASK:
            both = sys_flag & HOSTS_MASK == HOSTS_MASK
            body_start += 2 * _IPV6_MORE if both else _IPV6_MORE
            body_size = _U32.unpack_from(buffer, body_start - _U32.size)[0]
        body_end = body_start + body_size
        if magic == MAGIC_V1:
            topic_start, topic_size_max = body_end + 1, TOPIC_SIZE_V1_MAX
            topic_size = buffer[body_end]
        elif magic == MAGIC_V2:
            topic_start, topic_size_max = body_end + 2, TOPIC_SIZE_V2_MAX
            topic_size = _U16.unpack_from(buffer, body_end)[0]
        else:
            raise _wrong_magic(start, magic)
        topic_end = topic_start + topic_size
        properties_size = buffer[topic_end] << 8 | buffer[topic_end + 1]
    except (struct.error, IndexError, OverflowError):
        raise MessageError(f"record at {start}: it runs past the end of the data") from None
    end = start + size
    if properties_size > PROPERTIES_SIZE_MAX or topic_size > topic_size_max:
        raise MessageError(
            f"record at {start}: topic of {topic_size} bytes, properties of {properties_size}"
        )
    if topic_end + 2 + properties_size != end:
        raise MessageError(
            f"record at {start}: says {size} bytes, but its parts have"
            f" {topic_end + 2 + properties_size - start}"
        )
    if end > len(buffer):
        there = len(buffer) - start
        raise MessageError(f"record at {start}: only {there} of its {size} bytes are there")
    return StoredMessage(
        buffer, start, end, queue_offset, sys_flag, body_start, body_end, topic_start, topic_end
    )


def _wrong_magic(start: int, magic: int) -> MessageError:
    if magic == MAGIC_BLANK:
        return MessageError(
            f"record at {start}: the filler at the end of a log file, not a message"
        )
    return MessageError(f"record at {start}: unknown magic {magic:#010x}")
