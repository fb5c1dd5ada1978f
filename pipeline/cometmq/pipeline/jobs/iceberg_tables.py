"""Archives that are Iceberg tables: their commits, and how they are read.

Spark writes and reads the files of rows; `pyiceberg` writes and reads what Iceberg says about them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs.committing import commit_to, divided_by, require_columns
from cometmq.pipeline.jobs.extras import require_extra
from cometmq.pipeline.jobs.folders import rows_in
from cometmq.pipeline.jobs.iceberg_catalogs import catalog_of
from cometmq.pipeline.jobs.iceberg_stores import path_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from cometmq.pipeline.jobs.folders import Folder

_NOTE: Final = "cometmq.archive"
"""The property of a table that says where its last batch ends."""
_BATCH: Final = "cometmq.batch"
"""The property of a snapshot that says which batch it has appended."""
_PROPERTIES: Final = {
    _NOTE: "{}",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
"""An archive has created it, of which nothing is noted so far; and no batch leaves a file of
metadata for ever."""
_RETRIES: Final = "commit.retry.num-retries"


class IcebergTable:
    """The table in a folder."""

    def __init__(self, folder: Folder, option: str = "from", name: str = "") -> None:
        require_extra(option, "iceberg")
        self._folder = folder
        self._catalog = catalog_of(folder, option, name)
        self._table: Any = None
        self._files: tuple[str, dict[str, range | None]] = ("", {})
        """The files, and what describes the version of the table that has them."""

    def exists(self) -> bool:
        """Whether it has been created; load it if so."""
        if self._table is None:
            self._table = self._catalog.table()
        return self._table is not None

    def create(self, schema: Any, parts: Sequence[str]) -> None:
        """Create it, unless it exists, with the schema of Arrow and divided by columns."""
        from pyiceberg.transforms import IdentityTransform

        if not self.exists():
            with self._catalog.told():
                creating = self._catalog.creating(schema, _PROPERTIES)
                with creating as transaction, transaction.update_spec() as spec:
                    for part in parts:
                        spec.add_field(part, IdentityTransform(), part)
            self._table = self._catalog.table()
        self._catalog.keep_name()

    @property
    def identity(self) -> str:
        """What distinguishes it from another table made at its place."""
        return str(self._table.metadata.table_uuid)

    def note(self) -> dict[str, Any] | None:
        """Return what was noted with its last batch; `None` if no archive has created it."""
        said: dict[str, Any] | None = json.loads(self._table.properties.get(_NOTE, "null"))
        return said

    def refresh(self) -> None:
        """Look for what others have done."""
        with self._catalog.told():
            self._table.refresh()

    def require_columns(self, schema: StructType, parts: Sequence[str]) -> None:
        """Refuse a table that somebody has changed so that batches no longer fit."""
        from pyiceberg.transforms import IdentityTransform

        require_columns(self._folder, self._schema(), schema)
        fields = self._table.spec().fields
        identity = IdentityTransform()
        if any(each.transform != identity or each.name not in parts for each in fields):
            raise divided_by(self._folder, [each.name for each in fields], parts)

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
            with self._catalog.told():
                self._append(files, batch, json.dumps(note))

        commit_to(self._folder, batch, CommitFailedException, commit)
        return int(self._table.current_snapshot().summary["added-records"]) if files else 0

    def _append(self, files: Sequence[str], batch: int, note: str) -> None:
        # For this commit alone: `pyiceberg` would repeat it without a look.
        self._table.metadata.properties[_RETRIES] = "0"
        with self._table.transaction() as transaction:
            transaction.set_properties({_NOTE: note})
            if files:
                transaction.add_files(
                    [f"{self._catalog.place}/{each}" for each in files],
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
                path_of(self._folder, each.file.file_path): _batches(each.file, column)
                for each in tasks
            }
            self._files = location, files
        return files

    def read(self, spark: SparkSession, paths: Collection[str]) -> DataFrame:
        """Return the rows of some of its files."""
        return rows_in(spark, paths, self._schema())

    def _schema(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        schema: StructType = from_arrow_schema(self._table.schema().as_arrow())
        return schema


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
