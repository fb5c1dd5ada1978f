"""The system flags of a message: an i32 that says how to read the rest.

========  ==============================================================================
bits      meaning
========  ==============================================================================
0x1       the body is compressed
0x2       multi tags (legacy)
0xC       transaction: 0 none, 0x4 prepared, 0x8 committed, 0xC rolled back
0x10      the born host is IPv6
0x20      the store host is IPv6
0x40      the client must unwrap the body into messages (inner batch)
0x80      the body is a batch, stored as one record (inner batch)
0x700     compression: 0x100 LZ4, 0x200 ZSTD, 0x300 ZLIB; 0 with bit 0x1 set is ZLIB, too
========  ==============================================================================

Flags come off the wire as plain integers, and remain integers on the hot path: an `IntFlag`
operation costs ten times as much. The members compare and combine with integers.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag


class SysFlag(IntFlag):
    """The bits of a message's sysFlag."""

    COMPRESSED = 0x1
    MULTI_TAGS = 0x2
    TRANSACTION_PREPARED = 0x4
    TRANSACTION_COMMITTED = 0x8
    BORN_HOST_IPV6 = 0x10
    STORE_HOST_IPV6 = 0x20
    NEEDS_UNWRAP = 0x40
    INNER_BATCH = 0x80
    COMPRESSION_LZ4 = 0x100
    COMPRESSION_ZSTD = 0x200


TRANSACTION_MASK = 0xC
"""The bits of the transaction type."""

COMPRESSION_MASK = 0x700
"""The bits of the compression type."""


class TransactionType(IntEnum):
    """The role of a message in a transaction; the values are its sysFlag bits."""

    NONE = 0x0
    PREPARED = 0x4
    COMMITTED = 0x8
    ROLLED_BACK = 0xC


def transaction_type(sys_flag: int) -> TransactionType:
    """Return the transaction type in the flags."""
    return TransactionType(sys_flag & TRANSACTION_MASK)


def with_transaction_type(sys_flag: int, transaction: TransactionType) -> int:
    """Return the flags with their transaction type replaced."""
    return sys_flag & ~TRANSACTION_MASK | transaction
