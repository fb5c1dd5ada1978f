"""The reading side of `format("cometmq")`: a topic as a table, once or as a stream.

::

    driver      options.py ─ bounds.py (from where to where) ─ measuring.py (how many bytes)
                ─ planning.py (what each task reads)
    executor    fetching.py (bytes) ─ records (columns) ─ Arrow to Spark

Code that runs in executors imports only the standard library, numpy, pyarrow and PySpark, so a
cluster needs no more than a wheel of `cometmq.pipeline`.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)

from cometmq.pipeline import bounds
from cometmq.pipeline.cluster import Bounds, Queue
from cometmq.pipeline.columns import chosen_columns, columns_of, ddl, schema_of_stored_bodies
from cometmq.pipeline.conditions import about, column_of, holds, range_of
from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.fetching import Pulling, chunks
from cometmq.pipeline.filter_check import require_filter
from cometmq.pipeline.measuring import measured
from cometmq.pipeline.option_reading import camel
from cometmq.pipeline.options import ReadOptions, read_options, write_options
from cometmq.pipeline.planning import Range, plan
from cometmq.pipeline.records import record_batches
from cometmq.pipeline.records.rows import Reading
from cometmq.pipeline.settling import settle
from cometmq.pipeline.unread import left_out, unread

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from cometmq.pipeline.losses import Listener
    from cometmq.pipeline.sink import BatchWriter, StreamWriter

log = logging.getLogger(__name__)

FORMAT: Final = "cometmq"
"""The name for `spark.read.format`."""


class CometMQSource(DataSource):
    """Topics as tables: `spark.read.format("cometmq").option("nameserver", ...)`."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return FORMAT

    def schema(self) -> Any:
        """Return the columns that the option `columns` names, or the default ones."""
        options = read_options(self.options)
        names = chosen_columns(options.columns)
        return ddl(names) if options.decompress else schema_of_stored_bodies(names)

    def reader(self, schema: Any) -> TopicReader:
        """Read a topic once."""
        options = read_options(self.options)
        kind = PushingReader if options.filter_pushdown else TopicReader
        return kind(options, schema)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        """Read a topic as a stream."""
        from cometmq.pipeline.refused_stream import Refused
        from cometmq.pipeline.stream_source import TopicStreamReader

        try:
            return TopicStreamReader(read_options(self.options), schema)
        except OptionError as error:
            return Refused(error)

    def writer(self, schema: Any, overwrite: bool) -> BatchWriter:
        """Write rows as messages."""
        from cometmq.pipeline.sink import BatchWriter

        if overwrite:
            raise OptionError("mode: a topic cannot be overwritten; write with mode('append')")
        return BatchWriter(write_options(self.options), schema)

    def streamWriter(self, schema: Any, overwrite: bool) -> StreamWriter:  # noqa: N802  # Spark's name
        """Write a stream of rows as messages."""
        from cometmq.pipeline.sink import StreamWriter

        if overwrite:
            raise OptionError("outputMode: complete would send every row again; use append")
        return StreamWriter(write_options(self.options), schema)


class Executing:
    """Only what an executor needs to read its part."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        expression, kind = options.expression
        self.columns = tuple(columns)
        self.rows = Reading(
            decompress=options.decompress,
            skips_bodies=options.on_bad_body == "skip",
            tags=options.wanted_tags,
        )
        self.how = Pulling(
            options.settings(),
            expression,
            kind,
            options.fail_on_data_loss,
            options.pull_bytes,
            options.retries,
            options.retry_interval_ms,
        )

    def read(
        self, ranges: Sequence[Range] | None, losses: Listener | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the messages of these ranges; Spark passes `None` for no ranges at all."""
        settle()
        for chunk in chunks(ranges or (), replace(self.how, losses=losses)):
            yield from record_batches(
                chunk.data,
                self.columns,
                self.rows,
                broker=chunk.queue.broker,
                source=f"answer of {chunk.queue}",
                queue_offsets=(chunk.first, chunk.end),
            )


class TopicReader(DataSourceReader):
    """Reads topics once, from where to where the options say."""

    def __init__(self, options: ReadOptions, schema: Any) -> None:
        for name in ("group", "max_offsets_per_trigger", "align_by_time"):
            if getattr(options, name):
                raise OptionError(f"{camel(name)}: is for streams, but this is read once")
        self.options = options
        self.executing = Executing(options, columns_of(schema, are_stored=not options.decompress))
        self.conditions: list[Filter] = []

    def partitions(self) -> list[InputPartition]:
        """Plan the tasks."""
        options, cluster = self.options, self.options.cluster()
        found = bounds.survey(cluster, options, whole=True)
        bounds.require_topics(found, options)
        require_filter(cluster, options, found)
        hidden = options.retried(lambda: unread(cluster, found.topics))
        if hidden := narrowed(hidden, self.conditions):
            log.warning("%s", left_out(hidden))
        wanted = bounds.wanted(cluster, options, found)
        wanted = {queue: each for queue, each in wanted.items() if each.first < each.end}
        wanted = narrowed(wanted, self.conditions)
        pieces = measured(cluster, wanted, found.addresses, options.target_bytes_per_task)
        tasks = plan(pieces, found.addresses, options)
        return [InputPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield what a task reads."""
        return self.executing.read(partition.value)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "conditions": []}  # Only the driver needs them.


class PushingReader(TopicReader):
    """A `TopicReader` that plans by conditions, if the option asks for it.

    Spark refuses a `pushFilters` while its switch is off. And it keeps the plan with the frame: if
    another query of the frame has no condition to offer, or the frame is joined or united with
    itself, the same tasks are used (4.3).
    """

    def pushFilters(self, filters: Sequence[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        """Keep conditions that help to plan; return all, so that Spark checks each row again."""
        self.conditions = about(filters, ("topic", "broker", "queue_id", "queue_offset"))
        return filters


def narrowed(wanted: Mapping[Queue, Bounds], conditions: Sequence[Filter]) -> dict[Queue, Bounds]:
    """Return ranges without the parts in which all rows fail a condition."""
    found: dict[Queue, Bounds] = {}
    for queue, each in wanted.items():
        values = {"topic": queue.topic, "broker": queue.broker, "queue_id": queue.id}
        first, end = each
        for condition in conditions:
            name = column_of(condition)
            if name == "queue_offset":
                low, high = range_of(condition)
                first, end = max(first, low), min(end, high)
            elif not holds(condition, values[name]):
                end = first
        if first < end:
            found[queue] = Bounds(first, end)
    return found
