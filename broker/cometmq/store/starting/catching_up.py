"""Bringing the ConsumeQueues and the index of a store that is being opened up to the log's end."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cometmq.store.errors import MissingEntriesError
from cometmq.store.index.index_folder import INDEX_FOLDER
from cometmq.store.index.index_off import load_off, note_off
from cometmq.store.queues.record_check import RecordCheck
from cometmq.store.starting.deleted_queues import destroy_deleted
from cometmq.store.starting.found import History, place_journal
from cometmq.store.starting.lost_queues import hold_offsets, lost_queues, name_lacking
from cometmq.store.starting.recovery import LogEnd, end_at, gap_in_log, records_up_to
from cometmq.store.starting.replay import Replay
from cometmq.store.starting.topic_kinds import destroy_leftovers

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.store.disk.filesystem import FileSystem
    from cometmq.store.starting.found import Found

log = logging.getLogger(__name__)


def index_from(filesystem: FileSystem, root: str, found: Found) -> int:
    """Return from where on records may be missing in the index, after repairing it."""
    if (index := found.key_index) is None:
        return found.complete_to
    if (damaged := found.damaged_item) is not None:
        log.warning(
            "%s: item %d is damaged: it, and those behind it, are made anew",
            damaged.path,
            damaged.number,
        )
        # Once the file is cut nothing there tells of it, should this start be killed.
        note_off(filesystem, root, damaged.resume)
    off = load_off(filesystem, root)
    if not filesystem.exists(f"{root}/{INDEX_FOLDER}"):
        resume = 0
    elif found.history is History.FOREIGN and off is None:
        resume = index.resume_offset - 1  # The last record that is in it.
    else:
        replay_from, check = found.complete_to, RecordCheck(found.segments)
        replay_from = replay_from if off is None else min(off, replay_from)
        is_ours = found.checkpoint.claims is not None
        resume = index.recover(replay_from, synced=is_ours, count_sound=check.count_items)
    return max(resume, found.segments.first_offset)


class CatchUp:
    """What the queues and the index of one store lack, read back from the log."""

    def __init__(
        self,
        found: Found,
        *,
        unsynced_size_max: int,
        on_replay_all: Callable[[], None],
        now_ms: int,
    ) -> None:
        """`on_replay_all` is called before the entries of all records are erased, if they are."""
        self._found = found
        self._unsynced_size_max = unsynced_size_max
        self._on_replay_all = on_replay_all
        self._now_ms = now_ms
        self._replayed: Replay | None = None

    def run(self, replay_from: int) -> tuple[int, LogEnd]:
        """Take the records that were promised, and find out whether those behind them follow.

        Returns where the next record is, and where the log ends, in front of what does not follow
        in its queue.
        """
        promised = self._promised_end()
        at = self._catch_up(replay_from, promised)
        if self._contradiction(at) is not None:
            # Entries may have been lost from a queue, too: what the log says counts.
            at = self._replay_all(promised)
            self._found = self._found._replace(end=self._checked_end(at))
        return at, self._found.end

    def finish(self, at: int) -> None:
        """Take the records from an offset on to the end, and let queues without one go on."""
        queues, segments, end = self._found.queues, self._found.segments, self._found.end
        try:
            self._replay(at, at, end.offset)
        except MissingEntriesError:
            self._replay_all(end.offset)
        hold_offsets(queues, self._found.to_make, segments)
        name_lacking(queues)

    def _promised_end(self) -> int:
        """Return how far nothing but sound records can stand: none of it may be cut any more."""
        found = self._found
        end = found.end.offset
        return min(found.succession.start, end) if found.history is History.BROKEN_OFF else end

    def _checked_end(self, at: int) -> LogEnd:
        found = self._found
        end, size_max = found.end, self._unsynced_size_max
        torn = self._contradiction(at)
        if torn is None:
            return end
        return end_at(found.segments, found.start, torn, end.data_end, unsynced_size_max=size_max)

    def _contradiction(self, at: int) -> int | None:
        """Return where the first record stands that does not follow in its queue.

        The queues hold all records in front of `at`, where what was promised ends.
        """
        found = self._found
        if at >= found.end.offset:
            return None
        return found.succession.first_contradiction(found.queues, found.segments.first_offset)

    def _catch_up(self, replay_from: int, until: int) -> int:
        """Bring the ConsumeQueues and the index up to an offset; returns where the next record is.

        From the first record if a queue turns out to lack entries in front of where it should.
        """
        found = self._found
        queues, segments = found.queues, found.segments
        queues.correct_min(segments.first_offset)
        destroy_leftovers(found.leftovers)
        if found.history is History.COMPLETE:
            queues.expect_whole(found.end.offset)
            destroy_deleted(queues, found.deletions)
            return until
        if found.history is History.FOREIGN and found.checkpoint.claims is not None:
            queues.expect_whole(found.end.offset)  # It is the index alone that lacks records.
        queues_from = found.start.replay_from
        if found.history is History.BROKEN_OFF:
            queues.expect_records(segments)
            queues.truncate(queues_from)
            queues.discard(found.to_make)
            destroy_deleted(queues, found.deletions, queues_from)
        if place_journal(found):
            queues_from = found.complete_to
        replay_from = min(replay_from, queues_from)
        try:
            return self._replay(replay_from, queues_from, until)
        except MissingEntriesError:
            return self._replay_all(until)

    def _replay_all(self, until: int) -> int:
        """Make the entries of all records in front of an offset anew."""
        found = self._found
        first_offset = found.segments.first_offset
        self._on_replay_all()
        to_make = found.to_make | lost_queues(found.queues)  # All of their messages have expired.
        self._found = found._replace(to_make=to_make)
        found.queues.expect_all(first_offset)
        found.queues.discard(to_make)
        try:
            return self._replay(first_offset, first_offset, until)
        except MissingEntriesError as gap:
            raise gap_in_log(found.segments, gap) from gap

    def _replay(self, replay_from: int, queues_from: int, until: int) -> int:
        """Read the log back; returns where the first record at or behind an offset begins."""
        found = self._found
        end = found.end.offset
        if replay_from >= end:
            return end
        if self._replayed is None:
            self._replayed = Replay(
                found.queues,
                found.key_index,
                found.deletions,
                is_batch_topic=found.is_batch_topic,
                levels=found.levels,
                now_ms=self._now_ms,
            )
        records = records_up_to(found.segments, replay_from, found.start, end)
        following = self._replayed.run(records, queues_from, until)
        return end if following is None else min(following, end)
