"""What is done with a table of Delta, without Spark."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final, cast

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")
pytest.importorskip("deltalake", reason="the extra cometmq[delta] is not installed")

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import write_deltalake
from pyspark.sql.types import StructType

from cometmq.pipeline.errors import OptionError, PipelineError
from cometmq.pipeline.jobs.delta_tables import DeltaTable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from cometmq.pipeline.jobs.folders import Folder

pytestmark = pytest.mark.spark  # Its types of columns.

PARTS: Final = ["topic"]
TEXT: Final = pa.string()
SCHEMA: Final = pa.schema({"batch": pa.int32(), "topic": pa.string(), "body": pa.string()})
COLUMNS: Final = StructType().add("batch", "integer").add("topic", "string").add("body", "string")


class There:
    """The folder of a table."""

    scheme = "file"
    local_path: str | None

    def __init__(self, root: Path) -> None:
        self.root, self.path, self.local_path = root, str(root), str(root)
        self.synced: list[str] = []

    def exists(self, *names: str) -> bool:
        return self.root.joinpath(*names).exists()

    def sync(self, *names: str) -> None:
        self.synced.append(names[-1])

    def setting(self, name: str) -> str:
        return f"of {name}" if name.endswith("region") else ""

    def has_name(self, is_such: Callable[[str], bool], *names: str) -> bool:
        folder = self.root.joinpath(*names)
        return folder.exists() and any(is_such(each.name) for each in folder.iterdir())


class Made:
    """A new table."""

    def __init__(self, path: Path) -> None:
        self.there = There(path)
        self.table = self.opened()
        assert (self.table.exists(), self.table.version) == (False, -1)
        self.table.create(SCHEMA, PARTS)
        self.looked = 0

    def opened(self) -> DeltaTable:
        """Return the table as a run or a reader begins with it."""
        return DeltaTable(cast("Folder", self.there), "to")

    @property
    def theirs(self) -> deltalake.DeltaTable:
        """The table, as somebody else opens it."""
        return deltalake.DeltaTable(self.there.path)

    def written(self, batch: int, topic: str = "a") -> dict[str, int]:
        """Write a file of a batch."""
        name = f"topic={topic}/part-{batch}.parquet"
        path = self.there.root / name
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"batch": pa.array([batch], pa.int32()), "body": ["b"]}), path)
        return {name: path.stat().st_size}

    def files(self) -> Mapping[str, range | None]:
        """Return its files, as a reader does."""
        table = self.opened()
        assert table.exists()
        return table.files()

    def look(self) -> None:
        self.looked += 1
        self.table.refresh()

    def append(self, batch: int, stream: str = "S") -> dict[str, int]:
        """Append a batch, in a file."""
        files = self.written(batch)
        self.table.append(files, stream, batch, 1, self.look)
        return files


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path / "a table")


def test_a_batch_is_in_a_table_once(made: Made) -> None:
    assert made.table.exists()
    assert made.there.synced == [f"{0:020d}.json"]
    made.table.create(SCHEMA, [])  # It is there already.
    assert (made.table.last_of("S"), made.table.files()) == (-1, {})
    (size,) = made.append(0).values()
    assert made.table.files() == {"topic=a/part-0.parquet": range(1)}
    made.append(1)
    made.append(1)
    assert made.looked == 3
    assert (made.table.version, made.theirs.version()) == (2, 2)
    made.append(1, "T")
    made.append(2)
    assert (made.table.last_of("S"), made.table.last_of("T")) == (2, 1)
    assert made.table.files()["topic=a/part-2.parquet"] == range(2, 3)
    assert made.there.synced == [f"{number:020d}.json" for number in range(5)]
    again = made.opened()
    assert again.exists()
    assert again.identity == made.table.identity == str(made.theirs.metadata().id)
    (commit,) = made.theirs.history(1)
    said = {"numFiles": "1", "numOutputBytes": str(size), "numOutputRows": "1"}
    assert commit["operationMetrics"] == said
    assert made.theirs.to_pyarrow_table(filters=[("batch", "=", 2)]).num_rows == 1
    assert made.theirs.metadata().partition_columns == PARTS


def added(made: Made, version: int) -> dict[str, Any]:
    """Return what a commit says of the file that it adds."""
    path = made.there.root / "_delta_log" / f"{version:020d}.json"
    lines = [json.loads(each) for each in path.read_text().splitlines()]
    (file,) = [each["add"] for each in lines if "add" in each]
    return {**file, "stats": json.loads(file["stats"])}


def test_the_log_says_what_readers_look_for(made: Made) -> None:
    made.append(7)
    file = added(made, 1)
    assert file["dataChange"]  # Who reads a table as a stream leaves out what is not.
    assert abs(file["modificationTime"] / 1000 - time.time()) < 60
    ranges = {"minValues": {"batch": 7}, "maxValues": {"batch": 7}}
    assert file["stats"] == {**ranges, "numRecords": 1, "nullCount": {"batch": 0}}
    made.there.local_path = None  # As on S3.
    made.append(8)
    assert added(made, 2)["stats"] == {"minValues": {"batch": 8}, "maxValues": {"batch": 8}}
    assert made.table.files()["topic=a/part-8.parquet"] == range(8, 9)


def test_a_table_on_s3_is_reached_with_the_settings_of_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = There(tmp_path)
    there.path, there.local_path, there.scheme = "s3a://bucket/orders", None, "s3a"
    reached: list[Any] = []

    def reach(*given: Any, **how: Any) -> None:
        reached.append((given[0], how["storage_options"]))
        raise OSError

    table = DeltaTable(cast("Folder", there), "to")
    monkeypatch.setattr(deltalake.DeltaTable, "create", reach)
    with pytest.raises(PipelineError):
        table.create(SCHEMA, PARTS)
    monkeypatch.setattr(deltalake, "DeltaTable", reach)
    tmp_path.joinpath("_delta_log").mkdir()
    tmp_path.joinpath("_delta_log", f"{0:020d}.json").touch()
    with pytest.raises(PipelineError):
        table.exists()
    assert reached == [("s3://bucket/orders", {"aws_region": "of fs.s3a.endpoint.region"})] * 2


def test_what_comes_with_a_batch_is_synced_and_what_others_added_is_no_batch(made: Made) -> None:
    def look() -> None:
        made.look()
        if made.looked == 1:
            theirs = pa.table({"batch": [None], "topic": ["b"], "body": ["0"]}, schema=SCHEMA)
            write_deltalake(made.there.path, theirs, mode="append")

    made.table.append(made.written(0), "S", 0, 1, look)
    assert made.there.synced == [f"{number:020d}.json" for number in range(3)]
    assert sorted(made.table.files().values(), key=str) == [None, range(1)]


def test_a_batch_that_loses_against_others_is_committed_again(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = DeltaTable._append  # pyright: ignore[reportPrivateUsage]  # Right before the commit.

    def late(table: DeltaTable, *given: Any) -> None:
        if made.looked == 1:
            made.theirs.alter.add_columns(deltalake.Field("note", "string"))
        added(table, *given)

    monkeypatch.setattr(DeltaTable, "_append", late)
    made.append(0)
    assert (made.looked, made.table.version) == (2, 2)
    made.table.require_columns(COLUMNS, PARTS)


def said_by_the_first_commit(made: Made, kind: str, **more: Any) -> None:
    """Change what the first commit says."""
    path = made.there.root / "_delta_log" / f"{0:020d}.json"
    lines = [json.loads(each) for each in path.read_text().splitlines()]
    for each in lines:
        each.get(kind, {}).update(more)
    path.write_text("\n".join(map(json.dumps, lines)))


def said_of_columns(made: Made, said: Callable[[int, str], dict[str, Any]]) -> None:
    """Let the first commit say something of each column."""
    schema = json.loads(made.theirs.schema().to_json())
    for number, each in enumerate(schema["fields"]):
        each["metadata"] = said(number, each["name"])
    said_by_the_first_commit(made, "metaData", schemaString=json.dumps(schema))
    made.table = made.opened()


def changed(made: Made, column: str, kind: pa.DataType, parts: list[str]) -> None:
    """Replace a table by one with another column, or divided by other ones."""
    columns = {column: pa.array([], kind)} | {
        name: pa.array([], SCHEMA.field(name).type) for name in ("batch", "topic")
    }
    more = {"schema_mode": "overwrite", "partition_by": parts}
    write_deltalake(made.there.path, pa.table(columns), mode="overwrite", **more)


CHANGES: Final[dict[str, Callable[[Made], object]]] = {
    "without body, which each batch has": lambda made: changed(made, "payload", TEXT, PARTS),
    "column body is now binary, and not string": lambda made: changed(
        made, "body", pa.binary(), PARTS
    ),
    "now divided by nothing, and not by topic": lambda made: changed(made, "body", TEXT, []),
    "now divided by topic, batch, and not by topic;": lambda made: changed(
        made, "body", TEXT, ["topic", "batch"]
    ),
    r"with delta\.constraints\.small, which": lambda made: made.theirs.alter.add_constraint(
        {"small": "batch < 100"}
    ),
    r"with delta\.invariants, which": lambda made: said_of_columns(
        made, lambda _at, _name: {"delta.invariants": '{"expression": {"expression": "batch < 9"}}'}
    ),
    "would forget which batches it has": lambda made: made.theirs.alter.set_table_properties(
        {"delta.setTransactionRetentionDuration": "interval 7 days"}
    ),
}


@pytest.mark.parametrize("said", CHANGES)
def test_a_table_that_batches_no_longer_fit_is_told(made: Made, said: str) -> None:
    made.table.require_columns(COLUMNS, PARTS)
    CHANGES[said](made)
    assert made.table.exists()
    made.table.refresh()
    with pytest.raises(PipelineError, match=rf"^to: {made.there.path} is a table .*{said}"):
        made.table.require_columns(COLUMNS, PARTS)


def test_what_else_others_say_of_a_table_does_not_matter(made: Made) -> None:
    made.theirs.alter.set_table_properties({"delta.logRetentionDuration": "interval 7 days"})
    made.theirs.alter.set_column_metadata("body", {"comment": "what was sent"})
    made.table.refresh()
    made.table.require_columns(COLUMNS, PARTS)


def with_features(made: Made, *features: str) -> None:
    """Let a table have features that whoever reads it has to know."""
    more: dict[str, Any] = {"readerFeatures": features, "writerFeatures": features}
    said_by_the_first_commit(made, "protocol", minReaderVersion=3, minWriterVersion=7, **more)


def test_a_table_whose_files_are_not_its_rows_is_refused(made: Made) -> None:
    with_features(made, "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck")
    assert made.opened().exists()
    with_features(made, "typeWidening", "columnMapping")
    with pytest.raises(OptionError, match=r"^to: .* with columnMapping, typeWidening, which"):
        made.opened().exists()


def test_columns_that_have_other_names_in_files_are_refused(made: Made) -> None:
    mapping = "delta.columnMapping"
    said_of_columns(made, lambda at, name: {f"{mapping}.id": at, f"{mapping}.physicalName": name})
    said_by_the_first_commit(made, "metaData", configuration={f"{mapping}.mode": "name"})
    said_by_the_first_commit(made, "protocol", minReaderVersion=2, minWriterVersion=5)
    with pytest.raises(OptionError, match=r"^to: .* with columnMapping, which is not read here"):
        made.opened().exists()


def test_a_table_of_others_is_no_archive(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"a": [1]}))
    with pytest.raises(OptionError, match=rf"^to: {tmp_path} is a Delta table, not an archive"):
        DeltaTable(cast("Folder", There(tmp_path)), "to").exists()


def test_a_file_that_is_not_in_its_folder_is_refused(made: Made) -> None:
    made.append(0)
    path = made.there.root / "_delta_log" / f"{1:020d}.json"
    said = path.read_text()
    for there in ("part-0.parquet", "s3://bucket/topic=a/part-0.parquet", "topic=b/part.parquet"):
        path.write_text(said.replace("topic=a/part-0.parquet", there))
        with pytest.raises(OptionError, match="not in a folder that is named after its topic, whe"):
            made.files()


def test_files_are_listed_once_for_each_version(made: Made) -> None:
    made.append(0)
    reader = made.opened()
    assert reader.exists()
    assert reader.files() is reader.files()
    made.append(1)
    assert len(reader.files()) == 2


def test_the_folders_of_other_topics_are_as_spark_names_them(made: Made) -> None:
    files = made.written(0, "%25RETRY%25g")
    made.table.append(files, "S", 0, 1, made.look)
    assert [*made.table.files()] == [*files]
    assert made.theirs.to_pyarrow_table()["topic"].to_pylist() == ["%RETRY%g"]


def test_rows_that_were_deleted_within_files_are_told(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.append(0)
    more = {"minReaderVersion": 3, "minWriterVersion": 7}
    features = ["deletionVectors"]
    said_by_the_first_commit(
        made, "protocol", **more, readerFeatures=features, writerFeatures=features
    )
    assert len(made.files()) == 1
    rows = [1]

    class Vector:
        """One that says which rows of a file are gone."""

        num_rows = 1

    def vectors(_table: object) -> list[Vector]:
        return [Vector()] * len(rows)

    monkeypatch.setattr(deltalake.DeltaTable, "deletion_vectors", vectors)
    with pytest.raises(OptionError, match="has rows that were deleted without rewriting"):
        made.files()
    rows.clear()
    assert len(made.files()) == 1


@pytest.mark.parametrize("when", ["load", "create", "append"])
@pytest.mark.parametrize(
    ("cause", "said"),
    [
        ("Connection refused", "to: PATH: Generic S3 error: it: Connection refused"),
        ("No space left on device (os error 28)", "path: PATH: its disk is full; make"),
    ],
)
def test_what_deltalake_says_of_a_store_is_one_line_without_colours(
    made: Made, monkeypatch: pytest.MonkeyPatch, when: str, cause: str, said: str
) -> None:
    then = "\n   \x1b[31m↳\x1b[0m "

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(f"Generic S3 error{then}it{then}{cause}\n")

    def act() -> None:
        if when == "append":
            made.append(0)
        else:
            made.opened().create(SCHEMA, PARTS)

    monkeypatch.setattr(deltalake.DeltaTable, "create_write_transaction", fail)
    if when == "create":
        made.there.root = made.there.root / "new"
        monkeypatch.setattr(deltalake.DeltaTable, "create", fail)
    elif when == "load":
        monkeypatch.setattr(deltalake, "DeltaTable", fail)
    with pytest.raises(PipelineError) as raised:
        act()
    assert str(raised.value).startswith(said.replace("PATH", made.there.path))
    assert len(str(raised.value).splitlines()) == 1


def test_a_damaged_log_is_told_in_one_line(made: Made) -> None:
    (made.there.root / "_delta_log" / f"{1:020d}.json").write_text('{"commitInfo": {"op')
    with pytest.raises(PipelineError) as raised:
        made.table.refresh()
    assert str(raised.value).startswith(f"to: {made.there.path}: Kernel error: Json error")
    assert len(str(raised.value).splitlines()) == 1
