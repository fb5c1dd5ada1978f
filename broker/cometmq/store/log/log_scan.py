"""Reading the log record by record, as recovery, replay and verification do.

Every record is checked: its lengths, its own physical offset, the checksum of its body and, where
it ends with one, of all of it. Reads are blocking and through the file, not the map: a bad sector
is then an `OSError`, not a SIGBUS.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, ClassVar, Final, cast

from cometmq.proto.checksum import CRC_MASK, crc32
from cometmq.proto.errors import MessageError
from cometmq.proto.message import StoredMessage, read_message
from cometmq.proto.properties import PROPERTIES_SIZE_MAX
from cometmq.proto.record import (
    HEAD_SIZE,
    HOSTS_MASK,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_CRC_DIGITS,
    RECORD_CRC_HEAD,
    RECORD_CRC_SIZE,
    RECORD_SIZE_MIN,
    TOPIC_SIZE_V1_MAX,
    check_record_crc,
)
from cometmq.store.disk.names import is_folder_name
from cometmq.store.log.turn import BLANK_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.store.log.log_stretch import Stretch
    from cometmq.store.log.segments import Segment, Segments

_HEAD: Final = struct.Struct(">iI")
_COMMON: Final = struct.Struct(">iIIi4xqqi44xI")
"""Size, magic, body CRC, queue id, queue offset, physical offset, sysFlag, body size."""

assert _COMMON.size == HEAD_SIZE

_unpack_common = _COMMON.unpack_from
_CHUNK_SIZE: Final = 4 << 20
_MAGICS: Final = (MAGIC_V1, MAGIC_V2)
_TOPICS_MAX: Final = 100_000
"""Topics that a scan remembers to be sound."""


_PATIENCE: Final = 64
"""Records that are read one by one where no stretch began, before another is looked for."""
_REACH: Final = 256
"""Records that are looked at for a stretch at first: twice as many as the last one had, later."""
_REACH_MIN: Final = 16
"""A stretch of fewer takes as long as its records one by one."""

NEVER: Final = 1 << 62
"""A physical offset that no log reaches."""


class LogScan:
    """One pass over the log: iterate it, then look at `end_offset` and `problem`."""

    stretches_after: ClassVar[int] = 1024
    """Records that are read one by one before stretches are looked for: a short log needs no numpy.

    Lower where stretches are tested.
    """

    def __init__(
        self,
        segments: Segments,
        start: int,
        *,
        ours_from: int = NEVER,
        checked_from: int = NEVER,
        is_verified: bool = False,
    ) -> None:
        """Begin at a record; of a log that `is_verified` only lengths and places are looked at.

        From `ours_from` on every record is one of our own. Those have no zero byte in topic and
        properties, which no checksum of the body covers, unless they have a checksum of their own:
        zeros there are what a power cut left. From `checked_from` on all have one.
        """
        self.end_offset = start
        """Behind the last sound record, or blank one, so far."""
        self.problem: str | None = None
        """What is wrong with the record at `end_offset`; None when there is none."""
        self._segments = segments
        self._ours_from = ours_from
        self._checked_from = checked_from
        self._is_verified = is_verified
        self._topics: set[bytes] = set()
        self._patience = self.stretches_after
        self._reach = _REACH

    def __iter__(self) -> Iterator[StoredMessage]:
        """Yield the sound records; ends at the first that is not."""
        return cast("Iterator[StoredMessage]", self._walk(quickly=False))

    def stretches(self) -> Iterator[StoredMessage | Stretch]:
        """Yield the same records, together where many of the common form follow one another."""
        # Stretches do not look at checksums of records, which here none may be without.
        return self._walk(quickly=self._is_verified or self._checked_from == NEVER)

    def _walk(self, *, quickly: bool) -> Iterator[StoredMessage | Stretch]:
        while (segment := self._segments.at(self.end_offset)) is not None:
            yield from self._scan(segment, quickly=quickly)
            if self.end_offset < segment.start + self._segments.size:
                return

    def _scan(self, segment: Segment, *, quickly: bool) -> Iterator[StoredMessage | Stretch]:
        """Yield the records of one segment; `end_offset` is its end if a blank one closes it."""
        file = self._segments.file(segment)
        length = self._segments.size
        base = position = self.end_offset - segment.start
        chunk = b""
        while position < length:
            limit = min(len(chunk), length - BLANK_SIZE - base)
            found = self._next(chunk, position - base, limit, segment.start + position, quickly)
            if found is not None:
                position += found.size
                self.end_offset = segment.start + position
                yield found
                continue
            if position - base + BLANK_SIZE > len(chunk):
                # A file that was cut short reads as if zeros followed.
                chunk = file.read(min(_CHUNK_SIZE, length - position), position)
                chunk, base = chunk.ljust(BLANK_SIZE, b"\0"), position
                self._look_again()
            size, magic = _HEAD.unpack_from(chunk, position - base)
            room = length - position
            if magic not in _MAGICS or not RECORD_SIZE_MIN <= size <= room - BLANK_SIZE:
                if magic == MAGIC_BLANK and size == room:
                    self.end_offset = segment.start + length
                elif size or magic:
                    self.problem = f"size {size} and magic {magic:#010x} begin no record"
                return
            if position - base + size > len(chunk):
                chunk, base = file.read(min(max(size, _CHUNK_SIZE), room), position), position
                self._look_again()
            message = self._sound(chunk, position - base, segment.start + position)
            if message is None:
                return
            position += size
            self.end_offset += size
            yield message

    def _next(
        self, chunk: bytes, at: int, limit: int, physical_offset: int, quickly: bool
    ) -> StoredMessage | Stretch | None:
        """Return a stretch or a record, if what comes is of the common form and sound."""
        if quickly and self._patience <= 0:
            from cometmq.store.log.log_stretch import find_stretch

            found = find_stretch(
                chunk,
                at,
                limit,
                physical_offset,
                self._admit,
                is_verified=self._is_verified,
                count_max=self._reach,
            )
            count = 0 if found is None else len(found.offsets)
            if count == self._reach:
                self._patience = 0
            else:  # What ended it is read by itself: one record, or the end of the chunk.
                self._patience = 1 if count >= _REACH_MIN else _PATIENCE
            self._reach = max(2 * count, _REACH_MIN)
            if found is not None:
                return found
        self._patience -= 1
        return self._common(chunk, at, limit, physical_offset)

    def _look_again(self) -> None:
        """Look for a stretch at once: the last one may have ended where its chunk did."""
        if self._patience <= _PATIENCE:
            self._patience = 0

    def _common(
        self, chunk: bytes, at: int, limit: int, physical_offset: int
    ) -> StoredMessage | None:
        """Return the record, if it is of the common form, ends before the limit, and is sound.

        Every other is `_sound`'s, and so is saying what is wrong with it: this takes half the time.
        """
        try:
            size, magic, crc, queue_id, queue_offset, noted_offset, sys_flag, body_size = (
                _unpack_common(chunk, at)
            )
            end: int = at + size
            body_start = at + HEAD_SIZE
            body_end: int = body_start + body_size
            topic_start = body_end + 1
            topic_end = topic_start + chunk[body_end]
            properties_size = chunk[topic_end] << 8 | chunk[topic_end + 1]
        except (struct.error, IndexError):
            return None
        if (
            magic != MAGIC_V1
            or sys_flag & HOSTS_MASK
            or noted_offset != physical_offset
            or queue_offset < 0
            or queue_id < 0
            or end > limit
            or topic_end + 2 + properties_size != end
            or topic_end - topic_start > TOPIC_SIZE_V1_MAX
            or properties_size > PROPERTIES_SIZE_MAX
        ):
            return None
        if not self._is_verified:
            if crc32(chunk[body_start:body_end]) & CRC_MASK != crc:
                return None
            topic = chunk[topic_start:topic_end]
            if topic not in self._topics and not self._admit(topic):
                return None
            intact = _is_record_intact(chunk, at, end)
            if not intact and (
                intact is False
                or physical_offset >= self._checked_from
                or (physical_offset >= self._ours_from and 0 in chunk[topic_end + 2 : end])
            ):
                return None
        return StoredMessage(
            chunk, at, end, queue_offset, sys_flag, body_start, body_end, topic_start, topic_end
        )

    def _sound(self, chunk: bytes, at: int, physical_offset: int) -> StoredMessage | None:
        try:
            message = read_message(chunk, at)
        except MessageError as error:
            # Where in `chunk`, which it begins with, says nothing to anybody.
            _, _, self.problem = str(error).partition(": ")
            return None
        if message.physical_offset != physical_offset:
            self.problem = f"it says that it is at {message.physical_offset}"
        elif self._is_verified:
            return message
        elif message.queue_offset < 0 or message.queue_id < 0:
            self.problem = "its queue offset or queue id is negative"
        elif crc32(chunk[message.body_start : message.body_end]) & CRC_MASK != message.body_crc:
            # An empty body is stored with checksum 0, which is its checksum.
            self.problem = "the checksum of its body is wrong"
        else:
            intact = _is_record_intact(chunk, message.start, message.end)
            if intact is False:
                self.problem = "the checksum of the record is wrong"
            elif intact is None and physical_offset >= self._checked_from:
                self.problem = "the checksum of the record is missing"
            elif (
                intact is None
                and physical_offset >= self._ours_from
                and (
                    0 in chunk[message.topic_start : message.topic_end]
                    or 0 in chunk[message.topic_end + 2 : message.end]
                )
            ):
                self.problem = "its topic or properties hold zeros"
            elif not self._admit(message.topic_raw):
                self.problem = f"its topic {message.topic_raw!r} can be none"
            else:
                return message
        return None

    def _admit(self, topic: bytes) -> bool:
        """Whether a topic can be one: text that can name a folder. Those that can are noted."""
        try:
            text = topic.decode()
        except UnicodeDecodeError:
            return False
        if not text or not is_folder_name(text):
            return False
        if len(self._topics) >= _TOPICS_MAX:
            self._topics.clear()
        self._topics.add(topic)
        return True


def _is_record_intact(chunk: bytes, start: int, end: int) -> bool | None:
    """Whether the record's own checksum is right; None when it has none.

    Ten digits at the end that are its checksum under another name are one whose name is damaged.
    """
    if chunk.startswith(RECORD_CRC_HEAD, end - RECORD_CRC_SIZE, end):
        return check_record_crc(chunk[start:end])
    if not chunk[end - RECORD_CRC_DIGITS - 1 : end - 1].isdigit():
        return None
    digits = chunk[end - RECORD_CRC_DIGITS - 1 : end]
    renamed = chunk[start : end - RECORD_CRC_SIZE] + RECORD_CRC_HEAD + digits
    return False if check_record_crc(renamed) else None
