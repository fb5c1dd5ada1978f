"""Where the index lacks records because it was turned off (`index=false`), or is damaged.

`root/index_off`, see `checked_json`, holds a physical offset: of the records from there on, the
index has none, or nobody knows which; of all records, where the file is damaged. A start without
the index makes it before anything is put, and one that finds a damaged item before it cuts what
stands behind that. The first start with the index again reads the log from there, once its own
checkpoint, which is on the disk, says so as well; then the file goes. Apache's brokers do not know
it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from cometmq.proto.errors import BodyError
from cometmq.store.disk.checked_json import CheckedJson

if TYPE_CHECKING:
    from cometmq.store.disk.filesystem import FileSystem
    from cometmq.store.index.index import Index

log = logging.getLogger(__name__)

INDEX_OFF: Final = "index_off"
_FILE: Final = CheckedJson(INDEX_OFF, "offset", version=1)


def load_off(filesystem: FileSystem, root: str) -> int | None:
    """Return from where on the index lacks records; None when it was never off.

    `StoreFormatError` when a newer version of this program noted it.
    """
    try:
        return _FILE.load(filesystem, root, int)
    except BodyError:
        return 0


def note_off(filesystem: FileSystem, root: str, offset: int) -> None:
    """Note that records from an offset on are not indexed; returns once that is on the disk."""
    known = load_off(filesystem, root)
    if known is not None and known <= offset:
        return
    _FILE.save(filesystem, root, b"%d" % offset)


def settle_off(
    filesystem: FileSystem, root: str, index: Index | None, complete_to: int, end: int
) -> None:
    """Note what a start that accepted the store does about it; its checkpoint is on the disk.

    Without an index, records from `complete_to` on may not be in it.
    """
    if index is None:
        note_off(filesystem, root, complete_to)
    elif (known := load_off(filesystem, root)) is not None:
        if known < end:
            log.warning(
                "the index lacks keys: they are taken from the log from %d to %d", known, end
            )
        forget_off(filesystem, root)


def forget_off(filesystem: FileSystem, root: str) -> None:
    """The index has every record, or the checkpoint sees to it."""
    if filesystem.exists(f"{root}/{INDEX_OFF}"):
        filesystem.remove(f"{root}/{INDEX_OFF}")
        filesystem.sync_directory(root)
