"""Limits of what a peer can make us hold, and for how long: a table with a reason in each row."""

from __future__ import annotations

from dataclasses import dataclass, field

from cometmq.proto.connection import FIELDS_MAX, PENDING_MAX
from cometmq.proto.frame import FRAME_SIZE_MAX, HEADER_SIZE_MAX

_KIB = 1024
_MIB = 1024 * 1024


def _limit(default: int, unit: str, reason: str) -> int:
    # Typed like its default: type checkers need not know that it is a field.
    found: int = field(default=default, metadata={"unit": unit, "reason": reason})
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits for all connections of one owner. Each field's metadata has its unit and reason.

    Limits of size are named `*_max`. A breach closes the connection, unless the reason says
    otherwise, and the log line names the limit.
    """

    connections_max: int = _limit(
        10_000,
        "connections",
        "each costs a descriptor; further ones are closed as soon as they come",
    )
    frame_size_max: int = _limit(
        FRAME_SIZE_MAX, "bytes", "one request or answer with its length field; Apache's default"
    )
    header_size_max: int = _limit(
        HEADER_SIZE_MAX, "bytes", "a header is decoded whole; real ones have a few KiB"
    )
    fields_max: int = _limit(FIELDS_MAX, "fields", "a header's fields become objects when read")
    receiving_bytes_max: int = _limit(
        256 * _MIB,
        "bytes",
        "unfinished frames of all connections; a connection beyond it is closed",
    )
    in_flight_max: int = _limit(
        32_768,
        "requests",
        "of one connection, not answered yet; further ones are refused with code 2. A Java"
        " consumer holds a pull for each of its queues on one connection",
    )
    pending_max: int = _limit(PENDING_MAX, "requests", "our own to one peer, not answered yet")
    unsent_bytes_pause: int = _limit(
        256 * _KIB,
        "bytes",
        "a peer that leaves this much unread is not read from until it has read",
    )
    unsent_bytes_max: int = _limit(
        64 * _MIB, "bytes", "what one peer may leave unread; beyond it the connection is dropped"
    )
    idle_timeout_ms: int = _limit(
        120_000, "milliseconds", "no byte either way; clients send heartbeats every 30 s"
    )
    unsent_timeout_ms: int = _limit(
        60_000,
        "milliseconds",
        "a peer that does not read what it was sent is dropped after one to two times this long,"
        " even if it keeps asking: the unread data may hold an expired segment of the log",
    )
    frame_timeout_ms: int = _limit(
        60_000,
        "milliseconds",
        "from the first bytes of a frame to its last, against slow-loris attacks",
    )
