"""`mirror`: topics of one cluster kept in another, whichever of the two are Apache's.

A message keeps its body, keys, tag and properties; messages of one queue stay in order, for they go
to one queue there. To a cluster of CometMQ each goes once, however often the job is ended and
started again; to Apache's brokers at least once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs.job import Job, Report, Run, setting, timed
from cometmq.pipeline.jobs.streams import read_stream, triggered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorSettings:
    """What to mirror, and where to."""

    nameserver: str = setting("The cluster to read.", metavar="HOST:PORT[;...]")
    to_nameserver: str = setting("The cluster to write to.", metavar="HOST:PORT[;...]")
    topic: str = setting("Topics, separated by commas.", "")
    topic_pattern: str = setting("Or: all whose whole name matches.", "", metavar="REGEX")
    prefix: str = setting("Put in front of the topics' names there.", "")
    start: str = setting("Where to begin: earliest, latest, group:NAME, JSON.", "earliest")
    filter: str = setting("Tags or SQL92: only what passes.", "")
    group: str = setting("A consumer group that shows the progress.", "")
    max_rows: int = setting("Messages of a batch, at most.", 100_000)
    fail_on_data_loss: bool = setting("Fail when messages expired before they were read.", True)
    delivery: str = setting("auto, idempotent or at-least-once.", "auto")
    trigger: str = setting("once, or how often: '1 second'.", "once")
    checkpoint: str = setting("Where it keeps how far it is.", metavar="DIR")


def mirror(spark: SparkSession, settings: MirrorSettings, run: Run | None = None) -> Report:
    """Copy what there is, or on and on, as `trigger` says."""
    from pyspark.sql import functions

    run = run or Run()
    report = Report("mirror", dry_run=run.dry_run)
    if settings.nameserver == settings.to_nameserver and not settings.prefix:
        raise OptionError("to-nameserver: is the cluster that is read; say a prefix, or another")
    with timed(report):
        frame = read_stream(spark, settings).withColumn(
            "to_topic", functions.concat(functions.lit(settings.prefix), "topic")
        )
        if run.dry_run:
            report.details["would_mirror"] = settings.topic or settings.topic_pattern
            return report
        writer = frame.writeStream.format("cometmq").options(
            nameserver=settings.to_nameserver,
            delivery=settings.delivery,
            checkpointLocation=settings.checkpoint,
        )
        query: StreamingQuery = triggered(writer.queryName("mirror"), settings.trigger).start()
        try:
            run.watch(query, report)
        finally:
            query.stop()
    return report


JOB: Final = Job("mirror", MirrorSettings, mirror, "Topics of one cluster kept in another.")
