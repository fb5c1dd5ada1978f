"""What the log alone tells of the kinds of topics: a batch is of a topic of batch queues."""

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
    """Of topics in no table, of whose queues nobody came to write a file: see `TopicKinds`."""

    def __init__(self, segments: Segments, start: Start, deletions: Deletions) -> None:
        """As far as `start` reads the log; nothing is read before `topics` is asked for."""
        self._segments, self._start, self._deletions = segments, start, deletions

    @cached_property
    def topics(self) -> frozenset[str]:
        """Those that have a batch in the log, behind where they were deleted."""
        start, found = self._start, set[str]()
        for each in start.scan(self._segments, start.scan_from).stretches():
            if not isinstance(each, StoredMessage):
                continue
            if each.sys_flag & SysFlag.INNER_BATCH and not self._deletions.covers(each):
                found.add(each.topic)
        return frozenset(found)
