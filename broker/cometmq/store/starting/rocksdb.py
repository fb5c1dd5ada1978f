"""What a broker of Apache's keeps in RocksDB, which is not read here.

With `storeType=defaultRocksDB` its queues are a database right in `consumequeue/`, or one beside
it, and its topics, groups and offsets are in some in `config/`, whose names depend on more
settings. Plain files of an earlier time stay beside them: who takes these for all there is takes
newer topics for deleted, and gives numbers of messages out again. With `rocksdbCQDoubleWriteEnable`
there are queues of both kinds. (`rocksdbstore/` is always there, and mostly empty.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.store.disk.names import is_file, some_of
from cometmq.store.errors import StoreFormatError
from cometmq.store.queues.consume_queues import SIMPLE_FOLDER

if TYPE_CHECKING:
    from cometmq.store.disk.filesystem import FileSystem

_QUEUE_FOLDERS: Final = (SIMPLE_FOLDER, "consumequeue_rocksdb")
_CURRENT: Final = "CURRENT"
"""The file that each database has in its folder, and that names its newest manifest."""

_MOVE_OVER: Final = (
    "only that broker reads it: let it serve this store, and copy its topics to a new one"
    " (`cometmq pipeline mirror`)"
)
_QUEUES: Final = (
    f"its queues are in RocksDB, as an Apache broker keeps them, and {_MOVE_OVER}; if it had"
    " storeType=default, and wrote plain files as well (rocksdbCQDoubleWriteEnable), move CURRENT,"
    " IDENTITY, LOCK, MANIFEST-*, OPTIONS-*, *.log and *.sst elsewhere"
)


def in_rocksdb(filesystem: FileSystem, root: str) -> dict[str, str]:
    """Return what of a store is in RocksDB: by folder, and what to do about it."""
    found: dict[str, str] = {}
    names = [
        entry.name
        for entry in filesystem.list(f"{root}/config")
        if entry.is_directory and _is_database(filesystem, f"{root}/config/{entry.name}")
    ]
    if names:
        found[f"{root}/config"] = (
            f"{some_of(names)}: topics, groups and offsets are in RocksDB, as an Apache broker with"
            f" storeType=defaultRocksDB keeps them, and {_MOVE_OVER}; plain files beside it are of"
            " an earlier time"
        )
    queues = [f"{root}/{name}" for name in _QUEUE_FOLDERS]
    return found | {path: _QUEUES for path in queues if _is_database(filesystem, path)}


def refuse_rocksdb(filesystem: FileSystem, root: str) -> None:
    """Refuse a store of which something is in RocksDB by a `StoreFormatError`."""
    for path, problem in in_rocksdb(filesystem, root).items():
        raise StoreFormatError(problem, path)


def _is_database(filesystem: FileSystem, folder: str) -> bool:
    """Whether a folder is a database; a topic may have the name of its file."""
    return filesystem.exists(f"{folder}/{_CURRENT}") and any(
        entry.name == _CURRENT and is_file(entry) for entry in filesystem.list(folder)
    )
