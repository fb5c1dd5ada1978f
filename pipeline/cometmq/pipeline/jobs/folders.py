"""A folder where Spark keeps files, on any file system."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack, cast
from uuid import uuid4

from cometmq.pipeline.connecting import jvm_of
from cometmq.pipeline.errors import DamagedFileError, OptionError, PipelineError
from cometmq.pipeline.jobs.durable import sync, sync_name
from cometmq.pipeline.jobs.full_disks import told_if_full
from cometmq.pipeline.jobs.writable import require_folder
from cometmq.pipeline.spark_settings import SKIPS_FILES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

NO_PATTERNS: Final = {"__globPaths__": "false"}
"""For reads: a folder named `a[1]` is that, and not `a1`. Spark does not document the option."""
NONE_LEFT_OUT: Final = dict.fromkeys(SKIPS_FILES, "false")
"""For reads, whatever the session says: a damaged or missing file is an error."""
STAGING: Final = "_staging"
"""The folder for a table until all of it is written; readers ignore names that begin with `_`."""


_BATCH: Final = "batch="
_NO_PATH: Final = re.compile(
    r"No FileSystem for scheme .+|Class \S+ not found"
    r"|(?<=URISyntaxException: ).+|.+ an empty string|Wrong FS: .+"
)
"""Hadoop's errors for an unknown scheme, one whose JAR is missing, a host where a scheme has none,
or an invalid path; but not for a host that is down, as it may be up soon."""
_NOT_REACHED: Final = re.compile(
    r"\b(?:Connect|UnknownHost|NoRouteToHost|SocketTimeout|ConnectTimeout)Exception\b"
)
_NOT_ALLOWED: Final = re.compile(
    r"\bAccess(?:Control|Denied)Exception\b|\bPermission denied\b|\bRead-only file system\b"
    r"|\bMkdirs failed to create\b"
)
S3: Final = ("s3", "s3a")
"""The schemes of S3, where a new file takes the place of the old one when it is closed."""
_NO_BUCKET: Final = "UnknownStoreException"
_USELESS: Final = re.compile(
    r"\b(?:[a-z]\w*\.)+[A-Z]\w*: ?|;? *For more details see: .*"
    r"| \((?:Service: S3, |SDK Attempt Count: ).*"
)
"""The parts of Hadoop's errors that are useless to users: a class, a page for authors, and numbers
of Amazon's SDK, after which it says everything again."""


