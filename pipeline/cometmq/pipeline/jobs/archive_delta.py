"""`archive --format delta`: a Delta table, to which each batch is one commit.

The commit says which batch of which stream it is, so Delta itself skips a repeated batch.
`_cometmq/archive.json` in the table's folder says whose the table is, where the last batch ends
that is certainly there, and where the next one ends, which was begun. The rows show whether that
one is there, too: the column `batch` has its number. Delta ignores folders that begin with `_`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

from cometmq.pipeline.delta import require_delta
from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs.adopting import last_messages
from cometmq.pipeline.jobs.archive_files import MANIFESTS, ends_of_both
from cometmq.pipeline.jobs.archive_tables import ToTable
from cometmq.pipeline.jobs.archive_writing import Last
from cometmq.pipeline.jobs.delta_tables import (
    Commits,
    append_batch,
    ends_of_rows,
    is_delta,
    last_batch,
    rows_of_batches,
    was_restored,
)
from cometmq.pipeline.jobs.streams import query_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from cometmq.pipeline.cluster import Queue
    from cometmq.pipeline.offsets import First

_NOTES: Final = ("_cometmq", "archive.json")


class ToDelta(ToTable):
    """An archive that is a Delta table."""

    _begun: Last | None = None
    _done: Last | None = None
    _commits: Commits

    @property
    def last_noted(self) -> int:
        """The last batch that was begun; a batch without rows is not in the table."""
        return -1 if self._begun is None else self._begun.number

    def last(self) -> Last | None:
        """Find the last batch."""
        require_delta(self.spark, "format")
        self._commits = Commits(self.folder)
        if self.folder.exists(MANIFESTS):
            raise OptionError(f"format: {self.folder.path} is a Parquet archive")
        if not self.folder.exists(*_NOTES):
            if is_delta(self.folder):
                raise OptionError(f"to: {self.folder.path} is a table, not an archive")
            return None
        if not is_delta(self.folder):  # Killed before its first commit, or the commit is lost.
            return None
        said = self.folder.read_json(
            *_NOTES,
            if_damaged="put it back from a copy, or archive to another folder",
            fields=("begun", "done"),
        )
        begun, done = (Last(**each) if each else None for each in (said["begun"], said["done"]))
        self._begun = begun
        there = last_batch(self.spark, self.folder)
        self._done = begun if begun and begun.number <= there else done
        if begun and begun.number > there and was_restored(self.folder):
            self._go_back(begun, there)
        return self._done

    def _go_back(self, begun: Last, there: int) -> None:
        """Refuse a table that was restored to a version before its last batches.

        Its stream is past these batches, and Delta would skip repeated ones. Another stream reads
        them again, under new numbers, as a replay may know the old ones.
        """
        is_adopted = self._done is not None and self._done.query_id != begun.query_id
        if is_adopted:  # By a stream that was killed before its first commit.
            return
        if begun.query_id == query_id(self.checkpoint):
            raise OptionError(
                f"to: {self.folder.path} was restored to a version without batches {there + 1} to"
                f" {begun.number}, which by the checkpoint {self.checkpoint.path} are done: their"
                " messages would be missing. Restore the version before that, or continue with a"
                " new --checkpoint and --adopt, which reads them again"
            )
        self._begun = self._done = replace(begun, ends=ends_of_rows(self.spark, self.folder))

    def reached(self, last: Last) -> dict[str, Any]:
        """Find the ends of earlier streams in the rows, as the notes only cover the last stream."""
        return ends_of_both(ends_of_rows(self.spark, self.folder), last.ends)

    def last_messages(self) -> dict[Queue, First]:
        """Find the last messages in the archived rows."""
        return last_messages(rows_of_batches(self.spark, self.folder))

    def write(self, frame: DataFrame, number: int, batch_id: int) -> None:
        """Append it; Delta itself knows an existing batch without rows."""
        begun = self.written(number, batch_id)
        self._require_same(begun)
        if number <= self.last_written:
            return
        self._refuse_restored()
        self.learn(*self._commits.written)
        document = {"begun": asdict(begun), "done": self._done and asdict(self._done)}
        self.folder.write(json.dumps(document, indent=2) + "\n", *_NOTES)
        append_batch(
            self.with_number(frame, number),
            self.folder,
            str(begun.query_id),
            number,
            parts=self.parts,
            compression=self.settings.compression,
            rows_of_file=self.rows_of_file,
        )
        self._begun = self._done = begun
        self.guard.look(begun.ends)

    def _refuse_restored(self) -> None:
        """Refuse to append to a table that was restored since this run began."""
        if self._begun and self._commits.restored():
            there = last_batch(self.spark, self.folder)
            if self._begun.number > there:
                self._go_back(self._begun, there)

    def _require_same(self, batch: Last) -> None:
        """Refuse a batch that was begun before with another end: a stream repeats its last one."""
        before = self._begun
        if before is None or batch.query_id != before.query_id or batch.number > before.number:
            return
        if (batch.number, batch.ends) != (before.number, before.ends):
            raise self.ends_elsewhere(batch.number)
