"""Folders into which jobs write results as Parquet: `--findings`, `--tables`.

A run replaces what an earlier run of its job wrote, and never anything else; only one run uses a
folder at a time. It replaces the old results at its end, when all new ones are written. Until then,
these are in a subfolder, and if the run fails, or the disk is full, the old results stay unchanged.
A run that is killed while it moves the new results leaves tables without Spark's mark that they are
whole, and the next run first finishes that. A folder that a job has begun has a file that says so,
which Spark does not read. Any other folder must be empty, and none may contain, or be in, a folder
that is read. A run removes only files with names that Spark gives.
"""

from __future__ import annotations

import json
import re
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from cometmq.pipeline.errors import OptionError, PipelineError
from cometmq.pipeline.jobs.folders import STAGING, Folder
from cometmq.pipeline.jobs.full_disks import told_if_full
from cometmq.pipeline.jobs.holding import RESULTS, Places, held, in_folders
from cometmq.pipeline.jobs.local_paths import local_path, path_within

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Set
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from cometmq.pipeline.jobs.job import Run

_OWNER: Final = "_cometmq.json"
_OWN: Final = re.compile(
    rf"{re.escape(_OWNER)}|\.{re.escape(_OWNER)}\.(new|crc)|{re.escape(RESULTS)}"
)
_OF_SPARK: Final = re.compile(
    r"(part-[0-9]{5,}-[0-9a-f-]{36}.*\.parquet|_SUCCESS)|\.(part-[0-9]{5,}-.*|_SUCCESS)\.crc"
    r"|_temporary"
)
_WHOLE: Final = "_SUCCESS"
"""Spark's mark in a table that is whole."""
_SOLE: Final = "findings"
"""The subfolder for an only table, until the run's end."""
_MOVING: Final = "_moving.json"
"""The file beside them, once all is written: the names of each table's files while they move."""


