"""Folders of results: what an earlier run wrote is replaced, and nothing else is touched."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

from click.testing import CliRunner
from tests.pipeline.store.logs import write_log

from cometmq.admin.program import program
from cometmq.pipeline import command
from cometmq.pipeline.errors import HeldError, OptionError
from cometmq.pipeline.jobs import durable
from cometmq.pipeline.jobs.audit import AuditSettings, audit
from cometmq.pipeline.jobs.folders import Folder
from cometmq.pipeline.jobs.job import Run
from cometmq.pipeline.jobs.results import Results

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

MARK = "_cometmq.json"
PART = "part-00000-0f3a53b2-6f2e-4f9a-9f2b-5a2f8d9f7a11-c000.snappy.parquet"


def results(path: Path | str, read: Path | str = "", tables: tuple[str, ...] = ()) -> Results:
    return Results("findings", str(path), "audit", (str(read),) if read else (), tables)


@pytest.mark.parametrize(
    ("there", "foreign"),
    [
        (("thesis.txt",), "thesis.txt"),
        (("audit/thesis.txt",), "audit"),
        ((PART,), PART),
        ((MARK, PART, "thesis.txt"), "thesis.txt"),
        ((MARK, "part-of-my-thesis.parquet"), "part-of-my-thesis.parquet"),
        ((MARK, "total/thesis.txt"), "total"),
    ],
)
def test_a_folder_with_what_no_run_wrote_is_refused(
    tmp_path: Path, there: tuple[str, ...], foreign: str
) -> None:
    for name in there:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"job": "audit"}')
    with pytest.raises(OptionError, match=rf"^findings: \S+ contains {foreign}, which no earlier"):
        results(tmp_path).look()
    assert all((tmp_path / name).exists() for name in there)


@pytest.mark.parametrize("owner", ['{"job": "reconcile"}', "{", "[]", "\xff"])
def test_a_folder_that_another_job_began_is_refused(tmp_path: Path, owner: str) -> None:
    (tmp_path / MARK).write_text(owner, encoding="latin-1")
    (tmp_path / PART).touch()
    with pytest.raises(OptionError, match="which no earlier `audit` wrote"):
        results(tmp_path).look()


def test_what_stands_in_the_folder_of_a_table_counts_too(tmp_path: Path) -> None:
    (tmp_path / MARK).write_text('{"job": "audit"}')
    (tmp_path / "total").mkdir()
    (tmp_path / "total" / PART).touch()
    (tmp_path / "total" / f".{PART}.crc").touch()
    (tmp_path / "total" / "_temporary").mkdir()  # Of a run that was killed.
    results(tmp_path, tables=("total", "hosts")).look()
    (tmp_path / "total" / "thesis.txt").touch()
    with pytest.raises(OptionError, match=r"contains total/thesis\.txt"):
        results(tmp_path, tables=("total", "hosts")).look()


@pytest.mark.parametrize("there", [(), (MARK,), (MARK, PART, "_SUCCESS", "._SUCCESS.crc")])
def test_an_empty_folder_and_one_of_an_earlier_run_are_taken(
    tmp_path: Path, there: tuple[str, ...]
) -> None:
    for name in there:
        (tmp_path / name).write_text('{"job": "audit"}')
    results(tmp_path).look()
    results(f"file://{tmp_path}").look()
    results(tmp_path / "not-there-yet").look()
    results("").look()


@pytest.mark.parametrize(
    ("path", "read"),
    [
        ("store", "store"),
        ("store/findings", "store"),
        ("", "store"),
        ("link/findings", "store"),
        ("other/../store/findings", "store"),
        ("file:store", "store"),
    ],
)
def test_a_folder_that_is_read_gets_no_results(tmp_path: Path, path: str, read: str) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "store")
    where = f"file://{tmp_path}/{path[5:]}" if path.startswith("file:") else tmp_path / path
    with pytest.raises(OptionError, match="is, contains or is in what is read"):
        results(where, tmp_path / read).look()


def test_folders_of_other_file_systems_are_compared_by_their_names() -> None:
    with pytest.raises(OptionError, match="is, contains or is in what is read"):
        results("s3a://bucket/store/found", "s3a://bucket/store/").look()
    results("s3a://bucket/store-found", "s3a://bucket/store").look()
    results("s3a://bucket/store", "bucket/store").look()


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(OptionError, match=r"findings: \S+thesis.txt: Not a directory"):
        results(tmp_path / "thesis.txt").look()


@pytest.mark.parametrize(
    "line",
    [
        "audit --store {store} --findings {full}",
        "audit --store {store} --findings {store}",
        "reconcile --left store:{store} --right archive:{full} --findings {full}",
        "reconcile --left store:{store} --right store:{store} --findings {empty}/..",
        "latency --store {store} --tables {full}",
        "latency --store {store} --tables {store}/tables",
    ],
)
def test_jobs_refuse_such_folders_before_spark_is_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str
) -> None:
    store, full, empty = (tmp_path / name for name in ("store", "full", "empty"))
    for folder in (store, full, empty):
        folder.mkdir()
    write_log(store, [b"x"])
    (full / "thesis.txt").touch()
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(command, "run_in_session", pytest.fail)
    said = line.format(store=store, full=full, empty=empty)
    done = CliRunner().invoke(program, ["pipeline", *said.split()])
    assert done.exit_code == 2, done.output
    assert "name another folder" in done.stderr or "name a new or empty folder" in done.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_that_cannot_be_written_to_is_refused_before_anything_is_read(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even root can make a folder there, although no mode says so."""
    write_log(tmp_path, [b"x"])
    monkeypatch.setattr("cometmq.pipeline.jobs.audit.look", pytest.fail)
    with pytest.raises(OptionError, match=r"^path: /proc/found: nothing can be written there"):
        audit(spark, AuditSettings(store=str(tmp_path), findings="/proc/found"))


