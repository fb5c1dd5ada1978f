"""What `reconcile` looks at beside the messages of its two sides.

Whether there was anything to compare: else two places that both have nothing would be the same.

Whether a cluster has a topic it says itself, before Spark starts. An archive or a store that is
asked for a topic which it has never heard of has no rows, as one that has lost them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs.archive_files import knows_topic
from cometmq.pipeline.jobs.folders import Folder
from cometmq.pipeline.jobs.places import ARCHIVE, TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from cometmq.pipeline.jobs.places import Place


def archives_in(spark: SparkSession, places: Iterable[Place]) -> list[Folder]:
    """Return the archives among some places, which `archive-compact` may be at."""
    return [Folder(spark, place.path) for place in places if place.kind == ARCHIVE]


def refuse_nothing(
    spark: SparkSession,
    places: Mapping[str, Place],
    rows: Mapping[str, int],
    table: Callable[[str, tuple[str, ...]], DataFrame],
) -> None:
    """Refuse a side that has not the topic which is compared, and two sides without a message.

    `rows` is how many each side has of what is compared; `table` gives some columns of all.
    """
    for side, place in places.items():
        if rows[side] or not place.topic or place.kind == TOPIC:
            continue
        if place.kind == ARCHIVE and knows_topic(Folder(spark, place.path), place.topic):
            continue
        if not table(side, ("topic",)).take(1):
            raise OptionError(f"{side}: {place.path} has nothing of a topic {place.topic}")
    if not any(rows.values()):
        raise OptionError(
            "left, right: neither has a message of what is compared, so nothing was; look at the"
            " names and the times"
        )
