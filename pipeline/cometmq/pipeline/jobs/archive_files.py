"""The files of an archive, and how to read them by manifests, each message once.

::

    TO/batch=000012/topic=orders/date=2026-11-21/part-….parquet
    TO/batch=000003-000009/…                  seven batches merged by `archive-compact`
    TO/_manifests/000012.json                 the contents of a batch: offsets, rows, a checksum
    TO/_manifests/000003-000009.json
    TO/_checkpoint/                           the progress of the stream
    TO/_staging/, TO/_compacting/             what is being written
    TO/_replays/                              the progress of `replay`

A batch exists when its manifest does. A batch that was merged exists only in the merged one: if a
crash has left something of it, that no longer counts.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cometmq.pipeline.errors import DamagedFileError, OptionError, PipelineError
from cometmq.pipeline.jobs.archive_kinds import table_in
from cometmq.pipeline.jobs.folders import NO_PATTERNS, NONE_LEFT_OUT, Folder
from cometmq.pipeline.jobs.places import ARCHIVE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from cometmq.pipeline.jobs.places import Place

MANIFESTS: Final = "_manifests"
COMPACTING: Final = "_compacting"
CHECKSUM: Final = "bit_xor(xxhash64(topic, broker, queue_id, queue_offset, body))"
"""Independent of the order of rows; the checksum of two batches together is the XOR of both."""
PARTS: Final = {
    "topic": "topic",
    "date": "date_format(store_time, 'yyyy-MM-dd')",
    "hour": "date_format(store_time, 'HH')",
}
"""The keys by which a batch can be divided into folders, with their SQL."""
COMPRESSIONS: Final = ("zstd", "snappy", "gzip", "none")
"""The compressions of Parquet that are offered."""

FROM_BATCH: Final = "from_batch"
"""A column of merged files: the number of each row's original batch."""

_IF_DAMAGED: Final = (
    "put it back from a copy of the archive. Do not remove it: without it the batch would count as"
    " not written; with it `replay` and `reconcile` read the batch as before"
)
_NAME: Final = re.compile(r"(\d+)(?:-(\d+))?")
_FOLDER: Final = "batch="
_SUFFIX: Final = ".json"
_Seen = TypeVar("_Seen")
_INFERRED: Final = "spark.sql.sources.partitionColumnTypeInference.enabled"
_INFERRING: Final = Lock()
"""Held while that is switched off, as jobs in other threads may have the same session."""


def require_compression(name: str) -> None:
    """Refuse a compression that is not offered; Spark would do so only after its start."""
    if name not in COMPRESSIONS:
        raise OptionError(f"compression: {name!r} is not one of {', '.join(COMPRESSIONS)}")


