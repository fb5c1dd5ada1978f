"""The rows that `replay` sends: who they are, in which order, and which of them go to one queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.pipeline.jobs.marks import read_mark
from cometmq.pipeline.jobs.replay_pieces import ORDERS
from cometmq.pipeline.jobs.replay_settings import KEY
from cometmq.pipeline.rows import SHARDING_KEY

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from cometmq.pipeline.jobs.replay_settings import ReplaySettings

_NAMES: Final = {
    "source_topic": "topic",
    "source_broker": "broker",
    "source_queue_id": "queue_id",
    "source_offset": "queue_offset",
}
SENT: Final = ("body", "key", "tag", "properties", "flag")
PLACE: Final = tuple(_NAMES.values())
"""The columns that say where a message was."""
_QUEUE: Final = ("topic", "broker", "queue_id")
_SHARDING_KEY: Final = f"coalesce(nullif(properties['{SHARDING_KEY}'], ''), nullif(key, ''))"
_KEY_OR_QUEUE: Final = f"coalesce(sharding_key, concat_ws('/', {', '.join(_QUEUE)}))"
_TASKS_BY_KEY: Final = 8
"""Always the same, as what an earlier run sent is found by the first rows of its tasks."""


def to_send(frame: DataFrame, settings: ReplaySettings, order: str, *, by_host: bool) -> DataFrame:
    """Return rows for the sink.

    `order` is the column that orders the messages of a queue; `by_host` says whether the broker's
    address is part of who a message is.
    """
    from pyspark.sql import functions

    columns = [functions.col(name).alias(own) for own, name in _NAMES.items()]
    if by_host:
        columns.append(functions.col("store_host").alias("source_host"))
    columns += [functions.col(name) for name in ("store_time", *SENT) if name != "properties"]
    columns.append(_properties(settings.mark).alias("properties"))
    if settings.preserve_order == KEY:
        frame = frame.withColumn("sharding_key", functions.expr(_SHARDING_KEY))
        frame = frame.repartition(_TASKS_BY_KEY, functions.expr(_KEY_OR_QUEUE))
        frame = frame.sortWithinPartitions(*ORDERS[KEY])
        columns.append(functions.col("sharding_key"))
    else:
        frame = frame.repartition(*_QUEUE).sortWithinPartitions(*_QUEUE, order)
    rows: DataFrame = frame.select(*columns)
    return rows


def _properties(mark: str) -> Column:
    from pyspark.sql import functions

    properties: Column = functions.col("properties")
    if not mark:
        return properties
    name, value = read_mark(mark)

    def other(key: Column, _value: Column) -> Column:
        differs: Column = key != name
        return differs

    marked: Column = functions.map_concat(
        functions.map_filter(properties, other),
        functions.create_map(functions.lit(name), functions.lit(value)),
    )
    return marked
