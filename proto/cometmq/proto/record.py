"""The stored record: one message, as it is in the CommitLog and in pull answers.

=====  =======  ==========================================================================
at     size     field (big-endian; offsets are for two IPv4 hosts)
=====  =======  ==========================================================================
0      4        total size, this field included
4      4        magic: 0xDAA320A7 version 1, 0xDAA320AB version 2
8      4        CRC-31 of the body as it is stored (compressed or not)
12     4        queue id
16     4        the user's flag
20     8        queue offset: the number of the message in its queue
28     8        physical offset of this record in the log
36     4        sysFlag, see `sysflag`
40     8        born timestamp, ms
48     8 / 20   born host: address, i32 port; 20 bytes with sysFlag 0x10
56     8        store timestamp, ms
64     8 / 20   store host; 20 bytes with sysFlag 0x20
72     4        reconsume times
76     8        prepared transaction offset
84     4, n     body: length, bytes
..     1 / 2,n  topic: length, UTF-8; a byte up to 127, in version 2 an i16
..     2, n     properties: i16 length, see `properties`
=====  =======  ==========================================================================

A store may end each record with a property `__CRC32#`, a checksum of all bytes before it: ten
decimal digits, the least significant first.
"""

from __future__ import annotations

import struct
from typing import Final

from cometmq.proto import property_names as names
from cometmq.proto.checksum import CRC_MASK, crc31, crc32
from cometmq.proto.errors import LocalProtocolError
from cometmq.proto.host import PACKED_IPV4_SIZE, PACKED_IPV6_SIZE
from cometmq.proto.properties import PROPERTIES_SIZE_MAX, remove_property
from cometmq.proto.sysflag import SysFlag

# The magic at 4, which gives the size of the topic's length, or says that no more records follow.
MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
MAGIC_BLANK: Final = 0xCBD43194
"""Fills the end of a CommitLog file; never on the wire."""

# In bytes. A topic longer than the first makes a record of version 2.
TOPIC_SIZE_V1_MAX: Final = 127
TOPIC_SIZE_V2_MAX: Final = 32767

# The places where a store finds, and replaces, the numbers of a record.
BODY_CRC_AT: Final = 8
QUEUE_OFFSET_AT: Final = 20
PHYSICAL_OFFSET_AT: Final = 28
STORE_TIMESTAMP_AT: Final = 56
"""12 more when the born host is IPv6."""

HEAD_SIZE: Final = 88
"""Bytes before the body, with two IPv4 hosts; each IPv6 host adds 12."""

HOSTS_MASK: Final = SysFlag.BORN_HOST_IPV6.value | SysFlag.STORE_HOST_IPV6.value
"""The bits of a sysFlag that say how long the hosts are."""
_NO_HOSTS_MASK: Final = ~HOSTS_MASK

RECORD_SCAN: Final = struct.Struct(">iI12xq8xi44xI")
"""The fields for finding the next record: total size, magic, queue offset, sysFlag and body size.

The body size is read as unsigned, so that a negative one is far too large.
"""

assert RECORD_SCAN.size == HEAD_SIZE

RECORD_HEAD: Final = struct.Struct(">iIIiiqqiq8sq8siqi")
"""Everything in a record before its body, for two IPv4 hosts, as in the table.

For writing so many records that a call of `record_parts` for each matters; the caller has checked
all sizes.
"""

assert RECORD_HEAD.size == HEAD_SIZE

RECORD_HEAD_SHARED: Final = struct.Struct(">iIIiiqq48si")
"""The same, with the result of `shared_part` as one field, for the messages of a batch."""

assert RECORD_HEAD_SHARED.size == HEAD_SIZE

_HOST_BITS: Final = {(8, 8): 0, (20, 8): 0x10, (8, 20): 0x20, (20, 20): 0x30}
"""The bits of the sysFlag by the sizes of the two packed hosts: the four kinds of record."""

_WHOLE_HEADS: Final = {
    (born, store): struct.Struct(f">iIIiiqqiq{born}sq{store}siqi") for born, store in _HOST_BITS
}
"""`RECORD_HEAD`, and the same for IPv6 hosts."""

assert all(head.size == HEAD_SIZE - 16 + sum(hosts) for hosts, head in _WHOLE_HEADS.items())

_SHARED_SIZES: Final = (48, 60, 72)
"""Sizes from the sysFlag to the prepared transaction offset, by the number of IPv6 hosts."""

