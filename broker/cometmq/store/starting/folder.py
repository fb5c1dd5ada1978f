"""What is in the folder of a store, taken as it is: nothing here changes a byte."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

from cometmq.store.delay_levels import DELAY_LEVELS
from cometmq.store.deletions import DELETIONS_NAME
from cometmq.store.disk.names import (
    called,
    is_file,
    is_index_file,
    is_offset_file,
    is_queue_folder,
    is_topic_folder,
)
from cometmq.store.errors import LEADS_NOWHERE, MOUNT, NotAStoreError, StoreFormatError
from cometmq.store.log.segments import Segments
from cometmq.store.queues.consume_queues import ConsumeQueues
from cometmq.store.queues.queue_ends import listed_sizes
from cometmq.store.tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from cometmq.store.config import StoreConfig
    from cometmq.store.disk.filesystem import Entry, FileSystem
    from cometmq.store.upkeep.checkpoint import Checkpoint

LOG_FOLDER: Final = "commitlog"

_OF_A_STORE: Final = frozenset({LOG_FOLDER, "consumequeue", "batchconsumequeue"})
"""Folders that only a store has: what is beside them does not matter."""

_WRITTEN: Final = (
    *(LOG_FOLDER, "consumequeue", "batchconsumequeue", "index"),
    *("integrity", "entryjournal", "cut", "config"),
)
"""Folders in which an open store makes, changes and removes files."""

_FOLDERS: Final = frozenset({*_WRITTEN, "consumequeue_ext", "rebuilding"})
_FILES: Final = frozenset({"checkpoint", "checkpoint.new", "commitlog.new", "abort", "lock"})

_KNOWN_NAMES: Final = frozenset(
    {
        *_FOLDERS,
        *_FILES,
        *("abort.bak", "timerwheel", "timerlog", "compaction", "kvStore", "rocksdbstore"),
    }
)
"""Names that may be there alone, in a store that was just begun, or that lost its log."""
_TABLES: Final = (DELETIONS_NAME, DELAY_LEVELS, "queue_ends.json", "index_off")
"""As prefixes: they include the files beside each while it is replaced."""
_NOTES: Final = ("checkpoint", DELETIONS_NAME, "queue_ends.json")
"""Files that are replaced, which fails if one may not be changed (`chattr +i`)."""
_OF_THE_FILE_SYSTEM: Final = frozenset({"lost+found"})
"""Names in the root of a new volume."""


def check_root(filesystem: FileSystem, root: str) -> None:
    """Refuse a folder that has some content, but nothing of a store."""
    try:
        entries = list_root(filesystem, root)
    except NotADirectoryError:
        raise NotAStoreError(
            f"{root}: is a file; name the folder of a store, which has {LOG_FOLDER}/ in it"
        ) from None
    names = {entry.name for entry in entries} - _OF_THE_FILE_SYSTEM
    if not names & _OF_A_STORE:
        _check_names(filesystem, root, names)
    require_kinds(filesystem, root, entries)


def list_root(filesystem: FileSystem, root: str) -> list[Entry]:
    """List the folder of a store, which may not exist; refuse a link that leads nowhere."""
    try:
        return filesystem.list(root)
    except NotADirectoryError:
        if filesystem.exists(root):
            raise
        raise NotAStoreError(
            f"{root}: a {LEADS_NOWHERE}; mount what it leads to, or name the folder of a store"
        ) from None


def _check_names(filesystem: FileSystem, root: str, names: set[str]) -> None:
    foreign = {name for name in names - _KNOWN_NAMES if not name.startswith(_TABLES)}
    if not foreign and "config" in names and not _has_tables(filesystem, f"{root}/config"):
        foreign = names
    if foreign:
        some = ", ".join(sorted(foreign)[:3])
        raise NotAStoreError(
            f"{root}: holds {some}, but nothing of a store; name an empty folder for a new store"
        )


def require_kinds(filesystem: FileSystem, root: str, entries: list[Entry]) -> None:
    """Refuse anything else in the place of a store's file or folder, before the store is opened.

    A pipe would block for ever, and a folder would be found half way. The target of a link that
    leads nowhere would count as lost, even a folder, though perhaps only its disk is not there.
    """
    for entry in entries:
        if entry.leads_nowhere and (entry.name in _FOLDERS or _is_table(entry)):
            _refuse_link(f"{root}/{entry.name}")
        if not is_file(entry) and _is_table(entry):
            raise StoreFormatError(
                f"a {called(entry)} is where a file has to be: move it elsewhere",
                f"{root}/{entry.name}",
            )
        if entry.name in _FOLDERS and not entry.is_directory:
            raise StoreFormatError(
                "a file is where a folder has to be: move it elsewhere", f"{root}/{entry.name}"
            )
        if entry.name == "config" and entry.is_directory:
            for table in filesystem.list(f"{root}/config"):
                if table.leads_nowhere and table.name in TABLES:
                    _refuse_link(f"{root}/config/{table.name}")


def _is_table(entry: Entry) -> bool:
    return entry.name in _FILES or entry.name.startswith(_TABLES)


def _refuse_link(path: str) -> NoReturn:
    raise StoreFormatError(f"a {LEADS_NOWHERE}: {MOUNT}", path)


def check_writable(filesystem: FileSystem, root: str, config: StoreConfig) -> None:
    """Refuse, with the disk's `OSError`, what could be read but then not be written.

    Check the root, the notes that a start may replace, these folders, and the newest files of those
    that are filled further. Checking the files of all queues would take too long: `foresight`
    checks those of the few queues that a start writes to.
    """
    filesystem.check_writable(root)
    for name in _NOTES:
        filesystem.check_writable(f"{root}/{name}")
    unused = {*(() if config.index else ("index",)), *(() if config.integrity else ("integrity",))}
    for name in _WRITTEN:
        if name not in unused:
            filesystem.check_writable(f"{root}/{name}")
    for name, is_named_so in (("index", is_index_file), ("integrity", is_offset_file)):
        if name not in unused:
            files = [each for each in filesystem.list(f"{root}/{name}") if is_named_so(each)]
            for entry in files[-2:]:
                filesystem.check_writable(f"{root}/{name}/{entry.name}")


def _has_tables(filesystem: FileSystem, folder: str) -> bool:
    """Whether a settings folder is a broker's, or empty."""
    try:
        names = [entry.name for entry in filesystem.list(folder)]
    except NotADirectoryError:
        return False
    return not names or any(name.removesuffix(".bak") in TABLES for name in names)


