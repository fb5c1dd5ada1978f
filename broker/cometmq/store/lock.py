"""One process per store, and the mark that its last shutdown was clean.

`root/lock` is locked while a process has the store open, with the lock that Apache takes, so the
two keep out of each other's stores; what it holds is of no meaning. `root/abort` holds the id of
that process and is removed by a clean shutdown: where it stands at a start, the process before
ended without one.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from cometmq.store.errors import StoreLockedError

if TYPE_CHECKING:
    from cometmq.store.filesystem import File, FileSystem

_CONTENT = b"lock"  # As Apache writes it.


def acquire_lock(filesystem: FileSystem, root: str) -> File:
    """Lock the store until the returned file is closed, or the process ends."""
    file = filesystem.lock(f"{root}/lock")
    if file is None:
        raise StoreLockedError(
            f"{root}: the store is open in another process{_owner(filesystem, root)};"
            " stop it first, or use another folder"
        )
    return file


def sign_lock(lock: File) -> None:
    """Write into the lock what Apache writes there: once the store is accepted, not before."""
    if lock.read(len(_CONTENT), 0) != _CONTENT:
        lock.write(_CONTENT, 0)


def _owner(filesystem: FileSystem, root: str) -> str:
    with suppress(OSError):
        file = filesystem.open(f"{root}/abort", read_only=True)
        try:
            process_id = file.read(20, 0).decode("ascii", "replace").strip()
        finally:
            file.close()
        if process_id.isdigit():
            return f" (pid {process_id})"
    return ""


def was_shut_down(filesystem: FileSystem, root: str) -> bool:
    """Whether the last process that had the store open ended with a clean shutdown."""
    return not filesystem.exists(f"{root}/abort")


def mark_running(filesystem: FileSystem, root: str, process_id: int) -> None:
    """Say that a process is writing; returns once that would survive a power cut."""
    text = str(process_id).encode()
    file = filesystem.open(f"{root}/abort", create=True)
    try:
        file.resize(0)
        file.write(text, 0)
        file.sync()
    finally:
        file.close()
    filesystem.sync_directory(root)


def mark_shut_down(filesystem: FileSystem, root: str) -> None:
    """Say that the shutdown is clean: everything is synced and the checkpoint says so."""
    filesystem.remove(f"{root}/abort")
    filesystem.sync_directory(root)
