"""`archive`: topics to Parquet, each message in exactly one file.

::

    TO/batch=000012/topic=orders/date=2026-11-21/part-….parquet
    TO/_manifests/000012.json     what is in the batch: offsets, rows, a checksum
    TO/_checkpoint/               how far the stream is
    TO/_staging/                  what is being written

How it works. A batch is written into `_staging`, where no reader looks, and takes its place by
being renamed; its manifest follows. A batch that is repeated after a crash is the same messages
(the source sees to that), so one whose manifest is there is left as it is, and any other is
replaced. So at every moment a reader sees whole batches only, each once, whether it reads manifests
or not.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs.job import Job, Report, Run, setting, timed
from cometmq.pipeline.jobs.streams import (
    CopySettings,
    Folder,
    StreamSettings,
    look_for_topics,
    query_id,
    read_stream,
    run_batches,
    source_end,
    would_read,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MANIFESTS: Final = "_manifests"
_STAGING: Final = "_staging"
_CHECKPOINT: Final = "_checkpoint"
_PARTS: Final = {
    "topic": "topic",
    "date": "date_format(store_time, 'yyyy-MM-dd')",
    "hour": "date_format(store_time, 'HH')",
}
"""By what the files of a batch can be told apart, and how a row says it."""
_COMPRESSIONS: Final = ("zstd", "snappy", "gzip", "none")
_CHECKSUM: Final = "bit_xor(xxhash64(topic, broker, queue_id, queue_offset, body))"
"""The same in whichever order the rows are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSettings(CopySettings):
    """What to archive, and where to."""

    to: str = setting("The folder of the archive; any that Spark can write to.", metavar="DIR")
    partition_by: str = setting("Of topic, date, hour: the folders of a batch.", "topic,date")
    body: str = setting("raw (binary) or text.", "raw")
    compression: str = setting(f"Of Parquet: {', '.join(_COMPRESSIONS)}.", "zstd")
    max_rows: int = setting("Messages of a batch, at most.", 1_000_000)
    checkpoint: str = setting("Where it keeps how far it is; in the archive, unless said.", "")
    adopt: bool = setting("Go on in a folder that another checkpoint began.", False)

    def __post_init__(self) -> None:
        StreamSettings.__post_init__(self)
        for each in self.parts:
            if each not in _PARTS:
                raise OptionError(f"partition-by: {each!r} is none of {', '.join(_PARTS)}")
        if self.body not in ("raw", "text"):
            raise OptionError(f"body: {self.body!r} is neither raw nor text")
        if self.compression not in _COMPRESSIONS:
            raise OptionError(
                f"compression: {self.compression!r} is none of {', '.join(_COMPRESSIONS)}"
            )

    @property
    def checkpoint_folder(self) -> str:
        """Where it keeps how far it is."""
        return self.checkpoint or f"{self.to.rstrip('/')}/{_CHECKPOINT}"

    @property
    def parts(self) -> list[str]:
        """What the folders of a batch are by."""
        return [each.strip() for each in self.partition_by.split(",") if each.strip()]


def archive(spark: SparkSession, settings: ArchiveSettings, run: Run | None = None) -> Report:
    """Archive topics: what there is, or on and on, as `trigger` says."""
    run = run or Run()
    report = run.report_of("archive")
    archiving = _Archiving(spark, settings, report)
    with timed(report):
        if run.dry_run:
            report.details["would_read"] = would_read(spark, settings, archiving.checkpoint)
            return report
        archiving.prepare()
        report.details["files_in"] = settings.to
        frame = read_stream(spark, settings)
        run_batches(frame, archiving.batch, archiving.checkpoint, settings, run, report)
    return report


class _Archiving:
    """One archive that is being written."""

    def __init__(self, spark: SparkSession, settings: ArchiveSettings, report: Report) -> None:
        self.spark = spark
        self.settings = settings
        self.report = report
        self.folder = Folder(spark, settings.to)
        self.checkpoint = settings.checkpoint_folder
        self.parts = settings.parts

    def prepare(self) -> None:
        """Refuse a folder that somebody else writes, and remove what a crash left."""
        ours = query_id(Folder(self.spark, self.checkpoint))
        written = manifests(self.folder)
        if written and not self.settings.adopt:
            theirs = json.loads(self.folder.read(_MANIFESTS, written[-1]))["query_id"]
            if theirs != ours:
                raise OptionError(
                    f"to: {self.settings.to} was begun with another checkpoint than"
                    f" {self.checkpoint}; with that, messages would be there twice or be left out."
                    " Choose another folder, or say --adopt"
                )
        self.folder.remove(_STAGING)

    def batch(self, frame: DataFrame, batch_id: int) -> None:
        """Write one batch, unless it is there."""
        from pyspark.sql import Observation, functions

        name = f"{batch_id:06d}"
        if self.folder.exists(_MANIFESTS, f"{name}.json"):
            return
        seen = Observation()
        frame = frame.observe(
            seen,
            functions.expr("count(*)").alias("rows"),
            functions.expr("sum(length(body))").alias("bytes"),
            functions.expr(_CHECKSUM).alias("checksum"),
        )
        if self.settings.body == "text":
            frame = frame.withColumn("body", functions.expr("cast(body AS string)"))
        for part in self.parts:
            if part != "topic":
                frame = frame.withColumn(part, functions.expr(_PARTS[part]))
        staged = f"{_STAGING}/{name}"
        writer = frame.write.mode("overwrite").option("compression", self.settings.compression)
        (writer.partitionBy(*self.parts) if self.parts else writer).parquet(self.folder.of(staged))
        self.folder.remove(staged, "_SUCCESS")
        self.folder.remove(f"batch={name}")
        self.folder.rename(staged, f"batch={name}")
        self._write_manifest(name, batch_id, dict(seen.get))

    def _write_manifest(self, name: str, batch_id: int, seen: dict[str, Any]) -> None:
        checkpoint = Folder(self.spark, self.checkpoint)
        self.report.size = (self.report.size or 0) + (seen["bytes"] or 0)
        document = {
            "batch": batch_id,
            "query_id": query_id(checkpoint),
            "rows": seen["rows"],
            "bytes": seen["bytes"] or 0,
            "checksum": f"{(seen['checksum'] or 0) & (1 << 64) - 1:016x}",
            "partition_by": self.parts,
            "ends": source_end(checkpoint, batch_id)["queues"],
        }
        self.folder.write(json.dumps(document, indent=2) + "\n", _MANIFESTS, f"{name}.json")


def read_archive(spark: SparkSession, path: str) -> DataFrame:
    """Return an archive as a table: the batches that have a manifest."""
    folder = Folder(spark, path)
    batches = [folder.of(f"batch={name.removesuffix('.json')}") for name in manifests(folder)]
    if not batches:
        raise OptionError(f"from: {path} is no archive, or has nothing in it")
    frame: DataFrame = spark.read.option("basePath", path).parquet(*batches)
    return frame


def manifests(folder: Folder) -> list[str]:
    """Return the names of the manifests of an archive, the oldest first."""
    names = [name for name in folder.names(_MANIFESTS) if name.endswith(".json")]
    return sorted(names, key=lambda name: int(name.removesuffix(".json")))  # 1000000 is behind.


JOB: Final = Job(
    "archive",
    ArchiveSettings,
    archive,
    "Topics to Parquet, each message once.",
    look=look_for_topics,
)
