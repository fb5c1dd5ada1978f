"""Which segments of the log go, and when: by age, by quota, and because the disk is full.

`decide` is the whole policy and touches nothing. It looks at the segments from the oldest on and
stops at the first that stays, because the log must not have holes. The last segment, which is being
written, always stays. A segment goes for the first of these reasons that applies:

=======  =========================================================================================
QUOTA    the log is larger than `retention_size_max`
FULL     a partition is fuller than `disk_used_percent_force`, whatever the segment's age
AGE      it was last written `retention_hours` ago, and this is an hour in which old segments go,
         or a partition is fuller than `disk_used_percent_expire`, or an operator asked
=======  =========================================================================================

A reader in the middle of a segment that goes keeps its bytes: the name is removed, the map stays.
Such a segment still takes room on the disk, so nothing more goes while `segment_pins_max` are held.

Above `disk_used_percent_max` puts are to be refused until usage is down to
`disk_used_percent_force`: a log that fills its disk to the last byte leaves no room for the work
that makes room.

A round, which the owner of the store begins every ten seconds or so (see `expiry`)::

    for removal in retention.plan(now_ms):
        retention.remove(removal)    # on the store's own thread: it is out of the log
        retention.settle()           # may run in a thread; done before the next removal

One removal is settled before the next: otherwise a power cut might keep only the second of two
unsynced removals, and a log whose second segment is missing does not open.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from cometmq.store.config import StoreConfig
    from cometmq.store.disk.filesystem import FileSystem, Mapping, Space
    from cometmq.store.log.segments import Segment, Segments

log = logging.getLogger(__name__)

HOUR_MS = 3_600_000
ROUNDS_OF_A_REQUEST = 20
"""Rounds after an operator's request in which old segments go at any hour, as with Apache."""


class Reason(Enum):
    """Why a segment goes."""

    QUOTA = auto()
    FULL = auto()
    AGE = auto()


class SegmentFile(NamedTuple):
    """The properties of one segment that the policy looks at."""

    start: int
    size: int
    modified_ms: int


