"""Acknowledging popped messages in batches (200151)."""

from __future__ import annotations

import base64
from typing import Final

from cometmq.proto.body import Body, preset, wire
from cometmq.proto.errors import BodyError
from cometmq.proto.header import I32, I64

BITS_MAX: Final = 65_536
"""How many offsets one pop may span: far more than it may have messages."""


class BatchAck(Body):
    """The acknowledged messages of one pop: their offsets are `start_offset` + each set bit."""

    bits: str = wire("b")
    """A little-endian bit set in base64."""

    consumer_group: str = wire("c")
    invisible_time_ms: I64 = wire("it")
    pop_time_ms: I64 = wire("pt")
    queue_id: I32 = wire("q")
    retry: str = preset("0", "r")
    """The topic: `0` is the normal one, `1` and `2` are the retry topics of the group."""

    revive_queue_id: I32 = wire("rq")
    start_offset: I64 = wire("so")
    topic: str = wire("t")

    def indexes(self) -> tuple[int, ...]:
        """Return which bits are set."""
        try:
            octets = base64.b64decode(self.bits, validate=True)
        except ValueError:  # Also its subclass binascii.Error.
            raise BodyError("BatchAck: `b` is not base64") from None
        if len(octets) * 8 > BITS_MAX:
            raise BodyError(f"BatchAck: `b` has {len(octets) * 8} bits, the limit is {BITS_MAX}")
        return tuple(
            8 * at + bit for at, octet in enumerate(octets) for bit in range(8) if octet >> bit & 1
        )

    @staticmethod
    def bits_of(indexes: tuple[int, ...]) -> str:
        """Return the text of `bits` in which these are set."""
        value = sum(1 << index for index in set(indexes))
        return base64.b64encode(value.to_bytes((value.bit_length() + 7) // 8, "little")).decode()


class BatchAcks(Body):
    """200151."""

    acks: tuple[BatchAck, ...] = preset(())
    broker_name: str | None = None
