"""Where the index lacks records because it was turned off (`index=false`), or is damaged.

`root/index_off`, see `checked_json`, holds a physical offset: from there on, the index has no
records, or it is unknown which it has. If the file is damaged, this holds for all records. A start
without the index makes the file before anything is put; a start that finds a damaged item makes it
before it cuts what follows the item. The first start with the index again reads the log from there;
once its own checkpoint on the disk says so as well, the file is removed. Apache's brokers do not
know it.
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
    """Return from where on the index lacks records; None if it was never off.

    Raise `StoreFormatError` if a newer version of this program noted it.
    """
    try:
        return _FILE.load(filesystem, root, int)
    except BodyError:
        return 0


def note_off(filesystem: FileSystem, root: str, offset: int) -> None:
    """Note that records from an offset on are not indexed; return once that is on the disk."""
    known = load_off(filesystem, root)
    if known is not None and known <= offset:
        return
    _FILE.save(filesystem, root, b"%d" % offset)


def settle_off(
    filesystem: FileSystem, root: str, index: Index | None, complete_to: int, end: int
) -> None:
    """Bring the note up to date after a start accepted the store and its checkpoint is on the disk.

    Without an index, records from `complete_to` on may not be in it.
    """
    if index is None:
        note_off(filesystem, root, complete_to)
    elif (known := load_off(filesystem, root)) is not None:
        if known < end:
            log.warning(
                "keys are missing from the index: they are taken from the log from %d to %d",
                known,
                end,
            )
        forget_off(filesystem, root)


def forget_off(filesystem: FileSystem, root: str) -> None:
    """Remove the note: the index has every record, or the checkpoint makes sure of that."""
    if filesystem.exists(f"{root}/{INDEX_OFF}"):
        filesystem.remove(f"{root}/{INDEX_OFF}")
        filesystem.sync_directory(root)
