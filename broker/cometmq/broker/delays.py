"""Messages that are delivered later: put aside by delay level, and put into their queue when due.

How it works. A message with a delay is stored in `SCHEDULE_TOPIC_XXXX`, in the queue of its level,
with its own topic and queue in two properties; the store writes into that queue's entry when it is
due. All messages of a level wait equally long, so each queue is in order of time, and all that is
remembered is how far each level has come: a message that waits costs no memory. `step` delivers
what is due, a slice at a time: it reads the messages back, puts them into their real queues, and
goes on behind them once that is written.

Never twice: the file with the levels' offsets is written now and then, but each delivered message
names in a property of its own where it came from. After an unclean stop the log is read
from where the file's knowledge ends, and `recovered` finds what was delivered since. The file never
claims a delivery that the disk has not confirmed.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.broker.saved_table import SavedTable
from cometmq.broker.stepping import Step, messages_from
from cometmq.proto.bodies import DataVersion
from cometmq.proto.message_list import MessageList
from cometmq.proto.properties import (
    PROPERTIES_SIZE_MAX,
    property_finder,
    remove_property,
    set_property,
)
from cometmq.proto.property_names import CRC32
from cometmq.proto.record import RECORD_CRC_SIZE
from cometmq.proto.sysflag import TRANSACTION_MASK
from cometmq.store.consume_queue import ENTRY
from cometmq.store.dispatch import SCHEDULE_TOPIC, UNIQUE_ID
from cometmq.store.errors import MessageIllegalError, PutRefusedError, StoreFormatError
from cometmq.store.reading import ReadStatus
from cometmq.store.tables import DELAY_OFFSETS
from cometmq.store.turn import Origin

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.broker.config import BrokerConfig
    from cometmq.proto.message import StoredMessage
    from cometmq.store.consume_queue import ConsumeQueue
    from cometmq.store.filesystem import FileSystem
    from cometmq.store.message_store import MessageStore
    from cometmq.store.reading import Fetched

log = logging.getLogger(__name__)

SLICE: Final = 64
"""Messages of a level that one step delivers: some 500 µs of the loop's time."""
SAVE_EVERY_SIZE: Final = 64 << 20
"""Bytes of the log after which the offsets are saved though nothing was delivered, so that
a start never has much to read."""

_SECTION: Final = "offsetTable"
_LOG_OFFSET: Final = "logOffset"
"""Our member of Apache's file: up to where in the log it knows of all deliveries."""

_TAIL_OFFSET: Final = "sentOnceFrom"
"""Another one, of `idempotence`: from where a start has to read the log."""

_DELIVERED_FROM: Final = b"DELAYED_AT"
"""Property of a delivered message: the level's queue and the offset in it."""
_DELIVERY_SIZE: Final = len(_DELIVERED_FROM) + len(b"\x01000:\x02") + 19 + RECORD_CRC_SIZE + 1
"""What that property takes at most, with the checksum of a record and what ends one before it."""
_RECORD_CRC: Final = CRC32.encode()
_find_delay: Final = property_finder(b"DELAY")
_find_topic: Final = property_finder(b"REAL_TOPIC")
_find_queue: Final = property_finder(b"REAL_QID")
_find_origin: Final = property_finder(_DELIVERED_FROM)
_PLACE: Final = re.compile(rb"(\d{1,3}):(\d{1,18})")
_TIMERS: Final = (b"TIMER_DELIVER_MS", b"TIMER_DELAY_SEC", b"TIMER_DELAY_MS")


class Aside(NamedTuple):
    """Where a delayed message waits."""

    queue_id: int
    """Of `SCHEDULE_TOPIC_XXXX`."""
    properties: bytes


def delay_level(properties: bytes) -> int:
    """Return the delay level that a message asks for, 0 for none.

    Raises a `ValueError` for one that is no number.
    """
    return max(int(_find_delay(properties) or 0), 0)