_HEADS: Final = {size: struct.Struct(f">iIIiiqq{size}si").pack for size in _SHARED_SIZES}
_SHAREDS: Final = {
    (born, store): struct.Struct(f">iq{born}sq{store}siq") for born, store in _HOST_BITS
}
_SHARED: Final = _SHAREDS[8, 8]
assert all(shared.size == 32 + sum(hosts) for hosts, shared in _SHAREDS.items())
assert struct.calcsize(">iIIiiqq48si") == HEAD_SIZE

_I16 = struct.Struct(">h")
_TOPIC_SIZES = [bytes((size,)) for size in range(TOPIC_SIZE_V1_MAX + 1)]

RECORD_CRC_DIGITS: Final = 10
"""Digits of the checksum with which a record may end."""

RECORD_CRC_SIZE: Final = 20
"""`__CRC32#`, 0x01, its digits, 0x02."""

RECORD_CRC_NAME: Final = names.CRC32.encode()
"""The name of the checksum property of a record."""

RECORD_CRC_HEAD: Final = RECORD_CRC_NAME + b"\x01"
"""The start of the checksum property; a sender's property may end like this, too."""

_RECORD_CRC_BLANK: Final = RECORD_CRC_HEAD + b"0" * RECORD_CRC_DIGITS + b"\x02"
assert len(_RECORD_CRC_BLANK) == RECORD_CRC_SIZE
_SIZE_OF_CRC_ALONE: Final = RECORD_CRC_SIZE.to_bytes(2, "big")
"""The bytes before it in a record without other properties."""

RECORD_SIZE_MIN: Final = HEAD_SIZE + 1 + 2
"""The size of a record without topic, body and properties, which still has their lengths."""


def encode_record(
    *,
    topic: bytes,
    body: bytes | memoryview,
    properties: bytes,
    queue_id: int,
    queue_offset: int,
    physical_offset: int,
    born_timestamp: int,
    born_host: bytes,
    store_timestamp: int,
    store_host: bytes,
    sys_flag: int = 0,
    flag: int = 0,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
    record_crc: bool = False,
) -> bytes:
    """Return the stored form of a message.

    Hosts are packed (`pack_host`); their sizes determine the two address bits of the flags,
    whatever `sys_flag` says. The size of the topic determines the version. With `record_crc` the
    record ends with a checksum of itself, which adds 20 bytes to the properties.
    """
    if record_crc:
        properties = with_room_for_crc(properties)
    topic = topic_part(topic)
    body_size, properties_size = len(body), len(properties)
    head, host_bits = RECORD_HEAD, 0
    if len(born_host) != PACKED_IPV4_SIZE or len(store_host) != PACKED_IPV4_SIZE:
        hosts = _host_sizes(born_host, store_host)
        head, host_bits = _WHOLE_HEADS[hosts], _HOST_BITS[hosts]
    try:
        packed = head.pack(
            head.size + body_size + len(topic) + 2 + properties_size,
            MAGIC_V1 if len(topic) <= TOPIC_SIZE_V1_MAX + 1 else MAGIC_V2,
            crc32(body) & CRC_MASK,
            queue_id,
            flag,
            queue_offset,
            physical_offset,
            sys_flag & _NO_HOSTS_MASK | host_bits,
            born_timestamp,
            born_host,
            store_timestamp,
            store_host,
            reconsume_times,
            prepared_transaction_offset,
            body_size,
        )
        record = b"".join((packed, body, topic, _I16.pack(properties_size), properties))
    except struct.error as error:
        raise _misfit(properties, error) from None
    return with_crc(record) if record_crc else record


def topic_part(topic: bytes) -> bytes:
    """Return the topic as it is in a record, after its length, for `record_parts`."""
    if len(topic) <= TOPIC_SIZE_V1_MAX:
        return _TOPIC_SIZES[len(topic)] + topic
    if len(topic) > TOPIC_SIZE_V2_MAX:
        raise LocalProtocolError(f"record: topic of {len(topic)} bytes, over {TOPIC_SIZE_V2_MAX}")
    return _I16.pack(len(topic)) + topic


