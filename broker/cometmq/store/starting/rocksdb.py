"""What an Apache broker keeps in RocksDB, which is not read here.

With `storeType=defaultRocksDB` its queues are in a database in `consumequeue/` itself, or in one
beside it. Its topics, groups and offsets are in databases in `config/`, whose names depend on
further settings. Plain files of an earlier time stay beside them: a program that counted these as
complete would take newer topics for deleted, and give out message numbers again. With
`rocksdbCQDoubleWriteEnable` there are queues of both kinds. (`rocksdbstore/` always exists, and is
mostly empty.)
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
"""The file in each database's folder that names its newest manifest."""

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
    """Return the folders of a store that are in RocksDB, and what to do about each."""
    found: dict[str, str] = {}
    names = [
        entry.name
        for entry in filesystem.list(f"{root}/config")
        if entry.is_directory and _is_database(filesystem, f"{root}/config/{entry.name}")
    ]
    if names:
        found[f"{root}/config"] = (
            f"{some_of(names)}: topics, groups and offsets are in RocksDB, as an Apache broker"
            f" with storeType=defaultRocksDB keeps them, and {_MOVE_OVER}; plain files beside it"
            " are older"
        )
    queues = [f"{root}/{name}" for name in _QUEUE_FOLDERS]
    return found | {path: _QUEUES for path in queues if _is_database(filesystem, path)}


def refuse_rocksdb(filesystem: FileSystem, root: str) -> None:
    """Raise a `StoreFormatError` for a store that has something in RocksDB."""
    for path, problem in in_rocksdb(filesystem, root).items():
        raise StoreFormatError(problem, path)


def _is_database(filesystem: FileSystem, folder: str) -> bool:
    """Whether a folder is a database; a folder named like the file may be a topic's."""
    return filesystem.exists(f"{folder}/{_CURRENT}") and any(
        entry.name == _CURRENT and is_file(entry) for entry in filesystem.list(folder)
    )
