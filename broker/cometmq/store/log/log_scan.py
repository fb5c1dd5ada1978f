"""Reading the log record by record, as recovery, replay and verification do.

Every record is checked: its lengths, its own physical offset, the checksum of its body and, if it
ends with one, the checksum of the whole record. Reads block and go through the file, not the map,
so that a bad sector is an `OSError`, not a SIGBUS.

A wrong checksum of a record may be one that its sender copied from elsewhere, which an Apache
broker keeps unless it adds its own. So in a log of Apache's it only counts if the record before (of
the first, the one behind) has a right one, or if it is all of the log.
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
from cometmq.store.log.fillers import is_of_repair
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
"""Topics that a scan remembers as sound."""
_PATIENCE: Final = 64
"""Records that are read one by one after no stretch began, before the next one is looked for."""
_REACH: Final = 256
"""Records that the first search for a stretch examines; later ones examine twice the last find."""
_REACH_MIN: Final = 16
"""A stretch of fewer records takes as long as reading them one by one."""

NEVER: Final = 1 << 62
"""A physical offset that no log reaches."""


class LogScan:
    """One pass over the log: iterate it, then look at `end_offset` and `problem`."""

    stretches_after: ClassVar[int] = 1024
    """Records that are read one by one before stretches are looked for: a short log needs no numpy.

    Tests of stretches set it lower.
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
        """Begin at a record; if the log `is_verified`, only lengths and places are checked.

        From `ours_from` on, every record is our own. Topic and properties, which the body's
        checksum does not cover, have no zero byte in our records, unless a record has a checksum of
        its own: zeros there were left by a power cut. From `checked_from` on, all have one, except
        what a repair put in the place of damaged bytes.
        """
        self.end_offset = start
        """The end of the last sound record, or blank one, so far."""
        self.problem: str | None = None
        """What is wrong with the record at `end_offset`; None if the log just ends there."""
        self._segments = segments
        self._ours_from = ours_from
        self._checked_from = checked_from
        self._is_verified = is_verified
        self._topics: set[bytes] = set()
        self._last_has_own: bool | None = None
        """Whether the last record has a checksum of its own; None before the first one."""
        self._patience = self.stretches_after
        self._reach = _REACH

    def __iter__(self) -> Iterator[StoredMessage]:
        """Yield the sound records up to the first that is not sound."""
        return cast("Iterator[StoredMessage]", self._walk(quickly=False))

    def stretches(self) -> Iterator[StoredMessage | Stretch]:
        """Yield the same records, but many of the common form in a row as one stretch."""
        # A search for stretches does not check records' own checksums, which are required here.
        return self._walk(quickly=self._is_verified or self._checked_from == NEVER)

    def _walk(self, *, quickly: bool) -> Iterator[StoredMessage | Stretch]:
        while (segment := self._segments.at(self.end_offset)) is not None:
            yield from self._scan(segment, quickly=quickly)
            if self.end_offset < segment.start + self._segments.size:
                return

    def _scan(self, segment: Segment, *, quickly: bool) -> Iterator[StoredMessage | Stretch]:
        """Yield the records of one segment; if a blank one closes it, `end_offset` is its end."""
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
                # A file that was cut short is read as if zeros followed.
                chunk = file.read(min(_CHUNK_SIZE, length - position), position)
                chunk, base = chunk.ljust(BLANK_SIZE, b"\0"), position
                self._look_again()
            size, magic = _HEAD.unpack_from(chunk, position - base)
            room = length - position
            if magic not in _MAGICS or not RECORD_SIZE_MIN <= size <= room - BLANK_SIZE:
                if magic == MAGIC_BLANK and size == room:
                    self.end_offset = segment.start + length
                elif size or magic:
                    self.problem = (
                        f"size {size} and magic {magic:#010x} are not the start of a record"
                    )
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
        """Return a stretch or a record if what comes next is of the common form and sound."""
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
            else:  # What ended the stretch is read singly: one record, or the end of the chunk.
                self._patience = 1 if count >= _REACH_MIN else _PATIENCE
            self._reach = max(2 * count, _REACH_MIN)
            if found is not None:
                self._last_has_own = False
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
        """Return the record if it is of the common form, ends by the limit, and is sound.

        This takes half the time of `_sound`, which reads every other record and says what is wrong.
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
            self._last_has_own = bool(intact)
        return StoredMessage(
            chunk, at, end, queue_offset, sys_flag, body_start, body_end, topic_start, topic_end
        )

    def _sound(self, chunk: bytes, at: int, physical_offset: int) -> StoredMessage | None:
        try:
            message = read_message(chunk, at)
        except MessageError as error:
            # The text begins with the position in `chunk`, which is of no use to a reader.
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
            intact = self._is_intact(message)
            if intact is False:
                self.problem = "the checksum of the record is wrong"
            elif (
                intact is None
                and physical_offset >= self._checked_from
                and not is_of_repair(message)
            ):
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
                self.problem = f"its topic {message.topic_raw!r} cannot be the name of one"
            else:
                self._last_has_own = bool(intact)
                return message
        return None

    def _is_intact(self, message: StoredMessage) -> bool | None:
        """Whether a record's own checksum is right; None if it has none, or one of a sender's."""
        raw = message.raw
        intact = _is_record_intact(raw, 0, len(raw))
        is_named = raw.startswith(RECORD_CRC_HEAD, len(raw) - RECORD_CRC_SIZE)
        may_be_copied = message.physical_offset < min(self._ours_from, self._checked_from)
        if intact is not False or not is_named or not may_be_copied:
            return intact
        has_own = self._last_has_own
        if has_own is None:
            end = message.physical_offset + len(raw)
            behind = next(iter(LogScan(self._segments, end, is_verified=True)), None)
            has_own = behind is None or behind.is_record_intact() is True
        return False if has_own else None

    def _admit(self, topic: bytes) -> bool:
        """Whether a topic is possible: text that can name a folder. Possible ones are noted."""
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
    """Whether the record's own checksum is right; None if it has none.

    If ten digits at the end are the right checksum, but under another name, the name is damaged.
    """
    if chunk.startswith(RECORD_CRC_HEAD, end - RECORD_CRC_SIZE, end):
        return check_record_crc(chunk[start:end])
    if not chunk[end - RECORD_CRC_DIGITS - 1 : end - 1].isdigit():
        return None
    digits = chunk[end - RECORD_CRC_DIGITS - 1 : end]
    renamed = chunk[start : end - RECORD_CRC_SIZE] + RECORD_CRC_HEAD + digits
    return False if check_record_crc(renamed) else None
