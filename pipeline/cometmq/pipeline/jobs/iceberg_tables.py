"""Archives that are Iceberg tables: their catalog, their commits, and how they are read.

A table is in the archive's folder, on this machine's disk, together with its catalog, which is a
database of SQLite. Spark writes and reads the files of rows; `pyiceberg` writes and reads what
Iceberg says about them.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cometmq.pipeline.errors import OptionError, PipelineError
from cometmq.pipeline.jobs.committing import commit_to
from cometmq.pipeline.jobs.extras import require_extra
from cometmq.pipeline.jobs.folders import rows_in

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from cometmq.pipeline.jobs.folders import Folder

CATALOG: Final = ("_cometmq", "iceberg.db")
_NAMESPACE: Final = "cometmq"
_TABLE: Final = f"{_NAMESPACE}.archive"
_NOTE: Final = "cometmq.archive"
"""The property of a table that says where its last batch ends."""
_BATCH: Final = "cometmq.batch"
"""The property of a snapshot that says which batch it has appended."""
_PROPERTIES: Final = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
"""Otherwise each batch would leave a file of metadata for ever."""
_LOCAL: Final = "file://"
_UNSAFE: Final = "?#"
"""What the address of a file cannot contain as it is."""


def is_iceberg(folder: Folder) -> bool:
    """Whether a folder is such a table."""
    return folder.exists(*CATALOG)


def _require_place(folder: Folder, option: str) -> None:
    """Refuse a folder in which there can be no such table."""
    path = folder.local_path
    if path is None:
        raise OptionError(
            f"{option}: {folder.path} is not on this machine's disk, where an Iceberg table of"
            " these has its catalog; use parquet or delta there"
        )
    if found := [each for each in _UNSAFE if each in path]:
        raise OptionError(f"{option}: the path {path} contains {found[0]!r}; choose another folder")


class IcebergTable:
    """The table in a folder."""

    def __init__(self, folder: Folder, option: str = "from") -> None:
        require_extra(option, "iceberg")
        _require_place(folder, option)
        self._folder = folder
        self._option = option
        self._root = Path(str(folder.local_path))
        self._catalog: Any = None
        self._table: Any = None
        self._files: tuple[str, dict[str, range | None]] = ("", {})
        """The files, and what describes the version of the table that has them."""

    def exists(self) -> bool:
        """Whether it has been created; load it if so."""
        if self._table is None and is_iceberg(self._folder):
            with self._told_of_catalog():
                if self._connected().table_exists(_TABLE):
                    self._table = self._connected().load_table(_TABLE)
                    self._refuse_moved()
        return self._table is not None

    def _refuse_moved(self) -> None:
        """Refuse a copy: it names the files of the original, and would be changed with it."""
        if (where := self._table.location()) != self._place():
            raise OptionError(
                f"{self._option}: {self._folder.path} is a copy of the table at {where}, whose"
                " files it names; Iceberg's tables stay where they were made"
            )

    @contextmanager
    def _told_of_catalog(self) -> Generator[None]:
        """Say what is wrong with the catalog's file."""
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        except SQLAlchemyError as error:
            said = str(getattr(error, "orig", None) or error).partition("\n")[0]
            raise PipelineError(
                f"{self._folder.of(*CATALOG)}: {said}. If another program uses it, start this again"
                " when that has ended; if it is damaged, put it back from a copy"
            ) from error

    def create(self, schema: Any, parts: Sequence[str]) -> None:
        """Create it, unless it exists, with the schema of Arrow and divided by columns."""
        from pyiceberg.transforms import IdentityTransform

        if self.exists():
            return
        (self._root / CATALOG[0]).mkdir(parents=True, exist_ok=True)
        with self._told_of_catalog():
            catalog = self._connected()
            catalog.create_namespace_if_not_exists(_NAMESPACE)
            creating = catalog.create_table_transaction(
                _TABLE, schema=schema, location=self._place(), properties=_PROPERTIES
            )
            with creating as transaction, transaction.update_spec() as spec:
                for part in parts:
                    spec.add_field(part, IdentityTransform(), part)
            self._table = catalog.load_table(_TABLE)

    def _connected(self) -> Any:
        if self._catalog is None:
            from pyiceberg.catalog.sql import SqlCatalog
            from sqlalchemy.engine import URL

            where = URL.create("sqlite", database=str(self._root.joinpath(*CATALOG)))
            self._catalog = SqlCatalog(
                _NAMESPACE,
                uri=where.render_as_string(),
                warehouse=self._place(),
                **{"py-io-impl": "cometmq.pipeline.jobs.iceberg_files.SyncedFiles"},
            )
        return self._catalog

    def _place(self, *names: str) -> str:
        """Return the address of something in the folder, in which nothing is escaped."""
        return _LOCAL + str(self._root.joinpath(*names))

    @property
    def identity(self) -> str:
        """What distinguishes it from another table made at its place."""
        return str(self._table.metadata.table_uuid)

    def note(self) -> dict[str, Any]:
        """Return what was noted with its last batch; empty without one."""
        said: dict[str, Any] = json.loads(self._table.properties.get(_NOTE, "{}"))
        return said

    def refresh(self) -> None:
        """Look for what others have done."""
        with self._told_of_catalog():
            self._table.refresh()

    def lacks(self, batch: int) -> bool:
        """Whether it was rolled back to before a batch that it has had."""
        metadata = self._table.metadata
        snapshots = {each.snapshot_id: each for each in metadata.snapshots}
        known = {key for key, each in snapshots.items() if _batch_of(each) == str(batch)}
        at = metadata.current_snapshot_id
        while at in snapshots:  # Those before these have expired.
            known.discard(at)
            at = snapshots[at].parent_snapshot_id
        return bool(known)

    def append(
        self, files: Sequence[str], batch: int, note: Mapping[str, Any], look: Callable[[], None]
    ) -> int:
        """Append files, and note where their batch ends, in one commit; return the rows added.

        Right before each attempt, `look` loads the table anew, and may refuse what others did.
        """
        from pyiceberg.exceptions import CommitFailedException

        def commit() -> None:
            look()
            with self._told_of_catalog():
                self._append(files, batch, json.dumps(note))

        commit_to(self._folder, batch, CommitFailedException, commit)
        return int(self._table.current_snapshot().summary["added-records"]) if files else 0

    def _append(self, files: Sequence[str], batch: int, note: str) -> None:
        with self._table.transaction() as transaction:
            transaction.set_properties({_NOTE: note})
            if files:
                transaction.add_files(
                    [self._place(each) for each in files],
                    snapshot_properties={_BATCH: str(batch)},
                    check_duplicate_files=False,
                )

    def files(self) -> Mapping[str, range | None]:
        """Return its files, each with the numbers of its batches, if it says which these are."""
        location, files = self._files
        self.refresh()
        if location != self._table.metadata_location:
            location = self._table.metadata_location
            tasks = list(self._table.scan().plan_files())
            if any(each.delete_files for each in tasks):
                raise OptionError(
                    f"from: {self._folder.path} has rows that were deleted without rewriting their"
                    " files, which Spark cannot leave out here: have an engine that knows Iceberg"
                    " rewrite the files"
                )
            column = self._table.schema().find_field("batch").field_id
            files = {
                each.file.file_path.removeprefix(_LOCAL): _batches(each.file, column)
                for each in tasks
            }
            self._files = location, files
        return files

    def read(self, spark: SparkSession, paths: Collection[str]) -> DataFrame:
        """Return the rows of some of its files."""
        from pyspark.sql.pandas.types import from_arrow_schema

        return rows_in(spark, paths, from_arrow_schema(self._table.schema().as_arrow()))


def _batches(file: Any, column: int) -> range | None:
    """Return the numbers of the batches in a file, if it says them."""
    none: dict[int, bytes] = {}
    first = (file.lower_bounds or none).get(column)
    last = (file.upper_bounds or none).get(column)
    if first is None or last is None:
        return None
    return range(_number(first), _number(last) + 1)


def _number(stored: bytes) -> int:
    return int.from_bytes(stored, "little", signed=True)


def _batch_of(snapshot: Any) -> str | None:
    found: str | None = snapshot.summary and snapshot.summary.get(_BATCH)
    return found
