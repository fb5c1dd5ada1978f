"""`archive`: topics to Parquet, each message in exactly one file.

`archive_files` shows what the folder looks like. A batch is written into `_staging`, where no
reader looks, and takes its place by being renamed; its manifest follows. A batch that is repeated
after a crash is the same messages (the source sees to that), so one whose manifest is there is left
as it is, and any other is replaced. So at every moment a reader sees whole batches only, each once,
whether it reads manifests or not; but while `archive-compact` runs, it has to read them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs.archive_files import (
    CHECKSUM,
    PARTS,
    BatchName,
    Manifest,
    batches,
)
from cometmq.pipeline.jobs.expiry_guard import ExpiryGuard
from cometmq.pipeline.jobs.folders import STAGING, Folder
from cometmq.pipeline.jobs.job import Job, Report, Run, setting, timed
from cometmq.pipeline.jobs.json_bodies import with_text, with_value
from cometmq.pipeline.jobs.streams import (
    ONCE,
    CopySettings,
    StreamSettings,
    look_for_topics,
    next_batch,
    query_id,
    read_stream,
    run_batches,
    source_end,
    still_there,
    would_read,
)
from cometmq.pipeline.options import EARLIEST

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CHECKPOINT: Final = "_checkpoint"
_NUMBERS: Final = "archive.json"
"""In the checkpoint: the number of its first batch, where the archive had others before."""
_COMPRESSIONS: Final = ("zstd", "snappy", "gzip", "none")
_FILE_SMALL: Final = 8 << 20
"""Bytes of a file, below which reading many of them takes longer than what is in them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSettings(CopySettings):
    """What to archive, and where to."""

    to: str = setting("The folder of the archive; any that Spark can write to.", metavar="DIR")
    partition_by: str = setting("Of topic, date, hour: the folders of a batch.", "topic,date")
    body: str = setting("raw (binary) or text.", "raw")
    schema: str = setting(
        "Of JSON bodies, in Spark's DDL: a column `value` has what is in them, too.", ""
    )
    compression: str = setting(f"Of Parquet: {', '.join(_COMPRESSIONS)}.", "zstd")
    max_rows: int = setting("Messages of a batch, at most.", 1_000_000)
    checkpoint: str = setting("Where it keeps how far it is; in the archive, unless said.", "")
    adopt: bool = setting("Go on in a folder that another checkpoint began.", False)
    guard: int = setting(
        "Warn when what comes next is among the oldest N percent of what brokers still have.", 10
    )

    def __post_init__(self) -> None:
        StreamSettings.__post_init__(self)
        for each in self.parts:
            if each not in PARTS:
                raise OptionError(f"partition-by: {each!r} is none of {', '.join(PARTS)}")
        if self.body not in ("raw", "text"):
            raise OptionError(f"body: {self.body!r} is neither raw nor text")
        if not 0 <= self.guard <= 100:
            raise OptionError(f"guard: {self.guard} is no number of percent")
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
    archiving = _Archiving(spark, settings, report, run)
    with timed(report):
        if run.dry_run:
            report.details["would_read"] = would_read(spark, settings, archiving.checkpoint)
            return report
        frame = read_stream(spark, archiving.prepare())
        if settings.schema:
            frame = with_value(with_text(frame), settings.schema).drop("text")
        archiving.begin()
        report.details["files_in"] = settings.to
        run_batches(frame, archiving.batch, archiving.checkpoint, settings, run, report)
    return report


