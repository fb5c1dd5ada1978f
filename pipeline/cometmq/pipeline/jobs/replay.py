"""`replay`: an archive back into a topic.

Batch by batch, the oldest first. A row keeps the identity that its message had in the source, so
one that is replayed again, after a crash or by another run with the same `name`, is stored once;
and what is done is noted in `FROM/_replays/NAME.json`, so another run goes on behind it.

At a rate, a batch goes in pieces of what a second has, in an order that is always the same: by when
a message was stored, and those of a queue by their offset. What is noted is the last message of the
last piece, and not how many went, for another run may be given another rate, or find a `where` to
hold for other rows.
"""

from __future__ import annotations

import json
import re
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cometmq.pipeline.cluster import read_nameservers
from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs.archive_files import BatchName, batches, read_batches
from cometmq.pipeline.jobs.credentials import NOBODY, Credentials
from cometmq.pipeline.jobs.folders import Folder
from cometmq.pipeline.jobs.job import Job, Report, Run, setting, timed
from cometmq.pipeline.jobs.pacing import Pace, Tempo
from cometmq.pipeline.options import read_time_ms

if TYPE_CHECKING:
    from collections.abc import Generator

    from pyspark.sql import Column, DataFrame, SparkSession

_REPLAYS: Final = "_replays"
_NAMES: Final = {
    "source_topic": "topic",
    "source_broker": "broker",
    "source_queue_id": "queue_id",
    "source_offset": "queue_offset",
}
_SENT: Final = ("body", "key", "tag", "properties", "flag")
_QUEUE: Final = "topic, broker, queue_id"
_AT: Final = (
    f"coalesce(unix_micros(max(store_time) OVER (PARTITION BY {_QUEUE} ORDER BY queue_offset)), 0)"
)
"""When a message was stored, but not before one in front of it in its queue: clocks go back."""
_SPEED: Final = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)x", re.ASCII)
_ORDER: Final = ("at", "topic", "broker", "queue_id", "queue_offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySettings:
    """What to replay, and where to."""

    from_dir: str = setting("The archive.", metavar="DIR")
    nameserver: str = setting("The cluster to write to.", metavar="HOST:PORT[;...]")
    credentials: Credentials = NOBODY
    to_topic: str = setting("The topic to write to.")
    where: str = setting("Only rows for which this SQL holds.", "")
    since: str = setting("Only what was stored then or later: ms, or ISO 8601.", "")
    until: str = setting("Only what was stored before.", "")
    rate: int = setting("Messages a second, at most; 0 is as fast as it goes.", 0)
    speed: str = setting("Or as far apart as they were stored: 1x; 10x is ten times as fast.", "")
    mark: str = setting("NAME=VALUE: a property of each message.", "")
    name: str = setting("Names this replay: it goes on where one of this name ended.", "")
    force: bool = setting("Replay into a topic that the archive was made from.", False)

    def __post_init__(self) -> None:
        read_nameservers(self.nameserver)
        if self.mark and "=" not in self.mark:
            raise OptionError(f"mark: {self.mark!r}: write NAME=VALUE")
        if "/" in self.name or self.name.startswith("."):
            raise OptionError(f"name: {self.name!r} cannot be the name of a file")
        if self.rate < 0:
            raise OptionError("rate: must not be negative")
        if self.rate and self.speed:
            raise OptionError("rate, speed: say one of them")
        if self.speed and self.times_as_fast <= 0:
            raise OptionError(f"speed: {self.speed!r}: write such as 1x, 10x or 0.5x")
        _condition(self)  # Looks at the times.

    @property
    def times_as_fast(self) -> float:
        """What `speed` says; 0 if that is no speed."""
        match = _SPEED.fullmatch(self.speed)
        return float(match[1]) if match else 0.0


def replay(spark: SparkSession, settings: ReplaySettings, run: Run | None = None) -> Report:
    """Write what an archive holds to a topic, but what an earlier run of this name wrote."""
    run = run or Run()
    report = run.report_of("replay")
    replaying = _Replaying(spark, settings)
    with timed(report):
        replaying.replay(run, report)
    return report


class _Piece(NamedTuple):
    """Rows of a batch that go at once."""

    frame: DataFrame
    rows: int
    stored_us: int
    """When the first of them was stored, of a piece that is one second's of then."""
    reached: dict[str, list[Any]]
    """What is to be noted behind them; nothing of a batch that goes as a whole."""


class _Replaying:
    """One replay."""

    def __init__(self, spark: SparkSession, settings: ReplaySettings) -> None:
        self.spark = spark
        self.settings = settings
        self.folder = Folder(spark, settings.from_dir)
        self.name = settings.name or f"to-{settings.to_topic}"
        there = batches(self.folder)
        if not there:
            raise OptionError(f"from-dir: {settings.from_dir} is no archive, or has nothing in it")
        self.batches = {BatchName(n, n): each for each in there for n in each.numbers}
        """Where each batch is: itself, or what it was merged into."""
        self.condition = _condition(settings)
        said = self._noted()
        self.done: list[str] = said.get("done", [])
        """The manifests of batches that were replayed."""
        self.reached: dict[str, list[Any]] = said.get("reached", {})
        """The place of the last message that was replayed of a batch that is not done, by its
        manifest."""

    def _noted(self) -> dict[str, Any]:
        if not self.folder.exists(_REPLAYS, f"{self.name}.json"):
            return {}
        said: dict[str, Any] = json.loads(self.folder.read(_REPLAYS, f"{self.name}.json"))
        if (said["to_topic"], said["where"]) != (self.settings.to_topic, self.condition):
            raise OptionError(
                f"name: {self.name} was another replay, to {said['to_topic']} where"
                f" {said['where'] or 'everything'}; choose another name"
            )
        return said

    def _note(self) -> None:
        document = {
            "to_topic": self.settings.to_topic,
            "where": self.condition,
            "done": self.done,
            "reached": self.reached,
        }
        self.folder.write(json.dumps(document, indent=2) + "\n", _REPLAYS, f"{self.name}.json")

    def replay(self, run: Run, report: Report) -> None:
        """Replay what is not done yet, until the job shall stop."""
        pace = _pace(self.settings, run)
        for batch in self.batches:
            if batch.manifest in self.done or not self.folder.has_files(self.batches[batch].folder):
                continue
            with closing(self._pieces(batch, pace)) as pieces:
                for piece in pieces:
                    if not _may_go(pace, piece):
                        report.stopped = True
                        return
                    if not run.dry_run:
                        self._send(piece)
                    report.rows += piece.rows
                    run.tell(batch=str(batch), rows=piece.rows, total=report.rows)
            report.batches.append(batch.first)
            if not run.dry_run:
                self.done.append(batch.manifest)
                self.reached = {}
                self._note()

    def _pieces(self, batch: BatchName, pace: Pace | Tempo) -> Generator[_Piece]:
        """Yield what is left of a batch of the archive, a second's worth at a time."""
        is_whole = isinstance(pace, Pace) and not pace.rate
        frame = self._rows_of(batch, in_order=not is_whole)
        if is_whole:
            if count := frame.count():
                yield _Piece(frame, count, 0, {})
            return
        # In order, so that a piece is in few of the blocks of rows that Spark keeps.
        kept = frame.select("at", *_NAMES.values(), *_SENT)
        kept = kept.repartitionByRange(*_ORDER).sortWithinPartitions(*_ORDER).persist()
        try:
            before = None
            for last, rows, stored_us in _cuts(kept, pace):
                yield _Piece(_between(kept, before, last), rows, stored_us, {batch.manifest: last})
                before = last
        finally:
            kept.unpersist()

    def _rows_of(self, batch: BatchName, *, in_order: bool) -> DataFrame:
        """Return what is left of a batch."""
        frame = read_batches(self.spark, self.folder, [self.batches[batch]])
        frame = frame.where(frame["batch"] == batch.first)
        reached = self.reached.get(batch.manifest)
        if in_order or reached:
            frame = frame.selectExpr("*", f"{_AT} AS at")  # Of all: where it is does not change.
        if self.condition:
            frame = frame.where(self.condition)
        self._refuse_its_source(frame)
        return _between(frame, reached, None)

    def _send(self, piece: _Piece) -> None:
        writer = self._rows(piece.frame).write.format("cometmq").mode("append")
        writer.options(
            **self.settings.credentials.at(self.settings.nameserver),
            topic=self.settings.to_topic,
            sinkId=f"replay {self.name}",
        ).save()
        if piece.reached:
            self.reached = piece.reached
            self._note()

    def _refuse_its_source(self, frame: DataFrame) -> None:
        if self.settings.force:
            return
        topic = self.settings.to_topic
        if frame.where(frame["topic"] == topic).limit(1).count():
            raise OptionError(
                f"to-topic: the archive has messages of {topic} itself, which would be there twice;"
                " say --force if that is what you want"
            )

    def _rows(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions

        properties = functions.col("properties")
        if self.settings.mark:
            name, _, value = self.settings.mark.partition("=")

            def other(key: Column, _value: Column) -> Column:
                differs: Column = key != name
                return differs

            properties = functions.map_concat(
                functions.map_filter(properties, other),
                functions.create_map(functions.lit(name), functions.lit(value)),
            )
        coordinates = [functions.col(name).alias(own) for own, name in _NAMES.items()]
        sent = [functions.col(name) for name in _SENT if name != "properties"]
        ordered = frame.select(*coordinates, *sent, properties.alias("properties"))
        place = ("source_topic", "source_broker", "source_queue_id")
        spread = ordered.repartition(*place)
        sorted_rows: DataFrame = spread.sortWithinPartitions(*place, "source_offset")
        return sorted_rows


def _pace(settings: ReplaySettings, run: Run) -> Pace | Tempo:
    if settings.speed and not run.dry_run:
        return Tempo(settings.times_as_fast, run)
    return Pace(0 if run.dry_run else settings.rate, run)


def _may_go(pace: Pace | Tempo, piece: _Piece) -> bool:
    return pace.wait(piece.stored_us) if isinstance(pace, Tempo) else pace.wait(piece.rows)


def _cuts(frame: DataFrame, pace: Pace | Tempo) -> list[tuple[list[Any], int, int]]:
    """Return where pieces end: the place of the last row, how many there are, their time."""
    if isinstance(pace, Tempo):
        return _each_second(frame, pace.second_us)
    return _every(frame, pace.rate)


def _every(frame: DataFrame, size: int) -> list[tuple[list[Any], int, int]]:
    """Return the places of each `size`-th row, and of the last one: rows up to there, and 0."""
    from pyspark.sql import Window, functions

    numbered = frame.select(*_ORDER).withColumn(
        "number", functions.row_number().over(Window.orderBy(*_ORDER))
    )
    ends = numbered.where(f"number % {size} = 0 OR number = {frame.count()}").orderBy("number")
    found = [([row[name] for name in _ORDER], row["number"]) for row in ends.collect()]
    numbers = [0, *(number for _, number in found)]
    return [
        (place, number - before, 0) for (place, number), before in zip(found, numbers, strict=False)
    ]


def _each_second(frame: DataFrame, second_us: int) -> list[tuple[list[Any], int, int]]:
    """Return the place of the last row of each second, its rows, and when its first was stored."""
    from pyspark.sql import functions

    place = functions.struct(*_ORDER)
    seconds = frame.groupBy(functions.expr(f"at div {second_us}")).agg(
        functions.max(place).alias("last"),
        functions.count("*").alias("rows"),
        functions.min("at").alias("first"),
    )
    return [
        ([row["last"][name] for name in _ORDER], row["rows"], row["first"])
        for row in seconds.orderBy("first").collect()
    ]


def _between(frame: DataFrame, before: list[Any] | None, last: list[Any] | None) -> DataFrame:
    """Return the rows behind one place, up to another."""
    from pyspark.sql import functions

    place = functions.struct(*_ORDER)
    if before is not None:
        # The time alone is what Spark keeps the least and the greatest of, and passes over rows by.
        frame = frame.where(functions.col("at") >= before[0]).where(place > _place(before))
    if last is not None:
        frame = frame.where(functions.col("at") <= last[0]).where(place <= _place(last))
    return frame


def _place(values: list[Any]) -> Column:
    from pyspark.sql import functions

    kinds = ("bigint", "string", "string", "int", "bigint")
    named = zip(_ORDER, values, kinds, strict=True)
    place: Column = functions.struct(
        *(functions.lit(value).cast(kind).alias(name) for name, value, kind in named)
    )
    return place


def _condition(settings: ReplaySettings) -> str:
    parts = [f"({settings.where})"] if settings.where else []
    for name, sign in (("since", ">="), ("until", "<")):
        if text := getattr(settings, name):
            parts.append(f"store_time {sign} timestamp_millis({read_time_ms(name, text)})")
    return " AND ".join(parts)


JOB: Final = Job("replay", ReplaySettings, replay, "An archive back into a topic.")
