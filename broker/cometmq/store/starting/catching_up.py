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
            "%s: item %d is damaged: it and those after it are rebuilt",
            damaged.path,
            damaged.number,
        )
        # Once the file is cut, it would no longer show the damage if this start were killed.
        note_off(filesystem, root, damaged.resume)
    off = load_off(filesystem, root)
    if not filesystem.exists(f"{root}/{INDEX_FOLDER}"):
        resume = 0
    elif found.history is History.FOREIGN and off is None:
        resume = index.resume_offset - 1  # The last record that is in the index.
    else:
        replay_from, check = found.complete_to, RecordCheck(found.segments)
        replay_from = replay_from if off is None else min(off, replay_from)
        is_ours = found.checkpoint.claims is not None
        resume = index.recover(replay_from, synced=is_ours, count_sound=check.count_items)
    return max(resume, found.segments.first_offset)


class CatchUp:
    """Reads back from the log what the queues and the index of one store lack."""

    def __init__(
        self,
        found: Found,
        *,
        unsynced_size_max: int,
        on_replay_all: Callable[[], None],
        now_ms: int,
    ) -> None:
        """`on_replay_all` is called before the entries of all records are erased, if ever."""
        self._found = found
        self._unsynced_size_max = unsynced_size_max
        self._on_replay_all = on_replay_all
        self._now_ms = now_ms
        self._replayed: Replay | None = None

    def run(self, replay_from: int) -> tuple[int, LogEnd]:
        """Take the promised records, and find out whether those after them follow in their queues.

        Return where the next record is, and where the log ends: before any record that does not
        follow.
        """
        promised = self._promised_end()
        at = self._catch_up(replay_from, promised)
        if self._contradiction(at) is not None:
            # Perhaps a queue has just lost entries: what the log says counts.
            at = self._replay_all(promised)
            self._found = self._found._replace(end=self._checked_end(at))
        return at, self._found.end

    def finish(self, at: int) -> None:
        """Take the records from an offset to the end; let queues without a record continue."""
        queues, segments, end = self._found.queues, self._found.segments, self._found.end
        try:
            self._replay(at, at, end.offset)
        except MissingEntriesError:
            self._replay_all(end.offset)
        hold_offsets(queues, self._found.to_make, segments)
        name_lacking(queues)

    def _promised_end(self) -> int:
        """Return up to where there can only be sound records: none of them may be cut any more."""
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
        """Return the offset of the first record that does not follow in its queue.

        The queues have all records before `at`, the end of the promised ones.
        """
        found = self._found
        if at >= found.end.offset:
            return None
        return found.succession.first_contradiction(found.queues, found.segments.first_offset)

    def _catch_up(self, replay_from: int, until: int) -> int:
        """Bring the ConsumeQueues and the index up to an offset; return where the next record is.

        Begin with the first record if a queue turns out to lack earlier entries.
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
            queues.expect_whole(found.end.offset)  # Only the index lacks records.
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
        """Rebuild the entries of all records before an offset."""
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
        """Read the log back; return where the first record at or after an offset begins."""
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
