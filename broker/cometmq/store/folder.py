"""What stands in the folder of a store, taken as it is: nothing here changes a byte."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.store.consume_queues import ConsumeQueues
from cometmq.store.errors import NotAStoreError
from cometmq.store.segments import Segments

if TYPE_CHECKING:
    from cometmq.store.checkpoint import Checkpoint
    from cometmq.store.config import StoreConfig
    from cometmq.store.filesystem import FileSystem

LOG_FOLDER: Final = "commitlog"

_KNOWN_NAMES: Final = frozenset(
    {
        *(LOG_FOLDER, "consumequeue", "consumequeue_ext", "batchconsumequeue", "index"),
        *("checkpoint", "abort", "abort.bak", "lock", "config", "integrity", "cut"),
        *("timerwheel", "timerlog", "compaction", "kvStore", "rocksdbstore"),
    }
)

_OF_THE_FILE_SYSTEM: Final = frozenset({"lost+found"})
"""What stands in the root of a new volume."""


def check_root(filesystem: FileSystem, root: str) -> None:
    """Refuse a folder that holds something, but nothing of a store."""
    try:
        names = {entry.name for entry in filesystem.list(root)} - _OF_THE_FILE_SYSTEM
    except NotADirectoryError:
        raise NotAStoreError(
            f"{root}: a file; name the folder of a store, which has {LOG_FOLDER}/ in it"
        ) from None
    if names and not names & _KNOWN_NAMES:
        some = ", ".join(sorted(names)[:3])
        raise NotAStoreError(
            f"{root}: holds {some}, but nothing of a store; name an empty folder for a new store"
        )


def load_segments(
    filesystem: FileSystem,
    root: str,
    config: StoreConfig,
    checkpoint: Checkpoint,
    *,
    read_only: bool = False,
) -> Segments:
    """Take the log's files as they are."""
    known = checkpoint.last_claims
    return Segments(
        filesystem,
        f"{root}/{LOG_FOLDER}",
        config.segment_size,
        known_size=None if known is None else known.segment_size,
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
    sizes = (None, None) if known is None else (known.queue_file_size, known.batch_queue_file_size)
    return ConsumeQueues(
        filesystem, root, config, clean=clean, read_only=read_only, file_sizes=sizes
    )