@dataclass(frozen=True, slots=True, order=True)
class BatchName:
    """The number of a batch, or the first and last number of a merged one."""

    first: int
    last: int

    @classmethod
    def read(cls, text: str) -> BatchName | None:
        """Parse the name of a manifest or folder; `None` if it is not a batch."""
        if (found := _NAME.fullmatch(text)) is None:
            return None
        first = int(found[1])
        return cls(first, int(found[2] or first))

    def __str__(self) -> str:
        return f"{self.first:06d}" + f"-{self.last:06d}" * self.is_merged

    @property
    def folder(self) -> str:
        """The folder of its files."""
        return f"{_FOLDER}{self}"

    @property
    def manifest(self) -> str:
        """The name of its manifest."""
        return f"{self}{_SUFFIX}"

    @property
    def is_merged(self) -> bool:
        """Whether it was merged from several batches."""
        return self.last > self.first

    @property
    def numbers(self) -> range:
        """The numbers of the batches that it consists of."""
        return range(self.first, self.last + 1)

    def holds(self, other: BatchName) -> bool:
        """Whether another batch is part of it."""
        return self.first <= other.first and other.last <= self.last


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The contents of a batch."""

    name: BatchName
    query_id: str | None
    """The id of the stream that wrote it, or the last of its batches."""
    first_query_id: str | None
    """The id of the stream that wrote the first of its batches; older merged ones do not say."""
    rows: int
    size: int
    """The size of the bodies in bytes."""
    checksum: int
    parts: Sequence[str]
    """The keys of its folders."""
    schema: str
    """The schema of the column `value`; empty without one."""
    ends: Any
    """Where it ends: offsets by topic, broker and queue, including queues of which it has no
    messages."""

    @classmethod
    def read(cls, folder: Folder, name: BatchName) -> Manifest:
        """Read the manifest of a batch."""
        said = folder.read_json(MANIFESTS, name.manifest, if_damaged=_IF_DAMAGED)
        try:
            return cls(
                name=name,
                query_id=said["query_id"],
                first_query_id=said.get("first_query_id") if name.is_merged else said["query_id"],
                rows=said["rows"],
                size=said["bytes"],
                checksum=int(said["checksum"], 16),
                parts=said["partition_by"],
                schema=said.get("schema", ""),  # Older manifests have none.
                ends=said["ends"],
            )
        except (KeyError, TypeError, ValueError) as error:
            path = folder.of(MANIFESTS, name.manifest)
            raise DamagedFileError(f"{path} is damaged ({error!r}): {_IF_DAMAGED}") from error

    def write(self, folder: Folder) -> None:
        """Write it; from now on the batch exists."""
        document = {
            "batch": self.name.last,
            "first_batch": self.name.first,
            "query_id": self.query_id,
            "first_query_id": self.first_query_id,
            "rows": self.rows,
            "bytes": self.size,
            "checksum": f"{self.checksum & (1 << 64) - 1:016x}",
            "partition_by": self.parts,
            "schema": self.schema,
            "ends": self.ends,
        }
        folder.write(json.dumps(document, indent=2) + "\n", MANIFESTS, self.name.manifest)

    def followed_by(self, other: Manifest) -> Manifest:
        """Return the manifest of both batches together; the other one is the later."""
        return replace(
            other,
            name=BatchName(self.name.first, other.name.last),
            first_query_id=self.first_query_id,
            rows=self.rows + other.rows,
            size=self.size + other.size,
            checksum=self.checksum ^ other.checksum,
            ends=ends_of_both(self.ends, other.ends),
        )


def ends_of_both(one: Any, other: Any) -> dict[str, Any]:
    """Return where two batches end together; the other one is the later.

    They may be of different streams, each of which only has its own topics.
    """
    both: dict[str, Any] = {}
    for ends in (one, other):
        for topic, brokers in ends.items():
            for broker, queues in brokers.items():
                both.setdefault(topic, {}).setdefault(broker, {}).update(queues)
    return both


def batches(folder: Folder) -> list[BatchName]:
    """Return the batches of an archive, the oldest first."""
    found: list[BatchName] = []
    names = _named(folder.names(MANIFESTS), "", _SUFFIX)
    for name in sorted(names, key=lambda each: (each.first, -each.last)):
        if not found or not found[-1].holds(name):
            found.append(name)
    return found


def require_batches(folder: Folder, option: str) -> list[BatchName]:
    """Return the batches of an archive; raise `OptionError` if the folder has none."""
    if found := batches(folder):
        return found
    raise OptionError(f"{option}: {folder.path} is not an archive, or is empty")


def while_there(
    folder: Folder,
    look: Callable[[list[BatchName]], _Seen],
    there: list[BatchName] | None = None,
    batch: BatchName | None = None,
) -> _Seen:
    """Return the result of `look` on the batches, all of which still exist when it is done.

    When `archive-compact` has merged batches, their files go, and a reader may see a batch with
    fewer files or none, as if that were all: so this looks again. `there` are the batches of an
    earlier look, which saves one; `batch` is given if only that one is looked at.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    there = batches(folder) if there is None else there
    while True:
        try:
            seen = look(there)
        except (PipelineError, Py4JError, PySparkException):
            if _are_still(folder, there, batch):
                raise
        else:
            if _are_still(folder, there, batch):
                return seen
        there = batches(folder)


class Watched:
    """An archive whose files others may be merging."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._table = table_in(folder)

    def whole(self) -> frozenset[object]:
        """Return what is replaced as a whole: the files of a table, or an archive's batches."""
        return frozenset(batches(self._folder) if self._table is None else self._table.files())


def archives_in(spark: SparkSession, places: Iterable[Place]) -> list[Watched]:
    """Return the archives among some places."""
    return [Watched(Folder(spark, place.path)) for place in places if place.kind == ARCHIVE]


