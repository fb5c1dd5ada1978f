"""`format("cometmq-store")`: the files of a store as tables, without a broker.

::

    reading = spark.read.format("cometmq-store").option("columns", "topic, queue_offset, body")
    reading.load("/var/lib/cometmq/store").groupBy("topic").count().show()

The store may be CometMQ's or Apache's; its broker may run, have stopped or have been killed; or it
may be a copy with only `commitlog/`. The driver finds the end of the log once, so a job sees one
state of it. Nothing is written, and no lock is taken.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition

from cometmq.pipeline.columns import (
    COLUMNS,
    Column,
    chosen_columns,
    columns_of,
    ddl,
    schema_of_stored_bodies,
)
from cometmq.pipeline.conditions import about, column_of, holds, range_of
from cometmq.pipeline.errors import DamagedRecordError, DataLossError, OptionError
from cometmq.pipeline.records import Reading, layout_batches
from cometmq.pipeline.records.slices import pieces
from cometmq.pipeline.refused_stream import Refused
from cometmq.pipeline.settling import settle
from cometmq.pipeline.store import index, queues, survey
from cometmq.pipeline.store.blocks import wrong_blocks
from cometmq.pipeline.store.files import check_store, require_seen
from cometmq.pipeline.store.options import INDEX, QUEUES, RECORDS, SURVEY, store_options
from cometmq.pipeline.store.scan import Damage, Part, scan
from cometmq.pipeline.store.splits import look, parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from cometmq.pipeline.records.layout import Layout, Truths
    from cometmq.pipeline.store.options import StoreOptions

log = logging.getLogger(__name__)

FORMAT: Final = "cometmq-store"
"""The name for `spark.read.format`."""

TABLES: Final[Mapping[str, Mapping[str, Column]]] = {
    RECORDS: COLUMNS,
    QUEUES: queues.COLUMNS,
    INDEX: index.COLUMNS,
    SURVEY: survey.COLUMNS,
}
"""The columns of each view."""

_NO_STREAM: Final = (
    'a store is read once, by spark.read.format("cometmq-store"); to read what comes in as a'
    ' stream, use its broker, by spark.readStream.format("cometmq")'
)
_NO_WRITE: Final = (
    'the files of a store are read-only; write to a topic of its broker, by format("cometmq")'
)
_PUSHED: Final = ("topic", "queue_id", "physical_offset", "store_time")
"""Columns whose conditions are used; not queue offsets, as a batch in one record has many."""
_QUEUES_SIZE: Final = 64 << 20
"""How many bytes of entries a task reads by default."""
_INDEX_ROWS: Final = 4_000_000
"""How many items a task reads."""


class StoreSource(DataSource):
    """Stores as tables: `spark.read.format("cometmq-store").load(path)`."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return FORMAT

    def schema(self) -> Any:
        """Return the columns that the option `columns` names, or all of the view."""
        options = store_options(self.options)
        table = TABLES[options.view]
        names = chosen_columns(options.columns, table)
        return ddl(names, table) if options.decompress else schema_of_stored_bodies(names, table)

    def reader(self, schema: Any) -> StoreReader:
        """Read a store once."""
        options = store_options(self.options)
        takes_conditions = options.filter_pushdown and options.view == RECORDS
        return (PushingStoreReader if takes_conditions else StoreReader)(options, schema)

    def streamReader(self, *_: object, **__: object) -> Refused:  # noqa: N802  # Spark's name
        """Refuse it when Spark uses the reader: Spark would hide an error raised here."""
        return Refused(OptionError(_NO_STREAM))

    def writer(self, *_: object, **__: object) -> NoReturn:
        """Refuse it: a store's only writer is its broker."""
        raise OptionError(_NO_WRITE)

    def streamWriter(self, *_: object, **__: object) -> NoReturn:  # noqa: N802  # Spark's name
        """Refuse it, like any write."""
        raise OptionError(_NO_WRITE)


