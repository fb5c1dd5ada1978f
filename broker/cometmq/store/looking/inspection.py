"""Looking at a store without changing a byte of it: the base of the offline tools.

It works on a store that a broker has open, too: then `opened_by` names the process, and the store
is read as one that was not shut down, as indeed it was not.

What a store does not note down, like Apache's, is derived from its files: the size of queue files
from most of them, the shape of index files from the end of the items in one (see `index_shape`).
"""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, cast

from cometmq.proto.errors import BodyError
from cometmq.store.delay_levels import DelayLevels, load_delay_levels
from cometmq.store.deletions import Deletions
from cometmq.store.errors import NotAStoreError, StoreFormatError
from cometmq.store.index.index_folder import INDEX_FOLDER
from cometmq.store.index.index_off import load_off
from cometmq.store.index.index_shape import find_shape
from cometmq.store.log.log_scan import NEVER
from cometmq.store.looking.log_batches import LogBatches
from cometmq.store.queues.batch_consume_queue import BATCH_ENTRY_SIZE
from cometmq.store.queues.consume_queue import ENTRY_SIZE
from cometmq.store.queues.consume_queues import BATCH_FOLDER, SIMPLE_FOLDER, ConsumeQueues
from cometmq.store.queues.queue_ends import (
    Sizes,
    listed_sizes,
    listed_to,
    load_queue_ends,
    without_deleted,
)
from cometmq.store.queues.topic_folders import has_queue_files, holds_queues
from cometmq.store.starting.folder import (
    LOG_FOLDER,
    list_root,
    load_queues,
    load_segments,
    require_kinds,
)
from cometmq.store.starting.found import was_left_clean
from cometmq.store.starting.gone_topics import GoneTopics
from cometmq.store.starting.index_files import noted_shape
from cometmq.store.starting.recovery import Start, choose_start, entries_made_to
from cometmq.store.starting.rocksdb import in_rocksdb
from cometmq.store.starting.swap import unfinished_swaps
from cometmq.store.table_contents import DamagedTables, damaged_tables
from cometmq.store.tables import TOPICS, TableFile
from cometmq.store.upkeep.checkpoint import CHECKPOINT_NAME, load_checkpoint
from cometmq.store.upkeep.integrity import Integrity
from cometmq.store.upkeep.sealing import INTEGRITY_FOLDER, SealedTail

if TYPE_CHECKING:
    from collections.abc import Generator

    from cometmq.store.config import StoreConfig
    from cometmq.store.disk.filesystem import Entry, FileSystem
    from cometmq.store.log.segments import Segments
    from cometmq.store.queues.queue_ends import Ends, QueueKey
    from cometmq.store.upkeep.checkpoint import Checkpoint

NEAR_MAX: Final = 3
"""Stores that are suggested to a user who named another folder."""

