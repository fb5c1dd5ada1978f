"""`reconcile`: whether two places hold the same messages: topics, archives, stores.

Messages are put into blocks, by their place (queue and offset) or, where places differ as in
another cluster, by what they are. Of each block both sides say how many messages it has and a
checksum that does not depend on their order; only blocks that differ are looked at message by
message. A message is

* **missing** when the left side has it and the right one does not,
* **extra** the other way round,
* **changed** when both have one at its place, and it is another.

What a message is does not depend on how its record keeps it: a copy may be compressed otherwise. By
place, the first look at level `checksum` goes by the checksums of bodies as they are stored, which
costs no bodies; of blocks that differ by that the bodies themselves are looked at. By content there
is no place that would say which two messages to look at, so bodies are read at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs.archive_files import again_if_merged, read_archive
from cometmq.pipeline.jobs.credentials import NOBODY, Credentials
from cometmq.pipeline.jobs.job import Job, Run, setting, timed
from cometmq.pipeline.jobs.places import STORE, TOPIC, read_place
from cometmq.pipeline.jobs.reconcile_sides import archives_in, refuse_nothing
from cometmq.pipeline.jobs.report import Outcome, Report
from cometmq.pipeline.jobs.results import Results
from cometmq.pipeline.jobs.tables import (
    by_queue,
    require_topics,
    rows_as_dicts,
    span,
    store_table,
    stored_between,
    topic_table,
)
from cometmq.pipeline.rows import KEPT_RESERVED, RESERVED
from cometmq.pipeline.store.files import check_store

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import Column, DataFrame, Row, SparkSession

    from cometmq.pipeline.jobs.places import Place

_QUEUE: Final = ("topic", "broker", "queue_id")
_PLACE: Final = (*_QUEUE, "queue_offset")
_HEAD: Final = ("key", "tag", "flag")
_WHICH: Final = "key IS NULL"
"""A hash passes over nulls: a tag without a key would be the same as a key without a tag."""
_STORED: Final = ("body_crc", "body_size")
"""Of a body as its record has it, maybe compressed: those of one message may differ."""
_SENT: Final = (
    "coalesce(crc32(cast(body AS binary)), body_crc)",
    "coalesce(length(cast(body AS binary)), body_size)",
)
"""The same of the body that was sent; of one that nobody can decompress it is what is stored."""
_SET_BY_OTHERS: Final = ", ".join(f"'{name}'" for name in sorted(RESERVED - set(KEPT_RESERVED)))
_PROPERTIES: Final = (
    "array_join(array_sort(transform(map_entries(map_filter(properties,"
    f" (name, value) -> name NOT IN ({_SET_BY_OTHERS}))),"
    " each -> concat(each.key, '\\u0001', each.value))), '\\u0002')"
)
_EXAMPLE: Final = [f"coalesce(left_example, right_example).{name} AS {name}" for name in _PLACE]
_LEVELS: Final = {
    "count": (),
    "checksum": (*_HEAD, _WHICH, *_SENT),
    "full": (*_HEAD, _WHICH, "body", *_SENT, _PROPERTIES),
}
"""What of a message is compared, beside its place."""
_COLUMNS: Final = {
    "count": (),
    "checksum": (*_HEAD, *_STORED, "body"),
    "full": (*_HEAD, *_STORED, "body", "properties"),
}
"""What is read for that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileSettings:
    """What to compare, and how closely."""

    left: str = setting(
        "topic:NAME@HOST:PORT, archive:DIR[#TOPIC] or store:DIR[#TOPIC].", metavar="PLACE"
    )
    right: str = setting("The same; what is only here is extra.", metavar="PLACE")
    left_credentials: Credentials = NOBODY
    right_credentials: Credentials = NOBODY
    level: str = setting("count, checksum (of keys, tags, flags and bodies) or full.", "checksum")
    by: str = setting("place (queue and offset), or content, where places differ.", "place")
    since: str = setting("Only what was stored then or later: ms, or ISO 8601.", "")
    until: str = setting("Only what was stored before.", "")
    common: bool = setting("Only offsets between the first and the last that both have.", False)
    one_way: bool = setting("Extra messages on the right are no finding.", False)
    ignore_broker: bool = setting("Take queues of one number on all brokers for the same.", False)
    block: int = setting("Offsets of a block.", 10_000)
    shown: int = setting("Differences in the report, at most.", 20)
    findings: str = setting("Write all differences there, as Parquet.", "", metavar="DIR")

    def __post_init__(self) -> None:
        for name, value, known in (
            ("level", self.level, tuple(_LEVELS)),
            ("by", self.by, ("place", "content")),
        ):
            if value not in known:
                raise OptionError(f"{name}: {value!r} is none of {', '.join(known)}")
        if self.by == "content" and (self.level == "count" or self.common):
            raise OptionError("by: content has no places: say level checksum or full, not common")
        if self.block < 1:
            raise OptionError("block: must be 1 at least")
        if self.shown < 0:
            raise OptionError("shown: must not be negative")
        for name in ("left", "right"):
            _place(self, name)
        stored_between(self)  # Looks at the times.

    @property
    def results(self) -> Results:
        """Where findings go."""
        places = (_place(self, name) for name in ("left", "right"))
        read = tuple(each.path for each in places if each.kind != TOPIC)
        return Results("findings", self.findings, "reconcile", read)


