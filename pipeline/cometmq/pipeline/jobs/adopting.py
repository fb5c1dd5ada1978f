"""Where a new checkpoint begins, to continue after what others have put into an archive.

Offsets alone are not enough: those of a topic that was deleted and recreated begin at 0 again, and
its messages below the archive's end would be in no file. So the archive's last message of a queue
is compared with the queue's current first message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from cometmq.pipeline import first_messages
from cometmq.pipeline.cluster import Queue
from cometmq.pipeline.jobs.hidden_queues import look
from cometmq.pipeline.jobs.streams import source_options, there_now
from cometmq.pipeline.offsets import First, read_stream_offset
from cometmq.pipeline.options import read_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from cometmq.pipeline.cluster import Survey
    from cometmq.pipeline.first_messages import Part
    from cometmq.pipeline.jobs.streams import StreamSettings


def last_messages(rows: DataFrame) -> dict[Queue, First]:
    """Return the last message of each queue; of a recreated topic, that of its later life."""
    from pyspark.sql import functions

    last = functions.expr("max(struct(batch, queue_offset, unix_millis(store_time) AS stored))")
    found = rows.where("store_time IS NOT NULL").groupBy("topic", "broker", "queue_id")
    return {
        Queue(topic, broker, queue_id): First(there["queue_offset"], there["stored"])
        for topic, broker, queue_id, there in found.agg(last).collect()
    }


def made_anew(settings: StreamSettings, said: dict[str, Any]) -> frozenset[Part]:
    """Return topics, each with its broker, that were recreated since a stream read them.

    `said` is the stream's position in its checkpoint.
    """
    cluster, found = there_now(settings)
    firsts = read_stream_offset(said).firsts
    options = read_options(source_options(settings))
    return first_messages.look_at_all(cluster, firsts, found, found.queues, options).other


class GoingOn(NamedTuple):
    """Where a new checkpoint continues."""

    starts: dict[Queue, int]
    hidden: dict[Queue, int]
    """In queues that cannot be read now, as of a topic that has fewer; they may be again later."""
    away: list[Queue]
    """Queues of brokers that are away, of which nothing is known."""
    lost: list[str]
    """Warnings about queues that have other messages now, and are to be read from the start."""


def going_on(
    settings: StreamSettings, reached: Mapping[Queue, int], last: Mapping[Queue, First]
) -> GoingOn:
    """Return where queues continue, if they have the messages that the archive has of them.

    One look decides about all queues: with two, one that can be read again in between would be
    neither hidden nor there.
    """
    cluster, found, hidden, away = look(settings, [queue for queue, end in reached.items() if end])

    def is_other(queue: Queue, there: Survey) -> bool:
        if reached[queue] > there.queues[queue].end and queue.broker not in there.slaves:
            return True
        return queue in last and first_messages.begins_otherwise(cluster, queue, last[queue], there)

    starts: dict[Queue, int] = {}
    lost: list[str] = []
    for queue in sorted(found.queues.keys() & reached.keys()):
        if is_other(queue, found):
            lost.append(
                f"queue {queue}: the archive has it up to {reached[queue]}, but now it has other"
                " messages: its topic was deleted and recreated, or its broker lost the end of its"
                " log"
            )
        else:
            starts[queue] = reached[queue]
    back = {queue: reached[queue] for queue in hidden.queues if not is_other(queue, hidden)}
    return GoingOn(starts, back, away, lost)
