"""What the log alone shows of the kinds of topics: a batch is of a topic with batch queues."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from cometmq.proto.message import StoredMessage
from cometmq.proto.sysflag import SysFlag

if TYPE_CHECKING:
    from cometmq.store.deletions import Deletions
    from cometmq.store.log.segments import Segments
    from cometmq.store.starting.recovery import Start


class LogBatches:
    """Kinds of topics in no table whose queues have no file yet: see `TopicKinds`."""

    def __init__(self, segments: Segments, start: Start, deletions: Deletions) -> None:
        """The log is read as `start` does, and not before `topics` is used."""
        self._segments, self._start, self._deletions = segments, start, deletions

    @cached_property
    def topics(self) -> frozenset[str]:
        """The topics that have a batch in the log after their deletion, if they were deleted."""
        start, found = self._start, set[str]()
        for each in start.scan(self._segments, start.scan_from).stretches():
            if not isinstance(each, StoredMessage):
                continue
            if each.sys_flag & SysFlag.INNER_BATCH and not self._deletions.covers(each):
                found.add(each.topic)
        return frozenset(found)
