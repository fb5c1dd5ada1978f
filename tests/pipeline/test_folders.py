"""Folders of jobs: paths that cannot be one, what a job must not replace, and damaged JSON."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from cometmq.pipeline.errors import DamagedFileError, OptionError, PipelineError
from cometmq.pipeline.jobs.archive_files import BatchName, Manifest
from cometmq.pipeline.jobs.folders import Folder, refuse_batches, stranger_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Plain(Folder):
    """A folder without Spark."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def read(self, *names: str) -> str:
        """Return a file as text."""
        return Path(self.of(*names)).read_text()

    def names(self, *names: str) -> list[str]:
        """Return the names in a folder."""
        return sorted(each.name for each in Path(self.of(*names)).iterdir())


@pytest.mark.parametrize(
    "text", ["", '{"query_id": "a", "rows', "[]", "{}", "7", '{"query_id": "a", "rows": 1}', "\0\0"]
)
def test_a_damaged_manifest_is_named_with_what_to_do(tmp_path: Path, text: str) -> None:
    path = tmp_path / "_manifests" / "000003.json"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(DamagedFileError) as raised:
        Manifest.read(Plain(tmp_path), BatchName(3, 3))
    assert str(raised.value).startswith(f"{path} is damaged (")
    assert "put it back from a copy of the archive. Do not remove it" in str(raised.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [("{", "Expecting property"), ("[1]", "not an object"), ('{"b": 1}', "no 'a', no 'c'")],
)
def test_damaged_notes_are_named_with_what_to_do(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(DamagedFileError, match=rf"/a\.json is damaged \({why}.*\): remove it$"):
        Plain(tmp_path).read_json("a.json", if_damaged="remove it", fields=("a", "b", "c"))
    (tmp_path / "a.json").write_text('{"a": 1}')
    assert Plain(tmp_path).read_json("a.json", if_damaged="", fields=("a",)) == {"a": 1}


@pytest.mark.parametrize("name", ["batch=000003", "_staging", "batch=000000-000002"])
def test_what_a_batch_would_replace_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "notes.txt").touch()
    refuse_batches(Plain(tmp_path))
    (tmp_path / name / "somebody's").mkdir(parents=True)
    with pytest.raises(OptionError, match=f"^to: .* contains {name}, which this job did not wri"):
        refuse_batches(Plain(tmp_path))


def test_what_readers_of_an_archive_would_read_too_is_found(tmp_path: Path) -> None:
    for own in ("_manifests", "_checkpoint", "batch=000003", ".hidden"):
        (tmp_path / own).mkdir()
    assert stranger_in(Plain(tmp_path)) == ""
    (tmp_path / "notes.txt").touch()
    assert stranger_in(Plain(tmp_path)) == "notes.txt"


class _Objects:
    """A file system like that of S3, which renames nothing to a name that is taken."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def getScheme(self) -> str:  # noqa: N802  # These are Hadoop's names.
        return "s3a"

    def create(self, path: str, _overwrite: bool) -> Any:
        def write(data: bytearray) -> None:
            self.files[path] = bytes(data)

        return SimpleNamespace(write=write, close=lambda: None)

    def delete(self, path: str, _recursive: bool) -> bool:
        return self.files.pop(path, None) is not None

    def rename(self, old: str, new: str) -> bool:
        if new in self.files:
            raise FileExistsError(f"Failed to rename {old} to {new}; destination file exists")
        self.files[new] = self.files.pop(old)
        return True


class _Bucket(Plain):
    def __init__(self, objects: _Objects) -> None:
        super().__init__(Path("/bucket"))
        self._system, self._path_class = objects, str


@pytest.mark.spark
def test_a_file_is_replaced_where_no_file_is_renamed_to_that_of_another() -> None:
    objects = _Objects()
    folder = _Bucket(objects)
    for text in ("one", "two"):
        folder.write(text, "_replays", "to-again.json")
    assert objects.files == {"/bucket/_replays/to-again.json": b"two"}


@pytest.mark.spark
@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("s3x://a/b", 'No FileSystem for scheme "s3x"'),
        ("s3a://a/b", "Class org.apache.hadoop.fs.s3a.S3AFileSystem not found"),
        ("a:b", "Relative path in absolute URI: a:b"),
        ("file://host/a", "Wrong FS: file://host/a, expected: file:///"),
        ("", "Can not create a Path from an empty string"),
    ],
)
def test_a_folder_where_spark_has_no_files_is_a_mistake(
    spark: SparkSession, path: str, said: str
) -> None:
    with pytest.raises(OptionError) as caught:
        Folder(spark, path)
    assert str(caught.value) == f"path: {path}: {said}"


@pytest.mark.spark
def test_a_relative_path_is_where_spark_has_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook may change Python's working directory after the session's start."""
    there = Path.cwd()
    monkeypatch.chdir(tmp_path)
    for path in (".", "a b", "./a:b"):
        folder = Folder(spark, path)
        assert folder.local_path == str(there / path)
        assert not folder.exists("not there")


@pytest.mark.spark
def test_a_file_system_that_is_not_there_is_told_in_a_line_with_what_to_do(
    spark: SparkSession,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        nobody = f"hdfs://127.0.0.1:{server.getsockname()[1]}/to"
    spark.sparkContext._jsc.hadoopConfiguration().set("ipc.client.connect.max.retries", "0")
    for path in (nobody, "hdfs://nobody.invalid:8020/to"):
        with pytest.raises(PipelineError) as caught:
            Folder(spark, path).names()
        assert not isinstance(caught.value, OptionError)  # The server may be there soon.
        assert re.fullmatch(
            rf"path: {path}: its file system cannot be reached \(.*(refused|nobody\.invalid)\S*\);"
            " check that host and port are right and a server is running there",
            str(caught.value),
        )
