"""`replay`: an archive, or a topic in the files of a store, back into a topic.

Part by part, the oldest first: of an archive these are its batches, of a store the files of its log
(`replay_sources`). A row keeps the identity that its message had in the source, so one that is
replayed again, after a crash or by another run with the same `name`, is stored once, be it from the
store or from an archive. What is done is noted, in the archive or a checkpoint's folder, so another
run goes on behind it.

At a rate, a part goes in pieces of what a second has (`replay_pieces`); the last message of each
is noted.
"""

from __future__ import annotations

import json
import re
import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cometmq.pipeline.cluster import read_nameservers
from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs.credentials import NOBODY, Credentials
from cometmq.pipeline.jobs.folders import Folder
from cometmq.pipeline.jobs.job import Job, Run, setting, timed
from cometmq.pipeline.jobs.marks import read_mark
from cometmq.pipeline.jobs.pacing import Pace, Tempo
from cometmq.pipeline.jobs.places import ARCHIVE, KINDS, STORE, Place, read_place
from cometmq.pipeline.jobs.replay_pieces import ORDER, between, cut
from cometmq.pipeline.jobs.replay_sources import (
    StoreSource,
    archive_source,
    named_topics,
    only_topic,
    store_source,
)
from cometmq.pipeline.jobs.topic_names import check_read, check_written
from cometmq.pipeline.options import read_time_ms
from cometmq.pipeline.store.files import check_store

if TYPE_CHECKING:
    from collections.abc import Generator

    from pyspark.sql import Column, DataFrame, SparkSession

    from cometmq.pipeline.jobs.replay_sources import Part, Source
    from cometmq.pipeline.jobs.report import Report

_REPLAYS: Final = "_replays"
_NOTES_DAMAGED: Final = (
    "put it back from a copy, or remove it: all is sent again then, and stored once as long as"
    " brokers remember it"
)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySettings:
    """What to replay, and where to."""

    from_: str = setting("archive:DIR, or store:DIR[#TOPIC].", "", metavar="PLACE")
    from_dir: str = setting("An archive; --from archive:DIR says the same.", "", metavar="DIR")
    topic: str = setting(
        "Only this one; which one is said of a store that has several.", "", metavar="TOPIC"
    )
    broker: str = setting(
        "Of a store: its broker's name, for a message is known by where it was.", ""
    )
    on_damage: str = setting("Of a store, at damaged records: fail, or skip them.", "fail")
    nameserver: str = setting("The cluster to write to.", metavar="HOST:PORT[;...]")
    credentials: Credentials = NOBODY
    to_topic: str = setting("The topic to write to.")
    where: str = setting("Only rows for which this SQL holds.", "")
    since: str = setting("Only what was stored then or later: ms, or ISO 8601.", "")
    until: str = setting("Only what was stored before.", "")
    rate: int = setting("Messages a second, at most; 0 is as fast as it goes.", 0)
    speed: str = setting("Or as far apart as they were stored: 1x; 10x is ten times as fast.", "")
    mark: str = setting("NAME=VALUE: a property of each message.", "")
    checkpoint: str = setting(
        "Where what is done is noted, of a store; of an archive in it, unless said.",
        "",
        metavar="DIR",
    )
    name: str = setting("Names this replay: it goes on where one of this name ended.", "")
    force: bool = setting("Replay into a topic that messages come from.", False)

    def __post_init__(self) -> None:
        read_nameservers(self.nameserver)
        check_written("to-topic", self.to_topic)
        self._check_place()
        if self.mark:
            read_mark(self.mark)
        if "/" in self.name or self.name.startswith("."):
            raise OptionError(f"name: {self.name!r} cannot be the name of a file")
        if self.rate < 0:
            raise OptionError("rate: must not be negative")
        if self.rate and self.speed:
            raise OptionError("rate, speed: say one of them")
        if self.speed and self.times_as_fast <= 0:
            raise OptionError(f"speed: {self.speed!r}: write such as 1x, 10x or 0.5x")
        _condition(self)  # Looks at the times.

    def _check_place(self) -> None:
        place = self.place
        check_read("topic", self.chosen_topic)
        if self.topic and place.topic and self.topic != place.topic:
            raise OptionError(f"topic: {self.topic} is not {place.topic}, which --from names")
        if place.kind == ARCHIVE:
            if self.broker or self.on_damage != "fail":
                raise OptionError("broker, on-damage: are of stores only")
            return
        if self.on_damage not in ("fail", "skip"):
            raise OptionError(f"on-damage: {self.on_damage!r} is neither fail nor skip")
        if not self.broker:
            raise OptionError(
                "broker: say how the store's broker is called, such as broker-a: its files do not"
                " tell, and by that name a message is known which is replayed again"
            )
        if not self.checkpoint:
            raise OptionError("checkpoint: say where to note what is done: not in the store")

    @property
    def place(self) -> Place:
        """Where the messages are."""
        if bool(self.from_) == bool(self.from_dir):
            raise OptionError("from: say archive:DIR or store:DIR")
        if self.from_dir:
            return Place(ARCHIVE, self.from_dir, "")
        found = read_place(self.from_)
        if found is None and self.from_.partition(":")[0] not in KINDS:
            found = Place(ARCHIVE, self.from_, "")
        if found is None or found.kind not in (ARCHIVE, STORE):
            raise OptionError(f"from: {self.from_!r} is neither archive:DIR nor store:DIR[#TOPIC]")
        return found

    @property
    def chosen_topic(self) -> str:
        """The only topic that is replayed; nothing where none is named."""
        return self.topic or self.place.topic

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
    """Rows of a part that go at once."""

    frame: DataFrame
    rows: int
    stored_us: int
    """When the first of them was stored, of a piece that is one second's of then."""
    reached: dict[str, list[Any]]
    """What is to be noted behind them; nothing of a part that goes as a whole."""


