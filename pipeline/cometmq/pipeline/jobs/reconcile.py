"""`reconcile`: check whether two places (topics, archives or stores) have the same messages.

Messages are divided into blocks by their place (queue and offset) or, if places differ as in
another cluster, by their content. For each block, both sides compute the number of messages and a
checksum that does not depend on their order; only blocks that differ are compared message by
message. A message is

* **missing** if only the left side has it,
* **extra** if only the right side has it,
* **changed** if both sides have a message at its place, and the two differ.

`reconcile_sides` says which parts of a message are compared.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs.archive_files import again_if_merged, archives_in
from cometmq.pipeline.jobs.credentials import NOBODY, Credentials
from cometmq.pipeline.jobs.job import Job, Run, check_settings, running, setting
from cometmq.pipeline.jobs.local_paths import path_within
from cometmq.pipeline.jobs.places import STORE, TOPIC, read_place
from cometmq.pipeline.jobs.reconcile_sides import LEVELS, PLACE, QUEUE, SIDES, Sides, ends_of
from cometmq.pipeline.jobs.report import Outcome, Report
from cometmq.pipeline.jobs.results import Results
from cometmq.pipeline.jobs.tables import (
    SINCE,
    UNTIL,
    by_queue,
    kept,
    require_topics,
    rows_as_dicts,
    span,
    stored_between,
)
from cometmq.pipeline.nameservers import read_nameservers
from cometmq.pipeline.store.files import check_store

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column, DataFrame, Row, SparkSession

    from cometmq.pipeline.jobs.places import Place

_EXAMPLE: Final = [f"coalesce(left_example, right_example).{name} AS {name}" for name in PLACE]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileSettings:
    """What to compare, and how closely."""

    left: str = setting(
        "topic:NAME@HOST:PORT, archive:DIR[#TOPIC] or store:DIR[#TOPIC].", metavar="PLACE"
    )
    right: str = setting(
        "The place to compare it with; what only this one has is extra.", metavar="PLACE"
    )
    left_credentials: Credentials = NOBODY
    right_credentials: Credentials = NOBODY
    level: str = setting(
        "What to compare: count, checksum (keys, tags, flags, bodies) or full.", "checksum"
    )
    by: str = setting(
        "Match messages by place (queue and offset) or, if places differ, by content.", "place"
    )
    since: str = setting(SINCE, "")
    until: str = setting(UNTIL, "")
    common: bool = setting("Compare only the offsets that both sides still have.", False)
    one_way: bool = setting("Do not report extra messages on the right.", False)
    ignore_broker: bool = setting(
        "Treat queues with the same number as one queue, whatever their broker.", False
    )
    block: int = setting("How many offsets are compared as one block.", 10_000)
    shown: int = setting("Put at most this many differences into the report.", 20)
    findings: str = setting("Write all differences to this folder, as Parquet.", "", metavar="DIR")

    def __post_init__(self) -> None:
        check_settings(self)
        for name, value, known in (
            ("level", self.level, tuple(LEVELS)),
            ("by", self.by, ("place", "content")),
        ):
            if value not in known:
                raise OptionError(f"{name}: {value!r} is not one of {', '.join(known)}")
        if self.by == "content" and (self.level == "count" or self.common):
            raise OptionError(
                "by: content has no places: give level checksum or full, and not common"
            )
        if self.block < 1:
            raise OptionError("block: must be at least 1")
        if self.shown < 0:
            raise OptionError("shown: must not be negative")
        for side in SIDES:
            if (place := self.place(side)).kind == TOPIC:
                read_nameservers(place.path, side)
        stored_between(self)  # Checks the times.

    def place(self, side: str) -> Place:
        """Return the place of the messages of a side."""
        text: str = getattr(self, side)
        if (found := read_place(text)) is None:
            raise OptionError(
                f"{side}: {text!r} is not topic:NAME@HOST:PORT, archive:DIR or store:DIR"
            )
        return found

    def where(self, side: str) -> dict[str, str]:
        """Return the options for reaching the cluster of a side that is a topic."""
        credentials: Credentials = getattr(self, f"{side}_credentials")
        return credentials.at(self.place(side).path)

    @property
    def are_one_place(self) -> bool:
        """Whether both sides have the same name, or are the same folder."""
        left, right = map(self.place, SIDES)
        named_alike = left._replace(path=right.path) == right
        return named_alike and path_within(left.path, right.path) == ()

    @property
    def results(self) -> Results:
        """Where findings are written."""
        read = tuple(each.path for each in map(self.place, SIDES) if each.kind != TOPIC)
        return Results("findings", self.findings, "reconcile", read)


def reconcile(spark: SparkSession, settings: ReconcileSettings, run: Run | None = None) -> Report:
    """Compare two places; the report's outcome is FINDINGS if they differ."""
    run = run or Run()
    report = run.report_of("reconcile")
    if settings.are_one_place:
        run.tell(warning="left and right are the same place, so that they agree proves nothing")
    archives = archives_in(spark, map(settings.place, SIDES))

    def compare() -> None:
        with ExitStack() as until:
            _compare(_Reconciling(spark, settings, report, until), run)

    with running(spark, report), settings.results.held(spark, run):
        again_if_merged(archives, compare)
    return report


