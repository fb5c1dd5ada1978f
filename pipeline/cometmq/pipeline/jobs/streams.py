"""The common part of jobs that read topics as a stream: where from, how often, how they end."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from cometmq.pipeline import bounds
from cometmq.pipeline.errors import DamagedFileError, DataLossError, OptionError, WorkerLateError
from cometmq.pipeline.filter_check import require_filter
from cometmq.pipeline.jobs.checkpoint_owners import has_begun, note_job, refuse_others
from cometmq.pipeline.jobs.credentials import NOBODY, Credentials
from cometmq.pipeline.jobs.folders import Folder
from cometmq.pipeline.jobs.full_disks import told_if_full
from cometmq.pipeline.jobs.job import check_settings, setting
from cometmq.pipeline.jobs.local_paths import local_path
from cometmq.pipeline.jobs.option_words import OPTIONS, in_words_of_the_command
from cometmq.pipeline.jobs.torn_checkpoints import (
    ENDS,
    LOST,
    STREAM,
    begins_anew,
    keep,
    keep_done,
    kept_state,
    last_done,
    mend,
    next_batch,
    numbers,
)
from cometmq.pipeline.jobs.writable import looked_at
from cometmq.pipeline.losses import note_here
from cometmq.pipeline.offsets import ranges, read_stream_offset
from cometmq.pipeline.options import EARLIEST, read_options
from cometmq.pipeline.spark_settings import interval_seconds, read_interval, spelled_out

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from cometmq.pipeline.cluster import Cluster, Queue, Survey
    from cometmq.pipeline.jobs.job import Run
    from cometmq.pipeline.jobs.report import Report
    from cometmq.pipeline.options import ReadOptions, WriteOptions

ONCE: Final = "once"
_TRIES: Final = 3
NO_BODY: Final = "count_if(length(body) = 0)"
"""SQL for the number of empty bodies. Brokers accept empty bodies, so they are copied."""
ROWS_OF_BATCH: Final = "Read at most this many messages per batch; 0 for no limit."
BAD_BODY: Final = "At a body that cannot be decompressed: fail, or skip and count it."


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """The settings that all such jobs have in common."""

    nameserver: str = setting("The name servers of the cluster to read.", metavar="HOST:PORT[;...]")
    credentials: Credentials = NOBODY
    topic: str = setting("The topics to read, separated by commas.", "", metavar="TOPIC[,...]")
    start: str = setting(
        "Where to begin the first time: earliest, latest, group:NAME, or JSON.",
        "earliest",
        metavar="WHERE",
    )
    filter: str = setting("Only messages that match these tags or this SQL92 condition.", "")
    group: str = setting(
        "Also commit the progress to this consumer group, so that its lag shows.",
        "",
        metavar="GROUP",
    )
    trigger: str = setting(
        "once (read what is there, then end), or an interval such as '1 second'.", "once"
    )
    checkpoint: str = setting("The folder for its progress.", metavar="DIR")
    fail_on_data_loss: bool = setting(
        "Fail if messages were lost before they were read: they expired, or the topic was deleted"
        " or recreated.",
        True,
    )
    on_bad_body: str = setting(BAD_BODY, "fail")

    @property
    def skips_bodies(self) -> bool:
        """Whether a body that is not as its flags say becomes null."""
        return self.on_bad_body != "fail"

    @property
    def checkpoint_folder(self) -> str:
        """The folder for its progress."""
        return self.checkpoint

    def __post_init__(self) -> None:
        check_settings(self)
        try:
            read_options(source_options(self))
        except OptionError as error:
            raise OptionError(in_words_of_the_command(str(error))) from None
        if self.trigger == ONCE:
            return
        if interval_seconds(self.trigger) is None:
            raise OptionError(f"trigger: {self.trigger!r} is neither once nor like '30 seconds'")
        read_interval("trigger", self.trigger)  # Checks its length.

    def refuse_sources(self, *options: str) -> None:
        """Refuse to write to a topic that is read: rows would be read again, for ever.

        `options` are the settings that name topics to write to.
        """
        for option in options:
            if (topic := getattr(self, option)) in self.sources:
                raise OptionError(
                    f"{option.replace('_', '-')}: {topic} is read, so all that is written to it"
                    " would be read again; give --force if that is what you want"
                )

    @property
    def sources(self) -> tuple[str, ...]:
        """The topics that are read, if they are named."""
        return read_options(source_options(self)).topics


@dataclass(frozen=True, slots=True, kw_only=True)
class CopySettings(StreamSettings):
    """The settings of jobs that copy topics unchanged."""

    topic_pattern: str = setting("Read all topics whose whole name matches.", "", metavar="REGEX")


def read_stream(
    spark: SparkSession, settings: StreamSettings, columns: str = "*", **more: str
) -> DataFrame:
    """Return the topics of the settings as a stream, with the named columns or all.

    Check them before Spark begins a checkpoint, as it would leave that behind.
    """
    if not has_begun(Folder(spark, settings.checkpoint_folder).names(ENDS)):
        _look_at_start(settings)
    reader = spark.readStream.format("cometmq").options(**source_options(settings), **more)
    if not settings.fail_on_data_loss:
        reader = reader.option("lossesNote", note_here(settings.checkpoint_folder))
    frame: DataFrame = reader.option("columns", columns).load()
    return frame


def counted(frame: DataFrame, settings: StreamSettings, **more: str) -> DataFrame:
    """Have Spark count the bytes of bodies that it reads, for the report, and `more` as SQL.

    If bad bodies are to be skipped, leave out their messages.
    """
    seen = observed(frame, settings, bytes="coalesce(sum(length(body)), 0)", **more)
    return seen.where("body IS NOT NULL") if settings.skips_bodies else seen


def observed(frame: DataFrame, settings: StreamSettings, **sums: str) -> DataFrame:
    """Have Spark compute sums and, if bad bodies are to be skipped, count them."""
    from pyspark.sql import functions

    if settings.skips_bodies:
        sums["bad_bodies"] = "count_if(body IS NULL)"
    if not sums:
        return frame
    columns = [functions.expr(sql).alias(name) for name, sql in sums.items()]
    seen: DataFrame = frame.observe("read", *columns)
    return seen


def look_for_topics(settings: StreamSettings) -> None:
    """Check topics and offsets before Spark is started, which takes a while.

    If the stream may have begun, only check that the cluster is there: the source reports losses.
    """
    checkpoint = local_path(settings.checkpoint_folder)
    if checkpoint is not None and not has_begun(_listed(checkpoint / ENDS)):
        _look_at_start(settings)
    else:
        require_cluster(read_options(source_options(settings)))


def tell_of_no_topic(settings: CopySettings, run: Run) -> None:
    """Warn if no topic matches the pattern; that is no error, as topics may be created later."""
    options, pattern = read_options(source_options(settings)), settings.topic_pattern
    if pattern and not options.retried(lambda: options.cluster().topics_like(pattern)):
        run.tell(warning=f"topic-pattern: no topic's whole name matches {pattern!r}")


def require_cluster(options: ReadOptions | WriteOptions) -> None:
    """Refuse to start if the cluster to read or write is away."""
    options.retried(options.cluster().require)


def _listed(folder: Path) -> list[str]:
    with looked_at("checkpoint", str(folder.parent)):
        return [each.name for each in folder.iterdir()] if folder.is_dir() else []


def _look_at_start(settings: StreamSettings) -> None:
    """Refuse a start that does not exist; that is no loss, as the stream has not begun."""
    try:
        _survey(read_options(source_options(settings)))
    except DataLossError as error:
        raise OptionError(str(error)) from None


def _survey(options: ReadOptions) -> tuple[Survey, dict[Queue, int]]:
    """Return what there is to read, and where reading begins."""
    cluster = options.cluster()
    found = bounds.survey(cluster, options, whole=True)
    bounds.require_topics(found, options)
    require_filter(cluster, options, found)
    return found, bounds.starts(cluster, options, found, EARLIEST)


def source_options(settings: StreamSettings) -> dict[str, str]:
    """Return the settings as options of the source."""
    # Also empty ones: without `start`, a stream would begin at the source's default, not the job's.
    values = {name: getattr(settings, name) for name in OPTIONS if hasattr(settings, name)}
    given = {OPTIONS[name]: str(value) for name, value in values.items()}
    return settings.credentials.at(settings.nameserver) | given


def check_checkpoint(checkpoint: Folder, run: Run, report: Report) -> None:
    """Refuse a checkpoint that is unusable or another job's; repair the effects of a power cut."""
    if not run.dry_run:
        mend(checkpoint, run)
    query_id(checkpoint)  # For a damaged one, Spark says neither which file it is nor what to do.
    refuse_others(checkpoint, report)


