"""`archive --format iceberg --table`: the table is in a catalog of the user's."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")
pytest.importorskip("pyiceberg", reason="the extra cometmq[iceberg] is not installed")

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType, StringType
from tests.pipeline.tables import Tables, numbers
from tests.pipeline.test_archive_iceberg import InIceberg
from tests.pipeline.test_delta_stores import folder

from cometmq.pipeline.errors import OptionError, PipelineError
from cometmq.pipeline.jobs.archive import ArchiveSettings
from cometmq.pipeline.jobs.folders import Folder
from cometmq.pipeline.jobs.iceberg_catalogs import catalog_of
from cometmq.pipeline.jobs.iceberg_stores import address, path_of, settings_of
from cometmq.pipeline.jobs.iceberg_tables import IcebergTable
from cometmq.pipeline.jobs.replay import ReplaySettings, replay

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from cometmq.testing import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]

NAME = "lake.sales.orders"
GIVEN: dict[str, Any] = {"nameserver": "host:9876", "topic": "t", "to": "/data"}


class InTheirs(InIceberg):
    """A topic, and its table in a catalog that PyIceberg is configured for."""

    def settings(self, **more: Any) -> ArchiveSettings:
        """Return settings that name the table."""
        return super().settings(**{"table": NAME, **more})

    @property
    def catalog(self) -> SqlCatalog:
        """The catalog."""
        return SqlCatalog("lake", uri=f"sqlite:///{self.path.parent}/lake.db")

    @property
    def table(self) -> Any:
        """The table, as somebody else opens it."""
        return self.catalog.load_table("sales.orders")


@pytest.fixture
def theirs(
    spark: SparkSession,
    rocketmq_session: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> InTheirs:
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/lake.db")
    theirs = InTheirs(Tables(spark, rocketmq_session), tmp_path)
    theirs.catalog.create_namespace("sales")
    return theirs


def test_a_table_may_be_in_a_catalog_of_the_users(theirs: InTheirs) -> None:
    """Its folder says which it is, to the next run and to whoever reads the archive."""
    theirs.send(15)
    assert theirs.run().rows == 15
    assert theirs.table.scan(row_filter="batch = 1").to_arrow().num_rows == 5
    assert theirs.table.location() == f"file://{theirs.path}"
    theirs.send(5)
    assert theirs.run(table="").rows == 5
    assert theirs.bodies == numbers(0, 20)
    given: dict[str, Any] = {"nameserver": theirs.tables.cluster.nameserver}
    again = ReplaySettings(**given, from_dir=str(theirs.path), to_topic=f"{theirs.topic}-again")
    assert replay(theirs.spark, again).rows == 20
    with pytest.raises(OptionError, match=rf"^table: .*/a table is {NAME}; choose"):
        theirs.run(table="lake.sales.others")
    theirs.path = theirs.path.parent / "another"
    with pytest.raises(OptionError, match=rf"^format: {NAME} is at file://.*/a table, and not"):
        theirs.run()


@pytest.mark.slow
def test_tables_that_cannot_be_the_archives_are_refused(theirs: InTheirs) -> None:
    theirs.send(1)
    theirs.run(table="")
    with pytest.raises(OptionError, match=r"^table: .*/a table has a catalog of its own; leave"):
        theirs.run()
    theirs.path = theirs.path.parent / "another"
    schema = pa.schema([("batch", pa.int32())])
    theirs.catalog.create_table("sales.orders", schema, location=f"file://{theirs.path}/")
    for table, said in (
        (NAME, "^to: .*/another is a table, not an archive"),
        ("lake.none.orders", "^table: lake.none.orders: its namespace does not exist; create it"),
        ("sea.sales.orders", "^table: PyIceberg knows no catalog 'sea': describe it in"),
    ):
        with pytest.raises(OptionError, match=said):
            theirs.run(table=table)
    assert [*theirs.path.iterdir()] == [theirs.path / "metadata"]


@pytest.mark.slow
def test_a_catalog_that_fails_in_the_middle_costs_no_message(
    theirs: InTheirs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows whether a commit was made whose answer is lost."""
    theirs.send(35)
    commit, calls = SqlCatalog.commit_table, count()

    def failing(self: SqlCatalog, *given: Any) -> Any:
        number = next(calls)
        if number == 2:
            commit(self, *given)
        if number >= 2:
            raise ConnectionError("the server is gone\nfor good")
        return commit(self, *given)

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", failing)
        with pytest.raises(PipelineError, match=f"the catalog of {NAME} failed: Conn.*gone$"):
            theirs.run()
    there = len(theirs.bodies)
    assert there in (10, 20)
    assert theirs.run().rows == 35 - there
    assert theirs.bodies == numbers(0, 35)


