"""The sources of `replay`, in parts that are replayed one after the other.

A part of an archive is a batch. A part of a store is one file of the log, up to the current end of
the log: what a running broker appends later is the next run's first part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar
from zlib import crc32

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs.archive_files import (
    BatchName,
    Manifest,
    knows_topic,
    lost_manifests,
    place_of,
    read_batches,
    require_batches,
    while_there,
)
from cometmq.pipeline.jobs.archive_kinds import rows_of, table_in
from cometmq.pipeline.jobs.tables import store_table, taking_conditions
from cometmq.pipeline.store.files import folders_of, log_files
from cometmq.pipeline.store.places import record_at
from cometmq.pipeline.store.queues import BATCH, SIMPLE
from cometmq.pipeline.store.splits import look
from cometmq.pipeline.users_topics import is_users

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from cometmq.pipeline.jobs.archive_kinds import Table
    from cometmq.pipeline.jobs.folders import Folder
    from cometmq.pipeline.store.splits import Log

_SHOWN: Final = 20
_Seen = TypeVar("_Seen")


class Part(NamedTuple):
    """What is replayed at once, or in pieces."""

    key: str
    """Its permanent name in the notes."""
    number: int
    """Its number in the report."""


class Source(Protocol):
    """A source of messages."""

    @property
    def order(self) -> str:
        """The column that orders the messages of a queue."""
        ...

    def parts(self, done: Collection[str], begun: Iterable[str]) -> Iterator[Part]:
        """Yield the parts to replay; parts that are done may be among them, but are not read.

        A part that was begun is the same part again.
        """
        ...

    def rows(self, part: Part) -> DataFrame:
        """Return all messages of a part."""
        ...

    def everything(self) -> DataFrame:
        """Return everything there is, including what is done."""
        ...

    def holds(self, frame: DataFrame, topic: str) -> bool:
        """Whether the rows of a part include messages of a topic."""
        ...

    def lacks(self, done: Collection[str]) -> list[str]:
        """Describe what unfinished parts have lost that reading them would not reveal."""
        ...

    def identity(self) -> str:
        """Return what distinguishes it from another one made at its place; '' if nothing does."""
        ...

    def is_other(self, noted: str) -> bool:
        """Whether it is certainly not the one that had this identity."""
        ...


class ArchiveSource:
    """A Parquet archive, batch by batch."""

    order = "queue_offset"

    def __init__(self, spark: SparkSession, folder: Folder) -> None:
        self._spark = spark
        self._folder = folder
        self._there = require_batches(folder, "from")
        """The batches at the last look; `archive-compact` may merge them meanwhile."""
        self._batches = [BatchName(n, n) for each in self._there for n in each.numbers]

    def parts(self, done: Collection[str], begun: Iterable[str]) -> Iterator[Part]:
        """Yield the batches, oldest first."""
        del begun
        for batch in self._batches:
            if batch.manifest not in done and self._has_files(batch):
                yield Part(batch.manifest, batch.first)

    def _has_files(self, batch: BatchName) -> bool:
        return self._seen(batch, lambda place: self._folder.has_files(place.folder))

    def rows(self, part: Part) -> DataFrame:
        """Return a batch."""
        batch = BatchName(part.number, part.number)
        frame = self._seen(batch, lambda place: self._read([place]))
        return frame.where(frame["batch"] == part.number)

    def everything(self) -> DataFrame:
        """Return all batches."""
        return while_there(self._folder, self._read)

    def lacks(self, done: Collection[str]) -> list[str]:
        """Compare the numbers of rows in the files with those in the manifests."""

        def look(there: list[BatchName]) -> list[str]:
            lost = [f"has no manifest of batches {each}" for each in lost_manifests(there)]
            return lost + self._other_rows([each for each in there if not _is_done(each, done)])

        return while_there(self._folder, look)

    def identity(self) -> str:
        """Return the stream that wrote the first batch, if the manifests say it."""

        def look(there: list[BatchName]) -> str:
            if not there or there[0].first:
                return ""
            return Manifest.read(self._folder, there[0]).first_query_id or ""

        return while_there(self._folder, look)

    def is_other(self, noted: str) -> bool:
        """Compare it with the present identity, if there is one."""
        return self.identity() not in ("", noted)

    def _other_rows(self, places: list[BatchName]) -> list[str]:
        """Describe batches whose numbers of rows differ from their manifests."""
        manifests = [Manifest.read(self._folder, each) for each in places]
        filled = [each for each in places if self._folder.has_files(each.folder)]
        rows: dict[int, int] = {}
        if filled:
            for row in self._read(filled).groupBy("batch").count().collect():
                rows[row["batch"]] = row["count"]
        return [
            f"has {there} rows of batch {each.name}, but its manifest says {each.rows}"
            for each in manifests
            if (there := sum(rows.get(number, 0) for number in each.name.numbers)) != each.rows
        ]

    def _read(self, places: list[BatchName]) -> DataFrame:
        return read_batches(self._spark, self._folder, places)

    def _seen(self, batch: BatchName, look: Callable[[BatchName], _Seen]) -> _Seen:
        """Return the result of looking at a batch, wherever it is by then."""

        def looking(there: list[BatchName]) -> _Seen:
            self._there = there
            return look(place_of(batch, there))

        return while_there(self._folder, looking, self._there, batch)

    def holds(self, frame: DataFrame, topic: str) -> bool:
        """Look for it."""
        return _has_topic(frame, topic)

    def knows(self, topic: str) -> bool:
        """Ask the manifests, which also know topics without messages."""
        return knows_topic(self._folder, topic)


class TableSource:
    """An archive that is a table, batch by batch."""

    order = "queue_offset"

    def __init__(self, spark: SparkSession, table: Table) -> None:
        self._spark = spark
        self._table = table

    def parts(self, done: Collection[str], begun: Iterable[str]) -> Iterator[Part]:
        """Yield the batches, oldest first, with the names that they have in Parquet."""
        del begun
        for row in self.everything().select("batch").distinct().orderBy("batch").collect():
            batch = BatchName(row["batch"], row["batch"])
            if batch.manifest not in done:
                yield Part(batch.manifest, batch.first)

    def rows(self, part: Part) -> DataFrame:
        """Return a batch."""
        return rows_of(self._spark, self._table, part.number)

    def everything(self) -> DataFrame:
        """Return all batches."""
        return rows_of(self._spark, self._table)

    def holds(self, frame: DataFrame, topic: str) -> bool:
        """Look for it."""
        return _has_topic(frame, topic)

    def knows(self, topic: str) -> bool:
        """Look for it in all batches."""
        return _has_topic(self.everything(), topic)

    def lacks(self, done: Collection[str]) -> list[str]:
        """Return nothing: reading it fails at a missing file."""
        del done
        return []

    def identity(self) -> str:
        """Return the id that the table has."""
        return self._table.identity

    def is_other(self, noted: str) -> bool:
        """Compare it with the present identity."""
        return self.identity() != noted


def archive_source(spark: SparkSession, folder: Folder, topic: str) -> ArchiveSource | TableSource:
    """Return an archive of any format; raise `OptionError` if it does not know the topic."""
    table = table_in(folder)
    source = ArchiveSource(spark, folder) if table is None else TableSource(spark, table)
    if topic and not source.knows(topic):  # All parts would be noted as done.
        raise OptionError(f"topic: {folder.path} has no message of topic {topic}")
    return source


@dataclass(frozen=True, slots=True)
class StoreSource:
    """One topic in the files of a store."""

    spark: SparkSession
    path: str
    topic: str
    broker: str
    columns: str
    on_damage: str
    log: Log
    """The log as it was when the run began."""

    @property
    def order(self) -> str:
        """The physical offset: queue offsets would mix two lives of a recreated topic."""
        return "physical_offset"

    def parts(self, done: Collection[str], begun: Iterable[str]) -> Iterator[Part]:
        """Yield the parts that were begun and still exist, and those after everything done."""
        reached = max((_range(key)[1] for key in (*done, *begun)), default=self.log.first)
        if reached > self.log.end:
            raise OptionError(
                f"from: {self.path} ends at {self.log.end}, but was replayed up to {reached}: it is"
                " another store, or lost its end; give another --name"
            )
        for key in begun:
            if _range(key)[0] >= self.log.first:
                yield Part(key, _range(key)[0])
        for file in self.log.files:
            start = max(file.start, reached)
            end = min(file.start + file.size, self.log.end)
            if start < end:
                yield Part(f"{start}-{end}", start)

    def expired(self, done: Collection[str], begun: Iterable[str]) -> int:
        """Return how many bytes of the log after everything done no longer exist."""
        places = [_range(key)[1] for key in done] + [_range(key)[0] for key in begun]
        return max(self.log.first - max(places, default=self.log.first), 0)

    def expired_since(self, part: Part) -> int:
        """Return the size of a part if it has expired since the run began; otherwise 0."""
        start, end = _range(part.key)
        there = log_files(self.path)
        return 0 if there and there[0].start <= start else end - start

    def rows(self, part: Part) -> DataFrame:
        """Return the topic's messages in a range of the log."""
        return self._between(*_range(part.key))

    def everything(self) -> DataFrame:
        """Return the topic's messages in all of the log."""
        return self._between(self.log.first, self.log.end)

    def _between(self, start: int, end: int) -> DataFrame:
        reader = self.spark.read.format("cometmq-store").options(
            columns=self.columns,
            topic=self.topic,
            broker=self.broker,
            onDamage=self.on_damage,
            firstOffset=start,
            **taking_conditions(self.spark),
        )
        frame: DataFrame = reader.load(self.path)
        return frame.where(f"physical_offset >= {start} AND physical_offset < {end}")

    def holds(self, frame: DataFrame, topic: str) -> bool:
        """Compare it with the topic that is read."""
        del frame
        return topic == self.topic

    def lacks(self, done: Collection[str]) -> list[str]:
        """Return nothing: the records are checked when they are read."""
        del done
        return []

    def identity(self) -> str:
        """Return where the last record of the log is, and its checksum."""
        return self._identity_at(self.log.last)

    def is_other(self, noted: str) -> bool:
        """Look at that place, unless it has expired; a log that ends before it has lost its end."""
        place = int(noted.partition(":")[0])
        return self.log.first <= place and self._identity_at(place) != noted

    def _identity_at(self, place: int) -> str:
        record = record_at(self.log, place)
        return "" if record is None else f"{place}:{crc32(record.raw.tobytes()):08x}"


