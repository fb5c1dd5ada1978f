"""The two sides of `reconcile`: what of their messages is compared, and whether there are any.

The identity of a message does not depend on how its record is stored: a copy may be compressed
differently. By place, at level `checksum`, the first look uses the checksums of bodies as stored,
so that no bodies are read; for blocks that then differ, the bodies themselves are compared. By
content there is no place that says which two messages to compare, so bodies are read at once.

Two places without any messages would be equal. A cluster says itself, before Spark starts, whether
it has a topic. But an archive or a store without a topic has no rows of it, like one that has lost
them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs.archive_files import knows_topic, read_archive
from cometmq.pipeline.jobs.folders import Folder
from cometmq.pipeline.jobs.places import ARCHIVE, STORE, TOPIC
from cometmq.pipeline.jobs.tables import store_table, stored_between, survey, topic_table
from cometmq.pipeline.options import read_options
from cometmq.pipeline.rows import KEPT_RESERVED, RESERVED
from cometmq.pipeline.store.splits import look
from cometmq.pipeline.unread import left_out, unread

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame, SparkSession

    from cometmq.pipeline.jobs.reconcile import ReconcileSettings
    from cometmq.pipeline.jobs.report import Report

SIDES: Final = ("left", "right")
QUEUE: Final = ("topic", "broker", "queue_id")
PLACE: Final = (*QUEUE, "queue_offset")
_HEAD: Final = ("key", "tag", "flag")
_WHICH: Final = "key IS NULL"
"""A hash ignores nulls: a tag without a key would equal a key without a tag."""
_STORED: Final = ("body_crc", "body_size")
"""The body as stored, maybe compressed: copies of one message may differ."""
_SENT: Final = (
    "coalesce(crc32(cast(body AS binary)), body_crc)",
    "coalesce(length(cast(body AS binary)), body_size)",
)
"""The same for the body as sent; if it cannot be decompressed, as stored."""
_SET_BY_OTHERS: Final = ", ".join(f"'{name}'" for name in sorted(RESERVED - set(KEPT_RESERVED)))
_PROPERTIES: Final = (
    "array_join(array_sort(transform(map_entries(map_filter(properties,"
    f" (name, value) -> name NOT IN ({_SET_BY_OTHERS}))),"
    " each -> concat(each.key, '\\u0001', each.value))), '\\u0002')"
)
LEVELS: Final = {
    "count": (),
    "checksum": (*_HEAD, _WHICH, *_SENT),
    "full": (*_HEAD, _WHICH, "body", *_SENT, _PROPERTIES),
}
"""What is compared of a message, besides its place."""
_COLUMNS: Final = {
    "count": (),
    "checksum": (*_HEAD, *_STORED, "body"),
    "full": (*_HEAD, *_STORED, "body", "properties"),
}
"""The columns that are read for that."""


class Sides:
    """The messages of both sides: the place and block of each, and a checksum as `mark`."""

    def __init__(self, spark: SparkSession, settings: ReconcileSettings, report: Report) -> None:
        self._spark = spark
        self._settings = settings
        self._report = report
        self.places = {side: settings.place(side) for side in SIDES}
        self._is_one_topic = all(each.topic for each in self.places.values())
        self._has_brokers = not settings.ignore_broker and all(
            each.kind != STORE for each in self.places.values()
        )
        self._goes_by_records = settings.level == "checksum" and settings.by == "place"
        """Whether the first look uses bodies as stored."""
        self._there = self._there_now()  # Before the first look, which may read both sides.
        self.at_first = self._marked(by_records=self._goes_by_records)
        """The messages by side, for a cheap first look."""

    def closely(self) -> dict[str, DataFrame]:
        """Return the messages by side, compared by bodies as sent."""
        return self._marked() if self._goes_by_records else self.at_first

    def _marked(self, *, by_records: bool = False) -> dict[str, DataFrame]:
        settings = self._settings
        read, compared = _COLUMNS[settings.level], LEVELS[settings.level]
        if by_records:
            read, compared = (*_HEAD, *_STORED), (*_HEAD, _WHICH, *_STORED)
        frames = {side: self._side(side, read, compared) for side in SIDES}
        return self._in_common(frames) if settings.common else frames

    def _in_common(self, frames: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
        """Return the messages in the range of offsets of a queue that both sides have.

        Raise if there is no such queue, as nothing would be compared, and nothing found.
        """
        left, right = (frame.groupBy(*QUEUE).agg(*ends_of(side)) for side, frame in frames.items())
        ends = left.join(right, list(QUEUE), "full_outer").selectExpr(
            *QUEUE,
            "greatest(left_first, right_first) AS first",
            "least(left_last, right_last) AS last",
            "left_first IS NOT NULL AND right_first IS NOT NULL AS is_shared",
        )
        found = ends.collect()
        shared = [row for row in found if row["is_shared"]]
        self._report.details["queues_of_one_side"] = len(found) - len(shared)
        if not any(row["first"] <= row["last"] for row in shared):
            raise OptionError(
                f"common: the sides share no offset in any of {len(found)} queues: nothing can be"
                " compared; `--by content` compares messages wherever they are"
            )
        both = self._spark.createDataFrame(shared, ends.schema)
        return {
            side: frame.join(both, list(QUEUE))
            .where("queue_offset BETWEEN first AND last")
            .select(*frame.columns)
            for side, frame in frames.items()
        }

    def _side(self, side: str, read: tuple[str, ...], compared: tuple[str, ...]) -> DataFrame:
        """Return the place, block and checksum of each message of a side."""
        settings = self._settings
        place_texts = (
            "'' AS topic" if self._is_one_topic else "topic",
            "broker" if self._has_brokers else "'' AS broker",
            "queue_id",
            "queue_offset",
        )
        mark = f"xxhash64({', '.join(compared)})" if compared else "0L"
        block = (
            f"queue_offset div {settings.block}"
            if settings.by == "place"
            else f"pmod({mark}, 1024)"
        )
        frame = self._table(side, (*PLACE, "store_time", *read))
        frame = frame.where(stored_between(settings))
        marked: DataFrame = frame.selectExpr(*place_texts, f"{mark} AS mark", f"{block} AS block")
        return marked

    def _table(self, side: str, columns: tuple[str, ...]) -> DataFrame:
        """Return columns of one side."""
        place = self.places[side]
        if place.kind == TOPIC:
            where, names = self._settings.where(side), ", ".join(columns)
            # What expires while it is read is a difference, if the other side still has it.
            skipping = {"onBadBody": "skip", "failOnDataLoss": "false"}
            return topic_table(self._spark, where, place.topic, names, **skipping)
        if place.kind == STORE:
            return store_table(self._spark, place.path, ", ".join(columns), place.topic)
        frame = read_archive(self._spark, place.path).select(*columns)
        return frame.where(frame["topic"] == place.topic) if place.topic else frame

    def moved(self) -> list[str]:
        """Return the sides on which messages came or went since this was made."""
        now = self._there_now()
        return [side for side in SIDES if now[side] != self._there[side]]

    def left_out(self) -> list[str]:
        """Return what to say of topics with messages that cannot be read."""
        found: list[str] = []
        for side, place in self.places.items():
            if place.kind == TOPIC:
                options = read_options({**self._settings.where(side), "topic": place.topic})
                cluster = options.cluster()
                if hidden := options.retried(partial(unread, cluster, options.topics)):
                    found.append(f"{side}: {left_out(hidden)}")
        return found

    def _there_now(self) -> dict[str, object]:
        """Return for each side from where to where it has messages; nothing for an archive."""
        return {side: self._ends(side) for side in SIDES}

    def _ends(self, side: str) -> object:
        place = self.places[side]
        if place.kind == TOPIC:
            _, found = survey(self._settings.where(side), place.topic)
            return found.queues
        if place.kind == STORE:
            log = look(place.path)
            return log.first, log.end
        return None

    def refuse_nothing(self, rows: Mapping[str, int]) -> None:
        """Refuse a side without the topic that is compared, and two sides without any message.

        `rows` is how many compared messages each side has.
        """
        for side, place in self.places.items():
            if rows[side] or not place.topic or place.kind == TOPIC:
                continue
            if place.kind == ARCHIVE and knows_topic(Folder(self._spark, place.path), place.topic):
                continue
            if not self._table(side, ("topic",)).take(1):
                raise OptionError(f"{side}: {place.path} has no message of topic {place.topic}")
        if not any(rows.values()):
            raise OptionError(
                "left, right: neither has a message to compare, so nothing was compared; check the"
                " names and the times"
            )


def ends_of(side: str) -> list[Column]:
    """Return the first and the last offset of a queue on one side."""
    from pyspark.sql import functions

    return [
        functions.expr("min(queue_offset)").alias(f"{side}_first"),
        functions.expr("max(queue_offset)").alias(f"{side}_last"),
    ]
