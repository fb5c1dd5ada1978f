"""Where `replay` cuts a part into pieces of one second: at places in an order of rows.

The order of a replay is always the same: by store time, and then within a queue by offset, or
across queues by the place in the log. A piece ends at the place of a row and not after a number of
rows, as another run may have another rate, or a `where` that holds for other rows.
"""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cometmq.pipeline.jobs.pacing import Tempo
from cometmq.pipeline.jobs.replay_settings import KEY, QUEUE
from cometmq.pipeline.jobs.tables import span

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame

    from cometmq.pipeline.jobs.pacing import Pace
    from cometmq.pipeline.jobs.report import Span

_OF_QUEUES: Final = {
    "at": "bigint",
    "topic": "string",
    "broker": "string",
    "queue_id": "int",
    "queue_offset": "bigint",
}
_OF_LOGS: Final = {"at": "bigint", "broker": "string", "physical_offset": "bigint"} | _OF_QUEUES
"""A broker may store several messages in a millisecond; its log has them in their order."""
ORDERS: Final = {QUEUE: _OF_QUEUES, KEY: _OF_LOGS}
"""The columns by which messages are ordered, with their types, by what keeps its order."""


class Cut(NamedTuple):
    """The end of a piece."""

    last: list[Any]
    """The place of its last row."""
    rows: int
    stored_us: int
    """The store time of the first row, if the piece is cut by `speed`; otherwise 0."""
    spans: list[Span]
    """The ranges of queues that it covers."""


def cut(frame: DataFrame, pace: Pace | Tempo, order: Mapping[str, str]) -> list[Cut]:
    """Cut a part into pieces of one second."""
    from pyspark.sql import Window, functions

    if isinstance(pace, Tempo):
        number = functions.expr(f"at div {pace.second_us}")
    else:
        number = functions.row_number().over(Window.orderBy(*order)) - functions.lit(1)
        number = functions.floor(number / pace.rate)
    numbered = frame.select(*order).withColumn("number", number)
    by_queue = numbered.groupBy("number", "topic", "broker", "queue_id").agg(
        functions.max(functions.struct(*order)).alias("last"),
        functions.expr("count(*)").alias("rows"),
        functions.expr("min(at)").alias("stored"),
        functions.expr("min(queue_offset)").alias("first"),
        functions.expr("max(queue_offset) + 1").alias("end"),
    )
    pieces = groupby(by_queue.orderBy("number").collect(), itemgetter("number"))
    return [_cut(list(rows), is_second=isinstance(pace, Tempo)) for _, rows in pieces]


def _cut(rows: list[Any], *, is_second: bool) -> Cut:
    """Combine the queues' parts of a piece."""
    return Cut(
        last=max([*row["last"]] for row in rows),
        rows=sum(row["rows"] for row in rows),
        stored_us=min(row["stored"] for row in rows) if is_second else 0,
        spans=[span(row) for row in rows],
    )


def between(
    frame: DataFrame, before: list[Any] | None, last: list[Any] | None, order: Mapping[str, str]
) -> DataFrame:
    """Return the rows after one place, up to another."""
    from pyspark.sql import functions

    place = functions.struct(*order)
    if before is not None:
        # Only for the time does Spark keep minimum and maximum, by which it skips rows.
        frame = frame.where(functions.col("at") >= before[0]).where(place > _place(before, order))
    if last is not None:
        frame = frame.where(functions.col("at") <= last[0]).where(place <= _place(last, order))
    return frame


def _place(values: list[Any], order: Mapping[str, str]) -> Column:
    from pyspark.sql import functions

    named = zip(order.items(), values, strict=True)
    place: Column = functions.struct(
        *(functions.lit(value).cast(kind).alias(name) for (name, kind), value in named)
    )
    return place
