"""Removing what has expired from an open store, in its ticks, without holding up its thread.

Segments are removed one at a time. A segment leaves the log at once; its file is removed in a
thread, because it takes the disk a while to free a gigabyte; and only when that is certain is the
next one removed. After the last one, ConsumeQueues, index and sidecars remove what is before the
log, in slices; the list of `queue_ends` first says which files of the queues go, or the next start
would count them as lost. If the process ends in between, the next start looks for stray files.

Each second the store checks how full the disk is, and refuses or takes puts accordingly. If a
segment should go, but the last checkpoint does not cover it, the next checkpoint is taken at once,
and the segment goes in the second after it. What the disk refuses here is retried in the next
round.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from cometmq.store.disk.sync import Errand
from cometmq.store.errors import disk_error_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from cometmq.store.config import StoreConfig
    from cometmq.store.disk.filesystem import FileSystem, Space
    from cometmq.store.disk.sync import Jobs
    from cometmq.store.index.index import Index
    from cometmq.store.log.segments import Segments
    from cometmq.store.queues.consume_queues import ConsumeQueues
    from cometmq.store.upkeep.retention import Reason, Removal, Retention
    from cometmq.store.upkeep.sealing import Sealing

log = logging.getLogger(__name__)
QUEUES_A_TICK: Final = 4
"""Queues whose files are looked at, at some 20 µs each from memory."""


class Expiry:
    """Carries out what `Retention` decides, on an open store."""

    def __init__(
        self,
        filesystem: FileSystem,
        retention: Retention,
        segments: Segments,
        queues: ConsumeQueues,
        index: Index | None,
        sealing: Sealing,
        jobs: Jobs,
        config: StoreConfig,
    ) -> None:
        self._error: OSError | None = None
        """What the disk refused in this round; retried in the next."""
        self._told = ""
        self._filesystem = filesystem
        self._retention = retention
        self._segments = segments
        self._queues = queues
        self._index = index
        self._sealing = sealing
        self._jobs = jobs
        self.config = config
        """The settings in force: `MessageStore.configure` replaces them."""
        self._plan: deque[Removal] = deque()
        self._following: Iterator[int] | None = None
        self._must_follow = segments.first_offset > 0
        self._of_index: list[str] = []
        """Files that the index let go of, but that still exist."""
        self._errand = Errand(jobs)
        self._looked_ms: int | None = None
        self._round_ms: int | None = None

    @property
    def refusal(self) -> str | None:
        """Why puts are to be refused for lack of room; None if there is enough."""
        retention = self._retention
        if not retention.is_full:
            return None
        config = self.config
        # Above the first, puts are refused anyway, even if the other is set higher.
        again = min(config.disk_used_percent_max, config.disk_used_percent_force)
        return (
            f"the disk is {retention.used_percent}% full, and the limit is"
            f" {config.disk_used_percent_max}%; puts are accepted again at {again}%: make room,"
            " or keep less (retention_size_max, retention_hours)"
        )

    @property
    def disk_used_percent(self) -> int:
        """How full the fullest partition was at the last look."""
        return self._retention.used_percent

    @property
    def removed(self) -> Mapping[Reason, int]:
        """How many segments were removed since the start, by reason; updated with each."""
        return self._retention.removed

    def configure(self, config: StoreConfig) -> None:
        """Use these settings from now on."""
        self.config = config
        self._retention.config = config

    def ask(self) -> None:
        """Let old segments go at any hour for a while, beginning now: an operator wants room."""
        self._retention.ask()
        self._round_ms = None

    def ask_queues(self) -> None:
        """Look through all queues for what is before the log, though no segment was removed."""
        self._must_follow = True

    @property
    def gone_offset(self) -> int:
        """No record before this offset comes back, whatever happens."""
        return self._retention.gone_offset

    def space(self) -> Space:
        """The size and the free space of the log's disk."""
        return self._filesystem.space(self._segments.directory)

    def tick(self, now_ms: int) -> bool:
        """Do a slice of the work; return whether more of it can be done at once."""
        if self._errand.is_under_way:
            return False
        try:
            self._look(now_ms)
            return self._step()
        except OSError as error:
            self._refused(error)
            self._plan.clear()
            self._must_follow |= self._following is not None
            self._following = None
        return False

    def _look(self, now_ms: int) -> None:
        if not _has_passed(self._looked_ms, now_ms, self.config.disk_check_interval_ms):
            return
        self._looked_ms = now_ms
        was_full = self._retention.is_full
        self._retention.look()
        if (refusal := self.refusal) is not None and not was_full:
            log.error("puts are refused: %s", refusal)
        elif refusal is None and was_full:
            log.warning("puts are accepted again: the disk is %d%% full", self.disk_used_percent)
        if self._segments.lack is not None:
            self._jobs.submit(self._segments.prepare_lacking)
        is_due = _has_passed(self._round_ms, now_ms, self.config.retention_interval_ms)
        is_due |= self._retention.is_held_no_longer
        if is_due or (self._retention.is_full and not was_full):
            self._round_ms = now_ms
            if self._error is None:
                self._taken()
            self._error = None
            self._plan = deque(self._retention.plan(now_ms))

    def _step(self) -> bool:
        if self._retention.is_leaving:
            if self._error is None:  # Otherwise the next round tries again.
                self._settle()
            return False
        while self._plan:
            if self._retention.remove(self._plan.popleft()):
                self._must_follow = True
                self._settle()
                return False
        if self._must_follow and self._error is None:
            self._must_follow = False
            self._following = self._follow(self._segments.first_offset)
        if self._following is None:
            return False
        for _ in range(QUEUES_A_TICK):
            if next(self._following, None) is None:
                self._following = None
                return False
            if self._errand.is_under_way:
                return False
        return True

    def _settle(self) -> None:
        self._do_in_thread(self._retention.settle)

    def _do_in_thread(self, work: Callable[[], None]) -> None:
        def job() -> None:
            try:
                work()
            except OSError as error:
                self._refused(error)
                self._must_follow = True

        self._errand.begin(job)

    def _refused(self, error: OSError) -> None:
        """Note what the disk refused, and log it, unless it is the same as before."""
        self._error, text = error, disk_error_text(error)
        if text != self._told:
            self._told = text
            log.error("not all that has expired could be removed, to be retried: %s", text)

    def _taken(self) -> None:
        """Log that nothing is left of what was refused, once that is so."""
        is_left = self._must_follow or self._following is not None or self._retention.is_leaving
        if self._told and not is_left:
            self._told = ""
            log.warning("what has expired is removed again")

    def _follow(self, first_offset: int) -> Iterator[int]:
        """Remove what is before the log, one queue a step."""
        self._sealing.expire(first_offset)
        if self._index is not None:
            self._of_index += self._index.expire(first_offset)
            if self._of_index:
                self._do_in_thread(self._remove)
                yield first_offset
        yield from self._queues.expire(self._retention.settled_offset, self._do_in_thread)

    def _remove(self) -> None:
        for path in list(self._of_index):
            if self._filesystem.exists(path):
                self._filesystem.remove(path)
            self._of_index.remove(path)


def _has_passed(since_ms: int | None, now_ms: int, interval_ms: int) -> bool:
    # A clock that was set back must not stop anything.
    return since_ms is None or not 0 <= now_ms - since_ms < interval_ms
