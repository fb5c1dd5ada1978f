"""`archive-compact`: merge many small files of an archive into few large ones.

Neighbouring batches become one, whose folder and manifest name the first and the last of them. Its
files are written where no reader looks, read again, and compared with the manifests: the number of
rows, and the checksum over them. Then they are moved to their place. With the new manifest, the old
batches no longer count; what is left of them is removed, now or by the next run. If the job is
killed, the archive is intact.

While it runs, and after a kill until it runs again, a reader that ignores manifests may see the
messages of a batch twice, or fail when files are removed. `archive` may run meanwhile; another
`archive-compact` may not.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.pipeline.errors import OptionError, PipelineError
from cometmq.pipeline.jobs.archive_files import (
    CHECKSUM,
    COMPACTING,
    COMPRESSIONS,
    FROM_BATCH,
    Manifest,
    batches,
    merged_away,
    read_batches,
    read_files,
    require_batches,
    require_compression,
    unfinished,
)
from cometmq.pipeline.jobs.archive_kinds import refuse_table
from cometmq.pipeline.jobs.folders import NO_PATTERNS, Folder
from cometmq.pipeline.jobs.full_disks import told_if_full
from cometmq.pipeline.jobs.holding import UPKEEP, Places, held, in_folders
from cometmq.pipeline.jobs.job import Job, Run, check_settings, running, setting
from cometmq.pipeline.jobs.tables import by_queue, span
from cometmq.pipeline.option_reading import read_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from cometmq.pipeline.jobs.archive_files import BatchName
    from cometmq.pipeline.jobs.report import Report, Span

_MASK: Final = (1 << 64) - 1
_ORDER: Final = (FROM_BATCH, "topic", "broker", "queue_id", "queue_offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactSettings:
    """What to compact, and how much."""

    archive: str = setting("The archive's folder.", metavar="DIR")
    file_size: str = setting("The size that files should reach.", "128m", metavar="SIZE")
    batch_size: str = setting("Merge at most this much into one batch.", "2g", metavar="SIZE")
    compression: str = setting(f"The compression of Parquet: {', '.join(COMPRESSIONS)}.", "zstd")

    def __post_init__(self) -> None:
        check_settings(self)
        if self.file_bytes < 1 << 20 or self.batch_bytes < self.file_bytes:
            raise OptionError("file-size: must be at least 1m, and at most --batch-size")
        require_compression(self.compression)

    @property
    def file_bytes(self) -> int:
        """How large files are to become."""
        return read_size("file-size", self.file_size)

    @property
    def batch_bytes(self) -> int:
        """The largest size of a merged batch."""
        return read_size("batch-size", self.batch_size)


class _Batch(NamedTuple):
    """A batch, and the sizes of its files, by its folders."""

    manifest: Manifest
    files: dict[str, list[int]]

    @property
    def name(self) -> BatchName:
        return self.manifest.name

    @property
    def file_count(self) -> int:
        return sum(map(len, self.files.values()))

    @property
    def size(self) -> int:
        return sum(map(sum, self.files.values()))


def archive_compact(
    spark: SparkSession, settings: CompactSettings, run: Run | None = None
) -> Report:
    """Merge batches of small files, until few are left."""
    run = run or Run()
    report = run.report_of("archive-compact", counts_bytes=True)
    compacting = _Compacting(spark, settings)
    report.details.update(batches_merged=0, files_before=0, files_after=0)
    with running(spark, report), held(run, report.job, *in_folders(spark, _holds(settings))):
        if not run.dry_run:
            compacting.clean_up()
        for group in compacting.groups(run):
            if run.is_stopping:
                break
            before = sum(each.file_count for each in group)
            if run.dry_run:
                after = compacting.expected(group)
            else:
                after, spans = compacting.merge(group)
                report.cover(spans)
            rows = sum(each.manifest.rows for each in group)
            report.rows += rows
            report.count_bytes(sum(each.manifest.size for each in group))
            report.details["batches_merged"] += len(group)
            report.details["files_before"] += before
            report.details["files_after"] += after
            run.tell(
                batches=f"{group[0].name.first} to {group[-1].name.last}",
                rows=rows,
                files=f"{before} to {after}",
            )
        report.stopped = run.is_stopping
    return report


class _Compacting:
    """One run over an archive."""

    def __init__(self, spark: SparkSession, settings: CompactSettings) -> None:
        self._spark = spark
        self._settings = settings
        self.folder = Folder(spark, settings.archive)
        self._known_columns: dict[BatchName, str] = {}
        refuse_table(self.folder)
        require_batches(self.folder, "archive")

    def clean_up(self) -> None:
        """Remove what is left of merged batches and of unfinished merges."""
        never_there = [name.folder for name in unfinished(self.folder) if name.is_merged]
        for path in [*merged_away(self.folder), *never_there]:
            self.folder.remove(path)

    def groups(self, run: Run) -> Iterator[list[_Batch]]:
        """Yield neighbours that become one batch with fewer files, until the job is to stop."""
        group: list[_Batch] = []
        size = 0
        for each in self._batches(run):
            size += each.size
            if group and not (
                size <= self._settings.batch_bytes and self._go_together(group, each)
            ):
                if self._is_worth_it(group):
                    yield group
                group, size = [], each.size
            group.append(each)
        if self._is_worth_it(group):
            yield group

    def _batches(self, run: Run) -> Iterator[_Batch]:
        for name in batches(self.folder):
            if run.is_stopping:  # Looking at thousands of them takes minutes.
                return
            files: dict[str, list[int]] = defaultdict(list)
            for path, size in self.folder.files(name.folder):
                files[path.rpartition("/")[0]].append(size)
            yield _Batch(Manifest.read(self.folder, name), files)

    def _go_together(self, group: Sequence[_Batch], other: _Batch) -> bool:
        """Whether a batch follows others and has the same folders and columns, if it has any."""
        last, next_one = group[-1].manifest, other.manifest
        follows = last.name.last + 1 == next_one.name.first
        if not follows or list(last.parts) != list(next_one.parts):
            return False
        columns = next((text for each in group if (text := self._columns(each))), "")
        return not columns or self._columns(other) in ("", columns)

    def _columns(self, batch: _Batch) -> str:
        """Return the columns of a batch's files with their types; '' if it has no files."""
        if batch.name not in self._known_columns:
            files = self.folder.files(batch.name.folder)
            of = [self.folder.of(batch.name.folder, path) for path, _ in files[:1]]
            frame = self._spark.read.options(**NO_PATTERNS).parquet(*of) if of else None
            known = frame.drop(FROM_BATCH).schema.json() if frame is not None else ""
            self._known_columns[batch.name] = known
        return self._known_columns[batch.name]

    def _is_worth_it(self, group: Sequence[_Batch]) -> bool:
        before = sum(each.file_count for each in group)
        # At least half of the files must go, so that repeated merging costs little.
        return len(group) > 1 and 0 < self.expected(group) * 2 <= before

    def expected(self, group: Sequence[_Batch]) -> int:
        """Return how many files there will be: in each folder as many as its size needs."""
        together: dict[str, int] = defaultdict(int)
        for each in group:
            for folder, sizes in each.files.items():
                together[folder] += sum(sizes)
        return sum(-(-size // self._settings.file_bytes) for size in together.values())

    def merge(self, group: Sequence[_Batch]) -> tuple[int, list[Span]]:
        """Merge batches; return how many files the new one has, and its ranges of queues."""
        folder = self.folder
        manifest = reduce(Manifest.followed_by, (each.manifest for each in group))
        staged = f"{COMPACTING}/{manifest.name}"
        folder.remove(staged)
        frame = read_batches(self._spark, folder, [each.name for each in group if each.files])
        self._write(frame, manifest, sum(each.size for each in group), folder.of(staged))
        folder.remove(staged, "_SUCCESS")
        spans = self._compare(manifest, folder.of(staged))
        count = len(folder.files(staged))
        self._look_for_others(group)
        folder.remove(manifest.name.folder)
        folder.rename(staged, manifest.name.folder)
        manifest.write(folder)
        self.clean_up()
        return count, spans

    def _look_for_others(self, group: Sequence[_Batch]) -> None:
        """Refuse to merge what another run has merged meanwhile: it would exist twice."""
        there = {*batches(self.folder)}
        if gone := [str(each.name) for each in group if each.name not in there]:
            raise PipelineError(
                f"batches {', '.join(gone)}: another archive-compact has merged them; run only"
                " one of them at a time"
            )

    def _write(self, frame: DataFrame, manifest: Manifest, size: int, path: str) -> None:
        from pyspark.sql import functions

        parts = manifest.parts
        rows_of_file = max(manifest.rows * self._settings.file_bytes // size, 1)
        frame = frame.withColumnRenamed("batch", FROM_BATCH)
        if "hour" in parts:
            frame = frame.withColumn("hour", functions.expr("lpad(hour, 2, '0')"))
        frame = frame.repartition(*parts) if parts else frame.repartition(1)
        writer = frame.sortWithinPartitions(*parts, *_ORDER).write.mode("overwrite")
        writer = writer.option("compression", self._settings.compression)
        writer = writer.option("maxRecordsPerFile", rows_of_file)
        with told_if_full(self.folder.path):
            (writer.partitionBy(*parts) if parts else writer).parquet(path)

    def _compare(self, manifest: Manifest, path: str) -> list[Span]:
        """Refuse files that do not have what the manifests say; return their ranges of queues."""
        from pyspark.sql import functions

        frame = read_files(self._spark, path, [path])
        queues = by_queue(frame, functions.expr(CHECKSUM).alias("checksum")).collect()
        rows = sum(each["rows"] for each in queues)
        checksum = 0
        for each in queues:
            checksum ^= each["checksum"] & _MASK
        if (rows, checksum) != (manifest.rows, manifest.checksum & _MASK):
            raise PipelineError(
                f"batches {manifest.name}: their files hold {rows} rows with checksum"
                f" {checksum:016x}, but their manifests say {manifest.rows} with"
                f" {manifest.checksum & _MASK:016x}; nothing was changed. `cometmq pipeline"
                " reconcile` tells what is missing"
            )
        return [span(each) for each in queues]


def _holds(settings: CompactSettings) -> Places:
    return ((settings.archive, UPKEEP),)


JOB: Final = Job(
    "archive-compact",
    CompactSettings,
    archive_compact,
    "Merge an archive's many small files into few large ones.",
    about=(
        "It may run beside `archive`, and beside readers that go by the manifests, as `replay`"
        " and `reconcile` do. If it is killed, run it again."
    ),
    examples=("archive-compact --archive /data/orders",),
    holds=_holds,
)
