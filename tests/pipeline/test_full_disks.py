"""A full disk, as Spark and the kernel report it, and how files are replaced as a whole."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest
from tests.pipeline.test_folders import Plain

from cometmq.pipeline.errors import ConnectionLostError, PipelineError
from cometmq.pipeline.jobs import durable
from cometmq.pipeline.jobs.full_disks import told_if_full
from cometmq.pipeline.jobs.job import Run
from cometmq.pipeline.jobs.report import Report
from cometmq.pipeline.jobs.spark_errors import ours
from cometmq.pipeline.jobs.streams import StreamSettings, run_stream

TASK = """An error occurred while calling o122.parquet.
: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to \
file:/data/a/_staging/batch=000000. SQLSTATE: 58030
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.taskFailed(QueryExecutionErrors.scala:823)
Caused by: org.apache.hadoop.fs.FSError: java.io.IOException: No space left on device
\tat org.apache.hadoop.fs.RawLocalFileSystem$LocalFSFileOutputStream.write(RawLocalFileSystem:549)
Caused by: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.write(FileOutputStream.java:349)
\t... 41 more"""
STREAM = (
    "[STREAM_FAILED] Query [id = b, runId = e] terminated with exception: java.io.IOException: No"
    " space left on device"
)
SHUFFLE = """An error occurred while calling o122.parquet.
: org.apache.spark.SparkException: Job aborted due to stage failure: java.io.IOException: No space \
left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
\tat org.apache.spark.storage.TimeTrackingOutputStream.write(TimeTrackingOutputStream.java:59)
\tat org.apache.hadoop.fs.FSDataOutputStream.close(FSDataOutputStream.java:106)"""
STATE = """[STREAM_FAILED] Query terminated with exception: IO error: No space left on device: \
While appending to file: /tmp/spark-1/000012.sst
\tat org.rocksdb.RocksDB.flush(Native Method)"""
FETCHED = """Job aborted due to stage failure: java.io.IOException: No space left on device
\tat java.base/sun.nio.ch.FileDispatcherImpl.write0(Native Method)
\tat app//org.apache.spark.network.shuffle.SimpleDownloadFile$To.write(SimpleDownloadFile:78)"""
SORTED = """Job aborted due to stage failure: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.write(FileOutputStream.java:349)
\tat org.apache.hadoop.fs.RawLocalFileSystem$LocalFSFileOutputStream.write(RawLocalFileSystem:549)
\tat org.apache.spark.shuffle.ShuffleWriteProcessor.write(ShuffleWriteProcessor.scala:58)
\tat org.apache.spark.storage.BlockManager.doPutIterator(BlockManager.scala:1614)"""
OF_PYTHON = """OSError: [Errno 28] No space left on device: '/data/f/notes'
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.read(PythonRunner.scala:648)
\tat java.base/java.lang.Thread.run(Thread.java:840)"""
OF_A = "path: /data/a: its disk is full; make room there"
OF_SPARK = (
    "the disk of Spark's own files is full; make room there, or name a folder on another one by"
    " --conf spark.local.dir=DIR"
)


@pytest.mark.parametrize(
    ("text", "written", "said"),
    [
        (TASK, "/data/a", OF_A),
        (TASK, "", "path: /data/a/_staging/batch=000000: its disk is full; make room there"),
        (STREAM, "/data/c", "path: /data/c: its disk is full; make room there"),
        (STREAM.replace("No space left on device", "Disk quota exceeded"), "", "a disk is full"),
        (SHUFFLE, "/data/c", OF_SPARK),
        (STATE, "/data/c", OF_SPARK),
        (FETCHED, "/data/c", OF_SPARK),
        (f"{TASK}\n\nDriver stacktrace:\n\tat org.apache.spark.scheduler.X", "/data/a", OF_A),
        (OF_PYTHON, "/data/c", "path: /data/c: its disk is full; make room there"),
        (SORTED, "/data/c", "path: /data/c: its disk is full; make room there"),
        (f"{TASK}\ncometmq.pipeline.errors.PipelineError: path: /b: it", "/data/c", "path: /b: it"),
    ],
)
def test_the_folder_is_told_whose_disk_is_full(text: str, written: str, said: str) -> None:
    error = ours(RuntimeError(text), written)
    assert (type(error), str(error)) == (PipelineError, said)


