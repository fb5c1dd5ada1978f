"""Archives that are Delta tables, and how they are read and written.

Only Delta can read such an archive, as its folder also has files of old versions.
"""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cometmq.pipeline.delta import require_delta
from cometmq.pipeline.errors import OptionError, PipelineError
from cometmq.pipeline.jobs.full_disks import told_if_full

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from cometmq.pipeline.jobs.folders import Folder

_LOG: Final = "_delta_log"
_COMMIT: Final = re.compile(r"([0-9]{20})\.json")
"""The name of a commit; the names of compacted ones have two numbers."""
_APPENDED: Final = "WRITE"
_RESTORED: Final = "RESTORE"
_LOOKED_AT: Final = 10
"""How many commits are read at first; a batch is among them, unless others do much more."""


def is_delta(folder: Folder) -> bool:
    """Whether a folder is a Delta table: it has a commit. A kill may come before the first one."""
    return folder.has_name(lambda name: name[0].isdigit(), _LOG)


def refuse_delta(folder: Folder, instead: str) -> None:
    """Refuse a Delta table for a job that only knows Parquet; `instead` is Delta's command."""
    if is_delta(folder):
        raise OptionError(
            f"archive: {folder.path} is a Delta table, for which there is {instead}"
            f" delta.`{folder.path}` in spark.sql"
        )


def read_delta(spark: SparkSession, folder: Folder) -> DataFrame:
    """Return an archive as a table, with the columns that a Parquet archive has."""
    require_delta(spark, "from")
    frame: DataFrame = spark.read.format("delta").load(folder.path)
    if "batch" not in frame.columns:
        raise OptionError(f"from: {folder.path} is a Delta table, not an archive")
    return frame


def rows_of_batches(spark: SparkSession, folder: Folder) -> DataFrame:
    """Return what was archived; rows that somebody else has inserted belong to no batch."""
    rows: DataFrame = read_delta(spark, folder).where("batch IS NOT NULL")
    return rows


def delta_id(spark: SparkSession, folder: Folder) -> str:
    """Return Delta's id of a table."""
    (detail,) = spark.sql(f"DESCRIBE DETAIL delta.`{folder.path}`").collect()
    name: str = detail["id"]
    return name


def last_batch(spark: SparkSession, folder: Folder) -> int:
    """Return the number of the last batch with rows; -1 if there is none."""
    (row,) = read_delta(spark, folder).selectExpr("max(batch) AS last").collect()
    last: int | None = row["last"]
    return -1 if last is None else last


def was_restored(folder: Folder) -> bool:
    """Whether somebody has restored an earlier version since the last batch was appended."""
    for number in reversed(_commits(folder)):
        operation: str = _commit(folder, number).get("operation", "")
        if operation in (_APPENDED, _RESTORED):
            return operation == _RESTORED
    return False


class Written(NamedTuple):
    """What a commit has appended."""

    files: int = 0
    size: int = 0
    rows: int = 0


class Commits:
    """Watches what is done to a table from now on.

    It looks commit by commit: a table's log has thousands, and listing them takes a while.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        before = _commits(folder)
        self._next = max(before, default=-1) + 1
        appended = (_appended(_commit(folder, each)) for each in reversed(before[-_LOOKED_AT:]))
        self.written = next(filter(None, appended), Written())
        """What the last batch was that it saw."""

    def restored(self) -> bool:
        """Whether somebody has restored an earlier version since the last call."""
        found = False
        while self._folder.exists(_LOG, _name(self._next)):
            commit = _commit(self._folder, self._next)
            found |= commit.get("operation") == _RESTORED
            self.written = _appended(commit) or self.written
            self._next += 1
        return found


def _appended(commit: dict[str, Any]) -> Written | None:
    """Return what a commit has appended; `None` if it did something else."""
    if commit.get("operation") != _APPENDED:
        return None
    metrics = commit.get("operationMetrics", {})
    names = ("numFiles", "numOutputBytes", "numOutputRows")
    return Written(*(int(metrics.get(name, 0)) for name in names))


def _commits(folder: Folder) -> list[int]:
    """Return the numbers of the commits, oldest first."""
    names = folder.names(_LOG)
    return [int(found[1]) for each in names if (found := _COMMIT.fullmatch(each))]


def _name(number: int) -> str:
    return f"{number:020d}.json"


def _commit(folder: Folder, number: int) -> dict[str, Any]:
    """Return what a commit says of itself."""
    lines = map(json.loads, folder.read(_LOG, _name(number)).splitlines())
    none: dict[str, Any] = {}
    return next((each["commitInfo"] for each in lines if "commitInfo" in each), none)


def ends_of_rows(spark: SparkSession, folder: Folder) -> dict[str, Any]:
    """Return the offsets after the last rows, by topic, broker and queue.

    For a topic that was deleted and recreated, these are the later topic's, which may be smaller.
    """
    from pyspark.sql import functions

    queues = rows_of_batches(spark, folder).groupBy("topic", "broker", "queue_id")
    last_of = functions.expr("max(struct(batch, queue_offset)).queue_offset")
    ends: dict[str, Any] = {}
    for row in queues.agg(last_of).collect():
        topic, broker, queue_id, last = row
        ends.setdefault(topic, {}).setdefault(broker, {})[str(queue_id)] = last + 1
    return ends


def append_batch(
    frame: DataFrame,
    folder: Folder,
    query: str,
    number: int,
    *,
    parts: Sequence[str],
    compression: str,
    rows_of_file: int,
) -> None:
    """Append a batch, unless this stream has appended it before, which Delta notes in its log."""
    writer = frame.write.format("delta").mode("append").option("compression", compression)
    if rows_of_file:
        writer = writer.option("maxRecordsPerFile", rows_of_file)
    writer = writer.options(txnAppId=f"cometmq archive {query}", txnVersion=number)
    with told_if_full(folder.path), _told_of_columns(frame, folder):
        (writer.partitionBy(*parts) if parts else writer).save(folder.path)


@contextmanager
def _told_of_columns(frame: DataFrame, folder: Folder) -> Generator[None]:
    """Say which columns of a batch a table does not have; Delta only says that there are some."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        if not is_delta(folder):
            raise
        there = {each.lower() for each in read_delta(frame.sparkSession, folder).columns}
        lost = [each for each in frame.columns if each.lower() not in there]
        if not lost:
            raise
        raise PipelineError(
            f"to: {folder.path} is a table without {', '.join(lost)}, which each batch has: it was"
            " dropped or renamed. Add it again, or give it back its name, and start this again"
        ) from error
