"""What can go wrong in a store, and whose fault it is.

::

    StoreError
    ├── PutRefusedError             nothing of this put is stored; `code` answers the sender
    │   ├── MessageIllegalError     theirs, the sender's: over a limit, or a contradiction
    │   │   └── PropertiesTooLongError
    │   ├── StoreBusyError          ours: too much waits to be written or synced; try again
    │   ├── StoreNotWriteableError  theirs, the disk's: full or failing; gone when there is room
    │   └── SyncFailedError         theirs, the disk's, and final: this process must stop
    └── StoreFilesError             theirs, the disk's or the operator's: what is in the folder
        ├── NotAStoreError          there is no store here
        ├── StoreLockedError        another process has it
        ├── StoreFormatError        a foreign file, a wrong size, a newer format
        ├── MissingEntriesError     a queue has lost entries; it can be rebuilt from the log
        ├── LostQueuesError         queues have lost their ends; the same
        └── CorruptionError         bytes that were safe are not what they were; names the place

A `StoreFilesError` is raised before a byte is changed. An `OSError` that none of these explains
(no permission, a read-only file system, a failing read) passes through unchanged, with its path.
"""

from __future__ import annotations

import errno
import os
from typing import ClassVar, Final

from cometmq.proto.codes import ResponseCode

REBUILD: Final = "`cometmq store rebuild` rebuilds the queue"
"""What to do about damaged files of a ConsumeQueue."""
LEADS_NOWHERE: Final = "dangling link"
MOUNT: Final = "mount what it leads to, or move the link elsewhere"
"""What to do about such a link: usually the disk that it leads to is not there."""


class StoreError(Exception):
    """The root of this tree."""


class PutRefusedError(StoreError):
    """Nothing of this put is stored.

    `code` is what Apache answers a send with for the same cause. A message that is stored, but less
    safely than asked for (`FLUSH_DISK_TIMEOUT` and the like), is no error of the store: the code
    that waits for the disk and the replicas reports it.
    """

    code: ClassVar[ResponseCode] = ResponseCode.SYSTEM_ERROR


class MessageIllegalError(PutRefusedError):
    """The message breaks a limit or contradicts itself."""

    code = ResponseCode.MESSAGE_ILLEGAL


class PropertiesTooLongError(MessageIllegalError):
    """The properties, with what the store adds to them, are over 32767 bytes."""


class StoreBusyError(PutRefusedError):
    """More waits to be written or synced than the settings allow; a retry may soon succeed."""

    code = ResponseCode.SYSTEM_BUSY


class StoreNotWriteableError(PutRefusedError):
    """The disk is full or failed a write; what was refused left no trace in the log."""

    code = ResponseCode.SERVICE_NOT_AVAILABLE


class SyncFailedError(PutRefusedError):
    """The disk failed a sync: nobody knows how much of the unsynced data is safe.

    Final, because the kernel drops the pages of a failed sync, so a later sync that succeeds proves
    nothing. No send may be acknowledged any more, and the process must stop: the next start reads
    the tail back from the disk and rewrites it.
    """

    code = ResponseCode.SERVICE_NOT_AVAILABLE


class StoreFilesError(StoreError):
    """What is in the folder cannot be opened; the text says what to do about it."""


class NotAStoreError(StoreFilesError):
    """There is no store here."""


class StoreLockedError(StoreFilesError):
    """Another process has the store open."""


class StoreFormatError(StoreFilesError):
    """A file that does not belong here, has a wrong size, or is of a newer version.

    It is about one file or folder, and the text begins with its path; an error about settings has
    no path.
    """

    def __init__(self, problem: str, path: str | None = None) -> None:
        """Say what is wrong and what to do, and which file or folder the error is about."""
        super().__init__(problem if path is None else f"{path}: {problem}")
        self.path = path
        self.problem = problem


def check_version(path: str, version: int, known: int) -> None:
    """Refuse a file that a newer version of this program wrote."""
    if version > known:
        raise StoreFormatError(
            f"version {version}, but this program knows up to {known}; use a newer one",
            path,
        )


