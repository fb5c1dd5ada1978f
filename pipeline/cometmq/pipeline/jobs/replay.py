"""`replay`: send an archive, or a topic in the files of a store, to a topic.

It works part by part, oldest first: the batches of an archive, or the files of a store's log
(`replay_sources`). A row keeps the identity that its message had in the source. So a row that is
replayed again, after a crash or by another run with the same `name`, is stored once, whether it
comes from the store or from an archive. Progress is noted in the archive or in a checkpoint folder,
so another run continues after it.

With a rate, a part is sent in pieces of one second (`replay_pieces`); each one's end is noted.
"""

from __future__ import annotations

import time
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cometmq.pipeline.errors import DamagedFileError, OptionError, PipelineError
from cometmq.pipeline.jobs.archive_files import again_if_merged, archives_in
from cometmq.pipeline.jobs.folders import Folder
from cometmq.pipeline.jobs.holding import Places, held, in_folders
from cometmq.pipeline.jobs.job import Job, Run, running
from cometmq.pipeline.jobs.pacing import Pace, Tempo
from cometmq.pipeline.jobs.places import ARCHIVE, STORE
from cometmq.pipeline.jobs.repeatable import require_same_rows
from cometmq.pipeline.jobs.replay_notes import Notes, Target, found_there
from cometmq.pipeline.jobs.replay_pieces import ORDERS, between, cut
from cometmq.pipeline.jobs.replay_rows import PLACE, SENT, to_send
from cometmq.pipeline.jobs.replay_settings import KEY, ReplaySettings, condition
from cometmq.pipeline.jobs.replay_sources import (
    StoreSource,
    archive_source,
    named_topics,
    only_topic,
    store_source,
)
from cometmq.pipeline.jobs.spark_errors import told_as
from cometmq.pipeline.jobs.streams import NO_BODY, require_cluster
from cometmq.pipeline.jobs.tables import by_queue, span
from cometmq.pipeline.options import write_options
from cometmq.pipeline.store.files import check_store

if TYPE_CHECKING:
    from collections.abc import Generator

    from pyspark.sql import DataFrame, SparkSession

    from cometmq.pipeline.jobs.replay_sources import Part, Source
    from cometmq.pipeline.jobs.report import Report, Span

__all__ = ("JOB", "ReplaySettings", "replay")

_STORED: Final = ("store_time", "store_host")
"""When and by whom: a recreated topic, or one of another cluster, has the same places."""
_COUNTED: Final = {
    "rows": "count(body)",
    "bytes": "sum(length(body))",
    "bad_bodies": "count_if(body IS NULL)",
    "empty_bodies": NO_BODY,
}
"""What is counted of messages that are sent; empty bodies are sent unchanged."""
_AT: Final = (
    "coalesce(unix_micros(max(store_time) OVER"
    " (PARTITION BY topic, broker, queue_id ORDER BY {order})), 0)"
)
"""A message's store time, or a later one of an earlier message in its queue: clocks go back."""


def replay(spark: SparkSession, settings: ReplaySettings, run: Run | None = None) -> Report:
    """Send an archive or a store's topic, except what an earlier run of this name has sent."""
    run = run or Run()
    report = run.report_of("replay", counts_bytes=True)
    replaying = _Replaying(spark, settings)
    with running(spark, report), held(run, report.job, *in_folders(spark, _holds(settings))):
        replaying.replay(run, report)
    return report


class _Piece(NamedTuple):
    """Rows of a part that are sent together."""

    frame: DataFrame
    rows: int
    stored_us: int
    """The store time of the first row, if the piece is cut by `speed`."""
    reached: dict[str, list[Any]]
    """The progress to note after them; empty if the part is sent as a whole."""
    spans: list[Span]
    """The ranges of queues that they cover."""


