"""The writing side of `format("cometmq")`: rows become messages, once or as a stream.

The promises (`delivery`):

* **idempotent**: a row with an identity (`rows.py`) is stored once, however often Spark runs its
  task, or its batch after a restart. It needs CometMQ brokers, and holds as long as they remember
  (`docs/pipeline.md`).
* **at-least-once**: nothing is lost; a task that is run again sends its rows again.

`write` runs in executors, with a copy of the writer that the driver made. Everything is stored when
it returns, so `commit` has nothing left to do, and `abort` nothing that it could take back.
"""

from __future__ import annotations

import logging
import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from cometmq.pipeline.errors import (
    ConnectionLostError,
    OptionError,
    PipelineError,
    SinkError,
)
from cometmq.pipeline.identities import ONLY_ONE
from cometmq.pipeline.lanes import Sending
from cometmq.pipeline.marks import sent_twice
from cometmq.pipeline.messages import Forming
from cometmq.pipeline.rows import RowForm, row_form
from cometmq.pipeline.sending import Sender
from cometmq.pipeline.settling import settle
from cometmq.pipeline.targets import Targets, require_batch_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from cometmq.pipeline.options import WriteOptions

log = logging.getLogger(__name__)

QUERY_ID: Final = "sql.streaming.queryId"
"""The local property that identifies a stream's checkpoint, which Spark does not document."""
_TAGS: Final = "spark.job.tags"
_OF_CONNECT: Final = "SparkConnect_"
"""The prefix of the tags of jobs that a Spark Connect session runs; also undocumented."""


@dataclass
class Written(WriterCommitMessage):
    """What a task has written."""

    rows: int
    size: int
    once: int
    again: int
    marks: bytes
    """The marks of rows that say from which message they were made; see `marks`."""


class _Writing:
    """The common part of both writers."""

    not_told: tuple[type[ConnectionLostError], ...] = ()
    """Errors that are not raised when the writer is made, but left to the tasks."""

    def __init__(self, options: WriteOptions, schema: Any) -> None:
        self.options = options
        self.form: RowForm = row_form(schema, options)
        if options.delivery == "idempotent" and not self.form.has_identity:
            raise OptionError(
                "delivery: idempotent needs rows with an identity: name a column that tells them"
                " apart by dedupKey, or keep the source's columns topic, broker, queue_id and"
                " queue_offset"
            )
        if options.topic:
            with suppress(*self.not_told):
                targets = self.targets().of(options.topic)  # Raises if the topic is wrong.
                require_batch_size(options, {each.address for each in targets})

    def targets(self) -> Targets:
        """Return where rows can go."""
        options = self.options
        return Targets(options.cluster(), options.retries, options.retry_interval_ms)

    def send(self, batches: Iterator[pa.RecordBatch], sink: str) -> Written:
        """Send the rows of a task."""
        settle()
        options = self.options
        how = Sending(
            options.settings(),
            options.delivery,
            options.batch_bytes,
            options.max_in_flight,
            options.in_order,
            options.retries,
            options.retry_interval_ms,
        )
        forming = Forming(
            self.form,
            sink,
            sends_empty=options.empty_bodies == "send",
            finds_twins=options.delivery != "at-least-once",
        )
        sender = Sender(self.targets(), how)
        try:
            for batch in batches:
                if batch.num_rows:
                    sender.send(forming.messages(batch))
            sent = sender.finish()
        finally:
            sender.close()
        return Written(sent.rows, sent.size, sent.once, sent.again, sent.marks.said())


class BatchWriter(_Writing, DataSourceArrowWriter):
    """Writes a frame. Its rows' identities hold within this write, or for all with its `sinkId`."""

    def __init__(self, options: WriteOptions, schema: Any) -> None:
        super().__init__(options, schema)
        self.sink = options.sink_id or secrets.token_hex(16)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write what a task has."""
        options = self.options
        if options.delivery == "idempotent" and not options.sink_id and _may_be_repeated():
            raise OptionError(
                "sinkId: is required with delivery=idempotent in foreachBatch, whose batches may be"
                " repeated, and in each session of Spark Connect, which cannot tell whether this"
                " is one: give each write its own name, and keep it over restarts"
            )
        return self.send(iterator, self.sink)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Say how much it was."""
        again = _finish(messages)
        if note := self.options.again_note:
            with suppress(OSError):  # Everything is stored, even if this note cannot be written.
                Path(note).write_text(str(again))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Note that tasks failed; what they have sent stays."""


class StreamWriter(_Writing, DataSourceStreamArrowWriter):
    """Writes a stream's batches. Their rows' identities hold as long as the checkpoint exists."""

    # Spark also makes a writer to end a batch that failed because no server answered. If that
    # failed, too, the query's exception would say `Writing job failed` and not why.
    not_told = (ConnectionLostError,)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write what a task has."""
        return self.send(iterator, self.options.sink_id or _query_id())

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Say how much it was."""
        _finish(messages, f"batch {batchId}: ")

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Note that tasks failed; rows that they have sent are recognized when they come again."""


def _may_be_repeated() -> bool:
    """Whether this runs in `foreachBatch`, as far as Spark says so."""
    return bool(_property(QUERY_ID)) or _OF_CONNECT in (_property(_TAGS) or "")


def _property(name: str) -> str | None:
    context = TaskContext.get()
    return context.getLocalProperty(name) if context else None


def _query_id() -> str:
    query_id = _property(QUERY_ID)
    if not query_id:
        raise PipelineError(
            f"Spark does not say which query this is ({QUERY_ID}); name it by the option sinkId,"
            " and keep that over restarts"
        )
    return query_id


def _finish(messages: Sequence[WriterCommitMessage | None], text: str = "") -> int:
    """Log how much was written, and return how many of the rows were stored before.

    Raise `SinkError` if rows were left out because they look like others.
    """
    written = [each for each in messages if isinstance(each, Written)]
    again = sum(each.again for each in written)
    log.info(
        "%s%d rows, %d bytes; %d of them stored once each, of which %d were there before",
        text,
        sum(each.rows for each in written),
        sum(each.size for each in written),
        sum(each.once for each in written),
        again,
    )
    if count := sent_twice(each.marks for each in written):
        raise SinkError(
            f"{text}tasks sent several rows of one message, at least {count} times,"
            f" {ONLY_ONE}; the others are stored"
        )
    return again