def _place(settings: ReconcileSettings, option: str) -> Place:
    text: str = getattr(settings, option)
    if (found := read_place(text)) is None:
        raise OptionError(
            f"{option}: {text!r} is none of topic:NAME@HOST:PORT, archive:DIR and store:DIR"
        )
    return found


def reconcile(spark: SparkSession, settings: ReconcileSettings, run: Run | None = None) -> Report:
    """Compare two places; the report's outcome is FINDINGS when they differ."""
    run = run or Run()
    report = run.report_of("reconcile")
    settings.results.require(spark)
    archives = archives_in(spark, [_place(settings, name) for name in ("left", "right")])
    with timed(report):
        again_if_merged(archives, lambda: _compare(_Reconciling(spark, settings, report), run))
    return report


def _compare(reconciling: _Reconciling, run: Run) -> None:
    settings, report = reconciling.settings, reconciling.report
    if run.dry_run:
        reconciling.count()
    differing = 0 if run.dry_run else reconciling.blocks(run)
    rows = {name: report.details[f"{name}_rows"] for name in reconciling.places}
    refuse_nothing(reconciling.spark, reconciling.places, rows, reconciling.table)
    if run.dry_run:
        return
    if differing:
        reconciling.drill_down(run)
    else:
        settings.results.remove(reconciling.spark)


def _look(settings: ReconcileSettings) -> None:
    settings.results.look()
    for name in ("left", "right"):
        place = _place(settings, name)
        if place.kind == STORE:
            check_store(place.path)
        if place.kind == TOPIC:
            credentials: Credentials = getattr(settings, f"{name}_credentials")
            require_topics(credentials.at(place.path), place.topic)


