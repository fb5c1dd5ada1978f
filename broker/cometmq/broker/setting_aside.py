"""Where a message with a delay waits, and with which properties.

It is stored in `SCHEDULE_TOPIC_XXXX`, in the queue of its level, with its real topic and queue in
two properties. `delays` delivers it when it is due.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from cometmq.broker.delay_delivery import DELIVERED_FROM
from cometmq.proto.properties import (
    PROPERTIES_SIZE_MAX,
    property_finder,
    remove_property,
    set_property,
)
from cometmq.proto.record import RECORD_CRC_SIZE
from cometmq.store.errors import MessageIllegalError

_DELIVERY_SIZE: Final = len(DELIVERED_FROM) + len(b"\x01000:\x02") + 19 + RECORD_CRC_SIZE + 1
"""Bytes that a delivery may add: its property, the checksum of a record, and a separator for the
property before it."""
_find_delay: Final = property_finder(b"DELAY")
_NUMBER: Final = re.compile(rb"[+-]?[0-9]{1,40}")
_TIMERS: Final = (b"TIMER_DELIVER_MS", b"TIMER_DELAY_SEC", b"TIMER_DELAY_MS")


class Aside(NamedTuple):
    """Where a delayed message waits."""

    queue_id: int
    """The queue of `SCHEDULE_TOPIC_XXXX`."""
    properties: bytes


def delay_level(properties: bytes) -> int:
    """Return the delay level that a message asks for, 0 for none.

    Raises a `ValueError` if Java would not read it as a number.
    """
    text = _find_delay(properties)
    if text is None:
        return 0
    if _NUMBER.fullmatch(text) is None or not -(1 << 31) <= (level := int(text)) < 1 << 31:
        raise ValueError(f"{text.decode(errors='replace')!r} is not a number of 32 bits")
    return max(level, 0)


def set_aside(
    topic: str, queue_id: int, properties: bytes, level: int, levels: int, *, more: int = 0
) -> Aside:
    """Return where a message with a delay level waits; a level out of range becomes the nearest.

    Raises a `MessageIllegalError` if these properties and `more` bytes of others leave no room for
    those that the delivery adds.
    """
    level = max(1, min(level, levels))
    properties = set_property(properties, b"DELAY", b"%d" % level)
    for name in _TIMERS:
        properties = remove_property(properties, name)
    properties = set_property(properties, b"REAL_TOPIC", topic.encode())
    properties = set_property(properties, b"REAL_QID", b"%d" % queue_id)
    size = len(properties) + more
    if size > PROPERTIES_SIZE_MAX - _DELIVERY_SIZE:
        raise MessageIllegalError(
            f"properties of {size} bytes, of which a delayed message may have"
            f" {PROPERTIES_SIZE_MAX - _DELIVERY_SIZE}"
        )
    return Aside(level - 1, properties)
