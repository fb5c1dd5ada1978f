"""Changes on the disk that are not synced yet, to be synced in a separate thread."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cometmq.store.disk.filesystem import FileSystem, Partition

SYNCED_EACH_MAX: Final = 256
"""With more files than this the whole partition is synced, at a tenth of the cost a file."""


class Unsynced:
    """Files and folders that were changed; syncing them touches nothing else of the store."""

    __slots__ = ("_directories", "_files", "_filesystem", "_partition")

    def __init__(
        self,
        filesystem: FileSystem,
        files: set[str],
        directories: set[str],
        partition: Partition | None = None,
    ) -> None:
        self._filesystem = filesystem
        self._files = files
        self._directories = directories
        self._partition = partition

    def __len__(self) -> int:
        return len(self._files) + len(self._directories)

    def sync(self) -> None:
        """Return once all of it would survive a power cut. An error is final.

        Files removed meanwhile have nothing left to sync.
        """
        if self._partition is not None and len(self) > SYNCED_EACH_MAX:
            self._partition.sync()
            return
        for path in sorted(self._files):
            try:
                file = self._filesystem.open(path)
            except FileNotFoundError:
                continue
            try:
                file.sync()
            finally:
                file.close()
        for path in sorted(self._directories, key=lambda path: (len(path), path), reverse=True):
            with suppress(FileNotFoundError):
                self._filesystem.sync_directory(path)