class Removal(NamedTuple):
    """One segment that is to go."""

    start: int
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Everything else that the policy looks at."""

    now_ms: int
    hour: int
    """The local hour of the day."""
    log_size: int
    """Bytes of all segments."""
    spaces: Sequence[Space]
    """The partition of the log, then those of other parts of the store, each once."""
    pinned_count: int = 0
    """Segments that were removed while a reader was in them, and still take room."""
    is_asked: bool = False
    """Whether an operator asked for old segments to go now."""


def decide(
    files: Iterable[SegmentFile], situation: Situation, config: StoreConfig
) -> list[Removal]:
    """Return which segments go in this round, oldest first; look at no more files than needed."""
    removals: list[Removal] = []
    if situation.pinned_count >= config.segment_pins_max:
        return removals
    left = situation.log_size
    for file in files:
        left -= file.size
        if left <= 0 or len(removals) == config.retention_files_max:
            break
        reason = _reason(file, left + file.size, situation, config)
        if reason is None:
            break
        removals.append(Removal(file.start, reason))
    return removals


def _reason(
    file: SegmentFile, log_size: int, situation: Situation, config: StoreConfig
) -> Reason | None:
    if config.retention_size_max is not None and log_size > config.retention_size_max:
        return Reason.QUOTA
    percent = used_percent(situation.spaces, freed=situation.log_size - log_size)
    if percent > config.disk_used_percent_force:
        return Reason.FULL
    may_expire = (
        situation.hour in config.retention_hours_of_day
        or situation.is_asked
        or percent > config.disk_used_percent_expire
    )
    if may_expire and file.modified_ms + config.retention_hours * HOUR_MS <= situation.now_ms:
        return Reason.AGE
    return None


def used_percent(spaces: Sequence[Space], *, freed: int = 0) -> int:
    """Return how full the fullest partition is, rounded up; `freed` of the first counts as free."""
    highest = 0
    for space in spaces:
        used = space.total - space.free - freed
        freed = 0
        if space.total > 0:
            highest = max(highest, -(-used * 100 // space.total))
    return highest


class Retention:
    """Carries out the policy on one store."""

    def __init__(
        self,
        filesystem: FileSystem,
        segments: Segments,
        config: StoreConfig,
        *,
        paths: Sequence[str],
        follow: Callable[[int], None],
        settled_offset: Callable[[], int],
        on_held: Callable[[], None] = lambda: None,
    ) -> None:
        """`paths` are folders on the partitions that count, the log's first.

        `follow` is called with the new first offset of the log: nothing may lead to anything before
        it any more. A power cut may take queue entries of records after `settled_offset`; if the
        log were gone, too, those queues would begin again with offsets that their consumers have
        seen. If that keeps a segment that should go, `on_held` is called.
        """
        self.is_full = False
        """Whether puts are to be refused for lack of room."""
        self.used_percent = 0
        """How full the fullest partition was at the last look, rounded up."""
        self.removed: Counter[Reason] = Counter()
        """Segments that were taken out of the log since the start, by reason."""
        self._leaving: Segment | None = None
        self._held: deque[Mapping] = deque()  # From the thread that settles to the store's own.
        self._filesystem = filesystem
        self._segments = segments
        self.config = config
        """The settings in force: `MessageStore.configure` replaces them."""
        self._paths = paths
        self._follow = follow
        self._settled_offset = settled_offset
        self._on_held = on_held
        self._rounds_asked = 0
        self._held_until: int | None = None

    @property
    def settled_offset(self) -> int:
        """The queues have every record before this offset, safe on the disk."""
        return self._settled_offset()

    def ask(self) -> None:
        """Let old segments go at any hour for a while: an operator wants room."""
        self._rounds_asked = ROUNDS_OF_A_REQUEST

    def plan(self, now_ms: int) -> list[Removal]:
        """Begin a round; return what is to go now."""
        while self._held:
            self._segments.pin(self._held.popleft())
        spaces = self.look()
        situation = Situation(
            now_ms=now_ms,
            hour=time.localtime(now_ms / 1000).tm_hour,
            log_size=len(self._segments) * self._segments.size,
            spaces=spaces,
            pinned_count=self._segments.pinned_count,
            is_asked=self._rounds_asked > 0,
        )
        self._rounds_asked = max(0, self._rounds_asked - 1)
        wanted = decide(self._files(), situation, self.config)
        size, end = self._segments.size, self._safe_offset
        safe = [removal for removal in wanted if removal.start + size <= end]
        self._held_until = None
        if len(safe) < len(wanted):
            self._held_until = wanted[len(safe)].start + size
            self._on_held()
        return safe

    @property
    def is_held_no_longer(self) -> bool:
        """Whether a segment that a plan left out because its queues were not safe may go now."""
        return self._held_until is not None and self._held_until <= self._safe_offset

    @property
    def _safe_offset(self) -> int:
        return min(self._segments.synced_offset, self._settled_offset())

    @property
    def gone_offset(self) -> int:
        """No record before this offset comes back: their removal is on the disk."""
        leaving = self._leaving
        return self._segments.first_offset if leaving is None else leaving.start

    @property
    def is_leaving(self) -> bool:
        """Whether a segment has left the log but is not yet removed by `settle`."""
        return self._leaving is not None

    def remove(self, removal: Removal) -> bool:
        """Take one segment of a plan out of the log, and let the rest of the store follow.

        Return False if the log moved on since the plan was made: then nothing is to be settled.
        """
        assert self._leaving is None, "one removal is settled before the next"
        if self._segments.first_offset != removal.start or len(self._segments) < 2:
            return False
        level = logging.WARNING if removal.reason is Reason.FULL else logging.INFO
        log.log(
            level,
            "removing the log from %d to %d, the oldest: %s",
            removal.start,
            removal.start + self._segments.size,
            self._why(removal.reason),
        )
        self.removed[removal.reason] += 1
        self._leaving = self._segments.detach_first()
        self._follow(self._segments.first_offset)
        return True

    def _why(self, reason: Reason) -> str:
        match reason:
            case Reason.QUOTA:
                return f"the log is larger than its quota of {self.config.retention_size_max} bytes"
            case Reason.FULL:
                return f"the disk is {self.used_percent}% full"
            case Reason.AGE:
                return f"nothing was written to it for {self.config.retention_hours} hours"

    def settle(self) -> None:
        """Remove the file for good; a thread may do it, and may retry after an `OSError`.

        Freeing the blocks of a large file takes the disk many milliseconds.
        """
        segment = self._leaving
        if segment is None:
            return
        with suppress(FileNotFoundError):  # The last try got that far.
            self._filesystem.remove(segment.path)
        self._filesystem.sync_directory(self._segments.directory)
        mapping = segment.release()
        if mapping is not None:
            self._held.append(mapping)
        self._leaving = None

    def look(self) -> list[Space]:
        """Look how full the disk is, and judge whether it counts as full; return the spaces."""
        spaces = self._spaces()
        self.used_percent = percent = used_percent(spaces)
        if percent > self.config.disk_used_percent_max:
            self.is_full = True
        elif percent <= self.config.disk_used_percent_force:
            self.is_full = False
        return spaces

    def _files(self) -> Iterable[SegmentFile]:
        for segment in self._segments:
            modified_ms = self._filesystem.modified_ms(segment.path)
            yield SegmentFile(segment.start, self._segments.size, modified_ms)

    def _spaces(self) -> list[Space]:
        """Look at each partition once: removals make room on the first one only."""
        spaces: list[Space] = []
        for path in self._paths:
            space = self._filesystem.space(path)
            # Each subvolume of btrfs has its own number, but they share their room.
            if all(space.device != each.device and space[:2] != each[:2] for each in spaces):
                spaces.append(space)
        return spaces