def test_to_look_whether_a_folder_can_be_written_to_leaves_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty", "new", "other/new"):
        results(tmp_path / name).require(spark)
    assert {path.name for path in tmp_path.rglob("*")} == {"empty", "other"}
    results(tmp_path / "new").require(spark, dry_run=True)
    results("/proc/found").require(spark, dry_run=True)
    write(results(tmp_path / "empty"), spark.range(1))
    before = sorted(tmp_path.rglob("*"))
    results(tmp_path / "empty").require(spark)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_dry_run_leaves_what_a_run_had_begun_that_was_killed(
    spark: SparkSession, tmp_path: Path
) -> None:
    write(results(tmp_path), spark.range(1))
    (tmp_path / "_staging").mkdir()
    before = sorted(tmp_path.rglob("*"))
    with results(tmp_path).held(spark, Run(dry_run=True)):
        pass
    assert sorted(tmp_path.rglob("*")) == before


def write(into: Results, frame: DataFrame, table: str = "") -> None:
    with into.held(frame.sparkSession, Run()):
        into.write(frame, table)


def fail_behind(into: Results, frame: DataFrame, table: str) -> None:
    """Write a table, and fail after that, as on a full disk."""
    into.write(frame, table)
    assert sum(each.is_file() for each in Path(into.path, "_staging").rglob("part-*"))
    raise ZeroDivisionError


@pytest.mark.parametrize("table", ["", "total"])
def test_what_an_earlier_run_wrote_stays_where_a_later_one_fails(
    spark: SparkSession, tmp_path: Path, table: str
) -> None:
    into = results(tmp_path / "found", tables=("total", "hosts") if table else ())
    write(into, spark.range(3), table)
    before = sorted((tmp_path / "found").rglob("*"))
    with pytest.raises(ZeroDivisionError), into.held(spark, Run()):
        fail_behind(into, spark.range(5), table)
    assert sorted((tmp_path / "found").rglob("*")) == before
    assert spark.read.parquet(str(tmp_path / "found" / table)).count() == 3