class _Replaying:
    """One replay."""

    def __init__(self, spark: SparkSession, settings: ReplaySettings) -> None:
        self.spark = spark
        self.settings = settings
        self.name = settings.notes_name
        self.source: Source = _source(spark, settings)
        self.condition = condition(settings)
        self.order = ORDERS[settings.preserve_order]
        self.began = 0.0
        """When the first piece was sent."""
        self.where_to = settings.credentials.at(settings.nameserver)
        self.notes = Notes(
            Folder(spark, settings.notes_folder),
            self.name,
            self._origin,
            self.condition,
            Target(self.where_to, settings.to_topic),
            settings.preserve_order,
        )

    @property
    def _origin(self) -> str:
        """What the notes are about; '' if they are in the archive itself."""
        place = self.settings.place
        if not self.settings.checkpoint:
            return ""
        topic = self.source.topic if isinstance(self.source, StoreSource) else ""
        return f"{place.kind}:{place.path.rstrip('/')}" + f"#{topic}" * bool(topic)

    def replay(self, run: Run, report: Report) -> None:
        """Replay what is not done yet, until the job is to stop."""
        notes = self.notes
        if not run.dry_run:
            notes.folder.require_writable()
        notes.read()
        notes.require_source(self.source)
        self._look_at_notes(run, report)
        rate, speed = (0, 0) if run.dry_run else (self.settings.rate, self.settings.times_as_fast)
        pace = Tempo(speed, run) if speed else Pace(rate, run)
        self._look_for_damage(run, report)
        self._tell_of_loss(run, report)
        report.details |= {"would_send": 0} if run.dry_run else {}
        archives = archives_in(self.spark, [self.settings.place])
        for part in self.source.parts(tuple(notes.done), tuple(notes.reached)):
            before = report.rows
            again_if_merged(archives, partial(self._replay_part, part, pace, run, report))
            if report.stopped:
                return
            report.batches.append(part.number)
            if not run.dry_run:
                if report.rows == before:
                    self._tell_of_loss(run, report, part)
                notes.done.append(part.key)
                notes.reached = {}
                notes.write()
        if notes.done and not notes.firsts and not run.dry_run:
            notes.write()  # An earlier version did not note first messages.
        if report.rows and notes.target.is_other(notes.firsts):
            raise PipelineError(
                f"to-topic: {self.settings.to_topic} was recreated while this wrote to it, so what"
                " was sent before is missing; the next run sends all again"
            )
        if there := report.details.get("there_before"):
            run.tell(warning=found_there(there, self.name))
        if notes.done and not report.batches:
            report.details["earlier"] = (
                f"{len(notes.done)} batches, which are all, were sent by earlier runs of the replay"
                f" {self.name}; --name begins another"
            )

    def _replay_part(self, part: Part, pace: Pace | Tempo, run: Run, report: Report) -> None:
        """Replay the rest of a part, until the job is to stop."""
        with closing(self._pieces(part, pace)) as pieces:
            for piece in pieces:
                if not pace.wait(piece.stored_us if isinstance(pace, Tempo) else piece.rows):
                    report.stopped = True
                    return
                if run.dry_run:
                    report.cover(piece.spans)
                    report.details["would_send"] += piece.rows
                    run.tell(batch=part.number, would_send=piece.rows)
                    continue
                self.began = self.began or time.monotonic()
                report.rows += self._send(piece, report)
                report.cover(piece.spans)
                reached = {"rows_per_second": self._rate(report.rows)}
                report.details |= reached
                run.tell(batch=part.number, rows=piece.rows, total=report.rows, **reached)

    def _look_at_notes(self, run: Run, report: Report) -> None:
        """Check whether this run can continue from what an earlier run has done."""
        if self.notes.is_of_another_topic():
            report.details["made_anew"] = True
            run.tell(warning=f"{self.settings.to_topic} was recreated since; all is sent again")
        elif not self.notes.by_time and (twice := self._place_of_two()):
            raise OptionError(
                f"name: {self.name} was begun by an earlier version, which knew messages only by"
                f" their places: of two that were at {twice}, in a topic that was deleted and"
                " recreated, it sends one. Another --name, into another topic, sends all"
            )

    def _look_for_damage(self, run: Run, report: Report) -> None:
        """Refuse a source that has lost files: the rest would be sent and noted as complete."""
        if not (lost := self.source.lacks(self.notes.done)):
            return
        if self.settings.on_damage == "fail":
            more = f" ({len(lost) - 1} more like this)" * (len(lost) > 1)
            raise DamagedFileError(
                f"from: {self.settings.place.path} {lost[0]}{more}: put the files back from a copy,"
                " or give --on-damage skip, which replays what is there"
            )
        report.details["damaged"] = lost
        for each in lost:
            run.tell(warning=f"{self.settings.place.path} {each}")

    def _place_of_two(self) -> str | None:
        """Return a place that two messages had, one after the other, or `None`."""
        from pyspark.sql import functions

        frame = self.source.everything()
        stored = functions.min("store_time") < functions.max("store_time")
        places = frame.where(self.condition or "true").groupBy(*PLACE).agg(stored.alias("twice"))
        found = places.where("twice").first()
        return (
            "{topic}/{broker}/{queue_id} at {queue_offset}".format(**found.asDict())
            if found
            else None
        )

    def _rate(self, rows: int) -> int:
        """Return how many were sent per second; a piece of one second counts as at least that."""
        seconds = time.monotonic() - self.began
        if self.settings.rate:
            seconds = max(seconds, rows / self.settings.rate)
        return round(rows / seconds)

    def _tell_of_loss(self, run: Run, report: Report, part: Part | None = None) -> None:
        """Report what expired before this run, or of a part in which nothing was found."""
        notes, source = self.notes, self.source
        if not isinstance(source, StoreSource):
            return
        lost = source.expired_since(part) if part else source.expired(notes.done, notes.reached)
        if lost:
            report.count("expired_bytes", lost)
            run.tell(warning=f"{lost} bytes of the log expired before they were replayed")

    def _pieces(self, part: Part, pace: Pace | Tempo) -> Generator[_Piece]:
        """Yield the rest of a part, in pieces of one second if there is a rate or speed."""
        is_whole = isinstance(pace, Pace) and not pace.rate
        in_order = not is_whole or self.settings.preserve_order == KEY
        frame = self._rows_of(part, in_order=in_order)
        if is_whole:
            queues = by_queue(frame).collect()
            if count := sum(row["rows"] for row in queues):
                yield _Piece(frame, count, 0, {}, [span(row) for row in queues])
            return
        # In order, so that a piece is in few of the blocks of rows that Spark caches.
        columns = dict.fromkeys((*self.order, self.source.order, *_STORED, *SENT))
        kept = frame.select(*columns)
        kept = kept.repartitionByRange(*self.order).sortWithinPartitions(*self.order).persist()
        try:
            before = None
            for last, rows, stored_us, spans in cut(kept, pace, self.order):
                piece = between(kept, before, last, self.order)
                yield _Piece(piece, rows, stored_us, {part.key: last}, spans)
                before = last
        finally:
            kept.unpersist()

    def _rows_of(self, part: Part, *, in_order: bool) -> DataFrame:
        """Return the rest of a part."""
        frame = self.source.rows(part)
        reached = self.notes.reached.get(part.key)
        if in_order or reached:  # Before filtering, so that places do not change.
            frame = frame.selectExpr("*", f"{_AT.format(order=self.source.order)} AS at")
        if self.condition:
            with told_as("where"):
                frame = frame.where(self.condition)
            require_same_rows(frame, "where")
        self._refuse_its_source(frame)
        return between(frame, reached, None, self.order)

    def _send(self, piece: _Piece, report: Report) -> int:
        """Send a piece; return how many messages were sent: bodies may be skipped, files expire."""
        from pyspark.sql import Observation, functions

        seen = Observation()
        columns = [functions.expr(sql).alias(name) for name, sql in _COUNTED.items()]
        rows = to_send(piece.frame, self.settings, self.source.order, by_host=self.notes.by_host)
        rows = rows.observe(seen, *columns).where("body IS NOT NULL")
        if again := self._write(rows):
            report.count("there_before", again)
        if piece.reached:
            self.notes.reached = piece.reached
            self.notes.write()
        counts = seen.get
        sent: int = counts.pop("rows")
        report.count_bytes(counts.pop("bytes"))
        for name, count in counts.items():
            if count:
                report.count(name, count)
        return sent

    def _write(self, rows: DataFrame) -> int:
        """Write rows; return how many of them were stored before."""
        with TemporaryDirectory(prefix="cometmq-replay-") as folder:
            note = Path(folder, "again")
            writer = rows.write.format("cometmq").mode("append")
            writer.options(
                **self.where_to,
                topic=self.settings.to_topic,
                sinkId=f"replay {self.name}",
                emptyBodies="send",
                inOrder=True,
                againNote=str(note),
            ).save()
            return int(note.read_text()) if note.exists() else 0

    def _refuse_its_source(self, frame: DataFrame) -> None:
        if self.settings.force:
            return
        if self.source.holds(frame, self.settings.to_topic):
            raise OptionError(
                f"to-topic: the {self.settings.place.kind} has messages of"
                f" {self.settings.to_topic} itself, which would be there twice; give --force if"
                " that is what you want"
            )