@pytest.mark.slow
def test_a_run_that_another_has_overtaken_ends_and_adds_nothing(
    theirs: InTheirs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyIceberg itself would repeat the commit, and have each message twice."""
    theirs.send(30)
    added = IcebergTable._append  # pyright: ignore[reportPrivateUsage]  # Right at the commit.
    commit = SqlCatalog.commit_table

    def late(self: IcebergTable, files: list[str], batch: int, note: str) -> None:
        def overtaken(catalog: SqlCatalog, *given: Any) -> Any:
            patched.setattr(SqlCatalog, "commit_table", commit)
            other = IcebergTable(Folder(theirs.spark, str(theirs.path)))
            assert other.exists()
            added(other, files, batch, note)
            return commit(catalog, *given)

        if batch == 1:
            patched.setattr(SqlCatalog, "commit_table", overtaken)
        added(self, files, batch, note)

    with monkeypatch.context() as patched:
        patched.setattr(IcebergTable, "_append", late)
        with pytest.raises(PipelineError, match=r"to: another run has written to .*/a table since"):
            theirs.run()
    assert theirs.bodies == numbers(0, 20)
    assert theirs.run().rows == 10
    assert theirs.bodies == numbers(0, 30)


@pytest.mark.slow
def test_a_table_that_no_longer_fits_is_named_before_a_batch_is_written(theirs: InTheirs) -> None:
    theirs.send(5)
    theirs.run()
    theirs.send(5)
    with theirs.table.update_schema() as schema:
        schema.add_column("theirs", StringType())
    with theirs.table.update_spec() as spec:
        spec.remove_field("date")
    assert theirs.run().rows == 5
    theirs.send(5)
    with theirs.table.update_spec() as spec:
        spec.add_field("queue_id", BucketTransform(4), "bucket")
    with pytest.raises(PipelineError, match="is now divided by topic, bucket, and not by topic, d"):
        theirs.run()
    with theirs.table.update_spec() as spec:
        spec.remove_field("bucket")
    with theirs.table.update_schema() as schema:
        schema.rename_column("tag", "label")
    with pytest.raises(PipelineError, match="is a table without tag, which each batch has: it was"):
        theirs.run()
    with theirs.table.update_schema() as schema:
        schema.rename_column("label", "tag")
        schema.update_column("queue_id", LongType())
    with pytest.raises(PipelineError, match="whose column queue_id is now bigint, and not int, "):
        theirs.run()
    assert theirs.bodies == numbers(0, 10)


@pytest.mark.parametrize("name", ["orders", "sales.orders", "lake..orders", "lake.sales.", "a.b."])
def test_a_name_that_names_no_table_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match=rf"^table: '{name}' is not CATALOG\.NAMESPACE\.TABLE$"):
        ArchiveSettings(**GIVEN, format="iceberg", table=name)


def test_only_iceberg_has_named_tables() -> None:
    with pytest.raises(OptionError, match=f"^table: {NAME} needs --format iceberg$"):
        ArchiveSettings(**GIVEN, table=NAME)


@pytest.mark.parametrize(
    ("path", "said", "file"),
    [
        ("/data/a b%", "file:///data/a b%", "/data/a b%/x"),
        ("s3a://bucket/a b/", "s3://bucket/a b", "s3a://bucket/a b/x"),
        ("s3://bucket/a", "s3://bucket/a", "s3://bucket/a/x"),
    ],
)
def test_a_table_has_an_address_and_its_files_have_paths(path: str, said: str, file: str) -> None:
    place = folder(path)
    assert address(place, "to") == said
    assert path_of(place, f"{said}/x") == file


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("s3a://bucket/a#b", r"^to: the path bucket/a#b contains '#'; choose"),
        ("hdfs://host/a", r"^to: hdfs://host/a is neither on this machine's disk nor on S3"),
    ],
)
def test_a_place_that_pyiceberg_does_not_reach_is_refused(path: str, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        address(folder(path), "to")


def test_s3_is_reached_as_spark_reaches_it() -> None:
    there = {"endpoint": "127.0.0.1:9000", "access.key": "a", "secret.key": "b"}
    assert settings_of(folder("s3a://bucket/a", **there)) == {
        "s3.endpoint": "https://127.0.0.1:9000",
        "s3.access-key-id": "a",
        "s3.secret-access-key": "b",
    }


def test_on_s3_a_table_needs_a_name() -> None:
    with pytest.raises(OptionError, match=r"is not on this machine's disk, .* by --table$"):
        catalog_of(folder("s3a://bucket/a"), "format")
