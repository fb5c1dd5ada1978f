"""The files of a store directory: listing and reading them.

The directory is a local path or a URI that Arrow knows (`hdfs://`, `s3://`, `file://`); `s3a://` is
the same as `s3://`. Every executor must see it under the same name. Nothing is locked and nothing
is changed.
"""

from __future__ import annotations

import errno
import os
import re
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from socket import gethostname
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

from pyarrow import ArrowInvalid, fs

from cometmq.pipeline.errors import OptionError, PipelineError

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import TracebackType
    from typing import Self

LOG_FOLDER: Final = "commitlog"
_NAME_LENGTH: Final = 20
_AS_SPARK: Final = re.compile("^s3[an]:")
"""What Spark calls S3 in URIs, which Arrow calls `s3:`."""
_NOT_REACHED: Final = "AWS Error NETWORK_CONNECTION"
"""What Arrow says if a server of S3 cannot be reached; it may be up soon."""

FORMAT_VERSION: Final = 1
"""The newest store format that is known here; see `cometmq.store.upkeep.checkpoint`."""
_CHECKPOINT: Final = Struct(">48s4si64x48sI")
"""What anybody writes; magic, version, what we had written, and the checksum of 48 to 168."""
_CHECKPOINT_CHECKED: Final = slice(48, 168)
_CHECKPOINT_MAGIC: Final = b"CMCP"
assert _CHECKPOINT.size == 172


class StoreFile(NamedTuple):
    """One file of a sequence of files."""

    path: str
    start: int
    """Where in the sequence it begins, in bytes; this is its name."""
    size: int


class Opened:
    """One file, open for reading."""

    def __init__(self, root: str, path: str, *, ahead: bool = True) -> None:
        """Open the file; without `ahead`, read only what is asked for."""
        self._file = _filesystem(root)[0].open_input_file(path)
        self._local = None if "://" in root else os.open(path, os.O_RDONLY)
        self._exact = None if ahead or not hasattr(os, "posix_fadvise") else self._local
        if self._exact is not None:
            os.posix_fadvise(self._exact, 0, 0, os.POSIX_FADV_RANDOM)

    def read(self, size: int, position: int) -> bytes:
        """Read `size` bytes at a place; fewer at the end of the file."""
        if self._exact is not None:
            return os.pread(self._exact, size, position)
        return self._file.read_at(size, position)

    def written_end(self, start: int, end: int) -> int:
        """Return the end of what was ever written in a range; `start` if nothing was.

        The filesystem says so; it may count zeros as written that somebody has read.
        """
        if self._local is None or not hasattr(os, "SEEK_DATA"):
            return end
        behind = place = start
        try:
            while place < end and (data := os.lseek(self._local, place, os.SEEK_DATA)) < end:
                behind = place = min(os.lseek(self._local, data, os.SEEK_HOLE), end)
        except OSError as error:
            return behind if error.errno == errno.ENXIO else end  # No more data.
        return behind

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
        if self._local is not None:
            os.close(self._local)


def _filesystem(root: str) -> tuple[fs.FileSystem, str]:
    if "://" not in root:
        return fs.LocalFileSystem(), root
    if root.startswith("file:") and (mark := re.search("[?#]", root)):
        # Arrow would leave out what follows, and so read another folder.
        raise OptionError(
            f"path: {root}: in a URI write {mark[0]} as %{ord(mark[0]):X}, or name the folder"
            " without file://"
        )
    try:
        return fs.FileSystem.from_uri(_AS_SPARK.sub("s3:", root))
    except (ValueError, OSError) as error:  # Some say in many lines where a library is not.
        raise OptionError(f"path: {root}: {str(error).partition(chr(10))[0]}") from None


@contextmanager
def disk_errors_told(root: str) -> Generator[None]:
    """Turn errors of the disk or another filesystem into one line."""
    try:
        yield
    except PermissionError as error:
        what_to_do = "run it as the user that the store belongs to"
        raise OptionError(f"path: {root}: {error}; {what_to_do}") from None
    except (OSError, ArrowInvalid) as error:  # The latter for an invalid path, such as file:/x.
        if _NOT_REACHED in str(error):
            raise PipelineError(f"path: {root}: {error}") from None
        raise OptionError(f"path: {root}: {error}") from None


def check_store(root: str) -> str:
    """Return a store's path in its filesystem; an `OptionError` says what to do if it is none."""
    with disk_errors_told(root):
        return _checked_path(root)


def _checked_path(root: str) -> str:
    filesystem, path = _filesystem(root)
    path = path.rstrip("/") or "/"
    kind = filesystem.get_file_info(path).type
    if kind == fs.FileType.NotFound and _leads_nowhere(path):
        problem = "a dangling link; mount what it leads to, or name the folder of a store"
        raise OptionError(f"path: {root}: {problem}")
    if kind == fs.FileType.NotFound:
        raise OptionError(f"path: {root}: no such folder; name the folder of a store")
    if kind != fs.FileType.Directory:
        raise OptionError(
            f"path: {root}: is a file; name the folder of a store, with {LOG_FOLDER}/"
        )
    if _leads_nowhere(f"{path}/{LOG_FOLDER}"):
        raise OptionError(f"path: {path}/{LOG_FOLDER}: a dangling link; mount what it leads to")
    if filesystem.get_file_info(f"{path}/{LOG_FOLDER}").type != fs.FileType.Directory:
        hint = " (its parent is one)" if path.endswith(f"/{LOG_FOLDER}") else ""
        raise OptionError(
            f"path: {root}: contains no {LOG_FOLDER}/; name the folder of a store, which has"
            f" one{hint}"
        )
    _check_format(root, f"{path}/checkpoint")
    return path