class _Reconciling:
    """Two places that are compared."""

    def __init__(self, spark: SparkSession, settings: ReconcileSettings, report: Report) -> None:
        self.settings = settings
        self.report = report
        places = {name: _place(settings, name) for name in ("left", "right")}
        self.is_one_topic = all(each.topic for each in places.values())
        self.has_brokers = not settings.ignore_broker and all(
            each.kind != STORE for each in places.values()
        )
        self.spark = spark
        self.places = places
        self.goes_by_records = settings.level == "checksum" and settings.by == "place"
        """Whether the first look is at how bodies are stored."""
        self.sides = self._sides(by_records=self.goes_by_records)

    def _sides(self, *, by_records: bool = False) -> dict[str, DataFrame]:
        """Return of both sides the messages that are compared."""
        settings = self.settings
        read, compared = _COLUMNS[settings.level], _LEVELS[settings.level]
        if by_records:
            read, compared = (*_HEAD, *_STORED), (*_HEAD, _WHICH, *_STORED)
        sides = {name: self._side(name, read, compared) for name in self.places}
        return self._in_common(sides) if settings.common else sides

    def _in_common(self, sides: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
        """Return what lies between the first and the last offset of a queue that both have.

        Where there is no such queue nothing would be compared, and nothing be found.
        """
        left, right = (frame.groupBy(*_QUEUE).agg(*_ends(name)) for name, frame in sides.items())
        ends = left.join(right, list(_QUEUE), "full_outer").selectExpr(
            *_QUEUE,
            "greatest(left_first, right_first) AS first",
            "least(left_last, right_last) AS last",
            "left_first IS NOT NULL AND right_first IS NOT NULL AS is_shared",
        )
        found = ends.collect()
        shared = [row for row in found if row["is_shared"]]
        self.report.details["queues_of_one_side"] = len(found) - len(shared)
        if not any(row["first"] <= row["last"] for row in shared):
            raise OptionError(
                f"common: the sides share no offset of a queue, of {len(found)} queues: nothing"
                " can be compared; `--by content` compares messages wherever they are"
            )
        both = self.spark.createDataFrame(shared, ends.schema)
        return {
            name: frame.join(both, list(_QUEUE))
            .where("queue_offset BETWEEN first AND last")
            .select(*frame.columns)
            for name, frame in sides.items()
        }

    def _side(self, name: str, read: tuple[str, ...], compared: tuple[str, ...]) -> DataFrame:
        """Return of each message its place, its block and its checksum."""
        settings = self.settings
        place_texts = (
            "'' AS topic" if self.is_one_topic else "topic",
            "broker" if self.has_brokers else "'' AS broker",
            "queue_id",
            "queue_offset",
        )
        mark = f"xxhash64({', '.join(compared)})" if compared else "0L"
        block = (
            f"queue_offset div {settings.block}"
            if settings.by == "place"
            else f"pmod({mark}, 1024)"
        )
        frame = self.table(name, (*_PLACE, "store_time", *read))
        frame = frame.where(stored_between(settings))
        marked: DataFrame = frame.selectExpr(*place_texts, f"{mark} AS mark", f"{block} AS block")
        return marked

    def table(self, name: str, columns: tuple[str, ...]) -> DataFrame:
        """Return columns of one side."""
        place = self.places[name]
        if place.kind == TOPIC:
            credentials: Credentials = getattr(self.settings, f"{name}_credentials")
            where = credentials.at(place.path)
            return topic_table(self.spark, where, place.topic, ", ".join(columns), onBadBody="skip")
        if place.kind == STORE:
            return store_table(self.spark, place.path, ", ".join(columns), place.topic)
        frame = read_archive(self.spark, place.path).select(*columns)
        return frame.where(frame["topic"] == place.topic) if place.topic else frame

    @property
    def _of_block(self) -> tuple[str, ...]:
        """The columns that name a block; of messages by what they are, queues are none."""
        return (*_QUEUE, "block") if self.settings.by == "place" else ("block",)

    def count(self) -> None:
        """Note in the report how much there is on each side."""
        for name, frame in self.sides.items():
            queues = by_queue(frame).collect()
            self.report.details[f"{name}_rows"] = sum(each["rows"] for each in queues)
            if name == "left":
                self._cover(queues)

    def blocks(self, run: Run) -> int:
        """Compare block by block; return how many differ."""
        from pyspark.sql import functions

        left, right = (self._summed(name, frame) for name, frame in self.sides.items())
        joined = left.join(right, list(self._of_block), "full_outer").persist()
        same = " AND ".join(f"left_{name} <=> right_{name}" for name in ("count", "low", "high"))
        (row,) = joined.selectExpr(
            "coalesce(sum(left_count), 0) AS left_rows",
            "coalesce(sum(right_count), 0) AS right_rows",
            "count(*) AS blocks",
            f"count_if(NOT ({same})) AS differing",
        ).collect()
        ends = ("min(left_first) AS first", "max(left_last) + 1 AS end")
        self._cover(self.of_queues.groupBy(*_QUEUE).agg(*map(functions.expr, ends)).collect())
        self.differing = joined.where(f"NOT ({same})").select(*self._of_block)
        self.report.details |= row.asDict()
        self.report.rows = row["left_rows"]
        run.tell(blocks=row["blocks"], differing=row["differing"], rows=row["left_rows"])
        return int(row["differing"])

    def _summed(self, name: str, frame: DataFrame) -> DataFrame:
        """Return what there is of each block of a side, of its queues first."""
        summed: DataFrame = frame.groupBy(*_QUEUE, "block").agg(*_sums(name))
        if name == "left":
            self.of_queues = summed = summed.persist()
        if self.settings.by == "content":
            summed = summed.groupBy("block").agg(*_sums_of_sums(name))
        return summed

    def _cover(self, queues: Iterable[Row]) -> None:
        """Note from where to where the left side was read."""
        for row in queues:
            topic = row["topic"] or self.places["left"].topic
            self.report.cover([span(row)._replace(topic=topic)])

    def drill_down(self, run: Run) -> None:
        """Look at the messages of the blocks that differ."""
        settings, report = self.settings, self.report
        by_place = settings.by == "place"
        sides = self._sides() if self.goes_by_records else self.sides
        key = _PLACE if by_place else ("mark",)
        left, right = (
            frame.join(self.differing, list(self._of_block), "left_semi")
            .groupBy(*key)
            .agg(*_found(name, by_place=by_place))
            for name, frame in sides.items()
        )
        kind = (
            "CASE WHEN left_many > coalesce(right_many, 0) THEN 'missing'"
            " WHEN right_many > coalesce(left_many, 0) THEN 'extra'"
            " WHEN NOT left_marks <=> right_marks THEN 'changed' END"
        )
        found = left.join(right, list(key), "full_outer").selectExpr(
            f"{kind} AS kind",
            *(key if by_place else _EXAMPLE),
            "coalesce(left_many, 0) AS left_many",
            "coalesce(right_many, 0) AS right_many",
        )
        condition = "kind IN ('missing', 'changed')" if settings.one_way else "kind IS NOT NULL"
        found = found.where(condition).orderBy(*_PLACE).persist()
        kinds = {row["kind"]: row["count"] for row in found.groupBy("kind").count().collect()}
        for name in ("missing", "extra", "changed"):
            report.details[name] = kinds.get(name, 0)
        report.details["shown"] = rows_as_dicts(found.limit(settings.shown))
        if settings.findings:
            settings.results.write(found)
        report.outcome = Outcome.FINDINGS if kinds else Outcome.DONE
        run.tell(**{name: report.details[name] for name in ("missing", "extra", "changed")})
        found.unpersist()


def _ends(side: str) -> list[Column]:
    from pyspark.sql import functions

    return [
        functions.expr("min(queue_offset)").alias(f"{side}_first"),
        functions.expr("max(queue_offset)").alias(f"{side}_last"),
    ]


def _sums(side: str) -> list[Column]:
    """Return the sums of a block: of two halves of the checksums, so that none runs over."""
    from pyspark.sql import functions

    return [
        functions.expr("count(*)").alias(f"{side}_count"),
        *_ends(side),
        functions.expr("sum(mark & 4294967295L)").alias(f"{side}_low"),
        functions.expr("sum(shiftrightunsigned(mark, 32))").alias(f"{side}_high"),
    ]


def _sums_of_sums(side: str) -> list[Column]:
    from pyspark.sql import functions

    names = [f"{side}_{name}" for name in ("count", "low", "high")]
    return [functions.expr(f"sum({name})").alias(name) for name in names]


def _found(side: str, *, by_place: bool) -> list[Column]:
    """Return what there is of a message: how often, and what."""
    from pyspark.sql import functions

    many = functions.expr("count(*)").alias(f"{side}_many")
    if by_place:
        return [many, functions.expr("array_sort(collect_list(mark))").alias(f"{side}_marks")]
    return [
        many,
        functions.expr("array(max(mark))").alias(f"{side}_marks"),
        functions.expr(f"min(struct({', '.join(_PLACE)}))").alias(f"{side}_example"),
    ]


JOB: Final = Job(
    "reconcile",
    ReconcileSettings,
    reconcile,
    "Whether two places hold the same.",
    examples=(
        "reconcile --left topic:orders@127.0.0.1:9876 --right archive:/data/orders",
        "reconcile --left store:/mnt/old --right store:/var/lib/cometmq --level full",
    ),
    goes_on=False,
    look=_look,
)