_QUEUE_FOLDERS: Final = (SIMPLE_FOLDER, BATCH_FOLDER)
_BATCH_ATTRIBUTE: Final = ("queue.type", "BatchCQ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected:
    """A store as it is on the disk."""

    filesystem: FileSystem
    root: str
    config: StoreConfig
    """The settings, with the sizes of the files."""
    checkpoint: Checkpoint
    segments: Segments
    is_clean: bool
    """Whether the last process that wrote ended with a clean shutdown."""
    opened_by: int | None
    """The id of the process that has it open, if any."""
    start: Start
    """From where the next start would read the log."""
    topics: frozenset[str] | None
    """The topics in Apache's table; None if the store has no table, or a damaged one."""
    knows_all_topics: bool
    """Whether these are all topics: the backup of our table lacks what was created last."""
    in_rocksdb: dict[str, str]
    """Folders that are databases of Apache's: their content is unknown; a start refuses them."""
    damaged_tables: DamagedTables
    """Files of `config/` that a start refuses, or does not take as they were."""
    deletions: Deletions
    """Which topics were deleted, and when."""
    gone_topics: GoneTopics
    """Which topics another program deleted, without a mark."""
    delay_levels: DelayLevels
    """The delays of delayed messages, by their place in the log."""
    batch_topics: frozenset[str]
    """Topics whose attributes ask for batch queues."""
    ends: Ends
    """Where the queues are known to have ended; empty if another program wrote since."""
    listed_sizes: Sizes | None
    """The sizes in the list of the queues' ends."""
    ended_topics: dict[str, bool]
    """The topics in `ends`, and whether their queues are batch queues."""
    is_index_shape_known: bool
    """Whether the files of the index show their shape, or match the settings."""
    log_batches: LogBatches
    """The topics of which the log has batches."""

    @property
    def sizes(self) -> Sizes:
        """The sizes of the files, for the list of the queues' ends."""
        config = self.config
        return Sizes(
            config.consume_queue_file_size,
            config.batch_consume_queue_file_size,
            config.index_shape,
        )

    @property
    def settled_offset(self) -> int | None:
        """From here on the next start rebuilds entries and items; None if it rebuilds none."""
        return None if self.is_clean else self.start.replay_from

    @property
    def promised_to(self) -> int:
        """Where records begin that may not be on the disk; `NEVER` if all records count."""
        return NEVER if self.is_clean else self.start.unpromised_from

    def says_batch(self, topic: str) -> bool | None:
        """Whether a topic has batch queues by the table of topics; None if it is not there."""
        is_known = self.topics is not None and topic in self.topics
        return topic in self.batch_topics if is_known else None

    def is_batch_topic(self, topic: str) -> bool:
        """Whether the queues of a topic are batch queues.

        Their files decide, or else the topic's attribute; if it is in no table, what they were. If
        no table has all topics, the log decides for a topic whose first entries were not written.
        """
        if self.holds(BATCH_FOLDER, topic):
            return True
        if (said := self.says_batch(topic)) is not None:
            return said
        if self.holds(SIMPLE_FOLDER, topic):
            return False
        if topic in self.ended_topics:
            return self.ended_topics[topic]
        return self._has_begun(BATCH_FOLDER, topic) or (
            not self.knows_all_topics and topic in self.log_batches.topics
        )

    def is_kind_known(self, topic: str) -> bool:
        """Whether anything besides records shows if the queues of a topic are batch queues."""
        return (
            topic in (self.topics or ())
            or topic in self.ended_topics
            or any(
                self.holds(folder, topic) or self._has_begun(folder, topic)
                for folder in (SIMPLE_FOLDER, BATCH_FOLDER)
            )
        )

    def holds(self, folder: str, topic: str) -> bool:
        """Whether a topic has queues there, and not only foreign files, or deleted queues."""
        size = BATCH_ENTRY_SIZE if folder == BATCH_FOLDER else ENTRY_SIZE
        mark = self.deletions.offsets.get(topic.encode())
        return holds_queues(self.filesystem, f"{self.root}/{folder}/{topic}", size, mark)

    def open_queues(self, *, clean: bool) -> ConsumeQueues:
        """Return its queues, to be read and closed; if not `clean`, files may be half made."""
        return ConsumeQueues(self.filesystem, self.root, self.config, clean=clean, read_only=True)

    def place_of(self, key: QueueKey) -> tuple[str, int, int]:
        """Return the folder of a queue, and the sizes of its files and entries."""
        folder, size, entry_size = SIMPLE_FOLDER, self.config.consume_queue_file_size, ENTRY_SIZE
        if key.is_batch:
            folder, size = BATCH_FOLDER, self.config.batch_consume_queue_file_size
            entry_size = BATCH_ENTRY_SIZE
        return f"{self.root}/{folder}/{key.topic}/{key.queue_id}", size, entry_size

    def _has_begun(self, folder: str, topic: str) -> bool:
        """Whether a topic that was not deleted has files, perhaps with unsynced entries."""
        if topic.encode() in self.deletions.offsets:
            return False
        return has_queue_files(self.filesystem, f"{self.root}/{folder}/{topic}")


def inspect(
    filesystem: FileSystem, root: str, config: StoreConfig, *, is_locked: bool = False
) -> Inspected:
    """Look at a store. The caller may have locked it: then nobody has it open.

    Raise `StoreFilesError`, which says what to do, if the folder cannot be understood as a store.
    """
    check_store(filesystem, root)
    for folder in unfinished_swaps(filesystem, root):
        raise StoreFormatError(
            "a rebuild was interrupted before the new folder was in place; finish it with"
            " `cometmq store rebuild`, or by starting the broker",
            f"{root}/{folder}",
        )
    opened_by = None if is_locked else filesystem.lock_owner(f"{root}/lock")
    checkpoint = load_checkpoint(filesystem, f"{root}/{CHECKPOINT_NAME}")
    is_clean = was_left_clean(filesystem, root, checkpoint) and opened_by is None
    segments = load_segments(filesystem, root, config, checkpoint, clean=is_clean, read_only=True)
    segments.synced_offset = segments.end_offset  # So that any open file may be closed.
    listed = None if checkpoint.is_of_others else listed_sizes(filesystem, root)
    noted = noted_shape(filesystem, root, checkpoint)
    folder = f"{root}/{INDEX_FOLDER}"
    shape = find_shape(filesystem, folder, config, clean=is_clean, noted=noted)
    if shape is not None:
        config = config.with_index_shape(shape)
    queues = load_queues(filesystem, root, config, checkpoint, clean=is_clean, read_only=True)
    sizes = queues.ends.sizes
    queues.close()
    config = replace(
        config,
        segment_size=segments.size,
        consume_queue_file_size=sizes.queue_file,
        batch_consume_queue_file_size=sizes.batch_queue_file,
    )
    topics, batch_topics, from_backup = _load_topics(filesystem, root)
    deletions = Deletions(filesystem, root)
    load_off(filesystem, root)  # Refuses what a newer version noted, as every tool does.
    ends = None if checkpoint.is_of_others else load_queue_ends(filesystem, root)
    known = {topic: topic in batch_topics for topic in topics or ()}
    ends = {} if ends is None else without_deleted(ends, deletions, known.get)
    integrity = Integrity(filesystem, f"{root}/{INTEGRITY_FOLDER}", segments.size)
    start = _start_of(segments, checkpoint, integrity, ends, clean=is_clean)
    made_to = entries_made_to(checkpoint, start, NEVER, clean=is_clean)
    ended_topics = {key.topic: key.is_batch for key in ends}
    return Inspected(
        filesystem=filesystem,
        root=root,
        config=config,
        checkpoint=checkpoint,
        segments=segments,
        is_clean=is_clean,
        opened_by=opened_by,
        start=start,
        topics=topics,
        # In others' stores the backup is the good one after a crash, and no mark says what is gone.
        knows_all_topics=topics is not None and not (from_backup and checkpoint.claims),
        in_rocksdb=in_rocksdb(filesystem, root),
        damaged_tables=damaged_tables(filesystem, root),
        deletions=deletions,
        gone_topics=GoneTopics(filesystem, root, missed=ended_topics, made_to=made_to),
        delay_levels=load_delay_levels(
            filesystem, root, config.delay_levels_ms, is_ours=checkpoint.claims is not None
        ),
        batch_topics=batch_topics,
        ends=ends,
        listed_sizes=listed,
        ended_topics=ended_topics,
        is_index_shape_known=shape is not None,
        log_batches=LogBatches(segments, start, deletions),
    )


def _start_of(
    segments: Segments, checkpoint: Checkpoint, integrity: Integrity, ends: Ends, *, clean: bool
) -> Start:
    sealed = SealedTail(integrity, segments, is_ours=not checkpoint.is_of_others)
    start = choose_start(segments, checkpoint).with_promise(listed_to(ends), clean=clean)
    return start.with_promise(sealed.promised_to, clean=clean)


@contextmanager
def looking_at(
    filesystem: FileSystem, root: str, config: StoreConfig, *, is_locked: bool = False
) -> Generator[Inspected, None, None]:
    """Look at a store, see `inspect`; in the end its log's open files are closed."""
    store = inspect(filesystem, root, config, is_locked=is_locked)
    with closing(store.segments):
        yield store


def check_store(filesystem: FileSystem, root: str) -> None:
    """Refuse a folder without a store, even an empty one, which could become a store."""
    try:
        entries = list_root(filesystem, root)
        names = ", ".join(entry.name for entry in entries[:3])
    except NotADirectoryError:
        entries, names = [], "nothing, it is a file"
    if not filesystem.exists(root):
        raise NotAStoreError(f"{root}: no such folder; name the folder of a store")
    if any(entry.name == LOG_FOLDER for entry in entries):
        require_kinds(filesystem, root, entries)
        return
    if any(entry.name in _QUEUE_FOLDERS and entry.is_directory for entry in entries):
        raise NotAStoreError(
            f"{root}/{LOG_FOLDER}: missing, while queues are there: check that its disk is mounted,"
            " or restore it from a copy; without one, make an empty folder in its place, and run"
            " `cometmq store repair --dry-run`, which says what is lost"
        )
    near = _stores_above(filesystem, root) + _stores_in(filesystem, root, entries)
    meant = f"; did you mean {' or '.join(near[:NEAR_MAX])}?" if near else ""
    raise NotAStoreError(
        f"{root}: holds no {LOG_FOLDER}/; name the folder of a store, which has one{meant}"
        f" (it holds {names or 'nothing'})"
    )


def _stores_above(filesystem: FileSystem, root: str) -> list[str]:
    """Return the store that a folder is in, at most as deep as a queue's folder."""
    for _ in range(3):
        root = root.rpartition("/")[0] or ("" if root.startswith((".", "/")) else ".")
        if root and filesystem.exists(f"{root}/{LOG_FOLDER}"):
            return [root]
    return []


def _stores_in(filesystem: FileSystem, root: str, entries: list[Entry]) -> list[str]:
    """Return the stores directly in a folder."""
    paths = [f"{root}/{each.name}" for each in entries if each.is_directory]
    return [path for path in paths if filesystem.exists(f"{path}/{LOG_FOLDER}")]


def _load_topics(
    filesystem: FileSystem, root: str
) -> tuple[frozenset[str] | None, frozenset[str], bool]:
    """Return the topics in Apache's table, those with batch queues, and if it is the backup."""
    try:
        loaded = TableFile(filesystem, f"{root}/config", TOPICS).load(_check_topics)
    except StoreFormatError:
        return None, frozenset(), False  # The queues show which topics there are.
    table: Any = loaded.tree.get("topicConfigTable")
    if not isinstance(table, dict):
        return None, frozenset(), False
    topics = cast("dict[str, Any]", table)
    batch_topics = frozenset(filter(lambda name: _is_batch(topics[name]), topics))
    return frozenset(topics), batch_topics, loaded.from_backup


def _check_topics(tree: dict[str, Any]) -> None:
    if not isinstance(tree.get("topicConfigTable", {}), dict):
        raise BodyError("topicConfigTable: not an object")


def _is_batch(topic: Any) -> bool:
    attributes: Any = cast("Any", topic).get("attributes") if isinstance(topic, dict) else None
    if not isinstance(attributes, dict):
        return False
    name, value = _BATCH_ATTRIBUTE
    return cast("dict[str, Any]", attributes).get(name) == value
