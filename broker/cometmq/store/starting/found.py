"""What a start finds in the folder of a store, before it changes anything."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.store.delay_levels import DELAY_LEVELS
from cometmq.store.deletions import DELETIONS_NAME
from cometmq.store.disk.lock import was_shut_down
from cometmq.store.errors import MissingEntriesError
from cometmq.store.index.index_off import INDEX_OFF
from cometmq.store.queues.entry_journal import JOURNAL_FOLDER
from cometmq.store.queues.queue_ends import QUEUE_ENDS_NAME, listed_to
from cometmq.store.upkeep.sealing import INTEGRITY_FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.store.config import StoreConfig
    from cometmq.store.delay_levels import DelayLevels
    from cometmq.store.deletions import Deletions
    from cometmq.store.disk.filesystem import FileSystem
    from cometmq.store.index.index import Index
    from cometmq.store.log.segments import Segments
    from cometmq.store.queues.consume_queues import ConsumeQueues
    from cometmq.store.queues.journal_reading import QueueEntries
    from cometmq.store.queues.queue_ends import Ends
    from cometmq.store.starting.damaged_items import DamagedItem
    from cometmq.store.starting.recovery import LogEnd, Start
    from cometmq.store.starting.tail_check import Succession
    from cometmq.store.starting.topic_kinds import Leftover
    from cometmq.store.upkeep.checkpoint import Checkpoint, Claims
    from cometmq.store.upkeep.integrity import Integrity
    from cometmq.store.upkeep.sealing import SealedTail

_OURS: Final = (
    *(QUEUE_ENDS_NAME, DELETIONS_NAME, DELAY_LEVELS, INDEX_OFF),
    *(INTEGRITY_FOLDER, JOURNAL_FOLDER),
)
"""Names that no other program writes, and ours only after it has written a checkpoint."""


def was_left_clean(filesystem: FileSystem, root: str, checkpoint: Checkpoint) -> bool:
    """Whether the last process that had the store open ended with a clean shutdown.

    Then there is no `abort`. But `abort` may be lost, and our clean stop never leaves our store
    without a checkpoint: if that is lost as well, or damaged, nobody knows what the disk has.
    """
    if not was_shut_down(filesystem, root):
        return False
    if checkpoint.claims is not None or checkpoint.is_of_others:
        return True
    return not is_ours(filesystem, root)


def is_ours(filesystem: FileSystem, root: str) -> bool:
    """Whether our program ever had the store open, whatever became of the checkpoint."""
    return any(filesystem.exists(f"{root}/{name}") for name in _OURS)


class History(Enum):
    """How the store was left."""

    COMPLETE = auto()
    """By us, cleanly: the ConsumeQueues and the index have the whole log."""
    FOREIGN = auto()
    """By Apache, cleanly: entries are right, as far as they go."""
    BROKEN_OFF = auto()
    """Not cleanly, or another program appended: entries after the replay's start may be torn."""


class Found(NamedTuple):
    """A store as it was found."""

    config: StoreConfig
    """The settings, adapted to the store, see `fit_index`."""
    history: History
    checkpoint: Checkpoint
    segments: Segments
    queues: ConsumeQueues
    has_queues: bool
    """Whether there is a folder of queues at all."""
    key_index: Index | None
    """None if it is turned off."""
    start: Start
    end: LogEnd
    integrity: Integrity
    sealed: SealedTail
    deletions: Deletions
    levels: DelayLevels
    is_batch_topic: Callable[[str], bool]
    leftovers: list[Leftover]
    """Queues of topics that are now of the other kind; they are removed."""
    succession: Succession
    """That of the records that nobody promised."""
    to_make: Ends
    """Queues of which nothing on the disk counts."""
    journal: list[QueueEntries] | None
    """What the queues may lack before `complete_to`; None if no journal has it."""
    damaged_item: DamagedItem | None
    """In a killed store: from where on the index must be rebuilt before `complete_to`."""
    lost_notes: tuple[str, ...]
    """The store's own notes that are recreated: damaged ones, and a missing checkpoint."""

    @property
    def complete_to(self) -> int:
        """Records from here on may be missing in the queues, the journal, and the index."""
        claims = self.checkpoint.claims
        if self.journal is None or claims is None:
            return self.start.replay_from
        return claims.complete_to

    def synced_to(self, replay_from: int) -> int:
        """Return how far the log is surely synced; `replay_from` if nobody noted that.

        What the list of the queues' ends names was synced, too, and it may be about to name less.
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
    """Return the content of the journal that the checkpoint names; None if there is no good one."""
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
