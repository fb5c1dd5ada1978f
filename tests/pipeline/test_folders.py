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
    from collections.abc import Callable

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
    """A file system that renames nothing to a name that is taken, as those of S3 and Hadoop."""

    def __init__(self, scheme: str) -> None:
        self.scheme = scheme
        self.files: dict[str, bytes] = {}
        self.exists: Callable[[str], bool] = self.files.__contains__
        self.seen: list[set[str]] = []
        """The files that were there after each step."""

    def getScheme(self) -> str:  # noqa: N802  # These are Hadoop's names.
        return self.scheme

    def create(self, path: str, _overwrite: bool) -> Any:
        written: list[bytes] = []

        def write(data: bytearray) -> None:
            written.append(bytes(data))

        def close() -> None:
            self.files[path] = b"".join(written)
            self._step()

        return SimpleNamespace(write=write, close=close)

    def delete(self, path: str, _recursive: bool) -> bool:
        is_there = self.files.pop(path, None) is not None
        self._step()
        return is_there

    def rename(self, old: str, new: str) -> bool:
        if new in self.files:
            raise FileExistsError(f"Failed to rename {old} to {new}; destination file exists")
        self.files[new] = self.files.pop(old)
        self._step()
        return True

    def getFileStatus(self, _path: str) -> Any:  # noqa: N802  # As above.
        """Return what S3A says of a folder: it is as new as can be."""
        return SimpleNamespace(getModificationTime=lambda: 1 << 50)

    def listFiles(self, path: str, _recursive: bool) -> Any:  # noqa: N802  # As above.
        left = [int(data) for name, data in self.files.items() if name.startswith(f"{path}/")]
        one = SimpleNamespace(getModificationTime=lambda: left.pop())
        return SimpleNamespace(hasNext=lambda: bool(left), next=lambda: one)

    def _step(self) -> None:
        self.seen.append(set(self.files))


class _Bucket(Plain):
    def __init__(self, objects: _Objects) -> None:
        super().__init__(Path("/bucket"))
        self._system, self._path_class = objects, str


@pytest.mark.spark
@pytest.mark.parametrize("scheme", ["s3a", "hdfs"])
def test_a_file_is_replaced_where_no_file_is_renamed_to_that_of_another(scheme: str) -> None:
    objects = _Objects(scheme)
    folder = _Bucket(objects)
    for text in ("one", "two"):
        folder.write(text, "_replays", "to-again.json")
    assert objects.files == {"/bucket/_replays/to-again.json": b"two"}


@pytest.mark.spark
def test_on_s3_a_file_that_is_replaced_is_there_all_the_time() -> None:
    """A kill would lose the notes of a replay: they were removed, and the new ones renamed."""
    objects = _Objects("s3a")
    folder = _Bucket(objects)
    for text in ("one", "two"):
        folder.write(text, "_replays", "to-again.json")
    assert objects.seen == [{"/bucket/_replays/to-again.json"}] * 2


@pytest.mark.spark
def test_on_s3_a_folder_is_as_old_as_its_youngest_file() -> None:
    """S3A takes all folders for new, so `archive-vacuum` left everything."""
    objects = _Objects("s3a")
    objects.files = {f"/bucket/{name}": b"%d" % age for name, age in (("a/b", 7), ("a/c/d", 9))}
    assert _Bucket(objects).modified_ms("a") == 9
    assert _Bucket(objects).modified_ms("empty") == 1 << 50


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


SDK = "(Service: S3, Status Code: 404, Request ID: fOFe) (SDK Attempt Count: 1):all of it again"


@pytest.mark.spark
@pytest.mark.parametrize(
    ("raised", "kind", "said"),
    [
        (
            "org.apache.hadoop.fs.s3a.UnknownStoreException: `s3a://b/to': getFileStatus on"
            f" s3a://b/to: The specified bucket does not exist {SDK}",
            OptionError,
            "no such bucket (`s3a://b/to': getFileStatus on s3a://b/to: The specified bucket does"
            " not exist); create it, or choose another folder",
        ),
        (
            "java.nio.file.AccessDeniedException: s3a://b/to: getFileStatus on s3a://b/to:"
            f" FORBIDDEN {SDK}",
            OptionError,
            "no permission (s3a://b/to: getFileStatus on s3a://b/to: FORBIDDEN); choose another"
            " folder, or get permission",
        ),
        (
            "java.net.ConnectException: getFileStatus on s3a://b/to: Unable to execute HTTP"
            " request: Connect to 127.0.0.1:9 failed: Connection refused (SDK Attempt Count: 6):"
            " \tall of it again",
            PipelineError,
            "its file system cannot be reached (getFileStatus on s3a://b/to: Unable to execute"
            " HTTP request: Connect to 127.0.0.1:9 failed: Connection refused); check that host"
            " and port are right and a server is running there",
        ),
    ],
)
def test_what_s3_says_is_told_in_a_line_with_what_to_do(
    raised: str, kind: type[PipelineError], said: str
) -> None:
    from py4j.protocol import Py4JError

    def get_file_status(path: str) -> bool:
        raise Py4JError(f"An error occurred while calling o1.exists.\n: {raised}\n\tat {path}")

    objects = _Objects("s3a")
    objects.exists = get_file_status
    with pytest.raises(PipelineError) as caught:
        _Bucket(objects).exists("to")
    assert (type(caught.value), str(caught.value)) == (kind, f"path: /bucket: {said}")


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
