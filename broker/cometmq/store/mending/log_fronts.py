"""How far a log has each queue, for a repair that reads the whole log, see `repairing`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.store.log.fillers import is_filler, is_of_repair
from cometmq.store.looking.log_check import Damage, Instead
from cometmq.store.looking.right_heads import said_place
from cometmq.store.mending.lost_in_damage import Gap, Gaps
from cometmq.store.mending.lost_messages import Front, Fronts
from cometmq.store.messages.dispatch import has_entry, message_count

if TYPE_CHECKING:
    from cometmq.proto.message import StoredMessage
    from cometmq.store.looking.inspection import Inspected
    from cometmq.store.mending.repair_plan import StepOver

_OF_REPAIR: Final = "a repair has put it there"


class FrontsOfLog:
    """How far the log has each queue: the whole log, and the part before the first damage."""

    def __init__(self, store: Inspected) -> None:
        self._store = store
        self._promised_to = store.promised_to
        self.all: Fronts = {}
        self.gaps: Gaps = {}
        """Where numbers are missing, after the first damage."""
        self.behind: Fronts = {}
        """For the part after the first damage, as far as it was promised."""
        self.records_behind = 0
        self.times: dict[int, int] = {}
        """By the number of a damage, the store time of the next sound record."""
        self.of_repair: list[Damage] = []
        """The records that an earlier repair put into the log."""
        self._in_front: Fronts | None = None
        self._firsts: dict[str, int] = {}
        """The offset of the first record of each topic."""

    @property
    def in_front(self) -> Fronts:
        """For the part before the first damage."""
        return self.all if self._in_front is None else self._in_front

    def note(self, message: StoredMessage, *, is_behind: bool) -> None:
        """Take the next sound record; `is_behind` says whether it is after the first damage."""
        if is_behind and self._in_front is None:
            self._in_front = self.all.copy()
        self.records_behind += is_behind
        if is_of_repair(message):
            count = 0 if is_filler(message) else message_count(message)
            instead = Instead(said_place(message), count)
            start, end = message.physical_offset, message.physical_offset + message.size
            self.of_repair.append(Damage(start, end, _OF_REPAIR, is_last=False, instead=instead))
        if not self._has_entry(message):
            return
        store = self._store
        key = (message.topic_raw.decode("utf-8", "replace"), message.queue_id)
        self._firsts.setdefault(key[0], message.physical_offset)
        before = self.all.get(key)
        # The first record that is not deleted may begin right at the mark.
        deleted = store.deletions.offsets.get(message.topic_raw, 0) - 1
        expected, last = (before or Front(0, deleted))[:2]
        if is_behind and message.queue_offset > expected:
            # Before the first record of a log whose beginning has expired, some have expired.
            has_begun = before is not None or not store.segments.first_offset
            gap = expected, message.queue_offset, last, message.physical_offset, has_begun
            self.gaps.setdefault(key, []).append(Gap(*gap))
        following = message.queue_offset + message_count(message)
        self.all[key] = Front(following, message.physical_offset)
        if is_behind and message.physical_offset < self._promised_to:
            self.behind[key] = self.all[key]

    def add_placeholders(self, steps: list[StepOver]) -> None:
        """Count the records that will replace lost messages: then the log has these."""
        for step in steps:
            for each in step.lost:
                key = (each.topic, each.queue_id)
                start, end = step.damage.start, step.damage.end
                front = Front(each.queue_offset + each.count, start, end - start)
                self.all[key] = max(front, self.all.get(key, front))

    def beside(self, damages: list[Damage]) -> dict[int, Damage]:
        """Return the records that an earlier repair put beside damage, by their offsets.

        A repair that a kill or a power cut interrupted may have written any part of a range, and
        not at the places where the messages were.
        """
        open_ends = [each for each in damages if not each.is_last and each.said is None]
        starts, ends = {each.start for each in open_ends}, {each.end for each in open_ends}
        found: dict[int, Damage] = {}
        for each in self.of_repair:
            if each.start in ends:
                ends.add(each.end)
                found[each.start] = each
        for each in reversed(self.of_repair):
            if each.end in starts:
                starts.add(each.start)
                found[each.start] = each
        return found

    def topics_gone(self) -> list[str]:
        """Return the topics of the log that another program deleted."""
        gone = self._store.gone_topics
        return [topic for topic, first in self._firsts.items() if first < gone.gone_to(topic)]

    def _has_entry(self, message: StoredMessage) -> bool:
        """Whether a queue has an entry for a record."""
        return has_entry(message) and not self._store.deletions.covers(message)
