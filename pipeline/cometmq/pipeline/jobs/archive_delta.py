"""`archive --format delta`: a Delta table, to which each batch is one commit.

The commit says which batch of which stream it is, so a repeated batch is left out.
`_cometmq/archive.json` in the table's folder says whose the table is, where the last batch ends
that is certainly there, and where the next one ends, which was begun. Delta's log shows whether
that one is there, too. Delta ignores folders that begin with `_`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs.adopting import last_messages
from cometmq.pipeline.jobs.archive_files import ends_of_both
from cometmq.pipeline.jobs.archive_kinds import rows_of
from cometmq.pipeline.jobs.archive_tables import PRECISE_TIMES, ToTable, arrow_schema
from cometmq.pipeline.jobs.archive_writing import Last
from cometmq.pipeline.jobs.delta_commits import Commits
from cometmq.pipeline.jobs.delta_tables import DeltaTable
from cometmq.pipeline.jobs.folders import STAGING
from cometmq.pipeline.jobs.streams import query_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from cometmq.pipeline.cluster import Queue
    from cometmq.pipeline.offsets import First

_NOTES: Final = ("_cometmq", "archive.json")


class ToDelta(ToTable):
    """An archive that is a Delta table."""

    merged_by = "`deltalake`'s `optimize.compact`"

    _begun: Last | None = None
    _done: Last | None = None
    _table: DeltaTable
    _commits: Commits

    def last(self) -> Last | None:
        """Find the last batch."""
        self._table = DeltaTable(self.folder, "format")
        self._commits = Commits(self.folder, self._table.version)
        if not self._table.exists():  # Killed before its first commit, or the commit is lost.
            return None
        if not self.folder.exists(*_NOTES):
            raise OptionError(f"to: {self.folder.path} is a table, not an archive")
        said = self.folder.read_json(
            *_NOTES,
            if_damaged="put it back from a copy, or archive to another folder",
            fields=("begun", "done"),
        )
        begun, done = (Last(**each) if each else None for each in (said["begun"], said["done"]))
        self._begun = begun
        is_there = begun and self._table.last_of(begun.query_id) >= begun.number
        if is_there:  # The run that committed it may have been killed before it was synced.
            self._commits.sync()
        self._done = begun if is_there else done
        self.learn(*self._commits.last_written())
        if self._commits.was_restored():
            self._go_back()
        return self._done

    def _go_back(self) -> None:
        """Refuse a table that was restored to a version before its last batches.

        Its stream is past these batches, and repeated ones would be left out. Another stream reads
        them again, under new numbers, as a replay may know the old ones.
        """
        begun, done, there = self._begun, self._done, self._last_batch()
        if begun is None or done is None or done.number <= there:
            return
        if query_id(self.checkpoint) in (begun.query_id, done.query_id):
            raise OptionError(
                f"to: {self.folder.path} was restored to a version without batches {there + 1} to"
                f" {done.number}, after which the checkpoint {self.checkpoint.path} goes on: their"
                " messages would be missing. Restore the version before that, or continue with a"
                " new --checkpoint and --adopt, which reads them again"
            )
        self._begun = self._done = replace(done, ends=self._ends_of_rows())

    def _last_batch(self) -> int:
        """Return the number of the last batch with rows; -1 if there is none."""
        (row,) = rows_of(self.spark, self._table).selectExpr("max(batch) AS last").collect()
        return -1 if row["last"] is None else row["last"]

    def _ends_of_rows(self) -> dict[str, Any]:
        """Return the offsets after the last rows, by topic, broker and queue.

        For a topic that was deleted and recreated, these are the later topic's, which may be
        smaller.
        """
        from pyspark.sql import functions

        queues = rows_of(self.spark, self._table).groupBy("topic", "broker", "queue_id")
        last_of = functions.expr("max(struct(batch, queue_offset)).queue_offset")
        ends: dict[str, Any] = {}
        for row in queues.agg(last_of).collect():
            topic, broker, queue_id, last = row
            ends.setdefault(topic, {}).setdefault(broker, {})[str(queue_id)] = last + 1
        return ends

    def reached(self, last: Last) -> dict[str, Any]:
        """Find the ends of earlier streams in the rows, as the notes only cover the last stream."""
        return ends_of_both(self._ends_of_rows(), last.ends)

    def last_messages(self) -> dict[Queue, First]:
        """Find the last messages in the archived rows."""
        return last_messages(rows_of(self.spark, self._table))

    def begin(self) -> None:
        """Note how batches are numbered, and remove what a crash left behind."""
        super().begin()
        self.folder.remove(STAGING)

    def write(self, frame: DataFrame, number: int, batch_id: int) -> None:
        """Write its files, and then commit them; Delta's log knows a batch without rows, too."""
        from pyspark.sql import Observation, functions

        begun = self.written(number, batch_id)
        self._require_same(begun)
        if number <= self.last_written:
            return
        document = {"begun": asdict(begun), "done": self._done and asdict(self._done)}
        self.folder.write(json.dumps(document, indent=2) + "\n", *_NOTES)
        self._begun = begun
        frame = self.with_number(frame, number)
        self._table.create(arrow_schema(frame), self.parts)
        look = partial(self._look, frame.schema)
        look()
        seen = Observation()
        # A stream has a session of its own, so nobody else sees this.
        frame.sparkSession.conf.set(*PRECISE_TIMES)
        files = self.folder.write_more(
            frame.observe(seen, functions.expr("count(*) AS rows")),
            parts=self.parts,
            compression=self.settings.compression,
            rows_of_file=self.rows_of_file,
        )
        self.count_files([*files.values()])
        rows = seen.get["rows"]
        self._table.append(files, begun.query_id, number, rows, look)
        self.learn(len(files), sum(files.values()), rows)
        self._done = begun
        self.guard.look(begun.ends)

    def _look(self, schema: StructType) -> None:
        """Refuse what others have done to the table since this run began."""
        self._table.refresh()
        self._table.require_columns(schema, self.parts)
        if self._commits.restored():
            self._go_back()

    def _require_same(self, batch: Last) -> None:
        """Refuse a batch that was begun before with another end: a stream repeats its last one."""
        before = self._begun
        if before is None or batch.query_id != before.query_id or batch.number > before.number:
            return
        if (batch.number, batch.ends) != (before.number, before.ends):
            raise self.ends_elsewhere(batch.number)