class _Archiving:
    """One archive that is being written."""

    def __init__(
        self, spark: SparkSession, settings: ArchiveSettings, report: Report, run: Run
    ) -> None:
        self.spark = spark
        self.settings = settings
        self.report = report
        self.run = run
        self.folder = Folder(spark, settings.to)
        self.checkpoint = settings.checkpoint_folder
        self.parts = settings.parts
        self._first_number = 0
        self._last_written = -1
        self._adopted_number: int | None = None
        self._warned_of_files = False
        self._guard = ExpiryGuard(settings, settings.guard, run, report)

    def prepare(self) -> ArchiveSettings:
        """Refuse a folder that cannot be gone on with; return the settings with where to begin."""
        checkpoint = Folder(self.spark, self.checkpoint)
        if checkpoint.exists(_NUMBERS):
            self._first_number = json.loads(checkpoint.read(_NUMBERS))["first_number"]
        if not (written := batches(self.folder)):
            return self.settings
        last = Manifest.read(self.folder, written[-1])
        self._last_written = last.name.last
        for option, before, now in (
            ("partition-by", list(last.parts), self.parts),
            ("schema", last.schema, self.settings.schema),
        ):
            if before != now:
                raise OptionError(
                    f"{option}: {self.settings.to} was begun with {before or 'none'!r}, and a table"
                    " has the same columns throughout; choose another folder, or say the same"
                )
        if last.query_id == query_id(checkpoint):
            return self.settings
        if not self.settings.adopt:
            raise OptionError(
                f"to: {self.settings.to} was begun with another checkpoint than"
                f" {self.checkpoint}; with that, messages would be there twice or be left out."
                " Choose another folder, or say --adopt"
            )
        self._adopted_number = self._last_written + 1 - next_batch(checkpoint)
        if self.settings.start != EARLIEST or checkpoint.names("offsets"):
            return self.settings
        return replace(self.settings, start=json.dumps(self._reached_of(last)))

    def _reached_of(self, last: Manifest) -> dict[str, Any]:
        """Return where the archive ends, of the queues that there are: a new checkpoint goes on."""
        reached: dict[str, Any] = {}
        for topic, broker, queue_id in still_there(self.settings):
            offset = last.ends.get(topic, {}).get(broker, {}).get(str(queue_id))
            if offset is not None:
                reached.setdefault(topic, {}).setdefault(broker, {})[str(queue_id)] = offset
        return reached

    def begin(self) -> None:
        """Note how batches are numbered, and remove what a crash left."""
        if self._adopted_number is not None:
            self._first_number = self._adopted_number
            document = json.dumps({"first_number": self._first_number})
            Folder(self.spark, self.checkpoint).write(document + "\n", _NUMBERS)
        self.folder.remove(STAGING)

    def batch(self, frame: DataFrame, batch_id: int) -> None:
        """Write one batch, unless it is there."""
        from pyspark.sql import Observation, functions

        number = self._first_number + batch_id
        name = BatchName(number, number)
        # One that was repeated may have been merged with others meanwhile.
        if number <= self._last_written and self._is_there(name):
            return
        counted = {"rows": "count(*)", "bytes": "sum(length(body))", "checksum": CHECKSUM}
        if self.settings.schema:
            counted["misfits"] = "count_if(value IS NULL)"
        seen = Observation()
        frame = frame.observe(
            seen, *(functions.expr(sql).alias(name) for name, sql in counted.items())
        )
        if self.settings.body == "text":
            frame = frame.withColumn("body", functions.expr("cast(body AS string)"))
        for part in self.parts:
            if part != "topic":
                frame = frame.withColumn(part, functions.expr(PARTS[part]))
        self.folder.write_table(
            frame, name.folder, parts=self.parts, compression=self.settings.compression
        )
        self._count_files(name.folder)
        manifest = self._manifest(name, batch_id, dict(seen.get))
        manifest.write(self.folder)
        self._guard.look(manifest.ends)

    def _is_there(self, name: BatchName) -> bool:
        return any(each.holds(name) for each in batches(self.folder))

    def _manifest(self, name: BatchName, batch_id: int, seen: dict[str, Any]) -> Manifest:
        checkpoint = Folder(self.spark, self.checkpoint)
        size = seen["bytes"] or 0
        self.report.size = (self.report.size or 0) + size
        if "misfits" in seen:
            misfits = self.report.details.get("misfits", 0)
            self.report.details["misfits"] = misfits + seen["misfits"]
        return Manifest(
            name=name,
            query_id=query_id(checkpoint),
            rows=seen["rows"],
            size=size,
            checksum=seen["checksum"] or 0,
            parts=self.parts,
            schema=self.settings.schema,
            ends=source_end(checkpoint, batch_id)["queues"],
        )

    def _count_files(self, batch: str) -> None:
        """Note how many files a batch has, and warn when a trigger makes them too small."""
        sizes = [size for _, size in self.folder.files(batch)]
        details = self.report.details
        details["files"] = details.get("files", 0) + len(sizes)
        details["file_bytes"] = details.get("file_bytes", 0) + sum(sizes)
        is_small = sum(sizes) < _FILE_SMALL * len(sizes)
        if is_small and self.settings.trigger != ONCE and not self._warned_of_files:
            self._warned_of_files = True
            self.run.tell(
                warning=f"files of {sum(sizes) // len(sizes)} bytes: a longer --trigger or fewer"
                " folders make larger ones, and `archive-compact` makes one of many"
            )


JOB: Final = Job(
    "archive",
    ArchiveSettings,
    archive,
    "Topics to Parquet, each message once.",
    look=look_for_topics,
)