def would_read(spark: SparkSession, settings: StreamSettings, **how: bool) -> int:
    """Return how many messages a run would read now, not counting the effect of the filter.

    `how` is how a run would mend its checkpoint: what a power cut has torn is ignored.
    """
    options = read_options(source_options(settings))
    folder = Folder(spark, settings.checkpoint_folder)
    if (last := last_done(folder, **how)) >= 0:
        return _behind(options, source_end(folder, last))
    found, starts = _survey(options)
    return sum(each.end - starts[queue] for queue, each in found.queues.items())


def _behind(options: ReadOptions, start: dict[str, Any]) -> int:
    """Return how many messages follow a stream's position, as the stream itself will find.

    The stream knows how to treat missing queues, and what is a loss. No group's progress is set.
    """
    from pyspark.sql.streaming.datasource import ReadAllAvailable
    from pyspark.sql.types import StructType

    from cometmq.pipeline.stream_source import TopicStreamReader

    stream = TopicStreamReader(replace(options, group=""), StructType().add("topic", "string"))
    end = stream.latestOffset(start, ReadAllAvailable())
    if end == start:  # It still says where the last batch began.
        return 0
    left = ranges(read_stream_offset(start), read_stream_offset(end))
    return sum(each.end - each.first for each in left.values())


def there_now(settings: StreamSettings) -> tuple[Cluster, Survey]:
    """Return the cluster that is read, and what there is now."""
    options = read_options(source_options(settings))
    cluster = options.cluster()
    return cluster, bounds.survey(cluster, options, whole=False)


