"""Deliberate mistakes in the code that keeps the promises; the crash model must catch each.

A mutant replaces one function of the store by one with a mistake that somebody could make. If the
model finds nothing with it, the model is too weak.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from cometmq.store import deletions
from cometmq.store.disk import sync, unsynced
from cometmq.store.log import commit_log, log_scan, segments, turn, zero_ahead
from cometmq.store.queues import consume_queues, entry_disk, entry_journal
from cometmq.store.starting import (
    catching_up,
    log_repair,
    lost_queues,
    opening,
    recovery,
    taking_stock,
)
from cometmq.store.upkeep import checkpointing

if TYPE_CHECKING:
    from cometmq.store.disk.sync import Syncer
    from cometmq.store.log.segments import Segment, Segments
    from cometmq.store.log.turn import Turn
    from cometmq.store.log.zero_ahead import ZeroAhead
    from cometmq.store.queues.consume_queues import ConsumeQueues
    from cometmq.store.queues.entry_journal import EntryJournal, JournalClaim
    from cometmq.store.queues.queue_ends import Ends
    from cometmq.store.upkeep.checkpoint import Claims, Longs
    from cometmq.store.upkeep.checkpointing import Checkpointer


class Mutant(NamedTuple):
    """One mistake: `name` says it, and `owner.attribute` is replaced to make it."""

    name: str
    owner: Any
    attribute: str
    replacement: Any
    is_spoilt: bool = False
    """Whether only stores that were spoilt show the mistake."""

    @contextmanager
    def at_work(self) -> Generator[None]:
        """Make the mistake for a while."""
        right = self.owner.__dict__[self.attribute]
        setattr(self.owner, self.attribute, self.replacement)
        try:
            yield
        finally:
            setattr(self.owner, self.attribute, right)


def _nothing(*arguments: object, **options: object) -> None:
    """Leave something out."""


@contextmanager
def _repairing_without_erasing(*arguments: Any, **options: Any) -> Generator[str | None]:
    """Keep what is torn in a side file, but leave it in the log, too."""
    module: Any = log_repair
    right = module.erase, module._erase_unseen
    module.erase = module._erase_unseen = _nothing
    try:
        with log_repair.repairing(*arguments, **options) as kept:
            yield kept
    finally:
        module.erase, module._erase_unseen = right


def _step_without_sync(syncer: Syncer) -> None:
    requested = syncer._requested  # pyright: ignore[reportPrivateUsage]  # A mutant is inside.
    if syncer.failure is None and requested > syncer.synced_offset:
        syncer._note(requested)  # pyright: ignore[reportPrivateUsage]  # A mutant is inside.
        syncer.synced_offset = requested


def _make_without(*, sync_content: bool, sync_name: bool) -> Any:
    def make(row: Segments, start: int) -> Segment:
        filesystem = row._filesystem  # pyright: ignore[reportPrivateUsage]  # A mutant is inside.
        spare = row._spare_path  # pyright: ignore[reportPrivateUsage]  # A mutant is inside.
        path = f"{row.directory}/{start:020d}"
        file = filesystem.open(spare, create=True)
        try:
            file.allocate(row.size)
            if sync_content:
                file.sync()
        finally:
            file.close()
        filesystem.rename(spare, path)
        if sync_name:
            filesystem.sync_directory(row.directory)
        return segments.Segment(filesystem, path, row.size, read_only=False)

    return make


def _always(*arguments: object) -> bool:
    return True


def _forget_turn(one: Turn) -> None:
    one.begin(one.start)


class _AnyChecksum(int):
    """A checksum that every body fits."""

    def __and__(self, other: int) -> _AnyChecksum:
        return self

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


def _write_in_spite(one: Checkpointer, longs: Longs, claims: Claims) -> None:
    one._file.write(longs, claims)  # pyright: ignore[reportPrivateUsage]  # A mutant is inside.
    one._claims = claims  # pyright: ignore[reportPrivateUsage]  # A mutant is inside.


def _any_checksum(data: bytes) -> _AnyChecksum:
    return _AnyChecksum()


def _stay_in_the_way(one: ZeroAhead, end: int) -> None:
    one._log_end = end  # pyright: ignore[reportPrivateUsage]  # A mutant is inside.


def _fill_in_spite(one: ZeroAhead) -> None:
    while (file := one._fill()) is not None:  # pyright: ignore[reportPrivateUsage]  # A mutant is inside.
        with suppress(OSError):
            file.sync()


def _remove_all_others(one: EntryJournal, claim: JournalClaim | None) -> None:
    _REMOVE_OTHERS(one, None)


def _claim_more(one: EntryJournal, end: int, now_ms: int) -> None:
    if one.waiting:
        one.waiting.pop()
    _WRITE_JOURNAL(one, end, now_ms)


def _no_queues(queues: ConsumeQueues) -> Ends:
    return {}


_REMOVE_OTHERS = entry_journal.EntryJournal.remove_others
_WRITE_JOURNAL = entry_journal.EntryJournal.write

MUTANTS = (
    Mutant("a sync is skipped", sync.Syncer, "step", _step_without_sync),
    Mutant(
        "a new segment's name is not synced",
        segments.Segments,
        "_make",
        _make_without(sync_content=True, sync_name=False),
    ),
    Mutant(
        "a new segment's content is not synced",
        segments.Segments,
        "_make",
        _make_without(sync_content=False, sync_name=True),
    ),
    Mutant("a refused turn is not erased", commit_log.CommitLog, "erase_refused", _nothing),
    Mutant(
        "a refused turn keeps its queue offsets",
        turn.Turn,
        "take_back",
        _forget_turn,
    ),
    Mutant(
        "after a failed sync a checkpoint is written",
        checkpointing.Checkpointer,
        "_write",
        _write_in_spite,
    ),
    Mutant("recovery trusts the tail", log_scan, "crc32", _any_checksum),
    Mutant(
        "recovery leaves the torn tail standing", opening, "repairing", _repairing_without_erasing
    ),
    Mutant("recovery does not write the tail again", log_repair, "write_again", _nothing),
    Mutant("recovery only syncs the tail again", log_repair, "write_again", log_repair.sync_again),
    Mutant("recovery takes every start for a clean one", taking_stock, "was_left_clean", _always),
    Mutant(
        "queues are not cut back before the replay",
        consume_queues.ConsumeQueues,
        "truncate",
        _nothing,
    ),
    Mutant("the files of queues are not synced", unsynced.Unsynced, "sync", _nothing),
    Mutant(
        "nobody knows of entries that are in memory only",
        entry_disk.EntryDisk,
        "first_unwritten",
        _nothing,
    ),
    Mutant(
        "a journal is named before it is synced", entry_journal.UnsyncedJournal, "sync", _nothing
    ),
    Mutant(
        "a journal is removed while a checkpoint names it",
        entry_journal.EntryJournal,
        "remove_others",
        _remove_all_others,
    ),
    Mutant(
        "a journal misses what became readable just before it is synced",
        entry_journal.EntryJournal,
        "write",
        _claim_more,
    ),
    Mutant(
        "a start takes the entries of a journal for those of files",
        catching_up,
        "place_journal",
        _always,
    ),
    Mutant("zeros do not make way for records", zero_ahead.ZeroAhead, "make_way", _stay_in_the_way),
    Mutant("a sync of zeros that fails is forgotten", zero_ahead.ZeroAhead, "step", _fill_in_spite),
    Mutant("a topic is deleted without a mark", deletions.Deletions, "add", _nothing),
    Mutant(
        "a start misses no queue that lost its end",
        lost_queues,
        "lost_queues",
        _no_queues,
        is_spoilt=True,
    ),
    Mutant(
        "a start misses no file at the end of the log",
        recovery.Start,
        "missing_end",
        _nothing,
        is_spoilt=True,
    ),
)