def test_a_folder_that_cannot_be_put_on_a_full_disk_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Local(Plain):
        @property
        def local_path(self) -> str:
            return self.path

    def full(_: int) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(durable, "fsync", full)
    with pytest.raises(PipelineError, match=f"^path: {tmp_path}: its disk is full; make room ther"):
        Local(tmp_path).sync()


@pytest.mark.parametrize("ends", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_what_a_file_said_stays_until_all_of_the_new_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: BaseException
) -> None:
    def end(_: int) -> None:
        raise ends

    path = tmp_path / "report.json"
    path.write_text("earlier")
    monkeypatch.setattr(durable, "fsync", end)
    with pytest.raises(type(ends)):
        Report("audit").write(str(path))
    assert path.read_text() == "earlier"
    if isinstance(ends, OSError):
        assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_is_replaced_stays_as_it_was_but_for_its_text(tmp_path: Path) -> None:
    path, link = tmp_path / "report.json", tmp_path / "latest"
    path.touch(mode=0o640)
    path.chmod(0o640)
    link.symlink_to(path)
    if not os.getuid():
        os.chown(path, 7, 8)
    before = path.stat()
    durable.write_whole(link, "later ä")
    now = path.stat()
    assert (path.read_text("utf-8"), link.is_symlink()) == ("later ä", True)
    assert (now.st_mode, now.st_uid, now.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert now.st_ino != before.st_ino
    assert {*tmp_path.iterdir()} == {path, link}


def test_what_cannot_be_replaced_is_written_to_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a file mounted into a container, or one whose name is as long as names may be."""
    path = tmp_path / ("r" * 255)
    path.write_text("earlier")
    durable.write_whole(path, "later")
    assert path.read_text() == "later"

    def refuse(*_: object) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(Path, "replace", refuse)
    mounted = tmp_path / "mounted"
    mounted.write_text("earlier")
    durable.write_whole(mounted, "later")
    assert mounted.read_text() == "later"
    assert {*tmp_path.iterdir()} == {path, mounted}


def test_a_pipe_is_written_to_as_it_is(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    durable.write_whole(pipe, "said")
    assert os.read(reading, 99) == b"said"
    os.close(reading)
    assert pipe.is_fifo()


def test_what_a_shell_has_opened_is_written_to_as_it_is(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w+") as file:
        durable.write_whole(Path(f"/dev/fd/{file.fileno()}"), "said")
        file.seek(0)
        assert file.read() == "said"
        link = tmp_path / "report.json"
        link.symlink_to(f"/dev/fd/{file.fileno()}")
        folder = tmp_path / "open"
        folder.symlink_to("/proc/self/fd")
        for number, name in enumerate((link, folder / str(file.fileno())), start=2):
            durable.write_whole(name, "said")
            file.seek(0)
            assert file.read() == "said" * number  # What was there before stays.


def test_what_goes_to_stdout_behind_a_report_that_went_there_does_not_stand_over_it(
    tmp_path: Path,
) -> None:
    """As a job's summary does with `> log --report /dev/stdout`."""
    with (tmp_path / "log").open("wb", buffering=0) as file:
        file.write(b"before, ")
        durable.write_whole(Path(f"/proc/self/fd/{file.fileno()}"), "said, ")
        file.write(b"behind")
    assert (tmp_path / "log").read_text() == "before, said, behind"


def test_a_report_in_a_folder_of_the_systems_is_the_last_one_alone() -> None:
    with NamedTemporaryFile(dir="/dev/shm") as file:
        for _ in range(2):
            durable.write_whole(Path(file.name), "said")
        assert Path(file.name).read_text() == "said"


def test_a_checkpoint_on_a_full_disk_is_told_where_the_stream_does_not_even_start() -> None:
    class Writer:
        def __init__(self) -> None:
            self.queryName = self.trigger = self.same

        def same(self, *_: object, **__: object) -> Writer:
            return self

        def start(self) -> None:
            raise RuntimeError(TASK.replace("o122.parquet", "o2103.start"))

    settings = StreamSettings(nameserver="127.0.0.1:1", topic="t", checkpoint="/data/c")
    run = Run()
    with pytest.raises(PipelineError, match=r"^path: /data/c: its disk is full; make room there$"):
        run_stream(Writer(), settings, run, run.report_of("archive"), pytest.fail)


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "Input/output error"), ConnectionLostError("No space left on dev")]
)
def test_another_error_stays_what_it_is(error: OSError) -> None:
    with pytest.raises(type(error)) as raised, told_if_full("/data/a"):
        raise error
    assert raised.value is error