def last_begun(checkpoint: Folder) -> int:
    """Return the last batch of a stream that an earlier run has begun; -1 without one."""
    return max(numbers(checkpoint, ENDS), default=-1)


def triggered(writer: Any, trigger: str) -> Any:
    """Set the trigger: `once` reads what there is and ends; `30 seconds` runs until stopped."""
    if trigger == ONCE:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=spelled_out(trigger))


def run_batches(
    frame: DataFrame,
    each: Callable[[DataFrame, int], None],
    settings: StreamSettings,
    run: Run,
    report: Report,
    mode: str = "append",
) -> None:
    """Call `each` with every batch of a stream, until it ends or the job is to stop."""
    if run.is_stopping:  # Spark would plan the first batch before it is refused.
        report.stopped = True
        return
    kept = Folder(frame.sparkSession, settings.checkpoint_folder)
    state = kept_state(kept)

    def unless_stopping(batch: DataFrame, batch_id: int) -> None:
        run.begin_batch()
        keep(kept, batch_id)
        each(batch, batch_id)
        state.sync()  # After this, Spark notes that the batch is done.

    def ended() -> None:
        keep_done(kept, next_batch(kept) - 1)

    note_job(kept, report)
    writer = frame.writeStream.foreachBatch(unless_stopping).outputMode(mode)
    writer = writer.option("checkpointLocation", settings.checkpoint_folder)
    run_stream(writer, settings, run, report, ended, refuses_batches=True)


def run_stream(
    writer: Any,
    settings: StreamSettings,
    run: Run,
    report: Report,
    ended: Callable[[], None],
    *,
    begun: Callable[[], None] = lambda: None,
    refuses_batches: bool = False,
) -> None:
    """Run a stream until it ends or the job is to stop; `ended` makes its progress durable.

    On a busy machine, Spark gives up on a Python process that starts slowly, and on the stream with
    it. That is retried some times, from where the stream is.
    """
    for left in reversed(range(_TRIES)):
        when = triggered(writer.queryName(report.job), settings.trigger)
        with told_if_full(settings.checkpoint_folder):
            query: StreamingQuery = when.start()
        try:
            begun()
            run.watch(query, report, settings.checkpoint_folder, refuses_batches=refuses_batches)
        except WorkerLateError as error:
            if not left or run.is_stopping:
                raise
            run.tell(warning=f"{error}; trying again")
        else:
            return
        finally:
            query.stop()
            ended()


def query_id(checkpoint: Folder) -> str | None:
    """Return the id of the stream of a checkpoint; `None` before its first start."""
    if not checkpoint.exists(STREAM) or begins_anew(checkpoint):
        return None
    found: str = checkpoint.read_json(STREAM, if_damaged=LOST).get("id", "")
    return found


def source_end(checkpoint: Folder, batch_id: int) -> dict[str, Any]:
    """Return where a batch ends; Spark writes that before the batch begins."""
    lines = checkpoint.read(ENDS, str(batch_id)).splitlines()
    try:
        # The third line is the position of the only source.
        said: dict[str, Any] = json.loads(lines[2])
    except (IndexError, ValueError):
        raise DamagedFileError(f"{checkpoint.of(ENDS, str(batch_id))} is damaged: {LOST}") from None
    return said
