"""One run at a time on a folder: it holds the folder, and any other run is refused at once.

Two streams on one checkpoint, or in one archive, would read the same messages and put their files
into the same places. Spark notices only when a batch is noted; by then one stream has replaced the
other's files.

A run locks a file in the folder (`flock`). So the kernel releases the folder when the process dies,
however it dies, and a file that a kill left behind holds nothing. The file names its holder, who
removes it at the end. So a file that was just locked may have lost its name, or another file may
have it: that is checked, and locking starts again. There is no such lock on non-local file systems.

Only Spark knows which file system a path is on. Before Spark is started, `refuse_held` looks for
such a file under the path as given, and creates none.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cometmq.pipeline.errors import HeldError, OptionError
from cometmq.pipeline.jobs.folders import Folder
from cometmq.pipeline.jobs.local_paths import local_path

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from pyspark.sql import SparkSession

    from cometmq.pipeline.jobs.job import Run

STREAM: Final = "_cometmq-stream.lock"
"""The lock in a checkpoint while a stream uses it."""
BATCHES: Final = "_cometmq-batches.lock"
"""The lock in a folder while a stream writes batches into it."""
UPKEEP: Final = "_cometmq-upkeep.lock"
"""The lock in an archive while batches are merged or leftovers removed. A stream may write to the
archive meanwhile. Readers of tables ignore names that begin with `_`."""
RESULTS: Final = "_cometmq-results.lock"
"""The lock in a folder of findings or tables while a run replaces what an earlier one wrote."""
_LOOK_SECONDS: Final = 0.05
"""The longest time for which a mere check has a lock, which takes it some microseconds."""

Places = tuple[tuple[str, str], ...]
"""Folders that a job holds, each with the name of its lock file."""


def in_folders(spark: SparkSession, places: Places) -> list[tuple[Folder, str]]:
    """Turn paths into folders, for `held`."""
    return [(Folder(spark, path), name) for path, name in places]


def refuse_held(places: Iterable[tuple[str, str]]) -> None:
    """Refuse folders that another run holds, as far as that can be told without Spark.

    Another run may also begin later, and other things may be wrong: `held` is decisive.
    """
    for said, name in places:
        if not said or (folder := local_path(said)) is None:
            continue
        try:
            lock = os.open(folder / name, os.O_RDWR)
        except OSError:  # Most often there is none; other problems are reported elsewhere.
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _is_held(said, lock) from None
        except OSError:
            continue
        finally:
            os.close(lock)


@contextmanager
def held(run: Run, job: str, *places: tuple[Folder, str]) -> Generator[None]:
    """Hold folders, each by its lock file; a dry run changes nothing and holds none."""
    with ExitStack() as stack:
        for folder, name in places:
            if not run.dry_run and (path := folder.local_path) is not None:
                folder.require_writable()
                stack.enter_context(_held(run, job, folder.path, Path(path), name))
        yield


@contextmanager
def held_if_free(run: Run, job: str, folder: Folder, name: str) -> Generator[bool]:
    """Hold a folder in the block, unless another run does; yield whether it is held."""
    with ExitStack() as stack:
        is_free = True
        try:
            if run.dry_run:
                refuse_held(((folder.path, name),))
            stack.enter_context(held(run, job, (folder, name)))
        except HeldError:
            is_free = False
        yield is_free


@contextmanager
def _held(run: Run, job: str, said: str, path: Path, name: str) -> Generator[None]:
    file = path / name
    try:
        made = [each for each in (path, *path.parents) if not each.exists()]
        lock = _locked(run, said, file)
    except OSError as error:
        raise OptionError(
            f"path: {said}: nothing can be written there ({error.strerror}); choose another folder"
        ) from None
    try:
        with suppress(OSError):  # On a full disk, where vacuum makes room, the holder is not named.
            _sign(lock, job)
        yield
    finally:
        with suppress(OSError):  # A file that is left holds nothing once it is closed.
            file.unlink()
            for each in made:  # Only removes folders that are still empty.
                each.rmdir()
        os.close(lock)


def _locked(run: Run, said: str, file: Path) -> int:
    """Lock the file that has this name, and return its descriptor."""
    while True:
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:  # The previous holder has just removed the folder.
            continue
        try:
            _lock(run, said, lock)
            if _is(file, lock):
                return lock
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)


def _lock(run: Run, said: str, lock: int) -> None:
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # It may be a mere check.
            time.sleep(_LOOK_SECONDS)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _is_held(said, lock) from None
    except OSError as error:  # Some network file systems have no locks.
        run.tell(
            warning=f"{said} cannot be locked ({error.strerror}): nothing keeps a second run out;"
            " make sure that only one runs at a time"
        )


def _is_held(said: str, lock: int) -> HeldError:
    return HeldError(
        f"path: {said}: {_holder(lock)} is at work there; nothing was changed. Start this again"
        " when that one has ended"
    )


def _is(file: Path, lock: int) -> bool:
    """Whether the open file still has this name."""
    try:
        return os.path.samestat(file.stat(), os.fstat(lock))
    except FileNotFoundError:
        return False


def _sign(lock: int, job: str) -> None:
    """Write into the file who holds it."""
    since = datetime.now(UTC).isoformat(timespec="seconds")
    holder = {"job": job, "process": os.getpid(), "host": socket.gethostname(), "since": since}
    os.ftruncate(lock, 0)
    os.pwrite(lock, (json.dumps(holder) + "\n").encode(), 0)


def _holder(lock: int) -> str:
    """Return who holds it, if that is written yet."""
    try:
        said: Any = json.loads(os.pread(lock, 4096, 0))
        return f"{said['job']} (process {said['process']} on {said['host']}, since {said['since']})"
    except (ValueError, KeyError, TypeError):
        return "another job"
