"""One process per store, and the mark that its last shutdown was clean.

`root/lock` is locked while a process has the store open, with the lock that Apache takes, so the
two keep out of each other's stores; its content has no meaning. A start that refuses the store
removes the file if it created it. `root/abort` holds the id of that process, and a clean shutdown
removes it: if a start finds it, the previous process ended without one.
"""

from __future__ import annotations

import os
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from cometmq.store.disk.filesystem import read_whole
from cometmq.store.errors import StoreLockedError

if TYPE_CHECKING:
    from cometmq.store.disk.filesystem import File, FileSystem

_CONTENT = b"lock"  # As Apache writes it.


def acquire_lock(filesystem: FileSystem, root: str) -> File:
    """Lock the store until the returned file is closed, or the process ends."""
    file = filesystem.lock(f"{root}/lock")
    if file is None:
        raise StoreLockedError(
            f"{root}: the store is open in {_owner(filesystem, root)};"
            " stop it first, or use another folder"
        )
    return file


def sign_lock(lock: File) -> None:
    """Write what Apache writes into the lock: once the store is accepted, not before."""
    if lock.read(len(_CONTENT), 0) != _CONTENT:
        lock.write(_CONTENT, 0)


def give_up_lock(filesystem: FileSystem, root: str, lock: File, *, is_made: bool) -> None:
    """Unlock a store that was refused; remove the file if it was made for that.

    It is removed while it is locked: whoever then takes a lock of that name finds a new file.
    """
    if is_made:
        with suppress(OSError):
            filesystem.remove(f"{root}/lock")
            filesystem.sync_directory(root)
    lock.close()


def _owner(filesystem: FileSystem, root: str) -> str:
    """Name the process that has the lock, as the kernel knows it: the id in `abort` may be old."""
    process_id = None
    with suppress(OSError):
        process_id = filesystem.lock_owner(f"{root}/lock")
    if process_id == os.getpid():
        return "this process already"
    # A process of another container has no id here.
    known = f" (pid {process_id})" if process_id is not None and process_id > 0 else ""
    return f"another process{known}"


def was_shut_down(filesystem: FileSystem, root: str) -> bool:
    """Whether the last process that had the store open ended with a clean shutdown."""
    return not filesystem.exists(f"{root}/abort")


class RunningMark:
    """The mark of a start that has not yet begun to change the store."""

    def __init__(self, filesystem: FileSystem, root: str) -> None:
        self._filesystem = filesystem
        self._root = root
        self._before = read_whole(filesystem, f"{root}/abort")
        self._is_touched = False

    def put(self, process_id: int) -> None:
        """Note that a process is writing; return once that would survive a power cut."""
        self._is_touched = True
        self._write(str(process_id).encode())
        self._filesystem.sync_directory(self._root)

    def take_back(self) -> None:
        """Leave `abort` as it was found, as far as the disk allows."""
        if not self._is_touched:
            return
        with suppress(OSError):
            if self._before is not None:
                self._write(self._before)
            elif self._filesystem.exists(f"{self._root}/abort"):
                mark_shut_down(self._filesystem, self._root)

    def _write(self, text: bytes) -> None:
        with closing(self._filesystem.open(f"{self._root}/abort", create=True)) as file:
            file.write(text, 0)
            file.resize(len(text))  # Not before: on a full disk only an existing block is writable.
            file.sync()


def mark_running(filesystem: FileSystem, root: str, process_id: int) -> None:
    """Note that a process is writing, or leave the mark as it was."""
    mark = RunningMark(filesystem, root)
    try:
        mark.put(process_id)
    except OSError:
        mark.take_back()
        raise


def mark_shut_down(filesystem: FileSystem, root: str) -> None:
    """Note that the shutdown is clean: everything is synced and the checkpoint says so."""
    filesystem.remove(f"{root}/abort")
    filesystem.sync_directory(root)
