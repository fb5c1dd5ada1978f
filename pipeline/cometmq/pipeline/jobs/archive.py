"""`archive`: write topics to Parquet, each message in exactly one file, or to a table.

For tables see `archive_delta` and `archive_iceberg`, for the layout of a Parquet archive
`archive_files`. A batch is written into `_staging`, where no reader looks, and then renamed to its
place; its manifest follows. A batch that is repeated after a crash has the same messages (the
source ensures that), so one with a manifest is kept and any other is replaced. So a reader always
sees only whole batches, each once, whether or not it reads manifests; but while `archive-compact`
runs, it must read them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs.adopting import last_messages
from cometmq.pipeline.jobs.archive_delta import ToDelta
from cometmq.pipeline.jobs.archive_files import (
    CHECKSUM,
    COMPRESSIONS,
    PARTS,
    BatchName,
    Manifest,
    Watched,
    again_if_merged,
    batches,
    ends_of_both,
    place_of,
    read_archive,
    require_compression,
    while_there,
)
from cometmq.pipeline.jobs.archive_iceberg import ToIceberg
from cometmq.pipeline.jobs.archive_kinds import DELTA, ICEBERG, KINDS, PARQUET
from cometmq.pipeline.jobs.archive_writing import Archiving, Last
from cometmq.pipeline.jobs.extras import require_extra
from cometmq.pipeline.jobs.folders import STAGING, refuse_batches, stranger_in
from cometmq.pipeline.jobs.hidden_queues import tell_of_unread
from cometmq.pipeline.jobs.holding import BATCHES, STREAM, Places, held, in_folders
from cometmq.pipeline.jobs.iceberg_catalogs import require_name
from cometmq.pipeline.jobs.job import Job, Run, running, setting
from cometmq.pipeline.jobs.json_bodies import with_text, with_value
from cometmq.pipeline.jobs.streams import (
    ROWS_OF_BATCH,
    CopySettings,
    StreamSettings,
    check_checkpoint,
    look_for_topics,
    observed,
    read_stream,
    run_batches,
    tell_of_no_topic,
    would_read,
)
from cometmq.pipeline.jobs.torn_checkpoints import ENDS, mend
from cometmq.pipeline.option_reading import listed, read_size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from cometmq.pipeline.cluster import Queue
    from cometmq.pipeline.jobs.report import Report
    from cometmq.pipeline.offsets import First

_CHECKPOINT: Final = "_checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSettings(CopySettings):
    """What to archive, and where to."""

    to: str = setting("The archive's folder; any location that Spark can write to.", metavar="DIR")
    format: str = setting(
        f"{PARQUET}; {DELTA}, which needs deltalake; or {ICEBERG}, which needs pyiceberg.",
        PARQUET,
    )
    table: str = setting(
        f"For {ICEBERG}: the table in a catalog that PyIceberg is configured for.",
        "",
        metavar="CATALOG.NAMESPACE.TABLE",
    )
    partition_by: str = setting("Subfolders of a batch: any of topic, date, hour.", "topic,date")
    body: str = setting("How bodies are stored: raw (binary) or text.", "raw")
    schema: str = setting(
        "Parse JSON bodies by this schema (Spark's DDL) into an extra column `value`.", ""
    )
    compression: str = setting(f"The compression of Parquet: {', '.join(COMPRESSIONS)}.", "zstd")
    file_size: str = setting(
        "How large a file may become, as far as earlier batches tell how large rows are.",
        "128m",
        metavar="SIZE",
    )
    max_rows: int = setting(ROWS_OF_BATCH, 1_000_000)
    checkpoint: str = setting(
        "The folder for its progress; by default inside the archive.", "", metavar="DIR"
    )
    adopt: bool = setting("Continue an archive that was started with another checkpoint.", False)
    guard: int = setting(
        "Warn when the next message to read is among the oldest N percent that brokers keep.", 10
    )

    def __post_init__(self) -> None:
        StreamSettings.__post_init__(self)
        if self.format not in KINDS:
            raise OptionError(f"format: {self.format!r} is none of {', '.join(KINDS)}")
        require_extra("format", self.format)
        if self.table:
            if self.format != ICEBERG:
                raise OptionError(f"table: {self.table} needs --format {ICEBERG}")
            require_name(self.table)
        for each in self.parts:
            if each not in PARTS:
                raise OptionError(f"partition-by: {each!r} is not one of {', '.join(PARTS)}")
            if self.parts.count(each) > 1:
                raise OptionError(f"partition-by: {each} is there twice")
        if self.body not in ("raw", "text"):
            raise OptionError(f"body: {self.body!r} is neither raw nor text")
        if not 0 <= self.guard <= 100:
            raise OptionError(f"guard: {self.guard} must be a percentage, from 0 to 100")
        require_compression(self.compression)
        if not 1 << 20 <= self.file_bytes <= 1 << 40:
            raise OptionError("file-size: must be at least 1m, and at most 1024g")

    @property
    def file_bytes(self) -> int:
        """How large a file may become."""
        return read_size("file-size", self.file_size)

    @property
    def checkpoint_folder(self) -> str:
        """The folder for its progress."""
        return self.checkpoint or f"{self.to.rstrip('/')}/{_CHECKPOINT}"

    @property
    def parts(self) -> list[str]:
        """The keys by which a batch is divided into folders."""
        return listed(self.partition_by)


def archive(spark: SparkSession, settings: ArchiveSettings, run: Run | None = None) -> Report:
    """Archive topics: once or continuously, as `trigger` says."""
    run = run or Run()
    report = run.report_of("archive", counts_bytes=True)
    archiving = _KINDS[settings.format](spark, settings, report, run)
    with running(spark, report), held(run, report.job, *in_folders(spark, _holds(settings))):
        if not run.dry_run:
            mend(archiving.checkpoint, run)  # Batch numbers depend on it.
        prepared = archiving.prepare()
        check_checkpoint(archiving.checkpoint, run, report)
        archiving.refuse_missing()
        tell_of_no_topic(settings, run)
        if run.dry_run:
            report.details["would_read"] = would_read(spark, prepared)
            return report
        frame = observed(read_stream(spark, prepared, **archiving.absent), settings)
        if settings.schema:
            frame = with_value(with_text(frame), settings.schema).drop("text")
        archiving.begin()
        report.details["files_in"] = settings.to
        frame = archiving.observed(frame)
        run_batches(frame, archiving.batch, settings, run, report)
        tell_of_unread(settings, archiving.checkpoint, run)
    return report


def _holds(settings: ArchiveSettings) -> Places:
    return (settings.to, BATCHES), (settings.checkpoint_folder, STREAM)


class _ToParquet(Archiving):
    """An archive of files and manifests."""

    def last(self) -> Last | None:
        """Return what the last manifest says."""
        if not batches(self.folder):
            if not self.checkpoint.names(ENDS):  # Otherwise a crash may have left it.
                refuse_batches(self.folder)
            if name := stranger_in(self.folder):
                self.run.tell(
                    warning=f"{self.folder.path} contains {name}, which is not part of an archive;"
                    " whoever reads the folder as a table reads that, too"
                )
            return None
        last = while_there(self.folder, self._last_of)
        return Last(
            number=last.name.last,
            query_id=last.query_id,
            parts=last.parts,
            schema=last.schema,
            ends=last.ends,
        )

    def _last_of(self, there: list[BatchName]) -> Manifest:
        last = Manifest.read(self.folder, there[-1])
        sizes = [size for _, size in self.folder.files(last.name.folder)]
        self.learn(len(sizes), sum(sizes), last.rows)
        return last

    def reached(self, last: Last) -> dict[str, Any]:
        """Return the ends in all manifests."""
        del last

        def ends(there: list[BatchName]) -> dict[str, Any]:
            return reduce(
                ends_of_both, (Manifest.read(self.folder, name).ends for name in there), {}
            )

        return while_there(self.folder, ends)

    def last_messages(self) -> dict[Queue, First]:
        """Find the last messages in the rows of all batches, even while `archive-compact` runs."""
        if not while_there(self.folder, self._have_files):
            return {}
        return again_if_merged(
            [Watched(self.folder)],
            lambda: last_messages(read_archive(self.spark, self.folder.path)),
        )

    def _have_files(self, there: list[BatchName]) -> bool:
        return any(self.folder.has_files(name.folder) for name in there)

    def begin(self) -> None:
        """Note how batches are numbered, and remove what a crash left behind."""
        super().begin()
        self.folder.remove(STAGING)

    def write(self, frame: DataFrame, number: int, batch_id: int) -> None:
        """Write its files, and then its manifest."""
        from pyspark.sql import Observation, functions

        name = BatchName(number, number)
        # A repeated batch may have been merged with others meanwhile.
        if number <= self.last_written and self._is_there(name):
            self._require_same(name, batch_id)
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
        self.folder.write_table(
            frame,
            name.folder,
            parts=self.parts,
            compression=self.settings.compression,
            rows_of_file=self.rows_of_file,
        )
        sizes = [size for _, size in self.folder.files(name.folder)]
        self.count_files(sizes)
        manifest = self._manifest(self.written(number, batch_id), dict(seen.get))
        manifest.write(self.folder)
        self.learn(len(sizes), sum(sizes), manifest.rows)
        self.guard.look(manifest.ends)

    def _is_there(self, name: BatchName) -> bool:
        return any(each.holds(name) for each in batches(self.folder))

    def _require_same(self, name: BatchName, batch_id: int) -> None:
        """Refuse a batch that exists but ends elsewhere."""

        def look(there: list[BatchName]) -> Manifest:
            return Manifest.read(self.folder, place_of(name, there))

        found = while_there(self.folder, look)
        ends = self.written(name.last, batch_id).ends
        same = {topic: found.ends.get(topic) for topic in ends}  # A merged one may have others.
        if found.name.last != name.last or same != ends:
            raise self.ends_elsewhere(name)

    def _manifest(self, batch: Last, seen: dict[str, Any]) -> Manifest:
        size = seen["bytes"] or 0
        self.report.count_bytes(size)
        if "misfits" in seen:
            self.report.count("misfits", seen["misfits"])
        return Manifest(
            name=BatchName(batch.number, batch.number),
            query_id=batch.query_id,
            first_query_id=batch.query_id,
            rows=seen["rows"],
            size=size,
            checksum=seen["checksum"] or 0,
            parts=batch.parts,
            schema=batch.schema,
            ends=batch.ends,
        )


_KINDS: Final[Mapping[str, Callable[[SparkSession, ArchiveSettings, Report, Run], Archiving]]] = {
    PARQUET: _ToParquet,
    DELTA: ToDelta,
    ICEBERG: ToIceberg,
}

JOB: Final = Job(
    "archive",
    ArchiveSettings,
    archive,
    "Keep topics as Parquet, Delta or Iceberg.",
    about=(
        "Each message ends up in exactly one file, whatever is killed when. The progress is"
        " kept in the archive itself, so running the same command again continues where the"
        " last run ended. With --trigger it keeps running and archives what arrives."
    ),
    examples=(
        "archive --topic orders --to /data/orders",
        "archive --topic orders,refunds --to s3a://bucket/mq --trigger '1 minute'",
        "archive --topic orders --to /data/orders --dry-run",
    ),
    holds=_holds,
    look=look_for_topics,
)
