"""Where `replay` cuts a part into pieces of what a second has: by a place in an order of rows.

The order is always the same: by when a message was stored, and those of a queue by their offset. A
piece ends at the place of a row, and not behind so many of them, for another run may be given
another rate, or find a `where` to hold for other rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cometmq.pipeline.jobs.pacing import Tempo

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from cometmq.pipeline.jobs.pacing import Pace

ORDER: Final = ("at", "topic", "broker", "queue_id", "queue_offset")


class Cut(NamedTuple):
    """The end of a piece."""

    last: list[Any]
    """The place of its last row."""
    rows: int
    stored_us: int
    """When the first of them was stored, of a piece that is one second's of then; else 0."""


def cut(frame: DataFrame, pace: Pace | Tempo) -> list[Cut]:
    """Cut into what a second has."""
    if isinstance(pace, Tempo):
        return _cut_seconds(frame, pace.second_us)
    return _cut_every(frame, pace.rate)


def _cut_every(frame: DataFrame, size: int) -> list[Cut]:
    """Cut at each `size`-th row, and at the last one."""
    from pyspark.sql import Window, functions

    numbered = frame.select(*ORDER).withColumn(
        "number", functions.row_number().over(Window.orderBy(*ORDER))
    )
    ends = numbered.where(f"number % {size} = 0 OR number = {frame.count()}").orderBy("number")
    found = [([row[name] for name in ORDER], row["number"]) for row in ends.collect()]
    numbers = [0, *(number for _, number in found)]
    return [
        Cut(place, number - before, 0)
        for (place, number), before in zip(found, numbers, strict=False)
    ]


def _cut_seconds(frame: DataFrame, second_us: int) -> list[Cut]:
    """Cut at the last row of each second."""
    from pyspark.sql import functions

    place = functions.struct(*ORDER)
    seconds = frame.groupBy(functions.expr(f"at div {second_us}")).agg(
        functions.max(place).alias("last"),
        functions.count("*").alias("rows"),
        functions.min("at").alias("first"),
    )
    return [
        Cut([row["last"][name] for name in ORDER], row["rows"], row["first"])
        for row in seconds.orderBy("first").collect()
    ]


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
