"""What a record in the log means for the ConsumeQueues and the index.

Records of a turn go into the queues directly; this module is for records that are read back: after
an unclean start, on a replica, and when queues are rebuilt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.proto.java import tags_code
from cometmq.proto.properties import find_property, property_finder
from cometmq.proto.sysflag import TRANSACTION_MASK, SysFlag, TransactionType
from cometmq.store.queues.batch_consume_queue import BatchEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cometmq.proto.message import StoredMessage
    from cometmq.store.delay_levels import DelayLevels
    from cometmq.store.index.index import Index
    from cometmq.store.queues.consume_queues import ConsumeQueues

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
UNKNOWN_DELAY_MS: Final = 1000
"""The delay of a level that the store does not know."""
UNIQUE_ID: Final = b"UNIQ_KEY\x01"
"""The usual beginning of properties."""
_REMEMBERED_MAX: Final = 1024
_REMEMBERED_SIZE_MAX: Final = 256
_TRANSACTION_ID: Final = b"__transactionId__\x01"
"""A property that differs in each message of a transaction."""

_find_tags: Final = property_finder(b"TAGS")
_RECORDS_WITHOUT_ENTRY: Final = (TransactionType.PREPARED, TransactionType.ROLLED_BACK)
"""Halves of transactions, which no consumer sees."""
BATCH_COUNT_MAX: Final = 32767
"""Messages of an inner batch: the ConsumeQueue stores their number as an i16."""
_COUNTS: Final = range(1, BATCH_COUNT_MAX + 1)
_BASES: Final = range(1 << 63)


def tags_code_of(
    topic: str, properties: bytes, store_timestamp: int, delay_levels_ms: Sequence[int]
) -> int:
    """Return the tags code of a record's entry: a hash, or the time a delayed message is due."""
    if topic == SCHEDULE_TOPIC:
        level = _delay_level(properties)
        if level > 0:
            levels = len(delay_levels_ms)
            delay = delay_levels_ms[min(level, levels) - 1] if levels else UNKNOWN_DELAY_MS
            return store_timestamp + delay
    # First the usual place of tags, without a call; `_find_tags` finds them anywhere.
    _, found, rest = properties.rpartition(b"\x02TAGS\x01")
    tags = (found and rest.partition(b"\x02")[0]) or _find_tags(properties)
    return tags_code(tags) if tags else 0


class TagsCodes:
    """Tags codes by what most messages of a kind have in common: everything after a unique id.

    Not for `SCHEDULE_TOPIC`, whose codes are times.
    """

    def __init__(self) -> None:
        self.known: dict[bytes, int] = {}
        """By what follows the first pair of properties, if that is the unique id."""

    def remember(self, properties: bytes, code: int) -> None:
        """Note a code for all properties that differ only in the unique id."""
        first, _, rest = properties.partition(b"\x02")
        is_common = rest.find(_TRANSACTION_ID) < 0 and len(rest) <= _REMEMBERED_SIZE_MAX
        # With a NUL in it the record needs a checksum: see `Turn.record`.
        if first.startswith(UNIQUE_ID) and is_common and 0 not in rest:
            if len(self.known) >= _REMEMBERED_MAX:
                self.known.clear()
            self.known[rest] = code

    def code_of(self, properties: bytes) -> int:
        """Return a tags code, computed or known."""
        first, _, rest = properties.partition(b"\x02")
        code = self.known.get(rest)
        if code is None or not first.startswith(UNIQUE_ID):
            code = tags_code_of("", properties, 0, ())
            self.remember(properties, code)
        return code


def entry_tags_code(message: StoredMessage, levels: DelayLevels) -> int:
    """Return the tags code of the entry of a record that was read back."""
    _, physical_offset, store_timestamp = message.place
    delays = levels.at(physical_offset)
    return tags_code_of(message.topic, message.properties_raw, store_timestamp, delays)


def _delay_level(properties: bytes) -> int:
    try:
        return int(find_property(properties, b"DELAY") or 0)
    except ValueError:
        return 0


def place_record(
    queues: ConsumeQueues,
    message: StoredMessage,
    is_batch_topic: Callable[[str], bool],
    levels: DelayLevels,
) -> bool:
    """Put the entry of a record where it belongs; return False if it was there, or has none.

    A prepared or rolled back half of a transaction has no entry: consumers never see it.
    """
    sys_flag = message.sys_flag
    if sys_flag and sys_flag & TRANSACTION_MASK in _RECORDS_WITHOUT_ENTRY:
        return False
    topic = message.topic
    if is_batch_topic(topic):
        return queues.batch.get(topic, message.queue_id).place(batch_entry(message, levels))
    queue_id, physical_offset, store_timestamp = message.place
    delays = levels.at(physical_offset)
    code = tags_code_of(topic, message.properties_raw, store_timestamp, delays)
    queue = queues.simple.get(topic, queue_id)
    return queue.place(message.queue_offset, physical_offset, message.size, code)


def batch_entry(message: StoredMessage, levels: DelayLevels) -> BatchEntry:
    """Return the entry of a record in a batch topic that has one."""
    inner = bool(message.sys_flag & SysFlag.INNER_BATCH)
    return BatchEntry(
        message.physical_offset,
        message.size,
        entry_tags_code(message, levels),
        message.store_timestamp,
        _number(message, "INNER_BASE", _BASES, message.queue_offset)
        if inner
        else message.queue_offset,
        message_count(message),
    )


def says_number_twice(message: StoredMessage) -> bool:
    """Whether an inner batch has the same number in its head and in its property."""
    is_inner = bool(message.sys_flag & SysFlag.INNER_BATCH)
    return not is_inner or _number(message, "INNER_BASE", _BASES, -1) == message.queue_offset


def has_entry(message: StoredMessage) -> bool:
    """Whether a record has an entry in a queue: all but waiting and rolled back halves do."""
    return message.sys_flag & TRANSACTION_MASK not in _RECORDS_WITHOUT_ENTRY


def message_count(message: StoredMessage) -> int:
    """Return how many messages a record has, with queue offsets from its own on."""
    is_batch = message.sys_flag & SysFlag.INNER_BATCH
    return _number(message, "INNER_NUM", _COUNTS, 1) if is_batch else 1


def _number(message: StoredMessage, name: str, numbers: range, default: int) -> int:
    """Return a property if it is one of these numbers, which fit an entry, or else the default."""
    try:
        number = int(message.find(name) or default)
    except ValueError:
        return default
    return number if number in numbers else default


def note_record(index: Index, message: StoredMessage) -> None:
    """Add a record to the index, unless that has it; a rolled back transaction has no keys."""
    _, physical_offset, store_timestamp = message.place
    if physical_offset < index.resume_offset:
        return
    sys_flag = message.sys_flag
    if not sys_flag or sys_flag & TRANSACTION_MASK != TransactionType.ROLLED_BACK:
        index.add(message.topic_raw, message.properties_raw, physical_offset, store_timestamp)
