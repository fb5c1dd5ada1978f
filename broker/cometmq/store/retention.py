"""Which segments of the log go, and when: by age, by quota, and because the disk is full.

`decide` is the whole policy and touches nothing. It looks at the segments from the oldest on and
stops at the first that stays, because the log has no holes. The last one, which is being written,
always stays. A segment goes for the first of these reasons that holds:

=======  =========================================================================================
QUOTA    the log is larger than `retention_size_max`
FULL     a partition is fuller than `disk_used_percent_force`, whatever the segment's age
AGE      it was last written `retention_hours` ago, and this is an hour in which old segments go,
         or a partition is fuller than `disk_used_percent_expire`, or an operator asked
=======  =========================================================================================

A reader in the middle of a segment that goes keeps its bytes: the name is removed, the map stays.
Such a segment still takes room on the disk, so nothing more goes while `segment_pins_max` are held.

Above `disk_used_percent_max` puts are to be refused, until `disk_used_percent_force` is reached
again: a log that fills its disk to the last byte leaves no room for what makes room.

A round, which the owner of the store begins every ten seconds or so::

    for removal in retention.plan(now_ms):
        retention.remove(removal)    # on the store's own thread
        retention.settle()           # may run in a thread; done before the next removal

One removal is settled before the next, because two that are not synced may survive a power cut in
either order, and a log whose second segment is missing does not open.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from cometmq.store.config import StoreConfig
    from cometmq.store.filesystem import FileSystem, Space
    from cometmq.store.segments import Segments

HOUR_MS = 3_600_000
ROUNDS_OF_A_REQUEST = 20
"""Rounds in which old segments go at any hour after an operator asked, as with Apache."""


class Reason(Enum):
    """Why a segment goes."""

    QUOTA = auto()
    FULL = auto()
    AGE = auto()


class SegmentFile(NamedTuple):
    """What the policy looks at in one segment."""

    start: int
    size: int
    modified_ms: int


class Removal(NamedTuple):
    """One segment that is to go."""

    start: int
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What the policy looks at besides the segments."""

    now_ms: int
    hour: int
    """The local hour of the day."""
    log_size: int
    """Bytes of all segments."""
    spaces: Sequence[Space]
    """The partition of the log, then those of other parts of the store, each once."""
    pinned_count: int = 0
    """Segments that went while a reader was in them, and still take room."""
    is_asked: bool = False
    """Whether an operator asked for old segments to go now."""


def decide(
    files: Iterable[SegmentFile], situation: Situation, config: StoreConfig
) -> list[Removal]:
    """Tell which segments go in this round, oldest first. No more files are looked at than go."""
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
    """How full the fullest partition is, rounded up; `freed` bytes of the first count as free."""
    highest = 0
    for space in spaces:
        used = space.total - space.free - freed
        freed = 0
        if space.total > 0:
            highest = max(highest, -(-used * 100 // space.total))
    return highest


class Retention:
    """Carries the policy out on one store."""

    def __init__(
        self,
        filesystem: FileSystem,
        segments: Segments,
        config: StoreConfig,
        *,
        paths: Sequence[str],
        follow: Callable[[int], None],
    ) -> None:
        """`paths` are folders on the partitions that count, the log's first.

        `follow` is called with the new first offset of the log: ConsumeQueues, index and sidecars
        let go of what lies before it.
        """
        self.is_full = False
        """Whether puts are to be refused for lack of room."""
        self._filesystem = filesystem
        self._segments = segments
        self._config = config
        self._paths = paths
        self._follow = follow
        self._rounds_asked = 0

    def ask(self) -> None:
        """Let old segments go at any hour for a while: an operator wants room."""
        self._rounds_asked = ROUNDS_OF_A_REQUEST

    def plan(self, now_ms: int) -> list[Removal]:
        """Begin a round: what is to go now."""
        spaces = self._spaces()
        situation = Situation(
            now_ms=now_ms,
            hour=time.localtime(now_ms / 1000).tm_hour,
            log_size=len(self._segments) * self._segments.size,
            spaces=spaces,
            pinned_count=self._segments.pinned_count,
            is_asked=self._rounds_asked > 0,
        )
        self._rounds_asked = max(0, self._rounds_asked - 1)
        self._judge(spaces)
        return decide(self._files(), situation, self._config)

    def remove(self, removal: Removal) -> None:
        """Remove one segment of a plan, and let the rest of the store follow."""
        if self._segments.first_offset != removal.start or len(self._segments) < 2:
            return  # The log moved on since the plan was made.
        self._segments.remove_first()
        self._follow(self._segments.first_offset)
        self._judge(self._spaces())

    def settle(self) -> None:
        """Make the removal last; it does not go back to the store, so a thread may do it."""
        self._filesystem.sync_directory(self._segments.directory)

    def _files(self) -> Iterable[SegmentFile]:
        for segment in self._segments:
            if segment.start + self._segments.size > self._segments.synced_offset:
                return  # The log ends in it; a segment made ahead of need may follow.
            modified_ms = self._filesystem.modified_ms(segment.path)
            yield SegmentFile(segment.start, self._segments.size, modified_ms)

    def _spaces(self) -> list[Space]:
        spaces: list[Space] = []
        for path in self._paths:
            space = self._filesystem.space(path)
            if space not in spaces:
                spaces.append(space)
        return spaces

    def _judge(self, spaces: Sequence[Space]) -> None:
        percent = used_percent(spaces)
        if percent > self._config.disk_used_percent_max:
            self.is_full = True
        elif percent <= self._config.disk_used_percent_force:
            self.is_full = False