def test_what_is_new_is_on_the_disk_before_what_an_earlier_run_wrote_goes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    into = results(tmp_path / "found")
    write(into, spark.range(3))
    synced: set[str] = set()
    removed: list[str] = []
    remove = Folder.remove

    def fsync(descriptor: int) -> None:
        synced.add(Path(f"/proc/self/fd/{descriptor}").readlink().name)

    def removing(folder: Folder, *names: str) -> None:
        if names[-1].startswith("part-"):
            new = {each.name for each in (tmp_path / "found").glob("_staging/*/part-*")}
            assert new
            assert new <= synced
            removed.append(names[-1])
        remove(folder, *names)

    monkeypatch.setattr(durable, "fsync", fsync)
    monkeypatch.setattr(Folder, "remove", removing)
    write(into, spark.range(5))
    assert removed


@pytest.mark.parametrize("table", ["", pytest.param("total", marks=pytest.mark.slow)])
def test_a_run_goes_on_where_one_was_killed_as_it_put_the_new_in_its_place(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    """Whichever removal or move the kill prevents, and even if the next run fails."""
    left = sys.maxsize

    def counted(function: Callable[..., None]) -> Callable[..., None]:
        def call(*given: Any) -> None:
            nonlocal left
            left -= 1
            if not left:
                raise KeyboardInterrupt
            function(*given)

        return call

    for name in ("remove", "rename"):
        monkeypatch.setattr(Folder, name, counted(getattr(Folder, name)))
    into = results(tmp_path / "found", tables=("total", "hosts") if table else ())
    folder = tmp_path / "found" / table
    killed_at, is_killed = 1, True  # The first removes what an earlier kill left.
    while is_killed:
        killed_at += 1
        write(into, spark.range(2, numPartitions=2), table)
        left = killed_at
        with suppress(KeyboardInterrupt):
            write(into, spark.range(5, numPartitions=2), table)
        is_killed, left = left <= 0, sys.maxsize
        is_whole = (folder / "_SUCCESS").exists()
        assert not is_whole or spark.read.parquet(str(folder)).count() in (2, 5)
        with pytest.raises(ZeroDivisionError), into.held(spark, Run()):
            fail_behind(into, spark.range(7), table)
        assert spark.read.parquet(str(folder)).count() == 5
        assert (folder / "_SUCCESS").exists()
        assert not (tmp_path / "found" / "_staging").exists()
    assert killed_at > 8


def test_a_run_that_looks_again_and_finds_nothing_leaves_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    into = results(tmp_path)
    write(into, spark.range(3))
    with into.held(spark, Run()):
        into.write(spark.range(2))  # Before it looked again, as when an archive was merged.
        into.remove(spark)
    assert {each.name for each in tmp_path.iterdir()} == {MARK}


def test_a_table_that_a_later_run_does_not_write_goes(spark: SparkSession, tmp_path: Path) -> None:
    into = results(tmp_path, tables=("total", "hosts"))
    write(into, spark.range(3), "hosts")
    write(into, spark.range(2), "total")
    assert {each.name for each in tmp_path.iterdir()} == {MARK, "total"}


@pytest.mark.parametrize("table", ["", "total"])
def test_a_later_run_replaces_what_an_earlier_one_wrote(
    spark: SparkSession, tmp_path: Path, table: str
) -> None:
    into = results(tmp_path / "found", tables=(table,) if table else ())
    folder = tmp_path / "found" / table
    for count in (3, 0, 2):
        with into.held(spark, Run()):
            with pytest.raises(HeldError, match=r"found: audit \("), into.held(spark, Run()):
                pass
            into.write(spark.range(count), table)
        assert spark.read.parquet(str(folder)).count() == count
        assert (folder / "_SUCCESS").exists()
        (folder / "_temporary").mkdir()  # As a killed run leaves it.
        (tmp_path / "found" / "_staging" / "older").mkdir(parents=True)
    with into.held(spark, Run()):
        (folder / "thesis.txt").touch()  # After the folder was looked at.
        into.write(spark.range(1), table)
    assert (folder / "thesis.txt").exists()
    assert not (tmp_path / "found" / "_staging").exists()
    with pytest.raises(OptionError, match=r"contains \S*thesis\.txt"):
        into.require(spark)
    (folder / "thesis.txt").unlink()
    if not table:
        into.remove(spark)
        assert {each.name for each in folder.iterdir()} == {MARK}
        into.require(spark)
