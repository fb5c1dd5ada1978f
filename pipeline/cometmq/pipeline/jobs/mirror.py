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
from cometmq.pipeline.jobs.streams import (
    CopySettings,
    StreamSettings,
    look_for_topics,
    read_stream,
    triggered,
    would_read,
)
from cometmq.pipeline.options import write_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorSettings(CopySettings):
    """What to mirror, and where to."""

    to_nameserver: str = setting("The cluster to write to.", metavar="HOST:PORT[;...]")
    prefix: str = setting("Put in front of the topics' names there.", "")
    max_rows: int = setting("Messages of a batch, at most.", 100_000)
    delivery: str = setting("auto, idempotent or at-least-once.", "auto")

    def __post_init__(self) -> None:
        StreamSettings.__post_init__(self)
        write_options({"nameserver": self.to_nameserver, "delivery": self.delivery})
        if self.nameserver == self.to_nameserver and not self.prefix:
            raise OptionError(
                "to-nameserver: is the cluster that is read; say a prefix, or another"
            )


def mirror(spark: SparkSession, settings: MirrorSettings, run: Run | None = None) -> Report:
    """Copy what there is, or on and on, as `trigger` says."""
    from pyspark.sql import functions

    run = run or Run()
    report = run.report_of("mirror")
    with timed(report):
        frame = read_stream(spark, settings).withColumn(
            "to_topic", functions.concat(functions.lit(settings.prefix), "topic")
        )
        if run.dry_run:
            report.details["would_read"] = would_read(spark, settings, settings.checkpoint)
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


JOB: Final = Job(
    "mirror",
    MirrorSettings,
    mirror,
    "Topics of one cluster kept in another.",
    look=look_for_topics,
)