def _source(spark: SparkSession, settings: ReplaySettings) -> Source:
    place = settings.place
    if place.kind == ARCHIVE:
        return archive_source(spark, Folder(spark, place.path), settings.chosen_topic)
    needed = (*PLACE, *SENT, *_STORED, "physical_offset")
    columns = "*" if settings.where else ",".join(needed)
    return store_source(
        spark, place.path, settings.chosen_topic, settings.broker, columns, settings.on_damage
    )


def _holds(settings: ReplaySettings) -> Places:
    """Return where its notes are; a folder may have the notes of several replays."""
    return ((settings.notes_folder, f"{settings.notes_name}.lock"),)


def _look(settings: ReplaySettings) -> None:
    """Check the store, as far as that is possible without reading its log, and the cluster."""
    place = settings.place
    if place.kind == STORE:
        check_store(place.path)
        if not settings.chosen_topic and (named := named_topics(place.path)):
            only_topic(place.path, named)
    require_cluster(write_options(settings.credentials.at(settings.nameserver)))


JOB: Final = Job(
    "replay",
    ReplaySettings,
    replay,
    "Send what an archive or a store holds to a topic.",
    about=(
        "With CometMQ's brokers each message is sent once, however often the command is"
        " repeated or killed; --name starts another replay of the same messages. --rate and"
        " --speed limit the pace."
    ),
    examples=(
        "replay --from archive:/data/orders --to-topic again --rate 1000",
        "replay --from store:/var/lib/cometmq#orders --broker broker-a --to-topic again \\\n"
        "    --checkpoint /data/again",
    ),
    holds=_holds,
    look=_look,
)
