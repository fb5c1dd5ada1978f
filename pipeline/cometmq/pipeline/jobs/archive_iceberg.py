"""`archive --format iceberg`: an Iceberg table, to which each batch is one commit.

Spark writes the files of a batch where no reader looks, until a commit adds them to the table. The
same commit notes which batch of which stream it is, and where that ends. So a batch that is
repeated after a crash is either noted, and left out, or in no commit, and written again.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from cometmq.pipeline.errors import HeldError, OptionError
from cometmq.pipeline.jobs.adopting import last_messages
from cometmq.pipeline.jobs.archive_files import ends_of_both
from cometmq.pipeline.jobs.archive_kinds import rows_of
from cometmq.pipeline.jobs.archive_tables import PRECISE_TIMES, ToTable, arrow_schema
from cometmq.pipeline.jobs.archive_writing import Last
from cometmq.pipeline.jobs.iceberg_tables import IcebergTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from cometmq.pipeline.cluster import Queue
    from cometmq.pipeline.offsets import First

_DATA: Final = "data"


class ToIceberg(ToTable):
    """An archive that is an Iceberg table."""

    merged_by = "rewriting the table's files"

    _table: IcebergTable
    _noted: Last | None = None
    _filled: int = -1
    """The last batch with rows."""
    _ends: dict[str, Any]
    """Where the archive ends, for all streams that have written to it."""

    def last(self) -> Last | None:
        """Return what the last commit of a batch has noted."""
        self._table = IcebergTable(self.folder, "format", self.settings.table)
        self._ends = {}
        if not self._table.exists():
            return None
        if (said := self._table.note()) is None:
            raise OptionError(f"to: {self.folder.path} is a table, not an archive")
        if not said:  # Killed before its first commit.
            return None
        self._noted, self._filled = Last(**said["last"]), said["filled"]
        self._ends = said["ends"]
        self._refuse_rolled_back()
        return self._noted

    def _look(self, schema: StructType) -> None:
        """Refuse what others have done to the table since this run began."""
        self._table.refresh()
        self._table.require_columns(schema, self.parts)
        self._refuse_rolled_back()
        if (self._table.note() or {}).get("last") != (self._noted and asdict(self._noted)):
            raise HeldError(
                f"to: another run has written to {self.folder.path} since this one began; only one"
                " at a time can"
            )

    def _refuse_rolled_back(self) -> None:
        if self._filled >= 0 and self._table.lacks(self._filled):
            raise OptionError(
                f"to: {self.folder.path} was rolled back to before batch {self._filled}, so that"
                " the messages of its last batches would be missing. Roll it forward again, or"
                " archive to another folder"
            )

    def reached(self, last: Last) -> dict[str, Any]:
        """Return what the last commit has noted."""
        del last
        return self._ends

    def last_messages(self) -> dict[Queue, First]:
        """Find the last messages in the archived rows."""
        return last_messages(rows_of(self.spark, self._table))

    def write(self, frame: DataFrame, number: int, batch_id: int) -> None:
        """Write its files, and then commit them."""
        batch = self.written(number, batch_id)
        if self._noted is not None and number <= self._noted.number:
            if (number, batch.ends) != (self._noted.number, self._noted.ends):
                raise self.ends_elsewhere(number)
            return
        frame = self.with_number(frame, number)
        self._table.create(arrow_schema(frame), self.parts)
        look = partial(self._look, frame.schema)
        look()
        name = self.folder.free_name(f"{_DATA}/{number:06d}-{str(batch.query_id)[:8]}")
        files = self._written(frame, name)
        ends = ends_of_both(self._ends, batch.ends)
        filled = number if files else self._filled
        note = {"last": asdict(batch), "filled": filled, "ends": ends}
        rows = self._table.append(list(files), number, note, look)
        self.learn(len(files), sum(files.values()), rows)
        self._noted, self._filled, self._ends = batch, filled, ends
        self.guard.look(batch.ends)

    def _written(self, frame: DataFrame, name: str) -> dict[str, int]:
        """Write a batch's files, each with one value of each partition; return paths and sizes."""
        # Spark takes a column out of the files by which it divides them; Iceberg needs it there.
        again = {f"_{part}": frame[part] for part in self.parts}
        # A stream has a session of its own, so nobody else sees this.
        frame.sparkSession.conf.set(*PRECISE_TIMES)
        files = self.folder.write_new(
            frame.withColumns(again),
            name,
            parts=list(again),
            compression=self.settings.compression,
            rows_of_file=self.rows_of_file,
        )
        self.count_files([*files.values()])
        return files