def require_seen(root: str) -> None:
    """Raise if an executor that is to read a part of a store does not see the store."""
    with disk_errors_told(root):
        filesystem, path = _filesystem(root)
        log = f"{path.rstrip('/')}/{LOG_FOLDER}"  # An unmounted folder may exist, but has no log.
        if filesystem.get_file_info(log).type != fs.FileType.Directory:
            raise OptionError(
                f"path: {root}: no store there on {gethostname()}; each machine that reads must"
                " have it under the same name"
            )


def _leads_nowhere(path: str) -> bool:
    """Whether a path is a dangling link; only local paths can be."""
    return Path(path).is_symlink() and not Path(path).exists()


def is_open(root: str) -> bool:
    """Whether a broker has the store open, or had when it was killed: a stop removes `abort`."""
    with disk_errors_told(root):
        filesystem, path = _filesystem(root)
        return filesystem.get_file_info(f"{path.rstrip('/')}/abort").type != fs.FileType.NotFound


def _check_format(root: str, path: str) -> None:
    """Refuse a store of a newer format; a damaged checkpoint, or Apache's, has no format."""
    if (ours := _our_checkpoint(root, path)) and ours.version > FORMAT_VERSION:
        raise OptionError(
            f"path: {path}: version {ours.version}, but this program knows up to"
            f" {FORMAT_VERSION}; use a newer one"
        )


def is_ours(root: str) -> bool:
    """Whether the last writer of a store was CometMQ, by its checkpoint."""
    ours = _our_checkpoint(root, inside(root, "checkpoint"))
    return ours is not None and ours.is_last


class _OurCheckpoint(NamedTuple):
    """What is known of a checkpoint of CometMQ."""

    version: int
    is_last: bool
    """Whether nobody else has written it since."""


def _our_checkpoint(root: str, path: str) -> _OurCheckpoint | None:
    if _filesystem(root)[0].get_file_info(path).type != fs.FileType.File:
        return None
    with Opened(root, path) as file:
        data = file.read(_CHECKPOINT.size, 0).ljust(_CHECKPOINT.size, b"\0")
    written, magic, version, as_we_wrote, crc = _CHECKPOINT.unpack(data)
    if magic != _CHECKPOINT_MAGIC or crc != crc32(data[_CHECKPOINT_CHECKED]):
        return None
    return _OurCheckpoint(version, written == as_we_wrote)


def log_files(root: str) -> list[StoreFile]:
    """Return the files of a store's log, in order; an `OptionError` says what to do without one."""
    path = check_store(root)
    named = _named_by_offsets(root, f"{path}/{LOG_FOLDER}", is_log=True)
    files = [file for file in named if file.size]
    if files and not named[0].size:
        raise OptionError(
            f"path: {named[0].path} is empty, while those after it are there: restore it from a"
            " copy, or move it elsewhere, and the log begins after it"
        )
    sizes = {file.size for file in files}
    if len(sizes) > 1:
        odd = next(file for file in files if file.size != files[0].size)
        raise OptionError(
            f"path: {odd.path} has {odd.size} bytes, but {files[0].path} has {files[0].size};"
            " all files of a store's log have the same size: restore it from a copy"
        )
    if files and files[0].start % files[0].size:
        raise OptionError(
            f"path: {files[0].path}: no file of a log of files of {files[0].size} bytes begins"
            " there; move it elsewhere"
        )
    for before, behind in pairwise(files):
        end = before.start + before.size
        if behind.start != end:
            raise OptionError(
                f"path: {path}/{LOG_FOLDER}/{end:020d} is missing or empty, while those before and"
                " after it are there: restore it from a copy; if a broker was removing expired"
                " files, run this again"
            )
    return files


def row_of(root: str, folder: str) -> list[StoreFile]:
    """Return the files of a folder that are named by offsets, in order; none without a folder."""
    # Apache creates a file before it gives it a length.
    return [file for file in _named_by_offsets(root, folder) if file.size]


def _named_by_offsets(root: str, folder: str, *, is_log: bool = False) -> list[StoreFile]:
    """Return them including empty ones.

    Other files are ignored, as the store does in the folders of queues, but not in the log.
    """
    filesystem, _ = _filesystem(root)
    found: list[StoreFile] = []
    for info in filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True)):
        if info.type != fs.FileType.File:
            continue
        if len(info.base_name) == _NAME_LENGTH and info.base_name.isdecimal():
            found.append(StoreFile(info.path, int(info.base_name), int(info.size or 0)))
        elif is_log:
            raise OptionError(
                f"path: {info.path}: not a file of a log, whose names are offsets of"
                f" {_NAME_LENGTH} digits; move it elsewhere"
            )
    return sorted(found, key=lambda file: file.start)


def folders_of(root: str, folder: str) -> list[str]:
    """Return the names of the folders in a folder, sorted; none if it does not exist."""
    filesystem, path = _filesystem(root)
    selector = fs.FileSelector(f"{path.rstrip('/')}/{folder}", allow_not_found=True)
    return sorted(
        info.base_name
        for info in filesystem.get_file_info(selector)
        if info.type == fs.FileType.Directory
    )


def inside(root: str, *names: str) -> str:
    """Return the path of something in a store, in its filesystem."""
    return "/".join([_filesystem(root)[1].rstrip("/"), *names])


def is_file(root: str, *names: str) -> bool:
    """Whether something in a store is a file."""
    kind = _filesystem(root)[0].get_file_info(inside(root, *names)).type
    return bool(kind == fs.FileType.File)