class _Replaying:
    """One replay."""

    def __init__(self, spark: SparkSession, settings: ReplaySettings) -> None:
        self.spark = spark
        self.settings = settings
        place = settings.place
        self.name = settings.name or f"to-{settings.to_topic}"
        self.source: Source = _source(spark, settings)
        self.notes = Folder(spark, settings.checkpoint or f"{place.path.rstrip('/')}/{_REPLAYS}")
        self.condition = _condition(settings)
        said = self._noted()
        self.done: list[str] = said.get("done", [])
        """The keys of parts that were replayed."""
        self.reached: dict[str, list[Any]] = said.get("reached", {})
        """The place of the last message that was replayed of a part that is not done, by its
        key."""

    @property
    def _origin(self) -> str:
        """What the notes are about; nothing in an archive's own."""
        place = self.settings.place
        if not self.settings.checkpoint:
            return ""
        topic = self.source.topic if isinstance(self.source, StoreSource) else ""
        return f"{place.kind}:{place.path}" + f"#{topic}" * bool(topic)

    def _noted(self) -> dict[str, Any]:
        if not self.notes.exists(f"{self.name}.json"):
            return {}
        said = self.notes.read_json(f"{self.name}.json", if_damaged=_NOTES_DAMAGED)
        if said.get("from", "") != self._origin:
            raise OptionError(
                f"name: {self.name} was another replay, from {said.get('from')}; choose another"
                " name, or another checkpoint"
            )
        if (said["to_topic"], said["where"]) != (self.settings.to_topic, self.condition):
            raise OptionError(
                f"name: {self.name} was another replay, to {said['to_topic']} where"
                f" {said['where'] or 'everything'}; choose another name"
            )
        return said

    def _note(self) -> None:
        document = {
            "from": self._origin,
            "to_topic": self.settings.to_topic,
            "where": self.condition,
            "done": self.done,
            "reached": self.reached,
        }
        self.notes.write(json.dumps(document, indent=2) + "\n", f"{self.name}.json")

    def replay(self, run: Run, report: Report) -> None:
        """Replay what is not done yet, until the job shall stop."""
        pace = _pace(self.settings, run)
        self._tell_of_loss(run, report)
        report.details |= {"would_send": 0} if run.dry_run else {}
        began = 0.0
        for part in self.source.parts(tuple(self.done), tuple(self.reached)):
            with closing(self._pieces(part, pace)) as pieces:
                for piece in pieces:
                    if not _may_go(pace, piece):
                        report.stopped = True
                        return
                    if run.dry_run:
                        report.details["would_send"] += piece.rows
                        run.tell(batch=part.number, would_send=piece.rows)
                        continue
                    began = began or time.monotonic()
                    report.rows += piece.rows
                    self._send(piece)
                    reached = {"rows_per_second": self._rate_since(began, report.rows)}
                    report.details |= reached
                    run.tell(batch=part.number, rows=piece.rows, total=report.rows, **reached)
            report.batches.append(part.number)
            if not run.dry_run:
                self.done.append(part.key)
                self.reached = {}
                self._note()
        if self.done and not report.batches:
            said = f"all was sent by an earlier run of the replay {self.name}; --name for another"
            report.details["earlier"] = said

    def _rate_since(self, began: float, rows: int) -> int:
        """Return how many went in a second: a piece of what a second has takes one, if not more."""
        seconds = time.monotonic() - began
        if self.settings.rate:
            seconds = max(seconds, rows / self.settings.rate)
        return round(rows / seconds)

    def _tell_of_loss(self, run: Run, report: Report) -> None:
        if isinstance(self.source, StoreSource) and (lost := self.source.expired(self.done)):
            report.details["expired_bytes"] = lost
            run.tell(warning=f"{lost} bytes of the log expired before they were replayed")

    def _pieces(self, part: Part, pace: Pace | Tempo) -> Generator[_Piece]:
        """Yield what is left of a part, a second's worth at a time."""
        is_whole = isinstance(pace, Pace) and not pace.rate
        frame = self._rows_of(part, in_order=not is_whole)
        if is_whole:
            if count := frame.count():
                yield _Piece(frame, count, 0, {})
            return
        # In order, so that a piece is in few of the blocks of rows that Spark keeps.
        kept = frame.select("at", *_NAMES.values(), *_SENT)
        kept = kept.repartitionByRange(*ORDER).sortWithinPartitions(*ORDER).persist()
        try:
            before = None
            for last, rows, stored_us in cut(kept, pace):
                yield _Piece(between(kept, before, last), rows, stored_us, {part.key: last})
                before = last
        finally:
            kept.unpersist()

    def _rows_of(self, part: Part, *, in_order: bool) -> DataFrame:
        """Return what is left of a part."""
        frame = self.source.rows(part)
        reached = self.reached.get(part.key)
        if in_order or reached:
            frame = frame.selectExpr("*", f"{_AT} AS at")  # Of all: where it is does not change.
        if self.condition:
            frame = frame.where(self.condition)
        self._refuse_its_source(frame)
        return between(frame, reached, None)

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
        if self.source.holds(frame, topic):
            raise OptionError(
                f"to-topic: the {self.settings.place.kind} has messages of {topic} itself, which"
                " would be there twice; say --force if that is what you want"
            )

    def _rows(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions

        properties = functions.col("properties")
        if self.settings.mark:
            name, value = read_mark(self.settings.mark)

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


def _source(spark: SparkSession, settings: ReplaySettings) -> Source:
    place = settings.place
    if place.kind == ARCHIVE:
        return archive_source(spark, Folder(spark, place.path))
    needed = (*_NAMES.values(), *_SENT, "store_time", "physical_offset")
    columns = "*" if settings.where else ",".join(needed)
    return store_source(
        spark, place.path, settings.chosen_topic, settings.broker, columns, settings.on_damage
    )


def _look(settings: ReplaySettings) -> None:
    """Look at a store as far as that can be done without reading its log."""
    place = settings.place
    if place.kind == STORE:
        check_store(place.path)
        if not settings.chosen_topic and (named := named_topics(place.path)):
            only_topic(place.path, named)


def _pace(settings: ReplaySettings, run: Run) -> Pace | Tempo:
    if settings.speed and not run.dry_run:
        return Tempo(settings.times_as_fast, run)
    return Pace(0 if run.dry_run else settings.rate, run)


def _may_go(pace: Pace | Tempo, piece: _Piece) -> bool:
    return pace.wait(piece.stored_us) if isinstance(pace, Tempo) else pace.wait(piece.rows)


def _condition(settings: ReplaySettings) -> str:
    parts = [f"({settings.where})"] if settings.where else []
    if settings.place.kind == ARCHIVE and settings.chosen_topic:
        parts.append(f"topic = '{settings.chosen_topic}'")
    for name, sign in (("since", ">="), ("until", "<")):
        if text := getattr(settings, name):
            parts.append(f"store_time {sign} timestamp_millis({read_time_ms(name, text)})")
    return " AND ".join(parts)


JOB: Final = Job(
    "replay",
    ReplaySettings,
    replay,
    "An archive, or a topic of a store's files, back into a topic.",
    look=_look,
)
