"""`format("cometmq")` as a stream: where each batch begins and ends.

How it works. Spark keeps one such reader per query, in a separate process on the driver's host, and
asks it in turn where the stream begins (`initialOffset`), where the next batch ends
(`latestOffset`), and for its tasks (`partitions`). The answers are written into the checkpoint;
nothing else is kept, and a restart begins with another reader. `offsets.py` says what the answers
contain so that a repeated batch is the same batch.

`latestOffset(start)` is called when everything before `start` is done for good. So that is when a
consumer group is told the progress, and not in `commit`, which is called a batch later, and never
for the last batch.

An exception here ends the query, so requests to a server that is away are retried for a while. If a
broker stays away, its queues stay where they are, and the others continue.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from cometmq.pipeline import batch_ends, bounds, first_messages, gone_topics, repeated_batch
from cometmq.pipeline.columns import columns_of
from cometmq.pipeline.errors import ConnectionLostError, DataLossError, OptionError, RefusedError
from cometmq.pipeline.filter_check import require_filter
from cometmq.pipeline.losses import Losses
from cometmq.pipeline.measuring import measured
from cometmq.pipeline.offsets import StreamOffset, ranges, read_stream_offset
from cometmq.pipeline.option_reading import camel
from cometmq.pipeline.options import LATEST, ReadOptions
from cometmq.pipeline.planning import plan
from cometmq.pipeline.retrying import retried
from cometmq.pipeline.source import Executing
from cometmq.pipeline.unread import unread

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa

    from cometmq.pipeline.cluster import Bounds, Queue, Survey
    from cometmq.pipeline.first_messages import Looked, Part

log = logging.getLogger(__name__)

_COMMITTED_OFTEN: Final = 2
_TOLD_AGAIN_SECONDS: Final = 60.0
"""How often all offsets of a group are committed again: a killed broker forgets the last ones."""
_CLOCKS_DIFFER_MS: Final = 24 * 3600 * 1000
"""How much a broker's clock may be ahead of the driver's, in a search by time."""


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as a stream."""

    def __init__(self, options: ReadOptions, schema: Any) -> None:
        for name in ("ending_offsets", "ending_timestamp"):
            if getattr(options, name) not in ("", LATEST):
                raise OptionError(
                    f"{camel(name)}: a stream has no end; Trigger.AvailableNow reads what there is"
                )
        if options.filter_pushdown:
            raise OptionError(
                "filterPushdown: is for batch reads; Spark does not offer it to streams"
            )
        self.options = options
        self.executing = Executing(options, columns_of(schema, are_stored=not options.decompress))
        self._cluster = options.cluster()
        self._initial: dict[str, Any] | None = None
        self._no_beginning: OptionError | DataLossError | None = None
        self._target: dict[Queue, int] | None = None
        self._addresses: dict[str, str] = {}
        self._seen: Survey | None = None
        self._committed: dict[Queue, int] = {}
        self._committed_since = time.monotonic()
        self._told: dict[str, set[str]] = {}
        self._losses = Losses(options.losses_note)
        self._understood: frozenset[str] = frozenset()
        """Brokers that understand the filter."""
        self._has_looked = False

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Return where the stream begins; Spark asks several times and gets the same answer.

        Spark also asks before it repeats a first batch, which itself says where it begins. So
        `latestOffset`, not this, reports that there is no beginning, as when topics are gone.
        """
        if self._initial is None:
            found = self._survey(whole=True)
            try:
                bounds.require_topics(found, self.options)
                hidden = self.options.retried(lambda: unread(self._cluster, found.topics))
                # A broker may have registered between the two requests.
                known = {each: at for each, at in hidden.items() if each.broker in found.addresses}
                there = replace(found, queues={**known, **found.queues})
                starts = bounds.starts(self._cluster, self.options, there, LATEST)
            except (OptionError, DataLossError) as error:
                self._no_beginning = error
                return StreamOffset({}, is_initial=True).document()
            if absent := self.options.absent_queues:
                starts.update(read_stream_offset({"queues": json.loads(absent)}).queues)
            now = first_messages.look_at_all(
                self._cluster, {}, there, there.queues, self.options
            ).now
            self._initial = StreamOffset(starts, is_initial=True, firsts=now).document()
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """Return the limit of `maxOffsetsPerTrigger`."""
        if self.options.max_offsets_per_trigger:
            return ReadMaxRows(self.options.max_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Read no further than what there is now."""
        found = self._survey(whole=True)
        self._target = {queue: each.end for queue, each in found.queues.items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Return where the next batch ends; `start` itself if there is nothing new.

        Lost messages count as new: they are noted with the batch, which may be empty.
        """
        before = read_stream_offset(start)
        # A stream that an earlier run began, and that has read nothing yet, says where it begins.
        if self._no_beginning is not None and before.is_initial and not before.queues:
            raise self._no_beginning
        found, away = self._surveyed(before)
        self._require_filter(found)
        self._tell_group(before, found)
        looked = self._looked(before, found)
        self._has_looked = self._has_looked or not looked.silent
        gone = gone_topics.gone_topics(self.options, before, found, away)
        begins, lost = self._begins(before, found, looked.other, gone)
        self._tell_unread(before, found, looked.other, away)
        lost += self._losses.taken()
        ends = self._ends(begins, found)
        if isinstance(limit, ReadMaxRows):
            ends = self._limited(begins, ends, limit.max_rows, found)
        is_told = lost or looked.other or gone != before.gone
        is_told = is_told or any(begins.get(each, at) != at for each, at in before.queues.items())
        if not is_told and all(ends[queue] == first for queue, first in begins.items()):
            return start
        carried = {
            queue: first
            for queue, first in begins.items()
            if before.is_initial or before.queues.get(queue) != first
        }
        firsts = looked.kept(before.firsts)
        lost += before.lost
        queues = {
            queue: end
            for queue, end in before.queues.items()
            # A missing queue of a recreated topic may come back, and is a new queue then.
            if first_messages.part_of(queue) not in looked.other
        } | ends
        return StreamOffset(queues, False, carried, firsts, lost, gone).document()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802  # Spark's name
        """Return the current ends, for the query's progress."""
        if self._seen is None:
            return None
        return StreamOffset({q: each.end for q, each in self._seen.queues.items()}).document()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plan the tasks of a batch."""
        planned = read_stream_offset(end)
        wanted = ranges(read_stream_offset(start), planned)
        if not self._has_looked:
            wanted = self._still_there(wanted, planned)
        if any(queue.broker not in self._addresses for queue in wanted):
            self._survey(whole=True)
        if absent := {queue.broker for queue in wanted} - self._addresses.keys():
            raise ConnectionLostError(
                f"broker {', '.join(sorted(absent))}: no name server knows it, but a batch is to be"
                " read from it; start it, and then the query again"
            )
        if self._seen is not None:
            repeated_batch.require_whole(wanted, self._seen)
        size_max = self.options.target_bytes_per_task
        pieces = measured(self._cluster, wanted, self._addresses, size_max)
        tasks = plan(pieces, self._addresses, self.options)
        losses = None
        if tasks and not self.options.fail_on_data_loss:
            losses = self._losses.listener({self._addresses[queue.broker] for queue in wanted})
        return [InputPartition((task, losses)) for task in tasks]

    def _still_there(
        self, wanted: dict[Queue, Bounds], planned: StreamOffset
    ) -> dict[Queue, Bounds]:
        """Return what is left of a batch that an earlier run had planned.

        The filter may also have changed.
        """

        def look() -> tuple[Survey, frozenset[str]]:
            looked = self._surveyed(planned)
            if silent := looked[0].missing.keys() & {queue.broker for queue in wanted}:
                raise looked[0].missing[min(silent)]  # It may have recreated the topic, too.
            return looked

        found, away = self.options.retried(look)
        self._require_filter(found)
        left, lost = repeated_batch.left_of(
            self._cluster, self.options, wanted, planned.firsts, found, away
        )
        self._tell_loss(lost)
        return left

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield what a task reads."""
        return self.executing.read(*(partition.value or (None,)))

    def __getstate__(self) -> dict[str, Any]:
        return {"executing": self.executing}

    def _survey(self, *, whole: bool) -> Survey:
        self._seen = bounds.survey(self._cluster, self.options, whole=whole)
        self._addresses.update(self._seen.addresses)
        missing = self._seen.missing.items()
        self._tell("", [f"broker {broker}: {error}; its queues wait" for broker, error in missing])
        return self._seen

    def _surveyed(self, before: StreamOffset) -> tuple[Survey, frozenset[str]]:
        """Return the survey, and which brokers were read that no name server knows now."""
        survey = partial(self._survey, whole=False)
        # Later on, a topic that is not lost is only told as lost, and read on when it is there.
        if self._has_looked and not self.options.fail_on_data_loss:
            found = survey()
            return found, gone_topics.away(self._cluster, self.options, before, found)
        is_repeated = not self._has_looked
        return gone_topics.away_for_certain(
            self._cluster, self.options, before, survey, is_repeated=is_repeated
        )

    def _require_filter(self, found: Survey) -> None:
        """Refuse a filter that a broker refuses; each broker is asked once, as it never changes."""
        self._understood = require_filter(self._cluster, self.options, found, self._understood)

    def _tell(self, what: str, news: Iterable[str]) -> None:
        """Warn of news only, as a stream looks several times a second."""
        now = set(news)
        for text in sorted(now - self._told.get(what, set())):
            log.warning("%s%s", what, text)
        self._told[what] = now

    def _looked(self, before: StreamOffset, found: Survey) -> Looked:
        news = [
            queue
            for queue, there in found.queues.items()
            # A queue with fewer messages than were read may be another one, whose first message is
            # to be noted; after a start, so may a queue with as many.
            if not self._has_looked or there.end != before.queues.get(queue, there.first)
        ]
        looked = first_messages.look(self._cluster, before.firsts, found, news, self.options)
        error = ConnectionLostError("did not say when its first messages were stored")
        found.missing |= dict.fromkeys(looked.silent, error)
        for queue in [queue for queue in found.queues if queue.broker in looked.silent]:
            del found.queues[queue]
        self._tell("broker ", [f"{each}: {error}; its queues wait" for each in looked.silent])
        return looked

    def _begins(
        self, before: StreamOffset, found: Survey, other: frozenset[Part], gone: frozenset[str]
    ) -> tuple[dict[Queue, int], int]:
        """Return where each queue continues: where it was, unless messages have gone since.

        Also return how many have expired, as far as that is known. If a topic comes back, what was
        lost with it was reported when it was gone.
        """
        begins: dict[Queue, int] = {}
        expired = 0
        lost = [gone_topics.why_gone(self.options, each) for each in sorted(gone - before.gone)]
        anew = [part for part in sorted(other) if part[0] not in before.gone]
        lost += [gone_topics.made_anew(*part) for part in anew]
        for queue, there in found.queues.items():
            first = before.queues.get(queue, there.first)  # A new queue: from its start.
            if first_messages.part_of(queue) in other:
                first = there.first
            elif first < there.first:
                lost.append(f"queue {queue}: {first} to {there.first} have expired")
                expired += there.first - first
                first = there.first
            elif first > there.end and queue.broker not in found.slaves:
                if queue.topic not in before.gone:
                    lost.append(
                        f"queue {queue}: was read up to {first}, but ends at {there.end}: it was"
                        " recreated, or its broker lost the end of its log"
                    )
                first = there.first
            begins[queue] = first
        self._tell_loss(lost)
        return begins, expired

    def _tell_unread(
        self, before: StreamOffset, found: Survey, other: frozenset[Part], away: frozenset[str]
    ) -> None:
        """Report queues and topics that are not read now, though they may be later.

        Queues that a recreated topic no longer has are lost with its others.
        """
        unread = {
            queue
            for queue in before.queues.keys() - found.queues.keys()
            if queue.topic in found.topics
            and queue.broker not in {*found.missing, *away}
            and first_messages.part_of(queue) not in other
        }
        news = [f"queue {queue}: its broker does not allow it" for queue in unread]
        news += [f"broker {broker}: has not registered; its queues wait" for broker in away]
        absent = {*self.options.topics} - found.topics - {queue.topic for queue in before.queues}
        news += [f"topic {topic}: does not exist yet" for topic in absent]
        self._tell("not read: ", news)

    def _tell_loss(self, lost: list[str]) -> None:
        if lost and self.options.fail_on_data_loss:
            raise DataLossError(
                f"{lost[0]}. With failOnDataLoss=false the stream would continue with what there is"
            )
        self._tell("data loss: ", lost)

    def _ends(self, begins: Mapping[Queue, int], found: Survey) -> dict[Queue, int]:
        ends: dict[Queue, int] = {}
        for queue, first in begins.items():
            end = found.queues[queue].end
            if self._target is not None:
                end = min(end, self._target.get(queue, first))
            ends[queue] = max(end, first)  # A slave may lag.
        return ends

    def _limited(
        self, begins: Mapping[Queue, int], ends: Mapping[Queue, int], rows: int, found: Survey
    ) -> dict[Queue, int]:
        """Return where a batch of at most `rows` messages ends."""
        if not self.options.align_by_time:
            return batch_ends.by_backlog(begins, ends, rows)
        waiting = [queue for queue, first in begins.items() if first < ends[queue]]

        def search() -> dict[Queue, int]:
            def offsets_at(time_ms: int) -> dict[Queue, int]:
                return self._cluster.offsets_at(waiting, found.addresses, time_ms)

            def between() -> tuple[int, int]:
                stored = self._cluster.stored_first(waiting, found.addresses).values()
                return min(stored, default=0), int(time.time() * 1000) + _CLOCKS_DIFFER_MS

            return batch_ends.by_time(begins, ends, rows, offsets_at, between)

        return self.options.retried(search)

    def _tell_group(self, before: StreamOffset, found: Survey) -> None:
        """Commit the progress for a consumer group; a failure does no harm."""
        group = self.options.group
        if not group or before.is_initial:
            return
        if time.monotonic() - self._committed_since >= _TOLD_AGAIN_SECONDS:
            self._committed.clear()
            self._committed_since = time.monotonic()
        news = {
            queue: offset
            for queue, offset in before.queues.items()
            if self._committed.get(queue) != offset
            and queue in found.queues
            and queue.broker not in found.missing
        }
        if not news:
            return
        try:
            retried(
                lambda: self._cluster.commit(group, news, self._addresses),
                retries=_COMMITTED_OFTEN,
                interval_ms=self.options.retry_interval_ms,
            )
            self._committed.update(news)
            self._tell(f"group {group}: ", ())
        except (ConnectionLostError, RefusedError) as error:
            self._tell(f"group {group}: ", [f"its progress cannot be committed: {error}"])
