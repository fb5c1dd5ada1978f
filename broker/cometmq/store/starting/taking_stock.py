"""Finding out what is in the folder of a store, and what a start has to do with it.

Nothing here changes a byte: a store that is refused is left as it was. Last comes a search for
problems that would be refused only after bytes are changed, or never: see `foresight`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from cometmq.proto.message import StoredMessage
from cometmq.store.delay_levels import load_delay_levels
from cometmq.store.deletions import Deletions
from cometmq.store.index.index import Index
from cometmq.store.index.index_folder import INDEX_FOLDER
from cometmq.store.index.index_off import load_off
from cometmq.store.queues.consume_queues import BATCH_FOLDER, SIMPLE_FOLDER
from cometmq.store.queues.queue_ends import (
    QUEUE_ENDS_NAME,
    listed_to,
    load_queue_ends,
    without_deleted,
)
from cometmq.store.starting.folder import LOG_FOLDER, check_writable, load_queues, load_segments
from cometmq.store.starting.foresight import Foresight
from cometmq.store.starting.found import Found, History, find_journal, is_ours, was_left_clean
from cometmq.store.starting.gone_topics import GoneTopics
from cometmq.store.starting.index_files import fit_index, was_index_synced
from cometmq.store.starting.lost_queues import queues_to_make, refuse_shortened
from cometmq.store.starting.recovery import choose_start, entries_made_to, find_end, queues_end
from cometmq.store.starting.tail_check import Succession, Successions
from cometmq.store.starting.topic_kinds import topic_kinds
from cometmq.store.upkeep.checkpoint import CHECKPOINT_NAME, load_checkpoint
from cometmq.store.upkeep.integrity import Integrity
from cometmq.store.upkeep.sealing import INTEGRITY_FOLDER, SealedTail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import ExitStack

    from cometmq.store.config import StoreConfig
    from cometmq.store.disk.filesystem import FileSystem
    from cometmq.store.log.log_stretch import Stretch
    from cometmq.store.starting.recovery import LogEnd, Start

_OF_QUEUES: Final = (LOG_FOLDER, SIMPLE_FOLDER, BATCH_FOLDER)


def take_stock(
    filesystem: FileSystem,
    root: str,
    config: StoreConfig,
    *,
    says_batch: Callable[[str], bool | None],
    looked_at: ExitStack,
) -> Found:
    """Find out what is there, or refuse it by a `StoreFilesError`.

    `says_batch` says whether a topic has batch queues; it returns None for an unknown topic.
    `looked_at` closes what is opened for this.
    """
    return _Stock(filesystem, root, config, says_batch, looked_at).take()


class _Stock:
    """What is read from one store before it is judged."""

    def __init__(
        self,
        filesystem: FileSystem,
        root: str,
        config: StoreConfig,
        says_batch: Callable[[str], bool | None],
        looked_at: ExitStack,
    ) -> None:
        self._filesystem, self._root = filesystem, root
        self._says_batch = says_batch
        self._checkpoint = checkpoint = load_checkpoint(filesystem, f"{root}/{CHECKPOINT_NAME}")
        self._clean = was_left_clean(filesystem, root, checkpoint)
        config = fit_index(filesystem, root, config, checkpoint, clean=self._clean)
        self._config = config
        self._segments = load_segments(filesystem, root, config, checkpoint, clean=self._clean)
        looked_at.callback(self._segments.close)
        self._queues = load_queues(filesystem, root, config, checkpoint, clean=self._clean)
        looked_at.callback(self._queues.close)
        self._deletions = Deletions(filesystem, root)
        self._lost_notes: list[str] = []
        if not checkpoint.is_of_others:
            is_missing = checkpoint.claims is None and is_ours(filesystem, root)
            if checkpoint.is_damaged or is_missing:
                self._lost_notes.append(CHECKPOINT_NAME)
            self._take_ends()
        self._kinds = topic_kinds(self._queues, says_batch, self._deletions.offsets)
        self._levels = load_delay_levels(
            filesystem, root, config.delay_levels_ms, is_ours=checkpoint.claims is not None
        )
        folder = f"{root}/{INTEGRITY_FOLDER}"
        self._integrity = Integrity(filesystem, folder, self._segments.size)
        self._sealed = SealedTail(
            self._integrity, self._segments, is_ours=not checkpoint.is_of_others
        )

    def _take_ends(self) -> None:
        """Tell the queues where they ended."""
        ends = load_queue_ends(self._filesystem, self._root)
        if ends is not None:
            known = without_deleted(ends, self._deletions, self._says_batch)
            self._queues.ends.begin_with(ends, known)
            return
        if self._filesystem.exists(f"{self._root}/{QUEUE_ENDS_NAME}"):
            self._lost_notes.append(QUEUE_ENDS_NAME)
        if not any(self._filesystem.exists(f"{self._root}/{name}") for name in _OF_QUEUES):
            # An empty list is whole here; the first checkpoint saves it.
            self._queues.ends.is_whole = True

    def take(self) -> Found:
        """Find the end of the log, and what of it the queues and the index lack."""
        filesystem, root, config = self._filesystem, self._root, self._config
        segments, queues, claims = self._segments, self._queues, self._checkpoint.claims
        history, start = self._start()
        # Nothing that was promised may be cut any more.
        successions = Successions(start, claims, self._deletions, self._kinds.is_batch)
        end = find_end(
            segments,
            start,
            clean=self._clean,
            unsynced_size_max=config.unsynced_size_max,
            look_at=partial(self._look_at, successions),
        )
        self._sealed.check(start, end.offset, verify=config.integrity)
        history, start = self._judge(history, start, end)
        self._gone_topics = GoneTopics(
            filesystem,
            root,
            missed={key.topic for key in queues.ends.known},
            made_to=entries_made_to(self._checkpoint, start, end.offset, clean=self._clean),
        )
        self._note_gone(successions.promised)
        off, index = load_off(filesystem, root), None
        if config.index:
            index = Index(filesystem, root, config, clean=self._clean and off is None)
        has_queues = filesystem.exists(f"{root}/{SIMPLE_FOLDER}")
        if not has_queues:
            history = History.BROKEN_OFF
            start = start._replace(replay_from=segments.first_offset)
        elif config.index and not (off is None and filesystem.exists(f"{root}/{INDEX_FOLDER}")):
            history = History.FOREIGN if history is History.COMPLETE else history
        is_broken_off, journal = history is History.BROKEN_OFF, None
        to_make = queues_to_make(queues, segments, start.replay_from, clean=not is_broken_off)
        if is_broken_off and claims is not None and not to_make:
            deletions = self._deletions
            journal = find_journal(filesystem, root, segments, claims, start, end, deletions)
        found = Found(
            config=config,
            history=history,
            checkpoint=self._checkpoint,
            segments=segments,
            queues=queues,
            has_queues=has_queues,
            key_index=index,
            start=start,
            end=end,
            integrity=self._integrity,
            sealed=self._sealed,
            deletions=self._deletions,
            levels=self._levels,
            is_batch_topic=self._kinds.is_batch,
            leftovers=self._kinds.leftovers,
            succession=successions.unpromised,
            to_make=to_make,
            damaged_item=None,
            lost_notes=tuple(self._lost_notes),
            journal=journal,
        )
        found = self._foresee(found, successions)
        check_writable(filesystem, root, config)
        return found

    def _look_at(self, successions: Successions, each: StoredMessage | Stretch) -> None:
        """Learn from what comes next in the log."""
        if isinstance(each, StoredMessage):
            self._kinds.learn_from(each)
        successions.look_at(each)

    def _start(self) -> tuple[History, Start]:
        """Return how the store was left according to its notes, and from where to read the log."""
        segments, queues, clean = self._segments, self._queues, self._clean
        start = choose_start(segments, self._checkpoint)
        start = start.with_promise(listed_to(queues.ends.known), clean=clean)
        start = start.with_witnesses(queues, segments, clean=clean)
        if self._config.integrity:
            start = start.with_promise(self._sealed.promised_to, clean=clean)
        if not clean or self._checkpoint.claims is not None:
            return History.BROKEN_OFF, start
        # Apache dispatches in the order of the log, and stops once everything is dispatched.
        dispatched = queues_end(queues)
        start = start._replace(synced_offset=dispatched or None, replay_from=dispatched)
        return History.FOREIGN, start

    def _judge(self, history: History, start: Start, end: LogEnd) -> tuple[History, Start]:
        """Return the same, now that the end of the log is known."""
        first_offset = self._segments.first_offset
        if history is History.FOREIGN and start.replay_from > end.offset:
            # Entries of what Apache cut from the log are still in its queues, or one is damaged.
            history = History.BROKEN_OFF
            start = start._replace(replay_from=first_offset)
        elif self._clean and history is not History.FOREIGN and start.replay_from == end.offset:
            history = History.COMPLETE
        replay_from = min(max(start.replay_from, first_offset), end.offset)
        return history, start._replace(replay_from=replay_from)

    def _note_gone(self, read_back: Succession) -> None:
        """Note which topics of records that are read back another program deleted."""
        gone, made_to = self._gone_topics, self._gone_topics.made_to
        topics = read_back.topics_in_front(made_to)
        unknown = [topic for topic in topics if self._says_batch(topic) is None]
        # `says_batch` need not have asked the table of topics.
        self._deletions.note_gone(filter(gone.gone_to, unknown), made_to)

    def _note_gone_of(self, records: Iterable[StoredMessage | Stretch]) -> None:
        """Do the same for records that are read back, but that the log's scan did not visit."""
        until = self._gone_topics.made_to
        read_back = Succession(0, self._deletions, self._kinds.is_batch, until=until)
        for each in records:
            read_back.look_at(each)
        self._note_gone(read_back)

    def _foresee(self, found: Found, successions: Successions) -> Found:
        """Refuse what would be refused later, or never."""
        filesystem, root, clean = self._filesystem, self._root, self._clean
        if found.history is History.FOREIGN and found.checkpoint.claims is None:
            placed = successions.placed
            refuse_shortened(found.queues, found.segments, placed, found.is_batch_topic)
        if not clean and was_index_synced(filesystem, root, found):
            from cometmq.store.starting.damaged_items import find_damaged_item  # It needs numpy.

            found = found._replace(damaged_item=find_damaged_item(filesystem, root, found))
        foresight = Foresight(
            filesystem,
            root,
            found,
            says_batch=self._says_batch,
            dispatched_to=self._gone_topics.made_to,
            read_back=self._note_gone_of,
            clean=clean,
        )
        foresight.check(successions.promised)
        return found
