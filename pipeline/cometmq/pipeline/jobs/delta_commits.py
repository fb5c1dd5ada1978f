"""The log of a Delta table, in which each file is a commit."""

from __future__ import annotations

import json
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cometmq.pipeline.errors import DamagedFileError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.pipeline.jobs.folders import Folder

LOG: Final = "_delta_log"
STREAM: Final = "cometmq archive "
"""What the names begin with by which a table knows our streams."""
_RESTORED: Final = "RESTORE"
_LOOKED_AT: Final = 10
"""How many commits are read at first; a batch is among them, unless others do much more."""


def is_delta(folder: Folder) -> bool:
    """Whether a folder is a Delta table: it has a commit. A kill may come before the first one."""
    return folder.has_name(lambda name: name[0].isdigit(), LOG)


def sync_commit(folder: Folder, number: int) -> None:
    """Have a commit, and what was written with it, survive a power cut."""
    for name in (_name(number), f"{number:020d}.checkpoint.parquet", "_last_checkpoint"):
        if folder.exists(LOG, name):
            folder.sync(LOG, name)


class Written(NamedTuple):
    """What a commit has appended."""

    files: int = 0
    size: int = 0
    rows: int = 0

    @property
    def metrics(self) -> dict[str, str]:
        """How the commit says it, as Delta's own writers do."""
        return dict(zip(_METRICS, map(str, self), strict=True))


_METRICS: Final = ("numFiles", "numOutputBytes", "numOutputRows")


class Commits:
    """Watches what is done to a table from a version on.

    It looks commit by commit: a table's log has thousands, and listing them takes a while.
    """

    def __init__(self, folder: Folder, version: int) -> None:
        self._folder = folder
        self._next = version + 1
        self._past = cache(self._read)

    def _before(self) -> Iterator[dict[str, Any]]:
        """Yield the commits up to that version, the last one first."""
        number = self._next - 1
        while (commit := self._past(number)) is not None:
            yield commit
            number -= 1

    def _read(self, number: int) -> dict[str, Any] | None:
        """Return a commit, if it is still there."""
        is_there = self._folder.exists(LOG, _name(number))
        return _commit(self._folder, number) if is_there else None

    def last_written(self) -> Written:
        """Return what the last batch was, if it is among the latest commits."""
        appended = map(_appended, islice(self._before(), _LOOKED_AT))
        return next(filter(None, appended), Written())

    def sync(self) -> None:
        """Have the last batch's commit survive a power cut, with those that followed it."""
        for back, commit in enumerate(self._before(), 1):
            sync_commit(self._folder, self._next - back)
            if _appended(commit):
                return

    def was_restored(self) -> bool:
        """Whether somebody had restored an earlier version after the last batch was appended."""
        for commit in self._before():
            if _is_restored(commit) or _appended(commit):
                return _is_restored(commit)
        return False

    def restored(self) -> bool:
        """Whether somebody has restored an earlier version since the last call."""
        found = False
        while (commit := self._read(self._next)) is not None:
            found |= _is_restored(commit)
            self._next += 1
        return found


def _is_restored(commit: dict[str, Any]) -> bool:
    said: dict[str, Any] = commit.get("commitInfo", {})
    return said.get("operation") == _RESTORED


def _appended(commit: dict[str, Any]) -> Written | None:
    """Return what a commit of a batch has appended; `None` if it is none."""
    if not commit.get("txn", {}).get("appId", "").startswith(STREAM):
        return None
    metrics = commit.get("commitInfo", {}).get("operationMetrics", {})
    return Written(*(int(metrics.get(name, 0)) for name in _METRICS))


def _name(number: int) -> str:
    return f"{number:020d}.json"


def _commit(folder: Folder, number: int) -> dict[str, Any]:
    """Return what a commit says, by kind; of files, only the last one."""
    try:
        # Not by `splitlines`: statistics may have other ends of lines, within values.
        lines = filter(None, folder.read(LOG, _name(number)).split("\n"))
        return {kind: said for each in lines for kind, said in json.loads(each).items()}
    except ValueError as error:
        path = folder.of(LOG, _name(number))
        raise DamagedFileError(f"{path} is damaged ({error}): put it back from a copy") from error