class MissingEntriesError(StoreFilesError):
    """A queue ends too early: its next record in the log has a later queue offset.

    Nothing is lost if the log has the records between: replaying it from its first record fills the
    gap.
    """

    def __init__(
        self, topic: str, queue_id: int, end: int, queue_offset: int, physical_offset: int
    ) -> None:
        """Name the queue, its end, and the queue and physical offset of the message found next."""
        super().__init__(
            f"{topic}/{queue_id} ends at queue offset {end}, but the record at {physical_offset} is"
            f" number {queue_offset}: {REBUILD}"
        )
        self.topic = topic
        self.queue_id = queue_id
        self.end = end
        self.queue_offset = queue_offset
        self.physical_offset = physical_offset


class LostQueuesError(StoreFilesError):
    """Queues do not have the last entry that they are known to have had."""


class CorruptionError(StoreFilesError):
    """Bytes that were known to be safe on the disk are not what was written.

    Nothing is cut or skipped because of that: a replica or an explicit repair has to decide.
    """

    def __init__(self, path: str, position: int, problem: str) -> None:
        """Name the file, the byte in it, and what is wrong there."""
        super().__init__(f"{path}: at byte {position}: {problem}")
        self.path = path
        self.position = position
        self.problem = problem


_WHAT_TO_DO: Final = {
    errno.EACCES: "run it as the user that the store belongs to",
    errno.EPERM: "run it as the user that the store belongs to, and look for `chattr +i`",
    errno.EROFS: "mount it for writing, or copy the store elsewhere",
    errno.ENOSPC: "make room on the disk (`df`, and `df -i` for its number of files)",
    errno.EDQUOT: "make room, or raise the quota of the user, the group or the folder",
    errno.EFBIG: (
        "raise the limit on the size of a file (`ulimit -f`), or check what the file system allows"
    ),
    errno.EMFILE: "raise the limit on open files (`ulimit -n`)",
    errno.ENOENT: "it disappeared while this ran: is a broker running here? Run it again",
    errno.EEXIST: "a file is where a folder has to be: move it elsewhere",
    errno.ENOTDIR: "a file is where a folder has to be: move it elsewhere",
    errno.ELOOP: "a folder on its path is a link to itself: move it elsewhere",
    errno.EISDIR: "a folder is where a file has to be: move it elsewhere",
    errno.ENOLCK: "this file system does not support locks: mount it with them, or move to a local"
    " disk",
    errno.EIO: "the disk is failing: copy what can be read, and restore the rest from a copy",
}


OF_LINKS: Final = (errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.ELOOP)
"""What the system reports for a link that leads nowhere, or to itself."""
_OWN_DENIED: Final = (
    "it belongs to the user that this runs as: check its permissions and those of its parent"
    " folders (`ls -ld`), and look for `chattr +i`"
)


def _is_own(path: object) -> bool:
    """Whether this process's user owns a file, or else the folder that denies access to it."""
    is_folder = False
    while path and isinstance(path, str):
        try:
            return os.stat(path).st_uid == os.geteuid()
        except PermissionError:
            pass
        except OSError:
            if is_folder:
                return False
        path, is_folder = os.path.dirname(path), True
    return False


def leads_nowhere(path: object) -> bool:
    """Whether a path is a link to something that does not exist."""
    return isinstance(path, str) and os.path.islink(path) and not os.path.exists(path)


def _in_the_way(error: OSError) -> object:
    """Return the path that an error is about; if a file is taken for a folder, that file."""
    path: object = error.filename
    while error.errno == errno.ENOTDIR and isinstance(path, str) and not os.path.lexists(path):
        path = os.path.dirname(path)
        if not path or os.path.isdir(path):
            return error.filename
    return path


def disk_error_text(error: OSError) -> str:
    """Say in one line what the disk refused, and what to do about it."""
    path = f"{_in_the_way(error)}: " if error.filename else ""
    text = f"{path}{error.strerror or error}"
    what_to_do = _WHAT_TO_DO.get(error.errno or 0)
    if error.errno in (errno.EACCES, errno.EPERM) and _is_own(error.filename):
        what_to_do = _OWN_DENIED
    if error.errno in OF_LINKS and leads_nowhere(error.filename):
        what_to_do = f"it is a {LEADS_NOWHERE}: {MOUNT}"
    return f"{text}; {what_to_do}" if what_to_do else text
