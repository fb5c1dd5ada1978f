"""What a start finds in the folder of a store, before it changes anything."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from cometmq.store.errors import MissingEntriesError
from cometmq.store.queues.queue_ends import listed_to

if TYPE_CHECKING:
    from cometmq.store.deletions import Deletions
    from cometmq.store.disk.filesystem import FileSystem
    from cometmq.store.log.segments import Segments
    from cometmq.store.queues.consume_queues import ConsumeQueues
    from cometmq.store.queues.journal_reading import QueueEntries
    from cometmq.store.queues.queue_ends import Ends
    from cometmq.store.starting.recovery import LogEnd, Start
    from cometmq.store.starting.tail_check import Succession
    from cometmq.store.upkeep.checkpoint import Checkpoint, Claims
    from cometmq.store.upkeep.integrity import Integrity
    from cometmq.store.upkeep.sealing import SealedTail


class History(Enum):
    """How the store was left."""

    COMPLETE = auto()
    """By us, cleanly: the ConsumeQueues and the index hold all of the log."""
    FOREIGN = auto()
    """Cleanly, by Apache: their entries are right, as far as they go."""
    BROKEN_OFF = auto()
    """Not cleanly, or another program appended: behind the replay's start entries may be torn."""


class Found(NamedTuple):
    """A store as it was found."""

    history: History
    checkpoint: Checkpoint
    segments: Segments
    queues: ConsumeQueues
    start: Start
    end: LogEnd
    integrity: Integrity
    sealed: SealedTail
    deletions: Deletions
    succession: Succession
    to_make: Ends
    """Queues of which nothing on the disk counts."""
    journal: list[QueueEntries] | None
    """What the queues may lack in front of `complete_to`; None where no journal has it."""

    @property
    def complete_to(self) -> int:
        """Records from here on may be missing in the queues, the journal, and the index."""
        claims = self.checkpoint.claims
        if self.journal is None or claims is None:
            return self.start.replay_from
        return claims.complete_to

    def synced_to(self, replay_from: int) -> int:
        """Return how far the log is surely synced; to `replay_from` where nobody noted that.

        What the list of the queues' ends names was, too, and it may be about to name less.
        """
        noted = self.start.synced_offset or replay_from
        return min(max(noted, listed_to(self.queues.ends.known)), self.end.offset)


def find_journal(
    filesystem: FileSystem,
    root: str,
    segments: Segments,
    claims: Claims,
    start: Start,
    end: LogEnd,
    deletions: Deletions,
) -> list[QueueEntries] | None:
    """Return what the journal has that the checkpoint names; None when there is no good one."""
    if claims.journal is None:
        return None
    from cometmq.store.queues.journal_reading import claimed_journal  # It needs numpy.

    low = start.replay_from
    journal = claimed_journal(filesystem, root, segments, claims.journal, low, end.offset)
    return None if journal is None else journal.queues(low, claims.complete_to, deletions.offsets)


def place_journal(found: Found) -> bool:
    """Give the queues what the journal has for them; False if the log must be read for it."""
    if found.journal is None:
        return False
    from cometmq.store.queues.journal_reading import place_entries  # It needs numpy.

    try:
        place_entries(found.queues, found.journal)
    except MissingEntriesError:
        found.queues.truncate(found.start.replay_from)
        return False
    return True
