"""Picking records out of a log, in its order, for `cometmq store dump`."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cometmq.proto.errors import MessageError
from cometmq.proto.message import read_message
from cometmq.store.log.log_scan import LogScan
from cometmq.store.looking.log_check import LogCheck
from cometmq.store.looking.queue_files import files_of
from cometmq.store.messages.dispatch import message_count
from cometmq.store.queues.consume_queue import ENTRY
from cometmq.store.queues.queue_ends import QueueKey

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.proto.message import StoredMessage
    from cometmq.store.log.segments import Segment
    from cometmq.store.looking.inspection import Inspected

CLOCK_SLACK_MS: Final = 600_000
"""How far store times may go back between two files of the log whose first times are in order.
Files that begin more than this after the last wanted record are not read."""
_LOOK_SIZE: Final = 4 << 20
"""Bytes to read of a record of which only the store time is needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which records are wanted: those that meet every condition that is set."""

    topic: str | None = None
    queue_id: int | None = None
    from_offset: int | None = None
    """The first queue offset; the record of a batch that contains it is wanted, too."""
    to_offset: int | None = None
    """The end of the queue offsets, exclusive."""
    physical_offset: int | None = None
    """Where the record begins; or, with `physical_end`, a range that it reaches into begins."""
    physical_end: int | None = None
    since_ms: int | None = None
    """The first store time."""
    until_ms: int | None = None
    """The end of the store times, exclusive."""
    key: str | None = None
    """The unique id of a message, or one of its keys."""

    def takes(self, message: StoredMessage) -> bool:
        """Whether a record is wanted."""
        offset, time = message.queue_offset, message.store_timestamp
        return (
            (self.queue_id is None or message.queue_id == self.queue_id)
            and (self.from_offset is None or offset + message_count(message) > self.from_offset)
            and (self.to_offset is None or offset < self.to_offset)
            and (self.since_ms is None or time >= self.since_ms)
            and (self.until_ms is None or time < self.until_ms)
            and (self.physical_offset is None or self._is_there(message))
            and (self.topic is None or message.topic_raw == _raw(self.topic))
            and (self.key is None or self.key in (message.unique_id, *message.keys))
        )

    def _is_there(self, message: StoredMessage) -> bool:
        assert self.physical_offset is not None
        start = message.physical_offset
        if self.physical_end is None:
            return start == self.physical_offset
        return start < self.physical_end and start + message.size > self.physical_offset


def _raw(topic: str) -> bytes:
    """Encode a topic of the command line, in which surrogates stand for bytes that are no text."""
    return topic.encode("utf-8", "surrogateescape")


class Selection:
    """The wanted records: iterate it, then look at `log` for what was damaged."""

    def __init__(self, store: Inspected, wanted: Wanted) -> None:
        self._store = store
        self._wanted = wanted
        self.log = LogCheck(store, self._start())

    def __iter__(self) -> Iterator[StoredMessage]:
        """Yield them in the order of the log."""
        takes, until_ms = self._wanted.takes, self._wanted.until_ms
        at = self._wanted.physical_offset
        last = None if at is None else max(at, (self._wanted.physical_end or 0) - 1)
        end = None if until_ms is None else self._end_of_reached(until_ms + CLOCK_SLACK_MS)
        for message in self.log:
            if end is not None and message.physical_offset >= end:
                return
            if takes(message):
                yield message
            if last is not None and message.physical_offset + message.size > last:
                return

    def _start(self) -> int:
        """Return an offset at which a record begins and before which none is wanted."""
        segments, wanted = self._store.segments, self._wanted
        if wanted.physical_offset is not None:
            if self._message_at(wanted.physical_offset) is not None:
                return wanted.physical_offset
            segment = segments.at(wanted.physical_offset)
            return segments.first_offset if segment is None else segment.start
        starts = [segments.first_offset]
        if wanted.since_ms is not None:
            starts.append(self._first_reached(wanted.since_ms - CLOCK_SLACK_MS))
        topic, queue_id, number = wanted.topic, wanted.queue_id, wanted.from_offset
        if topic is not None and queue_id is not None and number is not None:
            starts.append(self._record_of_entry(topic, queue_id, number))
        return max(starts)

    def _first_reached(self, time_ms: int) -> int:
        """Return the start of the segment before the first one that begins at a time or later.

        Or before the first segment that begins earlier than its predecessor: the clock was set back
        within that one, and nobody knows how late it was by then.
        """
        before, before_ms = self._store.segments.first_offset, 0
        for segment in self._store.segments:
            begun_ms = self._begun_ms(segment)
            if begun_ms is None or begun_ms >= time_ms or begun_ms < before_ms:
                break
            before, before_ms = segment.start, begun_ms
        return before

    def _end_of_reached(self, time_ms: int) -> int:
        """Return the end of the last segment that may have a record of that time or earlier.

        A segment that begins later may have one if the next segment begins earlier than it: then
        the clock was set back within it. Nobody knows where within, so it is read to its end. (If
        the next segment begins later still, nothing shows that the clock was set back.)
        """
        end, next_ms = self._store.segments.end_offset, None
        for segment in reversed(list(self._store.segments)):
            begun_ms = self._begun_ms(segment)
            if begun_ms is None:
                continue
            if begun_ms <= time_ms or (next_ms is not None and next_ms < begun_ms):
                break
            end, next_ms = segment.start, begun_ms
        return end

    def _begun_ms(self, segment: Segment) -> int | None:
        """Return the store time of a segment's first record; None if it cannot be read."""
        file = self._store.segments.file(segment)
        size = int.from_bytes(file.read(4, 0), "big")
        try:
            return read_message(file.read(min(size, _LOOK_SIZE), 0)).store_timestamp
        except MessageError:
            return None

    def _record_of_entry(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Return where a message is according to its queue, if that is right; else the log's begin.

        Also the log's begin for a recreated topic: an earlier message may have had the number.
        """
        key = QueueKey(is_batch=False, topic=topic, queue_id=queue_id)
        with closing(files_of(self._store, key)) as files:
            physical_offset: int = ENTRY.unpack(files.read(queue_offset, 1))[0]
        message = self._message_at(physical_offset)
        is_it = (
            message is not None
            and message.queue_offset == queue_offset
            and message.queue_id == queue_id
            and message.topic == topic
            and _raw(topic) not in self._store.deletions.offsets
        )
        return physical_offset if is_it else self._store.segments.first_offset

    def _message_at(self, physical_offset: int) -> StoredMessage | None:
        segments = self._store.segments
        if not segments.first_offset <= physical_offset < segments.end_offset:
            return None
        return next(iter(LogScan(segments, physical_offset)), None)
