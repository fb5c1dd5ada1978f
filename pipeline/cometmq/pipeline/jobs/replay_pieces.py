"""Where `replay` cuts a part into pieces of what a second has: by a place in an order of rows.

The order is always the same: by when a message was stored, and those of a queue by their offset. A
piece ends at the place of a row, and not behind so many of them, for another run may be given
another rate, or find a `where` to hold for other rows.
"""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cometmq.pipeline.jobs.pacing import Tempo
from cometmq.pipeline.jobs.tables import span

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from cometmq.pipeline.jobs.pacing import Pace
    from cometmq.pipeline.jobs.report import Span

ORDER: Final = ("at", "topic", "broker", "queue_id", "queue_offset")


class Cut(NamedTuple):
    """The end of a piece."""

    last: list[Any]
    """The place of its last row."""
    rows: int
    stored_us: int
    """When the first of them was stored, of a piece that is one second's of then; else 0."""
    spans: list[Span]
    """From where to where it has the queues."""


def cut(frame: DataFrame, pace: Pace | Tempo) -> list[Cut]:
    """Cut into what a second has."""
    from pyspark.sql import Window, functions

    if isinstance(pace, Tempo):
        number = functions.expr(f"at div {pace.second_us}")
    else:
        number = functions.row_number().over(Window.orderBy(*ORDER)) - functions.lit(1)
        number = functions.floor(number / pace.rate)
    numbered = frame.select(*ORDER).withColumn("number", number)
    by_queue = numbered.groupBy("number", "topic", "broker", "queue_id").agg(
        functions.max(functions.struct(*ORDER)).alias("last"),
        functions.expr("count(*)").alias("rows"),
        functions.expr("min(at)").alias("stored"),
        functions.expr("min(queue_offset)").alias("first"),
        functions.expr("max(queue_offset) + 1").alias("end"),
    )
    pieces = groupby(by_queue.orderBy("number").collect(), itemgetter("number"))
    return [_cut(list(rows), is_second=isinstance(pace, Tempo)) for _, rows in pieces]


def _cut(rows: list[Any], *, is_second: bool) -> Cut:
    """Put together what the queues have of a piece."""
    return Cut(
        last=max([row["last"][name] for name in ORDER] for row in rows),
        rows=sum(row["rows"] for row in rows),
        stored_us=min(row["stored"] for row in rows) if is_second else 0,
        spans=[span(row) for row in rows],
    )


def between(frame: DataFrame, before: list[Any] | None, last: list[Any] | None) -> DataFrame:
    """Return the rows behind one place, up to another."""
    from pyspark.sql import functions

    place = functions.struct(*ORDER)
    if before is not None:
        # The time alone is what Spark keeps the least and the greatest of, and passes over rows by.
        frame = frame.where(functions.col("at") >= before[0]).where(place > _place(before))
    if last is not None:
        frame = frame.where(functions.col("at") <= last[0]).where(place <= _place(last))
    return frame


def _place(values: list[Any]) -> Column:
    from pyspark.sql import functions

    kinds = ("bigint", "string", "string", "int", "bigint")
    named = zip(ORDER, values, kinds, strict=True)
    place: Column = functions.struct(
        *(functions.lit(value).cast(kind).alias(name) for name, value, kind in named)
    )
    return place