def set_aside(
    topic: str, queue_id: int, properties: bytes, level: int, levels: int, *, more: int = 0
) -> Aside:
    """Return where a message with a delay level waits; one outside of the levels is the nearest.

    Raises a `MessageIllegalError` where there is no room for what its delivery adds to these
    properties, and to `more` bytes of others.
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


@dataclass(slots=True)
class _Level:
    """How far one level has come."""

    queue_id: int
    delay_ms: int
    next_offset: int = 0
    due_ms: int = 0
    """When the next message is due, as far as it was looked at."""


class _Delivered(NamedTuple):
    """Deliveries that the disk has not confirmed yet."""

    begin: int
    """Of the log in front of them."""
    end: int
    offsets: dict[int, int]


class Delays:
    """All delayed messages of one broker."""

    def __init__(
        self,
        config: BrokerConfig,
        filesystem: FileSystem,
        store: MessageStore,
        end_turn: Callable[[], None],
    ) -> None:
        """`end_turn` writes, and answers for, what others have put in a turn."""
        self.file = SavedTable(
            filesystem, f"{config.store_path}/config", DELAY_OFFSETS, on_change=lambda: None
        )
        self._store = store
        self._end_turn = end_turn
        self._levels = [
            _Level(queue_id, delay_ms)
            for queue_id, delay_ms in enumerate(config.store.delay_levels_ms)
        ]
        self._unconfirmed: deque[_Delivered] = deque()
        self._log_offset = 0
        self.tail_offset = -1

    def load(self) -> int:
        """Read the file; returns up to where in the log it knows of all deliveries, -1 of none."""
        tree = self.file.load()
        self.file.set_member("dataVersion", DataVersion())
        try:
            offsets = {int(level): int(at) for level, at in tree.get(_SECTION, {}).items()}
            log_offset = int(tree.get(_LOG_OFFSET, -1))
            self.tail_offset = int(tree.get(_TAIL_OFFSET, -1))
        except (AttributeError, TypeError, ValueError) as error:
            raise StoreFormatError(f"{DELAY_OFFSETS}: {error}") from error
        for level in self._levels:
            level.next_offset = offsets.get(level.queue_id + 1, 0)
        self.file.loaded()
        return log_offset

    def keep_tail(self, offset: int) -> None:
        """Keep in this file, too, from where on messages that were sent once are looked for."""
        if offset != self.tail_offset:
            self.tail_offset = offset
            self.file.set_member(_TAIL_OFFSET, offset)

    def recovered(self, message: StoredMessage) -> None:
        """Look whether a record of the log's tail was delivered from here."""
        origin = _find_origin(message.properties_raw)
        place = None if origin is None else _PLACE.fullmatch(origin)
        if origin is None or place is None or int(place[1]) >= len(self._levels):
            return
        level, queue_offset = self._levels[int(place[1])], int(place[2])
        # Any producer can write such a property: only what is the same otherwise counts.
        waiting = messages_from(self._store, SCHEDULE_TOPIC, level.queue_id, queue_offset, 1)
        for waited in waiting:
            delivered = remove_property(_delivered(waited, origin), _RECORD_CRC)
            if delivered == remove_property(message.properties_raw, _RECORD_CRC):
                level.next_offset = max(level.next_offset, queue_offset + 1)

    def start(self, log_offset: int) -> None:
        """Begin, with all deliveries known up to a place in the log."""
        self._log_offset = log_offset
        self.file.set_member(_TAIL_OFFSET, self.tail_offset)
        self._save({level.queue_id: level.next_offset for level in self._levels})

    def _queue(self, level: _Level) -> ConsumeQueue | None:
        return self._store.queues.simple.find(SCHEDULE_TOPIC, level.queue_id)

    def offsets(self) -> dict[int, int]:
        """How far each level has come that ever had a message, by its number."""
        return {
            level.queue_id + 1: level.next_offset
            for level in self._levels
            if self._queue(level) is not None
        }

    # Delivering

    def step(self, now_ms: int, fetched: Fetched | None = None) -> Step:
        """Deliver messages that are due, up to a slice of each level.

        What an earlier step had to have fetched is given to the next.
        """
        done = Step()
        due: list[tuple[_Level, StoredMessage]] = []
        for level in self._levels:
            # A clock that was set back makes nothing wait for longer than its level.
            if not now_ms < level.due_ms <= now_ms + level.delay_ms:
                self._collect(level, now_ms, fetched, done, due)
        if not due:
            return done
        # Whatever else is put in this turn is answered for by others.
        self._end_turn()
        begin = self._store.end_offset
        offsets: dict[int, int] = {}
        try:
            for level, message in due:
                self._deliver(level, message, now_ms)
                offsets[level.queue_id] = message.queue_offset + 1
        except PutRefusedError:
            done.refused = True
        try:
            end = self._store.commit()
        except PutRefusedError:
            done.refused = True
            return done
        for queue_id, offset in offsets.items():
            level = self._levels[queue_id]
            done.done += offset - level.next_offset
            level.next_offset = offset
        self._unconfirmed.append(_Delivered(begin, end, offsets))
        return done

    def _collect(
        self,
        level: _Level,
        now_ms: int,
        fetched: Fetched | None,
        done: Step,
        due: list[tuple[_Level, StoredMessage]],
    ) -> None:
        """Find the messages of a level that are due."""
        queue = self._queue(level)
        if queue is None:
            return
        offset = level.next_offset = min(max(level.next_offset, queue.min_offset), queue.max_offset)
        if offset >= queue.max_offset:
            return
        count = self._count_due(level, queue, now_ms, fetched, done)
        if not count:
            return
        result = self._store.read(SCHEDULE_TOPIC, level.queue_id, offset, count, fetched=fetched)
        if result.cold:
            done.cold.extend(result.cold)
        elif result.status is ReadStatus.FOUND:
            due += [(level, each) for piece in result.slices for each in MessageList(piece)]
        else:  # Expired, or the end of a file of the queue.
            level.next_offset = result.next_begin_offset

    def _count_due(
        self,
        level: _Level,
        queue: ConsumeQueue,
        now_ms: int,
        fetched: Fetched | None,
        done: Step,
    ) -> int:
        offset = level.next_offset
        entries = queue.read_cached(offset, SLICE) if fetched is None else queue.read(offset, SLICE)
        if entries is None:
            result = self._store.read(SCHEDULE_TOPIC, level.queue_id, offset, SLICE)
            done.cold.extend(result.cold)
            return 0
        count = 0
        for _, _, due_ms in ENTRY.iter_unpack(entries):
            if now_ms < due_ms <= now_ms + level.delay_ms:
                level.due_ms = due_ms
                break
            count += 1
        return count

    def _deliver(self, level: _Level, message: StoredMessage, now_ms: int) -> None:
        """Put one message into its real queue. One that has none can only be logged."""
        properties = message.properties_raw
        try:
            topic = (_find_topic(properties) or b"").decode()
            queue_id = int(_find_queue(properties) or b"")
            self._put(
                topic, queue_id, message, b"%d:%d" % (level.queue_id, message.queue_offset), now_ms
            )
        except (ValueError, MessageIllegalError) as error:
            log.error(
                "delayed message %d of level %d is not delivered: %s",
                message.queue_offset,
                level.queue_id + 1,
                error,
            )

    def _put(
        self, topic: str, queue_id: int, message: StoredMessage, origin: bytes, now_ms: int
    ) -> None:
        raw = message.properties_raw
        sys_flag = message.sys_flag & ~TRANSACTION_MASK
        first, _, tail = raw.partition(b"\x02")
        is_common = first.startswith(UNIQUE_ID) and raw.endswith(b"\x02") and 0 not in first
        # Delivered ones are told apart by their origin only, if they were not delivered before.
        if is_common and raw.find(_DELIVERED_FROM) < 0:
            put = self._store.put_quick(
                topic,
                queue_id,
                message.body,
                b"%b%b\x01%b\x02" % (raw, _DELIVERED_FROM, origin),
                tail,
                now_ms,
                message.born_timestamp,
                message.born_host,
                sys_flag,
                message.reconsume_times,
                0,
                message.flag,
            )
            if put is not None:
                return
            self._store.note_alike(raw)
        self._store.put(
            topic,
            queue_id,
            message.body,
            _delivered(message, origin),
            Origin(
                now_ms,
                message.born_timestamp,
                message.born_host,
                sys_flag,
                message.reconsume_times,
            ),
            message.flag,
        )

    # Saving

    def flush(self, *, is_last: bool = False) -> None:
        """Put into the table what the disk has confirmed; in the end even if it is little."""
        synced = self._store.advance()
        confirmed: dict[int, int] = {}
        while self._unconfirmed and self._unconfirmed[0].end <= synced:
            confirmed.update(self._unconfirmed.popleft().offsets)
        known = min(synced, self._unconfirmed[0].begin) if self._unconfirmed else synced
        if confirmed or is_last or known - self._log_offset >= SAVE_EVERY_SIZE:
            self._log_offset = known
            self._save(confirmed)

    def _save(self, offsets: dict[int, int]) -> None:
        for queue_id, offset in offsets.items():
            self.file.put(_SECTION, queue_id + 1, offset)
        self.file.set_member(_LOG_OFFSET, self._log_offset)


def _delivered(message: StoredMessage, origin: bytes) -> bytes:
    """Return the properties that a message is delivered with."""
    return set_property(message.properties_raw, _DELIVERED_FROM, origin)