@contextmanager
def _told(path: str) -> Generator[None]:
    """Turn Hadoop's errors into one line with the path and what to do."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        with told_if_full(path):
            yield
    except (Py4JError, PySparkException) as error:
        text = (str(error).partition("\n: ")[2] or str(error)).strip().partition("\n")[0]
        said = _USELESS.sub("", text).strip()
        if _NOT_REACHED.search(text):
            raise PipelineError(
                f"path: {path}: its file system cannot be reached ({said}); check that host and"
                " port are right and a server is running there"
            ) from error
        if _NOT_ALLOWED.search(text):
            raise OptionError(
                f"path: {path}: no permission ({said}); choose another folder, or get permission"
            ) from error
        if _NO_BUCKET in text:
            raise OptionError(
                f"path: {path}: no such bucket ({said}); create it, or choose another folder"
            ) from error
        raise PipelineError(f"path: {path}: its file system says: {said}") from error


def refuse_batches(folder: Folder) -> None:
    """Refuse a folder that no job has begun and that contains something a batch would replace.

    What a run leaves that was killed in its first batch does not count: no reader sees it.
    """
    for name in folder.names():
        is_taken = name == STAGING and not all(
            each.startswith(_BATCH) for each in folder.names(STAGING)
        )
        if is_taken or name.startswith(_BATCH):
            raise OptionError(
                f"to: {folder.path} contains {name}, which this job did not write, but would"
                " replace; choose another folder"
            )


def last_batch(folder: Folder) -> int:
    """Return the last batch of which a folder has a table; -1 without one."""
    numbers = (name.removeprefix(_BATCH) for name in folder.names() if name.startswith(_BATCH))
    return max((int(each) for each in numbers if each.isdigit()), default=-1)


def stranger_in(folder: Folder) -> str:
    """Return a name that readers of a table would take for part of it; '' without one."""
    names = (name for name in folder.names() if not name.startswith((_BATCH, "_", ".")))
    return next(names, "")


def _fill(system: Any, path: Any, text: str) -> None:
    stream = system.create(path, True)
    stream.write(bytearray(text.encode()))
    stream.close()


def rows_in(
    spark: SparkSession, paths: Collection[str], schema: StructType, **options: str
) -> DataFrame:
    """Return the rows of some files of Parquet, of which there may be none."""
    if not paths:
        none: DataFrame = spark.createDataFrame([], schema)
        return none
    reader = spark.read.options(**NO_PATTERNS, **NONE_LEFT_OUT, **options)
    frame: DataFrame = reader.schema(schema).parquet(*paths)
    return frame


class How(TypedDict, total=False):
    """How a table is written."""

    parts: Sequence[str]
    """The columns by which it is divided into folders."""
    compression: str
    rows_of_file: int
    """How many rows a file has at most; 0 if that does not matter."""


class Folder:
    """A folder where Spark keeps files, on any file system, accessed through Hadoop."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm = jvm_of(spark)
        self._path_class = jvm.org.apache.hadoop.fs.Path
        self._io = jvm.org.apache.commons.io.IOUtils  # Spark brings it.
        self._conf = spark.sparkContext._jsc.hadoopConfiguration()  # As above.
        self.path = path
        self._system, self._whole_path = self._placed()

    def _placed(self) -> tuple[Any, Any]:
        """Return its file system and its whole path; `OptionError` if Spark does not have them."""
        try:
            with _told(self.path):
                path = self._path_class(self.of())
                system = path.getFileSystem(self._conf)
                return system, system.makeQualified(path)
        except PipelineError as error:
            if (why := _NO_PATH.search(str(error.__cause__))) is None:
                raise
            raise OptionError(f"path: {self.path}: {why[0]}") from None

    @property
    def scheme(self) -> str:
        """What its addresses begin with."""
        scheme: str = self._system.getScheme()
        return scheme

    def setting(self, name: str) -> str:
        """Return one of Hadoop's settings; '' if it is not set."""
        value: str = self._conf.get(name, "")
        return value.strip()

    @property
    def local_path(self) -> str | None:
        """Its local path, whatever became of Python's working directory since Java was started.

        `None` if it is on another file system.
        """
        if self.scheme != "file":
            return None
        path: str = self._whole_path.toUri().getPath()
        return path

    def require_writable(self) -> None:
        """Refuse a folder that cannot be written to, as far as that can be told."""
        if (path := self.local_path) is not None:
            require_folder("path", self.path, Path(path))

    def of(self, *names: str) -> str:
        """Return the path of something in it."""
        return "/".join((self.path.rstrip("/"), *names)) or self.path

    def exists(self, *names: str) -> bool:
        """Whether something exists in it."""
        with _told(self.path):
            found: bool = self._system.exists(self._path_class(self.of(*names)))
        return found

    def names(self, *names: str) -> list[str]:
        """Return the names in a folder, sorted; none if it does not exist."""
        return sorted(self._listed(*names))

    def has_name(self, is_such: Callable[[str], bool], *names: str) -> bool:
        """Whether there is such a name in a folder; stop at the first one."""
        return any(map(is_such, self._listed(*names)))

    def _listed(self, *names: str) -> Iterator[str]:
        """Yield the names in a folder, if it exists; each costs a call to Java."""
        if self.exists(*names):
            with _told(self.path):
                for each in self._system.listStatus(self._path_class(self.of(*names))):
                    yield each.getPath().getName()

    def files(self, *names: str) -> list[tuple[str, int]]:
        """Return all files below a folder with their sizes; none if it does not exist."""
        if not self.exists(*names):
            return []
        root = self._path_class(self.of(*names))
        base = len(self._system.makeQualified(root).toUri().getPath()) + 1
        found: list[tuple[str, int]] = []
        with _told(self.path):
            listed = self._system.listFiles(root, True)
            while listed.hasNext():
                each = listed.next()
                found.append((each.getPath().toUri().getPath()[base:], each.getLen()))
        return sorted(found)

    def has_files(self, *names: str) -> bool:
        """Whether there is a file below a folder."""
        path = self._path_class(self.of(*names))
        with _told(self.path):
            return bool(self._system.exists(path) and self._system.listFiles(path, True).hasNext())

    def modified_ms(self, *names: str) -> int | None:
        """Return when something was last modified; `None` if it does not exist, or no longer.

        On other file systems, a folder is as old as its youngest file: S3A has no other time of it.
        """
        path = self._path_class(self.of(*names))
        times: list[int] = []
        try:
            with _told(self.path):
                if self.local_path is None:
                    listed = self._system.listFiles(path, True)
                    while listed.hasNext():
                        times.append(listed.next().getModificationTime())
                if not times:
                    times.append(self._system.getFileStatus(path).getModificationTime())
        except PipelineError:
            if self.exists(*names):
                raise
            return None
        return max(times)

    def remove(self, *names: str) -> None:
        """Remove something, with everything in it."""
        with _told(self.path):
            self._system.delete(self._path_class(self.of(*names)), True)

    def remove_empty(self) -> None:
        """Remove the folder itself, unless something is in it by now."""
        if not self.names():
            with _told(self.path):
                self._system.delete(self._path_class(self.path), False)

    def sync(self, *names: str) -> None:
        """Make a local file, or all files below a folder, survive a power cut."""
        if (root := self.local_path) is not None:
            with told_if_full(self.path):
                sync(Path(root, *names))
                sync_name(Path(root, *names))

    def rename(self, old: str, new: str) -> None:
        """Move something; in one step, if the file system can do that.

        After this it is on the disk, so what it replaces may be removed.
        """
        self.sync(old)
        target = self._path_class(self.of(new))
        with _told(self.path):
            self._system.mkdirs(target.getParent())
            is_done = self._system.rename(self._path_class(self.of(old)), target)
        if not is_done:
            raise OSError(f"{self.of(old)} could not be renamed to {self.of(new)}")
        self._sync_name(new)

    def read(self, *names: str) -> str:
        """Return a file as text."""
        with _told(self.path):
            stream = self._system.open(self._path_class(self.of(*names)))
            try:
                text: str = self._io.toString(stream, "UTF-8")
            finally:
                stream.close()
        return text

    def read_json(
        self, *names: str, if_damaged: str, fields: Collection[str] = ()
    ) -> dict[str, Any]:
        """Return the contents of a JSON file, which must have these fields.

        If the file is damaged, an error says what to do.
        """
        try:
            said: Any = json.loads(self.read(*names))
            why = "not an object"
            if isinstance(said, dict):
                why = ", ".join(f"no {name!r}" for name in fields if name not in said)
        except ValueError as error:
            said, why = None, str(error)
        if why:
            raise DamagedFileError(f"{self.of(*names)} is damaged ({why}): {if_damaged}")
        return cast("dict[str, Any]", said)

    def write(self, text: str, *names: str) -> None:
        """Write a file: readers see all of it or nothing, even after a power cut."""
        with _told(self.path):
            self._write(text, *names)

    def _write(self, text: str, *names: str) -> None:
        target = self._path_class(self.of(*names))
        system = self._system
        if self.scheme in S3:
            _fill(system, target, text)
            return
        new = (*names[:-1], f".{names[-1]}.new")
        hidden = self.of(*new)
        source = self._path_class(hidden)
        is_local = self.scheme == "file"
        if is_local:
            # No checksum file: after a kill between the two, nobody could read the file.
            system = system.getRawFileSystem()
            system.delete(self._path_class(self.of(*names[:-1], f".{names[-1]}.crc")), False)
        _fill(system, source, text)
        self.sync(*new)
        if not is_local:  # A local one is replaced in one step; others refuse to.
            system.delete(target, False)
        if not system.rename(source, target):
            raise OSError(f"{hidden} could not be renamed")
        self._sync_name(*names)

    def _sync_name(self, *names: str) -> None:
        if (root := self.local_path) is not None:
            with told_if_full(self.path):
                sync_name(Path(root, *names))

    def write_table(self, frame: DataFrame, name: str, **how: Unpack[How]) -> None:
        """Write a table as Parquet into a folder of this name, as a whole or not at all.

        It replaces whatever was there.
        """
        staged = f"{STAGING}/{name}"
        self._write_files(frame, staged, **how)
        self.remove(name)
        self.rename(staged, name)

    def free_name(self, name: str) -> str:
        """Return a name for what this run writes: only local folders are locked for one run."""
        return name if self.local_path is not None else f"{name}-{uuid4().hex[:8]}"

    def write_new(self, frame: DataFrame, name: str, **how: Unpack[How]) -> dict[str, int]:
        """Write a table as Parquet where no reader looks; return its files, with sizes."""
        self._write_files(frame, name, **how)
        self.sync(name)
        return {f"{name}/{path}": size for path, size in self.files(name)}

    def write_more(self, frame: DataFrame, **how: Unpack[How]) -> dict[str, int]:
        """Write a table as Parquet, as files beside those that are here; return them, with sizes.

        A kill leaves some of them here, which only a list of files tells from the others.
        """
        staged = self.free_name(STAGING)
        self._write_files(frame, staged, **how)
        files = dict(self.files(staged))
        for path in files:
            self.rename(f"{staged}/{path}", path)
        self.remove(staged)
        return files

    def _write_files(self, frame: DataFrame, name: str, **how: Unpack[How]) -> None:
        writer = frame.write.mode("overwrite").option("compression", how.get("compression", "zstd"))
        if rows_of_file := how.get("rows_of_file"):  # Otherwise as Spark's settings say.
            writer = writer.option("maxRecordsPerFile", rows_of_file)
        if parts := how.get("parts"):
            writer = writer.partitionBy(*parts)
        with told_if_full(self.path):
            writer.parquet(self.of(name))
        self.remove(name, "_SUCCESS")
