"""The job `reconcile`: it finds what differs, and reports nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

from tests.pipeline.aging import expire
from tests.pipeline.tables import Tables, keeping_warnings, keeps_nothing

from cometmq.client import ClientConfig, SyncClient
from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs.archive import ArchiveSettings, archive
from cometmq.pipeline.jobs.job import Run
from cometmq.pipeline.jobs.mirror import MirrorSettings, mirror
from cometmq.pipeline.jobs.reconcile import JOB, ReconcileSettings, reconcile
from cometmq.pipeline.jobs.reconcile_sides import Sides
from cometmq.pipeline.jobs.report import Outcome, Report

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from cometmq.testing import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]


@pytest.fixture
def topic(tables: Tables, tmp_path: Path) -> str:
    """A topic of this test's own, with forty messages."""
    name = tmp_path.name.replace("_", "-")
    tables.fill(name, 40)
    return name


def place(tables: Tables, topic: str) -> str:
    return f"topic:{topic}@{tables.cluster.nameserver}"


def compared(tables: Tables, left: str, right: str, **more: Any) -> Report:
    return reconcile(tables.spark, ReconcileSettings(left=left, right=right, block=7, **more))


def archived(tables: Tables, topic: str, to: Path) -> str:
    settings = ArchiveSettings(nameserver=tables.cluster.nameserver, topic=topic, to=str(to))
    archive(tables.spark, settings)
    return f"archive:{to}"


def counts(report: Report) -> tuple[int, int, int]:
    details = report.details
    return details["missing"], details["extra"], details["changed"]


@pytest.mark.parametrize(
    "level",
    [
        pytest.param("count", marks=pytest.mark.slow),
        pytest.param("checksum", marks=pytest.mark.slow),
        "full",
    ],
)
def test_an_archive_holds_what_its_topic_holds(
    tables: Tables, topic: str, tmp_path: Path, level: str
) -> None:
    to = archived(tables, topic, tmp_path / "archive")
    report = compared(tables, place(tables, topic), to, level=level)
    assert (report.outcome, report.rows) == (Outcome.DONE, 40)
    assert report.offsets == {topic: {"broker-a": {"0": [0, 20], "1": [0, 20]}}}
    assert report.details["right_rows"] == 40
    assert report.details["blocks"] == 6


def test_what_is_missing_extra_and_changed_is_told_apart(
    tables: Tables, topic: str, tmp_path: Path
) -> None:
    path = tmp_path / "archive"
    to = archived(tables, topic, path)
    rows = tables.spark.read.parquet(str(path / "batch=000000"))
    rows = rows.selectExpr(
        *(name for name in rows.columns if name not in ("body", "body_crc", "queue_offset")),
        "if(queue_id = 0 AND queue_offset = 3, queue_offset + 1000, queue_offset) AS queue_offset",
        "if(queue_id = 1 AND queue_offset = 5, cast('other' AS binary), body) AS body",
        "if(queue_id = 1 AND queue_offset = 5, 0, body_crc) AS body_crc",
    )
    rows.persist().count()
    rows.write.mode("append").parquet(str(tmp_path / "changed" / "batch=000000"))
    (path / "_manifests").rename(tmp_path / "changed" / "_manifests")
    for level in ("checksum", "full"):
        report = compared(
            tables,
            place(tables, topic),
            f"archive:{tmp_path / 'changed'}#{topic}",
            level=level,
            findings=str(tmp_path / f"findings-{level}"),
        )
        assert report.outcome == Outcome.FINDINGS
        assert counts(report) == (1, 1, 1)
        found = {
            (each["kind"], each["queue_id"], each["queue_offset"])
            for each in report.details["shown"]
        }
        assert found == {("missing", 0, 3), ("extra", 0, 1003), ("changed", 1, 5)}
        assert tables.spark.read.parquet(str(tmp_path / f"findings-{level}")).count() == 3
    one_way = compared(
        tables, place(tables, topic), f"archive:{tmp_path / 'changed'}#{topic}", one_way=True
    )
    assert counts(one_way) == (1, 0, 1)
    assert not to.endswith("changed")


