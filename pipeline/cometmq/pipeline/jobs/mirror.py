"""`mirror`: copy topics of one cluster to another; either may be Apache's.

A message keeps its body, keys, tag and properties. Messages of one queue stay in order, as they go
to one queue there. A CometMQ cluster gets each message once, however often the job is stopped and
restarted; Apache's brokers get it at least once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs.checkpoint_owners import note_job, refuse_others
from cometmq.pipeline.jobs.credentials import NOBODY, Credentials
from cometmq.pipeline.jobs.folders import Folder
from cometmq.pipeline.jobs.hidden_queues import tell_of_unread
from cometmq.pipeline.jobs.holding import STREAM, Places, held, in_folders
from cometmq.pipeline.jobs.job import Job, Run, running, setting
from cometmq.pipeline.jobs.streams import (
    NO_BODY,
    ROWS_OF_BATCH,
    CopySettings,
    StreamSettings,
    check_checkpoint,
    counted,
    look_for_topics,
    read_stream,
    require_cluster,
    run_stream,
    source_options,
    tell_of_no_topic,
    would_read,
)
from cometmq.pipeline.jobs.topic_names import check_written
from cometmq.pipeline.jobs.torn_checkpoints import keep_last, keep_stream, mend
from cometmq.pipeline.lanes import require_cometmq
from cometmq.pipeline.nameservers import read_nameservers
from cometmq.pipeline.options import GROUP_PREFIX, LATEST, read_options, write_options

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from cometmq.pipeline.jobs.report import Report
    from cometmq.pipeline.options import ReadOptions, WriteOptions


_COPIED: Final = (
    "topic, broker, queue_id, queue_offset, store_time, key, tag, flag, properties, body"
)
"""The columns of a message from which its copy and the copy's identity are made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorSettings(CopySettings):
    """What to mirror, and where to."""

    to_nameserver: str = setting(
        "The name servers of the cluster to write to.", metavar="HOST:PORT[;...]"
    )
    to_credentials: Credentials = NOBODY
    prefix: str = setting("A prefix for the topics' names in that cluster.", "")
    max_rows: int = setting(ROWS_OF_BATCH, 100_000)
    delivery: str = setting("The guarantee to ask for: auto, idempotent or at-least-once.", "auto")

    def __post_init__(self) -> None:
        StreamSettings.__post_init__(self)
        read_nameservers(self.to_nameserver, "to-nameserver")
        write_options({**self.written, "delivery": self.delivery})
        # Topics that match a pattern are checked when they are known.
        self.check_copies(self.sources or ("T",) * bool(self.prefix))
        if self.nameserver == self.to_nameserver and not self.prefix:
            raise _is_read(self.to_nameserver)

    @property
    def in_order(self) -> bool:
        """True: tasks with parts of one queue would send them concurrently."""
        return True

    @property
    def begins_there_again(self) -> bool:
        """Whether a stream that starts over skips nothing that the old one would have read."""
        return self.start != LATEST and not self.start.startswith(GROUP_PREFIX)

    def check_copies(self, topics: Iterable[str]) -> None:
        """Refuse topics whose copies would have invalid names."""
        option = "prefix" if self.prefix else "topic"
        for topic in topics:
            check_written(option, self.prefix + topic)

    @property
    def written(self) -> dict[str, str]:
        """The options for reaching the cluster to write to."""
        return self.to_credentials.at(self.to_nameserver)


def mirror(spark: SparkSession, settings: MirrorSettings, run: Run | None = None) -> Report:
    """Copy once or continuously, as `trigger` says."""
    from pyspark.sql import functions

    run = run or Run()
    report = run.report_of("mirror", counts_bytes=True)
    checkpoint = Folder(spark, settings.checkpoint)
    with running(spark, report), held(run, report.job, *in_folders(spark, _holds(settings))):
        _refuse_promise(settings)
        _refuse_copies(settings)
        refuse_others(checkpoint, report)  # Going back is only right for copies.
        how = {"repeats": True, "from_start": settings.begins_there_again}
        if not run.dry_run:
            mend(checkpoint, run, **how)
        stream = read_stream(spark, settings, _COPIED)
        frame = counted(stream, settings, empty_bodies=NO_BODY).withColumn(
            "to_topic", functions.concat(functions.lit(settings.prefix), "topic")
        )
        check_checkpoint(checkpoint, run, report)
        tell_of_no_topic(settings, run)
        if run.dry_run:
            report.details["would_read"] = would_read(spark, settings, **how)
            return report
        writer = frame.writeStream.format("cometmq").options(
            **settings.written,
            delivery=settings.delivery,
            emptyBodies="send",
            inOrder=True,
            checkpointLocation=settings.checkpoint,
        )
        note_job(checkpoint, report)
        begun, ended = partial(keep_stream, checkpoint), partial(keep_last, checkpoint)
        run_stream(writer, settings, run, report, ended, begun=begun)
        tell_of_unread(settings, checkpoint, run)
    return report


def _refuse_promise(settings: MirrorSettings) -> None:
    """Refuse a promise that the brokers there cannot keep."""
    if settings.delivery == "idempotent":
        written = write_options(settings.written)
        require_cometmq(_brokers(written), written.settings())


def _refuse_copies(settings: MirrorSettings) -> None:
    """Refuse to copy topics onto themselves, to read copies as well, and invalid names."""
    pattern, prefix = settings.topic_pattern, settings.prefix
    read, written = read_options(source_options(settings)), write_options(settings.written)
    names = read.topics
    if pattern:
        names = read.retried(lambda: read.cluster().topics_like(pattern))
        settings.check_copies(names)
    again = [name for name in names if prefix and read.reads(prefix + name)]
    if (prefix and not again) or not _brokers(read) & _brokers(written):
        return
    if not prefix:
        raise _is_read(settings.to_nameserver)
    copy = f"{prefix}{again[0]}"
    said = (
        f"topic-pattern: {pattern!r} matches {copy}, too," if pattern else f"topic: {copy} is read,"
    )
    raise OptionError(
        f"{said} which is the copy of {again[0]}, and would be copied again; leave copies out"
    )


def _is_read(nameserver: str) -> OptionError:
    return OptionError(
        f"to-nameserver: {nameserver} is the cluster that is read; give a prefix, or another one"
    )


def _brokers(options: ReadOptions | WriteOptions) -> frozenset[str]:
    return options.retried(lambda: options.cluster().brokers().addresses)


def _holds(settings: MirrorSettings) -> Places:
    return ((settings.checkpoint, STREAM),)


def _look(settings: MirrorSettings) -> None:
    _refuse_promise(settings)
    _refuse_copies(settings)
    look_for_topics(settings)
    require_cluster(write_options(settings.written))


JOB: Final = Job(
    "mirror",
    MirrorSettings,
    mirror,
    "Copy topics to another cluster, and keep them in step.",
    about=(
        "Either cluster may be Apache RocketMQ's. Bodies, keys, tags and properties are kept,"
        " and so is the order within a queue. With CometMQ on the other side each message is"
        " stored once, whatever is killed when; Apache's brokers may store one twice after a"
        " crash. After a kill, start it again with the same --checkpoint."
    ),
    examples=(
        "mirror --topic orders --to-nameserver other:9876 --checkpoint /data/mirror",
        "mirror --topic orders --to-nameserver other:9876 --checkpoint /data/mirror \\\n"
        "    --trigger '1 second'",
    ),
    holds=_holds,
    look=_look,
)
