"""One run at a time on a folder: it holds the folder, and any other is refused at once.

Two streams on one checkpoint, or in one archive, read the same messages and put their files into
the same places. Spark notices when a batch is noted; by then one has replaced the other's files.

A run locks a file in the folder (`flock`), so the kernel itself gives the folder up when the
process dies, however it dies, and a file that a kill left behind holds nothing. Who holds it stands
in the file. Its holder removes it at the end, so what was locked may be a file whose name is gone
or another's by then: that is looked at, and begun anew. On file systems other than this machine's
there is no such lock.

Which file system a path is on, Spark knows. Before it is started, `refuse_held` looks for such a
file under the path as it is, and makes none.
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
"""In a checkpoint, while a stream goes on from it."""
BATCHES: Final = "_cometmq-batches.lock"
"""In a folder, while a stream writes batches into it."""
UPKEEP: Final = "_cometmq-upkeep.lock"
"""In an archive, while its batches are merged or what is left of some is removed. A stream may
write to it meanwhile. Readers of tables pass over names that begin so."""
RESULTS: Final = "_cometmq-results.lock"
"""In a folder of findings or tables, while a run replaces what an earlier one wrote there."""
_LOOK_SECONDS: Final = 0.05
"""For how long at most who only looks has a lock, which takes it some microseconds."""

Places = tuple[tuple[str, str], ...]
"""Folders that a job holds, each with the name of the file by which it does."""


def in_folders(spark: SparkSession, places: Places) -> list[tuple[Folder, str]]:
    """Return folders by their paths, for `held`."""
    return [(Folder(spark, path), name) for path, name in places]


def refuse_held(places: Iterable[tuple[str, str]]) -> None:
    """Refuse folders that another run holds, as far as it can be told without Spark.

    That run may begin later, too, and other things may be wrong: it is `held` that counts.
    """
    for said, name in places:
        if not said or (folder := local_path(said)) is None:
            continue
        try:
            lock = os.open(folder / name, os.O_RDWR)
        except OSError:  # Most often there is none; what else is wrong is said in its place.
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
    """Hold folders, each by a file of this name; a dry run changes nothing, and holds none."""
    with ExitStack() as stack:
        for folder, name in places:
            if not run.dry_run and (path := folder.local_path) is not None:
                folder.require_writable()
                stack.enter_context(_held(run, job, folder.path, Path(path), name))
        yield


@contextmanager
def held_if_free(run: Run, job: str, folder: Folder, name: str) -> Generator[bool]:
    """Hold a folder for a moment, unless another run does; say whether that is so."""
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
    made = [each for each in (path, *path.parents) if not each.exists()]
    file = path / name
    try:
        lock = _locked(run, said, file)
    except OSError as error:
        raise OptionError(
            f"path: {said}: nothing can be written there ({error.strerror}); choose another folder"
        ) from None
    try:
        with suppress(OSError):  # On a full disk, where vacuum makes room, nobody is named.
            _sign(lock, job)
        yield
    finally:
        with suppress(OSError):  # What is left holds nothing once it is closed.
            file.unlink()
            for each in made:  # Only those that still have nothing in them.
                each.rmdir()
        os.close(lock)


def _locked(run: Run, said: str, file: Path) -> int:
    """Return a descriptor of the file that is there by this name, locked."""
    while True:
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:  # Who held it has removed its folder just now.
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
        except BlockingIOError:  # It may be somebody who only looks.
            time.sleep(_LOOK_SECONDS)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _is_held(said, lock) from None
    except OSError as error:  # Some file systems of networks know no locks.
        run.tell(
            warning=f"{said} cannot be locked ({error.strerror}): nothing keeps a second run out;"
            " see to it that there is one at a time"
        )


def _is_held(said: str, lock: int) -> HeldError:
    return HeldError(
        f"path: {said}: {_holder(lock)} is at work there; nothing was changed. Start this again"
        " when that one has ended"
    )


def _is(file: Path, lock: int) -> bool:
    """Whether the name still is that of the open file."""
    try:
        return os.path.samestat(file.stat(), os.fstat(lock))
    except FileNotFoundError:
        return False


def _sign(lock: int, job: str) -> None:
    """Say in the file who holds it."""
    since = datetime.now(UTC).isoformat(timespec="seconds")
    holder = {"job": job, "process": os.getpid(), "host": socket.gethostname(), "since": since}
    os.ftruncate(lock, 0)
    os.pwrite(lock, (json.dumps(holder) + "\n").encode(), 0)


def _holder(lock: int) -> str:
    """Return who holds it, as far as it has said so yet."""
    try:
        said: Any = json.loads(os.pread(lock, 4096, 0))
        return f"{said['job']} (process {said['process']} on {said['host']}, since {said['since']})"
    except (ValueError, KeyError, TypeError):
        return "another job"