@pytest.mark.slow
def test_spark_keeps_nothing_of_what_was_compared(
    tables: Tables, topic: str, tmp_path: Path
) -> None:
    to = archived(tables, topic, tmp_path / "archive")
    tables.fill(topic, 3, first=40)
    tables.spark.catalog.clearCache()
    assert counts(compared(tables, place(tables, topic), to)) == (3, 0, 0)
    assert keeps_nothing(tables.spark)


@pytest.mark.slow
def test_what_is_found_while_messages_come_may_be_no_difference(tables: Tables, topic: str) -> None:
    copy = f"{topic}-copy"
    tables.fill(copy, 39)
    sides: dict[str, Any] = {"left": place(tables, topic), "right": place(tables, copy)}

    def send_more(news: Mapping[str, Any]) -> None:
        if "blocks" in news:
            tables.fill(topic, 1, first=41)

    report = reconcile(
        tables.spark, ReconcileSettings(**sides, level="count"), Run(progress=send_more)
    )
    assert (report.outcome, counts(report)) == (Outcome.FINDINGS, (2, 0, 0))
    said = "messages came, expired or were deleted on the left while this ran, and some of"
    assert report.details["meanwhile"].startswith(said)
    again = reconcile(tables.spark, ReconcileSettings(**sides, level="count"))
    assert (counts(again), "meanwhile" in again.details) == ((2, 0, 0), False)