@dataclass(frozen=True, slots=True)
class Results:
    """Where a job writes results; without a path, nowhere."""

    option: str
    """The setting that names the folder."""
    path: str
    job: str
    read: tuple[str, ...]
    """Folders that the job reads."""
    tables: tuple[str, ...] = ()
    """Subfolders, one for each table; none if the folder is itself the only table."""

    def look(self) -> None:
        """Refuse a folder that must not be written to, as far as that can be told without Spark."""
        if not self.path:
            return
        for each in self.read:
            if _overlap(self.path, each):
                raise OptionError(
                    f"{self.option}: {self.path} is, contains or is in what is read, {each}; name"
                    " another folder"
                )
        if (local := local_path(self.path)) is not None:
            try:
                self._refuse_others(_Local(local))
            except OSError as error:
                raise OptionError(f"{self.option}: {self.path}: {error.strerror}") from None

    @property
    def places(self) -> Places:
        """The folder that a run holds, if there is one."""
        return ((self.path, RESULTS),) if self.path else ()

    @contextmanager
    def held(self, spark: SparkSession, run: Run) -> Generator[None]:
        """Hold the folder for this run, after checking that it may be written to."""
        self.look()
        with held(run, self.job, *in_folders(spark, self.places)):
            self.require(spark, dry_run=run.dry_run)
            if not self.path or run.dry_run:
                yield
                return
            folder = Folder(spark, self.path)
            self._finish(spark, folder)  # Finish the work of a run that was killed.
            try:
                yield
                self._note(folder)
            except BaseException:
                with suppress(PipelineError, OSError):  # Otherwise the next run removes it.
                    folder.remove(STAGING)
                raise
            self._finish(spark, folder)

    def require(self, spark: SparkSession, *, dry_run: bool = False) -> None:
        """Check the folder on any file system, and except in a dry run also by writing there."""
        if not self.path:
            return
        folder = Folder(spark, self.path)
        folder.require_writable()
        self._refuse_others(folder)
        if not dry_run:
            self._try(folder)

    def _try(self, folder: Folder) -> None:
        """Try to write the first file, as many folders that cannot be written to do not say so.

        Undo it afterwards, as there may turn out to be nothing to write.
        """
        was_there, was_begun = folder.exists(), self._is_begun(folder)
        self._begin(folder)
        if not was_begun:
            folder.remove(_OWNER)
        if not was_there:
            folder.remove_empty()

    def _begin(self, folder: Folder) -> None:
        folder.write(json.dumps({"job": self.job}) + "\n", _OWNER)

    def write(self, frame: DataFrame, table: str = "") -> None:
        """Write a table; it replaces an earlier run's at the end of this run."""
        folder = Folder(frame.sparkSession, self.path)
        if not self._is_begun(folder):
            self._begin(folder)
        with told_if_full(self.path):
            frame.write.mode("overwrite").parquet(folder.of(STAGING, table or _SOLE))

    def _note(self, folder: Folder) -> None:
        """Note that all is written; from now on it is moved into place, whatever ends this run."""
        if written := folder.names(STAGING):
            files = {table: folder.names(STAGING, table) for table in written}
            folder.sync(STAGING)
            folder.write(json.dumps(files) + "\n", STAGING, _MOVING)

    def _finish(self, spark: SparkSession, folder: Folder) -> None:
        """If a run has written everything, replace an earlier run's results with it."""
        if folder.exists(STAGING, _MOVING):
            files: dict[str, list[str]] = folder.read_json(
                STAGING, _MOVING, if_damaged="remove it, and what an earlier run wrote may be gone"
            )
            left = {table: folder.names(STAGING, table) for table in files}
            self._remove_earlier(
                spark, {table: set(files[table]).difference(left[table]) for table in files}
            )
            for table, names in left.items():
                within = () if table == _SOLE else (table,)
                # Spark's mark that a table is whole comes last, in case of a kill in between.
                for name in sorted(names, key=lambda each: each == _WHOLE):
                    folder.rename("/".join((STAGING, table, name)), "/".join((*within, name)))
        folder.remove(STAGING)

    def remove(self, spark: SparkSession) -> None:
        """Remove what an earlier run and this one have written."""
        if self.path:
            Folder(spark, self.path).remove(STAGING)
            self._remove_earlier(spark, {})

    def _remove_earlier(self, spark: SparkSession, later: Mapping[str, Set[str]]) -> None:
        """Remove all tables of an earlier run, but not the `later` files."""
        if self._is_begun(folder := Folder(spark, self.path)):
            for table in (_SOLE, *self.tables):
                within = () if table == _SOLE else (table,)
                # The mark that a table is whole goes first, in case of a kill in between.
                for name in sorted(filter(_OF_SPARK.fullmatch, folder.names(*within))):
                    if name not in later.get(table, ()):
                        folder.remove(*within, name)
                if within:
                    Folder(spark, folder.of(*within)).remove_empty()

    def _refuse_others(self, folder: Folder | _Local) -> None:
        is_begun = self._is_begun(folder)
        for name in folder.names():
            if _OWN.fullmatch(name) or (is_begun and name == STAGING):
                continue
            foreign = name
            if is_begun and name in self.tables:
                others = (each for each in folder.names(name) if not _OF_SPARK.fullmatch(each))
                if not (other := next(others, "")):
                    continue
                foreign = f"{name}/{other}"
            elif is_begun and not self.tables and _OF_SPARK.fullmatch(name):
                continue
            raise OptionError(
                f"{self.option}: {self.path} contains {foreign}, which no earlier `{self.job}`"
                " wrote there, and which results would replace; name a new or empty folder"
            )

    def _is_begun(self, folder: Folder | _Local) -> bool:
        """Whether an earlier run of the job has written there."""
        if _OWNER not in folder.names():
            return False
        try:
            said: Any = json.loads(folder.read(_OWNER))
        except ValueError:
            return False
        return isinstance(said, dict) and cast("dict[str, Any]", said).get("job") == self.job


class _Local:
    """A local folder, for checks before Spark is started."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def names(self, *names: str) -> list[str]:
        """Return the names in a folder, sorted; none if it does not exist."""
        folder = self._path.joinpath(*names)
        return sorted(each.name for each in folder.iterdir()) if folder.exists() else []

    def read(self, *names: str) -> str:
        """Return a file as text."""
        return self._path.joinpath(*names).read_text()


def _overlap(one: str, two: str) -> bool:
    """Whether two folders are the same, or one is in the other."""
    return path_within(one, two) is not None or path_within(two, one) is not None