def load_segments(
    filesystem: FileSystem,
    root: str,
    config: StoreConfig,
    checkpoint: Checkpoint,
    *,
    clean: bool,
    read_only: bool = False,
) -> Segments:
    """Take the log's files as they are.

    After a kill the last one may be half made: a file of Apache has its name before its length.
    """
    known = checkpoint.last_claims
    return Segments(
        filesystem,
        f"{root}/{LOG_FOLDER}",
        config.segment_size,
        known_size=None if known is None else known.segment_size,
        may_end_short=not clean,
        maps_max=config.segment_maps_max,
        read_only=read_only,
    )


def load_queues(
    filesystem: FileSystem,
    root: str,
    config: StoreConfig,
    checkpoint: Checkpoint,
    *,
    clean: bool,
    read_only: bool = False,
) -> ConsumeQueues:
    """Take the files of the ConsumeQueues as they are."""
    known = checkpoint.last_claims
    sizes: tuple[int | None, int | None] = (None, None)
    if known is not None:
        sizes = known.queue_file_size, known.batch_queue_file_size
    elif not checkpoint.is_of_others:
        listed = listed_sizes(filesystem, root)
        sizes = sizes if listed is None else listed[:2]
    return ConsumeQueues(
        filesystem,
        root,
        config,
        clean=clean,
        read_only=read_only,
        file_sizes=sizes,
        is_of_others=checkpoint.is_of_others,
    )


def queue_folders(
    filesystem: FileSystem, folder: str, left_out: Container[str] = ()
) -> Iterator[tuple[str, int, str]]:
    """Walk the queues of one kind: topic, queue id and folder; skip names that are no number."""
    for topic in filter(is_topic_folder, filesystem.list(folder)):
        if topic.name in left_out:
            continue
        entries = filesystem.list(f"{folder}/{topic.name}")
        numbers = sorted(int(entry.name) for entry in entries if is_queue_folder(entry))
        for number in numbers:
            yield topic.name, number, f"{folder}/{topic.name}/{number}"