class StoreReader(DataSourceReader):
    """Reads one view of a store."""

    def __init__(self, options: StoreOptions, schema: Any) -> None:
        table = TABLES[options.view]
        self.columns = columns_of(schema, table, are_stored=not options.decompress)
        self.options = options
        self.conditions: list[Filter] = []

    def partitions(self) -> list[InputPartition]:
        """Plan the tasks."""
        options = self.options
        check_store(options.path)
        if options.view == QUEUES:
            found: Sequence[object] = _together(options)
        elif options.view == INDEX:
            found = _index_parts(options.path)
        else:
            places = about(self.conditions, ("physical_offset",))
            found = [
                part
                for part in parts(look(options.path), options.split_bytes, options.first_offset)
                if all(begins_within(part, *range_of(each)) for each in places)
            ]
        return [InputPartition(part) for part in found]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield what a task reads; Spark passes `None` for no parts at all."""
        settle()
        if partition.value is None:
            return
        try:
            yield from self._rows(partition.value)
        except FileNotFoundError as error:
            require_seen(self.options.path)
            raise DataLossError(
                f"{self.options.path}: what was there at first is gone, because a running broker"
                f" removes what has expired or was deleted; read it again: {error}"
            ) from None

    def _rows(self, part: Any) -> Iterator[pa.RecordBatch]:
        if self.options.view == QUEUES:
            for file in part:
                yield from queues.queue_batches(file, self.columns)
        elif self.options.view == INDEX:
            yield from index.index_batches(part, self.columns)
        elif self.options.view == SURVEY:
            yield from survey.survey_batches(
                part,
                self.columns,
                checksums=self.options.checksums,
                runs=self.options.runs,
                blocks=self.options.blocks,
                sample=self.options.sample,
            )
        else:
            yield from self._records(part)

    def _records(self, part: Part) -> Iterator[pa.RecordBatch]:
        options = self.options
        how = Reading(
            decompress=options.decompress,
            unwrap=options.unwrap,
            strict=options.on_damage == "fail",
            source=part.path,
        )
        topics = [topic.encode() for topic in options.topics]
        sealed = wrong_blocks(part) if options.checksums else None
        for found in scan(part, checksums=options.checksums, wrong_blocks=sealed):
            if isinstance(found, Damage):
                self._tell(found, part)
                continue
            chosen = found.rows(of_topics(found, topics.__contains__)) if topics else found
            for condition in self.conditions:
                chosen = chosen.rows(that_may_hold(chosen, condition))
            yield from layout_batches(chosen, self.columns, how, broker=options.broker or None)

    def _tell(self, damage: Damage, part: Part) -> None:
        if self.options.on_damage == "fail":
            raise DamagedRecordError(damage.start, damage.reason, part.path)
        if self.options.on_damage == "skip":
            log.warning(
                "%s: %d bytes at %d are skipped: %s",
                part.path,
                damage.end - damage.start,
                damage.start,
                damage.reason,
            )


class PushingStoreReader(StoreReader):
    """A `StoreReader` that uses conditions, if the option asks for it; see `PushingReader`."""

    def pushFilters(self, filters: Sequence[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        """Keep conditions that a record's place and head decide; Spark checks each row again."""
        self.conditions = about(filters, _PUSHED)
        return filters


def begins_within(part: Part, low: int, high: int) -> bool:
    """Whether a record of a part can have a physical offset from `low` to below `high`."""
    return part.base + part.start < high and low < part.base + part.stop


def that_may_hold(layout: Layout, condition: Filter) -> Truths:
    """Return for which records a condition can hold."""
    name = column_of(condition)
    if name == "topic":
        return of_topics(layout, lambda each: holds(condition, each.decode("utf-8", "replace")))
    if name == "store_time":
        numbers = layout.store_times_ms * 1000
    elif name == "queue_id":
        numbers = layout.queue_ids.astype(np.int64)
    else:
        numbers = layout.physical_offsets
    low, high = range_of(condition)
    found: Truths = (numbers >= low) & (numbers < high)
    return found


def of_topics(layout: Layout, is_wanted: Callable[[bytes], bool]) -> Truths:
    """Return which records belong to a wanted topic."""
    names = pieces(layout.raw, layout.topic_starts, layout.topic_ends).dictionary_encode()
    wanted = np.array([is_wanted(each) for each in names.dictionary.to_pylist()], np.bool_)
    if not len(wanted):
        return np.zeros(0, np.bool_)
    found: Truths = wanted[names.indices.to_numpy()]
    return found


def _together(options: StoreOptions) -> list[list[queues.QueuePart]]:
    """Group the files of queues into tasks of sufficient size."""
    tasks: list[list[queues.QueuePart]] = []
    split_size = size = options.split_bytes or _QUEUES_SIZE
    for part in queues.queue_parts(options.path, options.topics):
        if size >= split_size:
            tasks.append([])
            size = 0
        tasks[-1].append(part)
        size += part.size
    return tasks


def _index_parts(root: str) -> list[index.IndexPart]:
    """Return runs of items of the index files."""
    shape, files = index.index_files(root)
    if shape is None:
        return []
    return [
        index.IndexPart(
            root, f"{root}/index/{name}", name, shape.items_at, first, first + _INDEX_ROWS
        )
        for name in files
        for first in range(1, shape.items, _INDEX_ROWS)
    ]
