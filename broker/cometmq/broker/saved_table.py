"""A broker's table with its file: changed on the loop, and saved by a thread, many changes at once.

How it works. `version` counts the changes; `saved_version` is the version that the file holds. Code
that must not confirm a change before it is on disk waits until `saved_version` has reached the
version of the change. There is one save at a time: `begin_save` on the loop, `write` in a thread,
then `saved` on the loop again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from cometmq.store.table_contents import empty_text
from cometmq.store.tables import SECTIONS, Table, TableFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.proto.bodies import DataVersion
    from cometmq.store.disk.filesystem import FileSystem
    from cometmq.store.tables import Snapshot

log = logging.getLogger(__name__)

T = TypeVar("T")


class SavedTable:
    """One of Apache's config files, and the changes since it was written."""

    def __init__(
        self, filesystem: FileSystem, folder: str, name: str, *, on_change: Callable[[], None]
    ) -> None:
        """Call `on_change` when there is something to save."""
        self.name = name
        self.version = 0
        self.saved_version = 0
        self.is_found = True
        """Whether there was something to load."""
        self._file = TableFile(filesystem, folder, name)
        self._table = Table(SECTIONS[name])
        self._on_change = on_change

    def load(self, read: Callable[[dict[str, Any]], T]) -> T:
        """Read the file; raise a `StoreFormatError` if both it and its backup are damaged.

        `read` converts the parsed tree for the caller, and raises a `BodyError` if the tree has
        another shape; then the backup is used, too. The caller `put`s what it keeps of the result,
        and calls `loaded`, so that nothing of this counts as a change.
        """
        loaded = self._file.load(read)
        if loaded.from_backup:
            log.warning(
                "%s is missing or damaged: the save before it is taken from %s.bak",
                self._file.path,
                self._file.path,
            )
        elif not loaded.is_found and loaded.problem is not None:
            log.warning("%s", empty_text(self._file.path))
        self.is_found = loaded.is_found
        return read(loaded.tree)

    def loaded(self) -> None:
        """Declare that the table now holds what the file does."""
        self.saved_version = self.version

    def put(self, section: str, key: str | int, value: Any) -> None:
        """Set an entry."""
        self._table.put(section, key, value)
        self._changed()

    def discard(self, section: str, key: str | int) -> None:
        """Remove an entry."""
        self._table.discard(section, key)
        self._changed()

    def set_member(self, name: str, value: Any) -> None:
        """Set a small top-level member of the file."""
        self._table.set_member(name, value)
        self._changed()

    @property
    def is_changed(self) -> bool:
        """Whether there is something to save."""
        return self.version != self.saved_version

    def _changed(self) -> None:
        if not self.is_changed:
            self._on_change()
        self.version += 1

    def begin_save(self) -> tuple[int, Snapshot]:
        """Return the version to be saved, and its content."""
        return self.version, self._table.snapshot()

    def write(self, snapshot: Snapshot) -> None:
        """Write a snapshot, in any thread; it survives a power cut once this returns."""
        self._file.write(snapshot.chunks())

    def saved(self, version: int) -> None:
        """Note the version that the file now holds."""
        self.saved_version = version


def counted_up(version: DataVersion, now_ms: int) -> DataVersion:
    """Return the data version that follows this one, after a change."""
    return replace(version, counter=version.counter + 1, timestamp=now_ms)
