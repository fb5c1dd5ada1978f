"""The common part of writing archives: who may continue one, and how batches are numbered.

A checkpoint and an archive belong together: a new checkpoint would start from the beginning. With
`adopt`, it continues where the archive ends, and numbers its batches after the existing ones.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from cometmq.pipeline.errors import DamagedFileError, OptionError, PipelineError
from cometmq.pipeline.first_messages import part_of
from cometmq.pipeline.jobs.adopting import going_on, made_anew
from cometmq.pipeline.jobs.archive_files import MANIFESTS, PARTS
from cometmq.pipeline.jobs.archive_kinds import KINDS, PARQUET, format_of
from cometmq.pipeline.jobs.expiry_guard import ExpiryGuard
from cometmq.pipeline.jobs.folders import Folder
from cometmq.pipeline.jobs.streams import ONCE, query_id, source_end, source_options
from cometmq.pipeline.jobs.torn_checkpoints import ENDS, next_batch
from cometmq.pipeline.offsets import document_of, read_stream_offset
from cometmq.pipeline.options import EARLIEST, read_options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from cometmq.pipeline.cluster import Queue
    from cometmq.pipeline.jobs.archive import ArchiveSettings
    from cometmq.pipeline.jobs.job import Run
    from cometmq.pipeline.jobs.report import Report
    from cometmq.pipeline.offsets import First

_NUMBERS: Final = "archive.json"
"""The file in a checkpoint with the number of its first batch, if the archive had earlier ones."""
_FILE_SMALL: Final = 8 << 20
"""With files smaller than this, opening many of them takes longer than reading their contents."""
_TELLING: Final = 256 << 10
"""Of files that are smaller on average, much is not rows."""
_SEVERAL: Final = 1000
"""Fewer rows may be unlike others: by one large message, a million small ones would make thousands
of files."""
_IF_DAMAGED: Final = "put it back from a copy, or go on with a new --checkpoint and --adopt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Last:
    """What an archive says about its last batch."""

    number: int
    query_id: str | None
    """The id of the stream that wrote it."""
    parts: Sequence[str]
    """The keys of its folders."""
    schema: str
    """The schema of the column `value`; empty without one."""
    ends: Any
    """Where its stream was with it: offsets by topic, broker and queue."""


def rows_of_size(file_bytes: int, files: int, size: int, rows: int) -> int:
    """Return how many rows a file may have, by the files of a batch; 0 if these do not tell."""
    tells = rows >= _SEVERAL and size >= _TELLING * max(files, 1)  # They may be gone by now.
    return max(file_bytes * rows // size, 1) if tells else 0


class Archiving(ABC):
    """One archive that is being written."""

    merged_by = "`archive-compact`"
    _warned_of_files = False

    def __init__(
        self, spark: SparkSession, settings: ArchiveSettings, report: Report, run: Run
    ) -> None:
        self.spark = spark
        self.settings = settings
        self.report = report
        self.run = run
        self.folder = Folder(spark, settings.to)
        self.checkpoint = Folder(spark, settings.checkpoint_folder)
        self.parts = settings.parts
        self.guard = ExpiryGuard(settings, settings.guard, run, report)
        self.last_written = -1
        """The last batch that existed when this run began."""
        self.rows_of_file = 0
        """How many rows may go into one file; 0 if it is not known how large they become."""
        self._first_number = 0
        self._adopted_number: int | None = None
        self.absent: dict[str, str] = {}
        """The option of the source for queues that cannot be read at the moment, if there are."""

    @abstractmethod
    def last(self) -> Last | None:
        """Return the last batch, `None` if the folder is empty."""

    @abstractmethod
    def reached(self, last: Last) -> dict[str, Any]:
        """Return where the archive ends, for all streams that have written to it."""

    @abstractmethod
    def last_messages(self) -> dict[Queue, First]:
        """Return the last message that the archive has of each queue."""

    def observed(self, frame: DataFrame) -> DataFrame:
        """Return the stream, with what is to be counted over the whole of it."""
        return frame

    @abstractmethod
    def write(self, frame: DataFrame, number: int, batch_id: int) -> None:
        """Write one batch, unless it exists."""

    def prepare(self) -> ArchiveSettings:
        """Refuse a folder that cannot be continued; return the settings with the start."""
        if self.checkpoint.exists(_NUMBERS):
            said = self.checkpoint.read_json(
                _NUMBERS, if_damaged=_IF_DAMAGED, fields=("first_number",)
            )
            self._first_number = said["first_number"]
        there = PARQUET if self.folder.exists(MANIFESTS) else format_of(self.folder)
        if there not in ("", self.settings.format):
            raise OptionError(f"format: {self.folder.path} is {KINDS[there]}")
        last = self.last()
        if last is None:
            return self.settings
        self.last_written = last.number
        for option, before, now in (
            ("partition-by", list(last.parts), self.parts),
            ("schema", last.schema, self.settings.schema),
        ):
            if before != now:
                raise OptionError(
                    f"{option}: {self.settings.to} was begun with {before or 'none'!r}, and all of"
                    " a table has the same columns; choose another folder, or give the same"
                )
        if last.query_id == query_id(self.checkpoint):
            return self.settings
        if not self.settings.adopt:
            raise OptionError(
                f"to: {self.settings.to} was begun with another checkpoint than"
                f" {self.checkpoint.path}; with this one, messages would be there twice or be left"
                " out. Choose another folder, or give --adopt"
            )
        self._adopted_number = self.last_written + 1 - next_batch(self.checkpoint)
        if self.checkpoint.names(ENDS):
            self._refuse_behind(self._reached(last))
            return self.settings
        if self.settings.start != EARLIEST:
            return self.settings
        return replace(self.settings, start=json.dumps(document_of(self._going_on(last))))

    def _reached(self, last: Last) -> Mapping[Queue, int]:
        return read_stream_offset({"queues": self.reached(last)}).queues

    def _refuse_behind(self, reached: Mapping[Queue, int]) -> None:
        """Refuse a checkpoint that is used again and lags the archive: it would read that again.

        Either another checkpoint has continued its topic; or it was killed when its last batch
        existed but was not noted as done, and would give that a new number.
        """
        done = next_batch(self.checkpoint) - 1
        said = source_end(self.checkpoint, max(done, 0))
        position = read_stream_offset(said)
        at = position.queues if done >= 0 else {**position.queues, **position.begins}
        for queue, offset in sorted(at.items()):
            if reached.get(queue, offset) > offset:
                raise self._is_behind(queue, reached[queue], f"is at {offset}: messages between")
        self._refuse_unknown({each: end for each, end in reached.items() if each not in at})
        self._refuse_again(said, reached)

    def _refuse_unknown(self, there: dict[Queue, int]) -> None:
        """Refuse a checkpoint that does not know queues that others have archived.

        It would read them, which are new to it, from the start.
        """
        options = read_options(source_options(self.settings))
        new = {queue: end for queue, end in there.items() if end and options.reads(queue.topic)}
        if not new:
            return
        found = going_on(self.settings, new, self.last_messages())
        # With --no-fail-on-data-loss, brokers that are away are so for good.
        away = found.away if self.settings.fail_on_data_loss else ()
        if known := sorted({*found.starts, *found.hidden, *away}):
            raise self._is_behind(known[0], new[known[0]], "does not know it: its messages")

    def _is_behind(self, queue: Queue, end: int, text: str) -> OptionError:
        return OptionError(
            f"to: {self.settings.to} has queue {queue} up to {end}, but the checkpoint"
            f" {self.checkpoint.path} {text} would be there twice. Continue with a new"
            " --checkpoint and --adopt, which begins where the archive ends"
        )

    def _refuse_again(self, said: dict[str, Any], reached: Mapping[Queue, int]) -> None:
        """Refuse a checkpoint if another has already archived its recreated topic.

        It would read the topic from the start.
        """
        if not (other := made_anew(self.settings, said)):
            return
        last = self.last_messages()
        starts = going_on(self.settings, reached, last).starts
        for queue in sorted(last):
            if part_of(queue) in other and queue in starts:
                raise OptionError(
                    f"to: topic {queue.topic} of broker {queue.broker} was deleted and recreated"
                    f" since the checkpoint {self.checkpoint.path} read it, and {self.settings.to}"
                    " has messages of the new one, which would be there twice. Continue with a new"
                    " --checkpoint and --adopt, which begins where the archive ends"
                )

    def refuse_missing(self) -> None:
        """Refuse an archive without batches that the checkpoint has as done: none is read again."""
        # An adopted archive has its batches from another checkpoint.
        if self._adopted_number is not None:
            return
        first, done = self.last_written + 1, self._first_number + next_batch(self.checkpoint) - 1
        if first <= done:
            raise OptionError(
                f"to: {self.folder.path} does not have batches {first} to {done}, which by the"
                f" checkpoint {self.checkpoint.path} are done: it is an old copy, or another"
                " folder, and their messages would be missing. Put them back, or continue with a"
                " new --checkpoint and --adopt, which reads them again"
            )

    def _going_on(self, last: Last) -> dict[Queue, int]:
        """Return where the archive ends in existing queues, where a new checkpoint continues."""
        starts, hidden, away, lost = going_on(
            self.settings, self._reached(last), self.last_messages()
        )
        if hidden:
            self.absent = {"absentQueues": json.dumps(document_of(hidden))}
        if lost and self.settings.fail_on_data_loss:
            raise OptionError(
                f"{lost[0]}. With --no-fail-on-data-loss it is read from its beginning"
            )
        for each in lost:
            self.run.tell(warning=f"{each}; it is read from its beginning")
        if away:
            text = (
                f"queue {away[0]}: the archive has messages of it, but its broker is away, so that"
                " they would be there twice if it comes back"
            )
            if self.settings.fail_on_data_loss:
                raise PipelineError(
                    f"{text}. Start the broker, and then this; if the broker is gone for good, give"
                    " --no-fail-on-data-loss"
                )
            self.run.tell(warning=text)
        return starts

    def begin(self) -> None:
        """Note how batches are numbered."""
        if self._adopted_number is not None:
            self._first_number = self._adopted_number
            document = json.dumps({"first_number": self._first_number})
            self.checkpoint.write(document + "\n", _NUMBERS)

    def batch(self, frame: DataFrame, batch_id: int) -> None:
        """Write one batch, unless it is there."""
        self.write(self._shaped(frame), self._first_number + batch_id, batch_id)

    def count_files(self, sizes: Sequence[int]) -> None:
        """Note a batch's files in the report, and warn if the trigger makes them too small."""
        self.report.count("files", len(sizes))
        self.report.count("file_bytes", sum(sizes))
        is_small = sum(sizes) < min(_FILE_SMALL, self.settings.file_bytes // 2) * len(sizes)
        if is_small and self.settings.trigger != ONCE and not self._warned_of_files:
            self._warned_of_files = True
            self.run.tell(
                warning=f"files of {sum(sizes) // len(sizes)} bytes: a longer --trigger or fewer"
                f" folders make larger ones, and {self.merged_by} makes one of many"
            )

    def learn(self, files: int, size: int, rows: int) -> None:
        """Learn from the files of a batch how many rows a file may have."""
        told = rows_of_size(self.settings.file_bytes, files, size, rows)
        self.rows_of_file = told or self.rows_of_file

    def _shaped(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions

        for part in self.parts:
            if part != "topic":
                frame = frame.withColumn(part, functions.expr(PARTS[part]))
        return frame

    def ends_elsewhere(self, batch: object) -> DamagedFileError:
        """Make the error for a batch that exists but does not end as the checkpoint says.

        What is between the two ends would be in no batch.
        """
        return DamagedFileError(
            f"batch {batch} exists, but does not end where the checkpoint {self.checkpoint.path}"
            " says, which lost something or is an old copy; continue with a new --checkpoint and"
            " --adopt"
        )

    def written(self, number: int, batch_id: int) -> Last:
        """Return what to note about a batch, which Spark knows before the batch begins."""
        return Last(
            number=number,
            query_id=query_id(self.checkpoint),
            parts=self.parts,
            schema=self.settings.schema,
            ends=source_end(self.checkpoint, batch_id)["queues"],
        )