def _compare(reconciling: _Reconciling, run: Run) -> None:
    if left_out := reconciling.sides.left_out():
        reconciling.report.details["left_out"] = left_out
        for text in left_out:
            run.tell(warning=text)
    if run.dry_run:
        reconciling.count()
        reconciling.refuse_nothing()
        return
    differing = reconciling.blocks(run)
    reconciling.refuse_nothing()
    if differing is not None:
        reconciling.drill_down(differing, run)
    else:
        reconciling.settings.results.remove(reconciling.spark)


def _look(settings: ReconcileSettings) -> None:
    settings.results.look()
    for side in SIDES:
        place = settings.place(side)
        if place.kind == STORE:
            check_store(place.path)
        if place.kind == TOPIC:
            require_topics(settings.where(side), place.topic, side)


class _Reconciling:
    """The comparison of two places."""

    def __init__(
        self, spark: SparkSession, settings: ReconcileSettings, report: Report, until: ExitStack
    ) -> None:
        self.spark = spark
        self.settings = settings
        self.report = report
        self.until = until
        """At its end, Spark drops the tables that it caches for repeated use."""
        self.sides = Sides(spark, settings, report)

    def refuse_nothing(self) -> None:
        """Raise if nothing was compared, instead of reporting no findings."""
        self.sides.refuse_nothing({side: self.report.details[f"{side}_rows"] for side in SIDES})

    @property
    def _of_block(self) -> tuple[str, ...]:
        """The columns that identify a block; by content, the queue is not one of them."""
        return (*QUEUE, "block") if self.settings.by == "place" else ("block",)

    def count(self) -> None:
        """Note in the report how many messages each side has."""
        for side, frame in self.sides.at_first.items():
            queues = by_queue(frame).collect()
            self.report.details[f"{side}_rows"] = sum(each["rows"] for each in queues)
            if side == "left":
                self.report.rows = self.report.details["left_rows"]
                self._cover(queues)

    def blocks(self, run: Run) -> DataFrame | None:
        """Compare block by block; return those that differ, or `None`."""
        from pyspark.sql import functions

        of_queues = {
            side: frame.groupBy(*QUEUE, "block").agg(*_sums(side))
            for side, frame in self.sides.at_first.items()
        }
        of_left = of_queues["left"] = kept(of_queues["left"], self.until)
        left, right = (self._of_blocks(side, frame) for side, frame in of_queues.items())
        joined = kept(left.join(right, list(self._of_block), "full_outer"), self.until)
        same = " AND ".join(f"left_{name} <=> right_{name}" for name in ("count", "low", "high"))
        (row,) = joined.selectExpr(
            "coalesce(sum(left_count), 0) AS left_rows",
            "coalesce(sum(right_count), 0) AS right_rows",
            "count(*) AS blocks",
            f"count_if(NOT ({same})) AS differing",
        ).collect()
        ends = ("min(left_first) AS first", "max(left_last) + 1 AS end")
        self._cover(of_left.groupBy(*QUEUE).agg(*map(functions.expr, ends)).collect())
        self.report.details |= row.asDict()
        self.report.rows = row["left_rows"]
        run.tell(blocks=row["blocks"], differing=row["differing"], rows=row["left_rows"])
        differing: DataFrame = joined.where(f"NOT ({same})").select(*self._of_block)
        return differing if row["differing"] else None

    def _of_blocks(self, side: str, of_queues: DataFrame) -> DataFrame:
        """Return the sums of a side's blocks, from those of its queues."""
        if self.settings.by == "place":
            return of_queues
        summed: DataFrame = of_queues.groupBy("block").agg(*_sums_of_sums(side))
        return summed

    def _cover(self, queues: Iterable[Row]) -> None:
        """Note which ranges of the left side were read."""
        for row in queues:
            topic = row["topic"] or self.sides.places["left"].topic
            self.report.cover([span(row)._replace(topic=topic)])

    def drill_down(self, differing: DataFrame, run: Run) -> None:
        """Compare the messages of the blocks that differ."""
        settings, report = self.settings, self.report
        by_place = settings.by == "place"
        key = PLACE if by_place else ("mark",)
        left, right = (
            frame.join(differing, list(self._of_block), "left_semi")
            .groupBy(*key)
            .agg(*_found(side, by_place=by_place))
            for side, frame in self.sides.closely().items()
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
        found = kept(found.where(condition).orderBy(*PLACE), self.until)
        kinds = {row["kind"]: row["count"] for row in found.groupBy("kind").count().collect()}
        for name in ("missing", "extra", "changed"):
            report.details[name] = kinds.get(name, 0)
        report.details["shown"] = rows_as_dicts(found.limit(settings.shown))
        if settings.findings:
            settings.results.write(found)
        report.outcome = Outcome.FINDINGS if kinds else Outcome.DONE
        run.tell(**{name: report.details[name] for name in ("missing", "extra", "changed")})
        if kinds:
            self._tell_of_news(run)

    def _tell_of_news(self, run: Run) -> None:
        """Warn if messages came or went meanwhile: the sides are read one after the other."""
        if moved := self.sides.moved():
            self.report.details["meanwhile"] = (
                f"messages came, expired or were deleted on the {' and the '.join(moved)} while"
                " this ran, and some of the differences may be no more than that: compare again, at"
                " best while nothing comes"
            )
            run.tell(warning=self.report.details["meanwhile"])


def _sums(side: str) -> list[Column]:
    """Return the sums of a block, of two halves of the checksums, so that neither overflows."""
    from pyspark.sql import functions

    return [
        functions.expr("count(*)").alias(f"{side}_count"),
        *ends_of(side),
        functions.expr("sum(mark & 4294967295L)").alias(f"{side}_low"),
        functions.expr("sum(shiftrightunsigned(mark, 32))").alias(f"{side}_high"),
    ]


def _sums_of_sums(side: str) -> list[Column]:
    from pyspark.sql import functions

    names = [f"{side}_{name}" for name in ("count", "low", "high")]
    return [functions.expr(f"sum({name})").alias(name) for name in names]


def _found(side: str, *, by_place: bool) -> list[Column]:
    """Return how often a message occurs, and its content."""
    from pyspark.sql import functions

    many = functions.expr("count(*)").alias(f"{side}_many")
    if by_place:
        return [many, functions.expr("array_sort(collect_list(mark))").alias(f"{side}_marks")]
    return [
        many,
        functions.expr("array(max(mark))").alias(f"{side}_marks"),
        functions.expr(f"min(struct({', '.join(PLACE)}))").alias(f"{side}_example"),
    ]


JOB: Final = Job(
    "reconcile",
    ReconcileSettings,
    reconcile,
    "Compare the messages of two places.",
    about=(
        "A place is a topic, an archive or a store. Only blocks whose checksums differ are read"
        " message by message. The exit status is 1 if the places differ, and the report shows"
        " what is missing, extra or changed."
    ),
    examples=(
        "reconcile --left topic:orders@127.0.0.1:9876 --right archive:/data/orders",
        "reconcile --left store:/mnt/old --right store:/var/lib/cometmq --level full",
    ),
    goes_on=False,
    holds=lambda settings: settings.results.places,
    look=_look,
)
