"""Archives that are Delta tables: their commits, and how they are read.

Spark writes and reads the files of rows; `deltalake` writes and reads Delta's log, which says which
files are in the table.
"""

from __future__ import annotations

import json
import re
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from cometmq.pipeline.errors import OptionError, PipelineError
from cometmq.pipeline.jobs.committing import commit_to, divided_by, require_columns
from cometmq.pipeline.jobs.delta_commits import STREAM, Written, is_delta, sync_commit
from cometmq.pipeline.jobs.delta_files import statistics_of, values_in
from cometmq.pipeline.jobs.delta_stores import address, settings_of
from cometmq.pipeline.jobs.extras import require_extra
from cometmq.pipeline.jobs.folders import rows_in
from cometmq.pipeline.jobs.full_disks import about_full

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from cometmq.pipeline.jobs.folders import Folder

_READ: Final = {"deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
"""The features of tables that do not change how files are read, or are looked at when they are."""
_CHECKED: Final = ("delta.generationExpression", "delta.identity.start", "delta.invariants")
"""What a column has whose values Delta computes, or looks at before it takes them."""
_CONSTRAINT: Final = "delta.constraints."
_MAPPED: Final = "delta.columnMapping.mode"
_FORGETS: Final = "delta.setTransactionRetentionDuration"
_THEN: Final = re.compile(r"\s*\x1b\[\d+m↳\x1b\[0m\s*")
"""What is between an error and its cause, in colours, as `deltalake` tells of stores."""


class DeltaTable:
    """The table in a folder."""

    def __init__(self, folder: Folder, option: str = "from") -> None:
        require_extra(option, "delta")
        self._folder = folder
        self._option = option
        self._address = address(folder, option)
        self._settings = settings_of(folder)
        self._table: Any = None
        self._files: tuple[int, dict[str, range | None]] = (-1, {})
        """The files, and the version of the table that has them."""

    def exists(self) -> bool:
        """Whether it has been created; load it if so."""
        if self._table is None and is_delta(self._folder):
            from deltalake import DeltaTable as Table

            with self._told():
                self._table = Table(self._address, storage_options=self._settings)
            self._refuse_unreadable()
        return self._table is not None

    def create(self, schema: pa.Schema, parts: Sequence[str]) -> None:
        """Create it, unless it exists, with the schema of Arrow and divided by columns."""
        from deltalake import DeltaTable as Table, Schema

        if self.exists():
            return
        with self._told():
            self._table = Table.create(
                self._address,
                Schema.from_arrow(schema),
                partition_by=[*parts],
                storage_options=self._settings,
            )
        sync_commit(self._folder, 0)

    def refresh(self) -> None:
        """Look for what others have done."""
        with self._told():
            self._table.update_incremental()

    @property
    def identity(self) -> str:
        """What distinguishes it from another table made at its place."""
        return str(self._table.metadata().id)

    def last_of(self, stream: str | None) -> int:
        """Return the number of the last batch that a stream has appended; -1 if there is none."""
        said: int | None = self._table.transaction_version(_app(stream))
        return -1 if said is None else said

    @property
    def version(self) -> int:
        """The number of its last commit; -1 if it has not been created."""
        return self._table.version() if self.exists() else -1

    def append(
        self,
        files: Mapping[str, int],
        stream: str | None,
        batch: int,
        rows: int,
        look: Callable[[], None],
    ) -> None:
        """Append files, in one commit that says which batch of which stream they are.

        If the table has the batch, nothing is appended. Right before a commit, `look` may refuse
        what others have done.
        """
        from deltalake.exceptions import CommitFailedError

        seen = self.version

        def commit() -> None:
            look()
            if self.last_of(stream) < batch:
                with self._told(CommitFailedError):
                    self._append(files, _app(stream), batch, rows)

        commit_to(self._folder, batch, CommitFailedError, commit)
        self.refresh()
        for version in range(seen + 1, self.version + 1):  # Ours, and what came with it.
            sync_commit(self._folder, version)

    def _append(self, files: Mapping[str, int], app: str, batch: int, rows: int) -> None:
        from deltalake import CommitProperties, Transaction

        metrics = Written(len(files), sum(files.values()), rows).metrics
        self._table.create_write_transaction(
            [self._added(path, size, batch) for path, size in files.items()],
            "append",
            self._table.schema(),
            partition_by=self._table.metadata().partition_columns,
            commit_properties=CommitProperties(
                custom_metadata={"operationMetrics": metrics},
                app_transactions=[Transaction(app, batch)],
            ),
        )

    def _added(self, path: str, size: int, batch: int) -> Any:
        """Return what the log says of a file of a batch."""
        from deltalake.transaction import AddAction

        statistics: dict[str, Any] = {"minValues": {"batch": batch}, "maxValues": {"batch": batch}}
        if (root := self._folder.local_path) is not None:
            statistics = statistics_of(Path(root, path))
        now = int(time.time() * 1000)
        return AddAction(path, size, values_in(path), now, True, json.dumps(statistics))

    def require_columns(self, schema: StructType, parts: Sequence[str]) -> None:
        """Refuse a table that somebody has changed so that batches no longer fit."""
        there = self._schema()
        require_columns(self._folder, there, schema)
        if (now := self._table.metadata().partition_columns) != [*parts]:
            raise divided_by(self._folder, now, parts)
        where = f"to: {self._folder.path} is a table"
        names = (name for each in there for name in each.metadata)
        checked = [each for each in names if each in _CHECKED]
        settings = self._table.metadata().configuration
        if found := checked + [each for each in settings if each.startswith(_CONSTRAINT)]:
            raise PipelineError(
                f"{where} with {found[0]}, which nobody would check for a batch: remove it, and"
                " start this again"
            )
        if _FORGETS in settings:
            raise PipelineError(
                f"{where} with {_FORGETS}, so that it would forget which batches it has: remove it,"
                " and start this again"
            )

    def _refuse_unreadable(self) -> None:
        """Refuse a table whose files are not its rows."""
        where = f"{self._option}: {self._folder.path} is a Delta table"
        unknown = {*(self._table.protocol().reader_features or ())} - _READ
        if self._table.metadata().configuration.get(_MAPPED, "none") != "none":
            unknown.add("columnMapping")
        if unknown:
            raise OptionError(f"{where} with {', '.join(sorted(unknown))}, which is not read here")
        if "batch" not in self._schema().names:
            raise OptionError(f"{where}, not an archive")

    def _schema(self) -> StructType:
        """Return its columns; Delta describes them as Spark does."""
        from pyspark.sql.types import StructType

        return StructType.fromJson(json.loads(self._table.schema().to_json()))

    def files(self) -> Mapping[str, range | None]:
        """Return its files, each with the numbers of its batches, if it says which these are."""
        self.refresh()
        version, files = self._files
        if version != self._table.version():
            version = self._table.version()
            self._refuse_deleted()
            files = dict(map(self._file, self._actions()))
            self._files = version, files
        return files

    def _actions(self) -> list[dict[str, Any]]:
        import pyarrow as pa

        table = pa.table(self._table.get_add_actions(flatten=True))
        parts = [f"partition.{each}" for each in self._table.metadata().partition_columns]
        wanted = {"path", "min.batch", "max.batch", *parts}
        return table.select([each for each in table.column_names if each in wanted]).to_pylist()

    def _file(self, action: dict[str, Any]) -> tuple[str, range | None]:
        path = unquote(action["path"])
        parts = self._table.metadata().partition_columns
        values = {each: action[f"partition.{each}"] for each in parts}
        texts = {key: None if value is None else str(value) for key, value in values.items()}
        if values_in(path) != texts:
            raise OptionError(
                f"{self._option}: {self._folder.path} is a Delta table whose file {path} is not"
                f" in a folder that is named after its {', '.join(parts)}, where Spark looks"
            )
        first, last = action.get("min.batch"), action.get("max.batch")
        return path, None if first is None or last is None else range(first, last + 1)

    def read(self, spark: SparkSession, paths: Collection[str]) -> DataFrame:
        """Return the rows of some of its files."""
        schema = self._schema()
        whole = [self._folder.of(each) for each in paths]
        frame = rows_in(spark, whole, schema, basePath=self._folder.path)
        return frame.select(*schema.names)

    def _refuse_deleted(self) -> None:
        if "deletionVectors" not in (self._table.protocol().reader_features or ()):
            return
        if any(each.num_rows for each in self._table.deletion_vectors()):
            raise OptionError(
                f"{self._option}: {self._folder.path} has rows that were deleted without rewriting"
                " their files, which Spark cannot leave out here: have an engine that knows Delta"
                " rewrite the files (REORG TABLE ... APPLY (PURGE))"
            )

    @contextmanager
    def _told(self, *but: type[Exception]) -> Generator[None]:
        """Say which table it is of which `deltalake` says something."""
        from deltalake.exceptions import DeltaError

        try:
            yield
        except but:
            raise
        except (DeltaError, OSError) as error:
            path, said = self._folder.path, _THEN.sub(": ", str(error)).strip()
            text = f"{self._option}: {path}: {said}".partition("\n")[0]
            raise PipelineError(about_full(error, path) or text) from error


def _app(stream: str | None) -> str:
    """Return the name by which the table knows a stream."""
    return f"{STREAM}{stream}"