def store_source(
    spark: SparkSession, path: str, topic: str, broker: str, columns: str, on_damage: str
) -> StoreSource:
    """Return a source of one topic: the one that is named, or the only user's topic.

    If the topic does not exist, or there is not exactly one, an `OptionError` lists the topics.
    """
    log = look(path)
    frame = store_table(spark, path, "topic", topic, on_damage)
    if not topic:
        topic = only_topic(path, _topics_in(frame))
    elif not frame.take(1):  # `isEmpty` would run a task for each part of the log.
        there = _topics_in(store_table(spark, path, "topic", "", on_damage))
        raise OptionError(f"topic: {path} has no message of {topic}; it has {_listed(there)}")
    return StoreSource(spark, path, topic, broker, columns, on_damage, log)


def only_topic(path: str, topics: Collection[str]) -> str:
    """Return the only user's topic; refuse to choose between several."""
    of_users = [each for each in topics if is_users(each)]
    if len(of_users) != 1:
        raise OptionError(f"topic: name one of {path}: it has {_listed(topics)}")
    return of_users[0]


def named_topics(path: str) -> list[str]:
    """Return the topics for which a store has folders of queues.

    A copy of the log alone has none, and a running broker may not have created them yet.
    """
    return sorted({each for folder in (SIMPLE, BATCH) for each in folders_of(path, folder)})


def _topics_in(frame: DataFrame) -> list[str]:
    return sorted(row["topic"] for row in frame.distinct().collect())


def _listed(topics: Collection[str]) -> str:
    """List topics for an error text: only users' topics, if there are any."""
    shown = [each for each in topics if is_users(each)] or [*topics]
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return (", ".join(shown[:_SHOWN]) or "none") + more


def _is_done(place: BatchName, done: Collection[str]) -> bool:
    return all(BatchName(number, number).manifest in done for number in place.numbers)


def _has_topic(frame: DataFrame, topic: str) -> bool:
    return bool(frame.where(frame["topic"] == topic).limit(1).count())


def _range(key: str) -> tuple[int, int]:
    start, _, end = key.partition("-")
    return int(start), int(end)