@pytest.mark.slow
@pytest.mark.usefixtures("no_connection_is_kept")
def test_what_expires_while_it_is_compared_is_a_difference_that_may_be_none(
    spark: SparkSession, aging: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(
        spark, ArchiveSettings(nameserver=aging.nameserver, topic="aging", to=str(tmp_path / "a"))
    )
    left: list[int] = []

    def read_behind_an_expiry(sides: Sides, frames: Any) -> Any:
        found = in_common(sides, frames)  # Spark plans the topic's tasks, and keeps the plan.
        left[:] = left or [expire(aging)]
        return found

    in_common = Sides._in_common  # pyright: ignore[reportPrivateUsage]  # Between two reads.
    monkeypatch.setattr(Sides, "_in_common", read_behind_an_expiry)
    settings = ReconcileSettings(
        left=f"topic:aging@{aging.nameserver}",
        right=f"archive:{tmp_path / 'a'}",
        level="count",
        common=True,
    )
    report = reconcile(spark, settings)
    assert (report.outcome, counts(report)) == (Outcome.FINDINGS, (0, *left, 0))
    assert report.details["meanwhile"].startswith("messages came, expired or were")
    assert reconcile(spark, settings).outcome == Outcome.DONE


@pytest.mark.slow
def test_what_came_later_is_missing_unless_only_the_common_part_counts(
    tables: Tables, topic: str, tmp_path: Path
) -> None:
    to = archived(tables, topic, tmp_path / "archive")
    tables.fill(topic, 3, first=40)
    assert counts(compared(tables, place(tables, topic), to)) == (3, 0, 0)
    assert compared(tables, place(tables, topic), to, common=True).outcome == Outcome.DONE
    assert counts(compared(tables, to, place(tables, topic))) == (0, 3, 0)
    assert compared(tables, to, place(tables, topic), one_way=True).outcome == Outcome.DONE


def test_two_places_without_a_common_part_are_not_the_same(
    tables: Tables, topic: str, tmp_path: Path
) -> None:
    """Nothing would be compared, and the job would say that all is well."""
    to = archived(tables, topic, tmp_path / "archive")
    other = "someone-elses-topic"
    store = f"{to.partition('#')[0]}#{other}"
    with pytest.raises(OptionError, match="common: the sides share no offset in any of"):
        compared(tables, place(tables, topic), store, common=True)


def test_a_mirror_is_compared_by_what_its_messages_are(
    tables: Tables, topic: str, tmp_path: Path
) -> None:
    given = {"nameserver": tables.cluster.nameserver, "to_nameserver": tables.cluster.nameserver}
    settings = MirrorSettings(**given, topic=topic, prefix="m-", checkpoint=str(tmp_path / "cp"))  # type: ignore[arg-type]  # texts
    mirror(tables.spark, settings)
    sides = place(tables, topic), place(tables, f"m-{topic}")
    same = compared(tables, *sides, by="content", level="full")
    assert (same.outcome, same.rows) == (Outcome.DONE, 40)
    assert same.offsets == {topic: {"broker-a": {"0": [0, 20], "1": [0, 20]}}}
    for _ in range(2):  # Twice the same: neither hides the other.
        tables.cluster.send(f"m-{topic}", b"7")
    report = compared(tables, *sides, by="content", level="full")
    assert counts(report) == (0, 1, 0)
    assert [(each["left_many"], each["right_many"]) for each in report.details["shown"]] == [(1, 3)]


@pytest.mark.parametrize("level", [pytest.param("checksum", marks=pytest.mark.slow), "full"])
@pytest.mark.parametrize(
    "how",
    [pytest.param({"by": "content"}, marks=pytest.mark.slow), {"ignore_broker": True}],
    ids=["content", "place"],
)
def test_a_copy_that_is_compressed_otherwise_is_the_same(
    tables: Tables, tmp_path: Path, level: str, how: dict[str, Any]
) -> None:
    name = tmp_path.name.replace("_", "-").replace("[", "-").replace("]", "")
    bodies = [bytes([number]) * 5_000 for number in range(10)]
    for topic, compress_from in ((name, 1_000), (f"m-{name}", 0)):
        tables.cluster.admin.create_topic(topic, queues=1)
        config = ClientConfig(compress_from=compress_from)
        with SyncClient(tables.cluster.nameserver, config) as mq:
            for body in bodies:
                mq.send(topic, body, key="k")
    sizes = tables.read(name, columns="body_size").distinct().collect()
    assert max(row["body_size"] for row in sizes) < 1_000
    sides = place(tables, name), place(tables, f"m-{name}")
    report = compared(tables, *sides, level=level, **how)
    assert (report.outcome, report.rows) == (Outcome.DONE, 10)
    with SyncClient(tables.cluster.nameserver, ClientConfig(compress_from=1_000)) as mq:
        mq.send(name, b"x" * 5_000)
        mq.send(f"m-{name}", b"y" * 5_000)
    wanted = (1, 1, 0) if "by" in how else (0, 0, 1)
    assert counts(compared(tables, *sides, level=level, **how)) == wanted


@pytest.mark.parametrize("level", ["checksum", "full"])
def test_a_tag_that_became_a_key_is_another_message(
    tables: Tables, tmp_path: Path, level: str
) -> None:
    name = tmp_path.name.replace("_", "-").replace("[", "-").replace("]", "")
    tables.cluster.send(name, b"0", tag="paid")
    tables.cluster.send(f"m-{name}", b"0", key="paid")
    sides = place(tables, name), place(tables, f"m-{name}")
    assert counts(compared(tables, *sides, level=level, by="content")) == (1, 1, 0)


@pytest.mark.slow
def test_a_topic_that_a_side_has_not_is_no_lost_archive_and_two_such_are_not_the_same(
    tables: Tables, topic: str, tmp_path: Path
) -> None:
    to = archived(tables, topic, tmp_path / "archive")
    with pytest.raises(OptionError, match=r"right: \S+archive has no message of topic nope"):
        compared(tables, place(tables, topic), f"{to}#nope")
    with pytest.raises(OptionError, match=r"left: .* has no message of topic nope"):
        compared(tables, f"{to}#nope", f"{to}#nope", level="count")
    settings = ReconcileSettings(left=f"{to}#nope", right=f"{to}#nope")
    with pytest.raises(OptionError, match=r"left: .* has no message of topic nope"):
        reconcile(tables.spark, settings, Run(dry_run=True))
    with pytest.raises(OptionError, match="left, right: neither has a message"):
        compared(tables, f"{to}#{topic}", place(tables, topic), until="2001-01-01T00:00:00Z")
    look = JOB.look
    assert look is not None
    with pytest.raises(OptionError, match=r"^right: nope: no such topic on"):
        look(ReconcileSettings(left=place(tables, topic), right=place(tables, "nope")))


@pytest.mark.slow
def test_a_place_that_is_compared_with_itself_is_warned_of(
    tables: Tables, topic: str, tmp_path: Path
) -> None:
    to = archived(tables, topic, tmp_path / "archive")
    (tmp_path / "link").symlink_to(tmp_path / "archive")

    def warnings_of(left: str, right: str) -> int:
        told: list[str] = []
        run = keeping_warnings(told)
        sides = ReconcileSettings(left=left, right=right)
        assert reconcile(tables.spark, sides, run).outcome is Outcome.DONE
        assert all(each.startswith("left and right are the same place") for each in told)
        return len(told)

    assert warnings_of(place(tables, topic), place(tables, topic)) == 1
    assert warnings_of(to, f"archive:{tmp_path / 'link'}") == 1
    assert warnings_of(to, place(tables, topic)) == 0


def test_queues_that_cannot_be_read_are_told_of_even_where_both_sides_lack_them(
    tables: Tables, tmp_path: Path
) -> None:
    name = tmp_path.name.replace("_", "-")
    for topic, count in ((name, 6), (f"m-{name}", 2)):
        tables.fill(topic, count, queues=3 if topic == name else 1)
    tables.cluster.admin.create_topic(name, queues=1)
    told: list[str] = []
    sides = ReconcileSettings(
        left=place(tables, name), right=place(tables, f"m-{name}"), level="count"
    )
    report = reconcile(tables.spark, sides, keeping_warnings(told))
    assert (report.outcome, report.rows, report.details["right_rows"]) == (Outcome.DONE, 2, 2)
    (text,) = report.details["left_out"]
    assert text.startswith("left: 4 messages are left out, because their queues, such as ")
    assert told == [text]


def test_a_topic_that_an_archive_found_empty_is_compared(
    tables: Tables, topic: str, tmp_path: Path
) -> None:
    later = f"{topic}-later"
    tables.fill(later, 0)
    to = archived(tables, f"{topic},{later}", tmp_path / "archive")
    tables.fill(later, 4)
    assert counts(compared(tables, place(tables, later), f"{to}#{later}")) == (4, 0, 0)


def test_a_dry_run_counts(tables: Tables, topic: str) -> None:
    settings = ReconcileSettings(left=place(tables, topic), right=place(tables, topic))
    report = reconcile(tables.spark, settings, Run(dry_run=True))
    assert report.rows == 40
    assert (report.details["left_rows"], report.details["right_rows"]) == (40, 40)
    assert report.offsets == {topic: {"broker-a": {"0": [0, 20], "1": [0, 20]}}}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"left": "orders"}, "left: 'orders' is not"),
        ({"right": "topic:orders"}, "right: 'topic:orders'"),
        ({"level": "deep"}, "level: 'deep' is not one of"),
        ({"by": "name"}, "by: 'name'"),
        ({"by": "content", "level": "count"}, "by: content has no places"),
    ],
)
def test_settings_that_cannot_be_are_said(tables: Tables, given: dict[str, Any], said: str) -> None:
    sides: dict[str, Any] = {"left": "store:/tmp", "right": "store:/tmp"}
    with pytest.raises(OptionError, match=said):
        reconcile(tables.spark, ReconcileSettings(**{**sides, **given}))
