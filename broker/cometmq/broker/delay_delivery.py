"""The delivery of one delayed message into its real queue."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from cometmq.proto import property_names
from cometmq.proto.properties import property_finder, set_property
from cometmq.proto.sysflag import TRANSACTION_MASK
from cometmq.store.errors import MessageIllegalError
from cometmq.store.log.turn import Origin
from cometmq.store.messages.dispatch import UNIQUE_ID

if TYPE_CHECKING:
    from cometmq.proto.message import StoredMessage
    from cometmq.store.message_store import MessageStore

log = logging.getLogger(__name__)

DELIVERED_FROM: Final = property_names.DELAYED_AT.encode()
"""Property of a delivered message: the queue of its level, and its offset there."""
TARGETS_MAX: Final = 1024
TARGET_SIZE_MAX: Final = 512
_find_topic: Final = property_finder(b"REAL_TOPIC")
_find_queue: Final = property_finder(b"REAL_QID")


def _real_queue(properties: bytes) -> tuple[str, int]:
    """Return the topic and the queue that a waiting message is for."""
    topic, queue = _find_topic(properties), _find_queue(properties)
    if not topic or not queue or not queue.isdigit():
        raise MessageIllegalError("REAL_TOPIC and REAL_QID do not say which queue it is for")
    return topic.decode(), int(queue)


def log_undelivered(level_queue: int, queue_offset: int, reason: Exception) -> None:
    """Log a message that cannot be delivered."""
    log.error(
        "delayed message %d of level %d is not delivered: %s", queue_offset, level_queue + 1, reason
    )


class Delivery:
    """Puts due messages into their queues, and remembers what similar ones have in common."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._targets: dict[bytes, tuple[str, int]] = {}
        """The target by the properties after the unique id, for ordinary messages."""

    def deliver(self, level_queue: int, message: StoredMessage, now_ms: int) -> None:
        """Put one message into its real queue. If it has none, log that."""
        properties = message.properties_raw
        origin = b"%d:%d" % (level_queue, message.queue_offset)
        pair, _, tail = properties.partition(b"\x02")
        target = self._targets.get(tail)
        if target is not None and pair.startswith(UNIQUE_ID) and 0 not in pair:
            topic, queue_id = target
            if self._put_alike(topic, queue_id, message, properties, tail, origin, now_ms):
                return
        try:
            topic, queue_id = _real_queue(properties)
            self._put(topic, queue_id, message, origin, now_ms)
        except (ValueError, MessageIllegalError) as error:
            log_undelivered(level_queue, message.queue_offset, error)

    def _put(
        self, topic: str, queue_id: int, message: StoredMessage, origin: bytes, now_ms: int
    ) -> None:
        raw = message.properties_raw
        first, _, tail = raw.partition(b"\x02")
        is_common = first.startswith(UNIQUE_ID) and raw.endswith(b"\x02") and 0 not in first
        # A message that was delivered before has an origin already, which has to be replaced.
        if is_common and raw.find(DELIVERED_FROM) < 0:
            if len(self._targets) >= TARGETS_MAX:
                self._targets.clear()
            if len(tail) <= TARGET_SIZE_MAX:
                self._targets[tail] = topic, queue_id
            if self._put_alike(topic, queue_id, message, raw, tail, origin, now_ms):
                return
            self._store.note_alike(raw)
        self._store.put(
            topic,
            queue_id,
            message.body,
            delivered(message, origin),
            Origin(
                now_ms,
                message.born_timestamp,
                message.born_host,
                message.sys_flag & ~TRANSACTION_MASK,
                message.reconsume_times,
            ),
            message.flag,
        )

    def _put_alike(
        self,
        topic: str,
        queue_id: int,
        message: StoredMessage,
        properties: bytes,
        tail: bytes,
        origin: bytes,
        now_ms: int,
    ) -> bool:
        """Put a message that is like earlier ones; return False, and put nothing, if it is not."""
        put = self._store.put_quick(
            topic,
            queue_id,
            message.body,
            b"%b%b\x01%b\x02" % (properties, DELIVERED_FROM, origin),
            tail,
            now_ms,
            message.born_timestamp,
            message.born_host,
            message.sys_flag & ~TRANSACTION_MASK,
            message.reconsume_times,
            0,
            message.flag,
        )
        return put is not None


def delivered(message: StoredMessage, origin: bytes) -> bytes:
    """Return the properties with which a message is delivered."""
    return set_property(message.properties_raw, DELIVERED_FROM, origin)
