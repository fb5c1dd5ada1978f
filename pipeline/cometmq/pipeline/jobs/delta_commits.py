"""The log of a Delta table, in which each file is a commit."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from cometmq.pipeline.jobs.folders import Folder

LOG: Final = "_delta_log"
STREAM: Final = "cometmq archive "
"""What the name begins with by which a table knows a stream of ours."""
_INFO: Final = "commitInfo"
_COMMIT: Final = re.compile(r"([0-9]{20})\.json")
"""The name of a commit; the names of compacted ones have two numbers."""
_APPENDED: Final = "WRITE"
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
    """Watches what is done to a table from now on.

    It looks commit by commit: a table's log has thousands, and listing them takes a while.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._before = _commits(folder)
        self._next = max(self._before, default=-1) + 1

    def last_written(self) -> Written:
        """Return what the last batch was, if it is among the latest commits."""
        latest = reversed(self._before[-_LOOKED_AT:])
        appended = (_appended(_commit(self._folder, each)) for each in latest)
        return next(filter(None, appended), Written())

    def was_restored(self) -> bool:
        """Whether somebody had restored an earlier version after the last batch was appended."""
        for number in reversed(self._before):
            if _is_restore(commit := _commit(self._folder, number)):
                return True
            if any(each.get("appId", "").startswith(STREAM) for each in _said(commit, "txn")):
                return False
        return False

    def restored(self) -> bool:
        """Whether somebody has restored an earlier version since the last call."""
        found = False
        while self._folder.exists(LOG, _name(self._next)):
            found |= _is_restore(_commit(self._folder, self._next))
            self._next += 1
        return found


def _is_restore(commit: list[dict[str, Any]]) -> bool:
    return any(each.get("operation") == _RESTORED for each in _said(commit, _INFO))


def _appended(commit: list[dict[str, Any]]) -> Written | None:
    """Return what a commit has appended; `None` if it did something else."""
    for each in _said(commit, _INFO):
        if each.get("operation") == _APPENDED:
            metrics = each.get("operationMetrics", {})
            return Written(*(int(metrics.get(name, 0)) for name in _METRICS))
    return None


def _commits(folder: Folder) -> list[int]:
    """Return the numbers of the commits, oldest first."""
    names = folder.names(LOG)
    return [int(found[1]) for each in names if (found := _COMMIT.fullmatch(each))]


def _name(number: int) -> str:
    return f"{number:020d}.json"


def _commit(folder: Folder, number: int) -> list[dict[str, Any]]:
    """Return the actions of a commit."""
    return [json.loads(line) for line in folder.read(LOG, _name(number)).splitlines()]


def _said(commit: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Return what actions of a kind say."""
    return [each[kind] for each in commit if kind in each]