def shared_part(
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    store_timestamp: int,
    store_host: bytes,
    reconsume_times: int,
    prepared_transaction_offset: int,
) -> bytes:
    """Return the part that the records of one request share, for `record_parts`."""
    shared, host_bits = _SHARED, 0
    if len(born_host) != PACKED_IPV4_SIZE or len(store_host) != PACKED_IPV4_SIZE:
        hosts = _host_sizes(born_host, store_host)
        shared, host_bits = _SHAREDS[hosts], _HOST_BITS[hosts]
    try:
        return shared.pack(
            sys_flag & _NO_HOSTS_MASK | host_bits,
            born_timestamp,
            born_host,
            store_timestamp,
            store_host,
            reconsume_times,
            prepared_transaction_offset,
        )
    except struct.error as error:
        raise _misfit(b"", error) from None


def record_parts(
    topic: bytes,
    body: bytes | memoryview,
    properties: bytes,
    queue_id: int,
    flag: int,
    queue_offset: int,
    physical_offset: int,
    shared: bytes,
) -> tuple[int, bytes, bytes]:
    """Return a record's size, its head, and its middle, between the body and the properties.

    For writing many records in one go without joining each: a record is head, body, middle,
    properties. `topic` and `shared` are the results of `topic_part` and `shared_part`.
    """
    properties_size = len(properties)
    size = HEAD_SIZE + 2 - _SHARED_SIZES[0] + len(shared)
    size += len(body) + len(topic) + properties_size
    try:
        head = _HEADS[len(shared)](
            size,
            MAGIC_V1 if len(topic) <= TOPIC_SIZE_V1_MAX + 1 else MAGIC_V2,
            crc32(body) & CRC_MASK,
            queue_id,
            flag,
            queue_offset,
            physical_offset,
            shared,
            len(body),
        )
        return size, head, topic + _I16.pack(properties_size)
    except struct.error as error:
        raise _misfit(properties, error) from None


def record_size(topic_size: int, body_size: int, properties_size: int, hosts_size: int = 16) -> int:
    """Return the size of a record from those of its parts; `hosts_size` is of both packed hosts."""
    return (
        HEAD_SIZE
        - 2 * PACKED_IPV4_SIZE
        + hosts_size
        + body_size
        + (1 if topic_size <= TOPIC_SIZE_V1_MAX else 2)
        + topic_size
        + 2
        + properties_size
    )


def _host_sizes(born_host: bytes, store_host: bytes) -> tuple[int, int]:
    sizes = (len(born_host), len(store_host))
    if sizes not in _HOST_BITS:
        raise LocalProtocolError(
            f"record: packed hosts of {sizes[0]} and {sizes[1]} bytes,"
            f" not {PACKED_IPV4_SIZE} or {PACKED_IPV6_SIZE}"
        )
    return sizes


def _misfit(properties: bytes, error: struct.error) -> LocalProtocolError:
    """Make the error for a value that does not fit into a record."""
    if len(properties) > PROPERTIES_SIZE_MAX:
        return LocalProtocolError(
            f"record: properties of {len(properties)} bytes, over {PROPERTIES_SIZE_MAX}"
        )
    return LocalProtocolError(f"record: a number does not fit its field: {error}")


def with_room_for_crc(properties: bytes) -> bytes:
    """Return the properties with a place at the end for the checksum of `with_crc`."""
    properties = remove_property(properties, RECORD_CRC_NAME)
    if properties and not properties.endswith(b"\x02"):
        properties += b"\x02"
    return properties + _RECORD_CRC_BLANK


def with_crc(record: bytes) -> bytes:
    """Return the record with its checksum in that place."""
    covered = record[:-RECORD_CRC_SIZE]
    return b"%b%b\x01%b\x02" % (covered, RECORD_CRC_NAME, _digits(crc31(covered)))


def _digits(crc: int) -> bytes:
    return (b"%010d" % crc)[::-1]


def check_record_crc(record: bytes) -> bool | None:
    """Return whether the checksum of a record is right; `None` if the record does not end with one.

    A sender's property may end like one without being one: its name is longer, or the text is in
    its value. If the separator before a checksum is damaged, the checksum is wrong.
    """
    end = record[-RECORD_CRC_SIZE:]
    if not end.startswith(RECORD_CRC_HEAD):
        return None
    covered = record[:-RECORD_CRC_SIZE]
    if _fits(end, covered):
        return True
    is_property = covered.endswith((b"\x02", _SIZE_OF_CRC_ALONE))
    return False if is_property or _fits(end, covered[:-1] + b"\x02") else None


def _fits(end: bytes, covered: bytes) -> bool:
    return end[len(RECORD_CRC_HEAD) :] == _digits(crc31(covered)) + b"\x02"