def again_if_merged(archives: Sequence[Watched], do: Callable[[], _Seen]) -> _Seen:
    """Read archives, and try once more if that fails and batches were merged meanwhile.

    If `archive-compact`, or an engine that knows a table's format, has removed files, reading them
    fails and never returns fewer rows: the second attempt finds the same messages in other files.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    while True:
        there = [each.whole() for each in archives]
        try:
            return do()
        except (PipelineError, Py4JError, PySparkException):
            if all(before <= each.whole() for before, each in zip(there, archives, strict=True)):
                raise


def _are_still(folder: Folder, there: Sequence[BatchName], batch: BatchName | None) -> bool:
    """Whether no batch was merged since, or not `batch`; `archive` may have added more."""
    if batch is not None:  # Its manifest is removed before its files.
        return folder.exists(MANIFESTS, place_of(batch, there).manifest)
    return batches(folder)[: len(there)] == there


def place_of(batch: BatchName, there: Sequence[BatchName]) -> BatchName:
    """Return where a batch is: itself, or the one that it was merged into."""
    if (found := _holder(batch, there)) is None:
        raise DamagedFileError(
            f"batch {batch} no longer has a manifest: put it back from a copy of the archive"
        )
    return found


def _holder(batch: BatchName, there: Sequence[BatchName]) -> BatchName | None:
    at = bisect_right(there, batch.first, key=lambda each: each.first) - 1
    return there[at] if at >= 0 and there[at].holds(batch) else None


def knows_topic(folder: Folder, topic: str) -> bool:
    """Whether a manifest of an archive mentions a topic, even without messages."""
    return while_there(
        folder,
        lambda there: any(topic in Manifest.read(folder, name).ends for name in reversed(there)),
    )


def merged_away(folder: Folder) -> Iterator[str]:
    """Yield what is left of merged batches: first manifests, then their folders."""
    there = batches(folder)

    def is_over(name: BatchName) -> bool:
        return _holder(name, there) not in (None, name)

    names = _named(folder.names(MANIFESTS), "", _SUFFIX)
    yield from (f"{MANIFESTS}/{each.manifest}" for each in names if is_over(each))
    yield from (each.folder for each in _named(folder.names(), _FOLDER) if is_over(each))


def lost_manifests(there: Sequence[BatchName]) -> list[BatchName]:
    """Return batches before existing ones that no manifest mentions any more."""
    return [
        BatchName(before.last + 1, behind.first - 1)
        for before, behind in pairwise([BatchName(-1, -1), *there])
        if before.last + 1 < behind.first
    ]


def unfinished(folder: Folder) -> Iterator[BatchName]:
    """Yield batches that have files and no manifest yet, because of a crash or a running job.

    Others have lost it, or the folders that they were merged from, and have the only messages.
    """
    there = batches(folder)
    names = {*_named(folder.names(), _FOLDER)}
    for name in sorted(names):
        parts = {_holder(BatchName(each, each), there) for each in name.numbers}
        is_new = parts <= names if name.is_merged else not there or there[-1].last < name.first
        if is_new and not _holder(name, there):
            yield name


def read_archive(spark: SparkSession, path: str) -> DataFrame:
    """Return an archive as a table: the batches that have a manifest, with their number as `batch`.

    In merged batches, too, the number is that of a message's original batch. For a table of Delta
    or Iceberg, that says which files are in it.
    """
    folder = Folder(spark, path)
    if (table := table_in(folder)) is not None:
        return table.read(spark, table.files())

    def look(there: list[BatchName]) -> DataFrame:
        if not (names := [name for name in there if folder.has_files(name.folder)]):
            raise OptionError(f"from: {path} is not an archive, or is empty")
        return read_batches(spark, folder, names)

    return while_there(folder, look)


def read_batches(spark: SparkSession, folder: Folder, names: Sequence[BatchName]) -> DataFrame:
    """Return some batches of an archive, at least one with files, as a table."""
    # Separately, as Spark takes the columns of one file for those of all files.
    of_kinds = [
        read_files(spark, folder.path, [folder.of(name.folder) for name in some])
        for merged in (False, True)
        if (some := [name for name in names if name.is_merged is merged])
    ]
    return reduce(lambda one, two: one.unionByName(two, allowMissingColumns=True), of_kinds)


def read_files(spark: SparkSession, base: str, paths: Sequence[str]) -> DataFrame:
    """Return folders of an archive as a table; columns from folder names get their types."""
    from pyspark.sql import functions

    with _INFERRING:
        inferred = spark.conf.get(_INFERRED)
        # Spark would take a topic's name of digits for a number.
        spark.conf.set(_INFERRED, "false")
        reader = spark.read.options(**NO_PATTERNS, **NONE_LEFT_OUT, basePath=base)
        try:
            frame: DataFrame = reader.parquet(*paths)
        finally:
            spark.conf.set(_INFERRED, inferred)
    typed = {"batch": "int(batch)", "date": "date(date)", "hour": "int(hour)"}
    if FROM_BATCH in frame.columns:
        typed["batch"] = FROM_BATCH
    for name in set(typed) & set(frame.columns):
        frame = frame.withColumn(name, functions.expr(typed[name]))
    table: DataFrame = frame.drop(FROM_BATCH)
    return table


def _named(names: Sequence[str], prefix: str, suffix: str = "") -> Iterator[BatchName]:
    for each in names:
        is_such = each.startswith(prefix) and each.endswith(suffix)
        if is_such and (name := BatchName.read(each.removeprefix(prefix).removesuffix(suffix))):
            yield name
