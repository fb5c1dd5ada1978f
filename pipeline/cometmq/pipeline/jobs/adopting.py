"""Where a new checkpoint begins, to continue after what others have put into an archive.

Offsets alone are not enough: those of a topic that was deleted and recreated begin at 0 again, and
its messages below the archive's end would be in no file. So the archive's last message of a queue
is compared with the queue's current first message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cometmq.pipeline import first_messages
from cometmq.pipeline.cluster import Queue
from cometmq.pipeline.jobs.hidden_queues import unreadable
from cometmq.pipeline.jobs.streams import there_now
from cometmq.pipeline.offsets import First, read_stream_offset

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

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
    return first_messages.look(cluster, firsts, found, found.queues).other


def absent_queues(
    settings: StreamSettings, reached: dict[str, Any], last: Mapping[Queue, First]
) -> tuple[dict[Queue, int], list[Queue]]:
    """Return where queues continue that cannot be read now, and those of brokers that are away.

    Either may be read again later, as when a topic of fewer queues gets them back. Those that have
    other messages now are left out: they are new then.
    """
    absent = {
        queue: end for queue, end in read_stream_offset({"queues": reached}).queues.items() if end
    }
    cluster, (hidden, away) = unreadable(settings, absent)
    starts = {
        queue: absent[queue]
        for queue, each in hidden.queues.items()
        if absent[queue] <= each.end
        and not (
            queue in last and first_messages.begins_otherwise(cluster, queue, last[queue], hidden)
        )
    }
    return starts, away


def going_on(
    settings: StreamSettings, reached: dict[str, Any], last: Mapping[Queue, First]
) -> tuple[dict[Queue, int], list[str]]:
    """Return where queues continue, and warnings about those that cannot.

    These have other messages now, and are to be read from the start.
    """
    cluster, found = there_now(settings)
    starts: dict[Queue, int] = {}
    lost: list[str] = []
    for queue, there in sorted(found.queues.items()):
        offset = reached.get(queue.topic, {}).get(queue.broker, {}).get(str(queue.id))
        if offset is None:
            continue
        is_other = offset > there.end and queue.broker not in found.slaves
        if not is_other and queue in last:
            is_other = first_messages.begins_otherwise(cluster, queue, last[queue], found)
        if is_other:
            lost.append(
                f"queue {queue}: the archive has it up to {offset}, but now it has other messages:"
                " its topic was deleted and recreated, or its broker lost the end of its log"
            )
        else:
            starts[queue] = offset
    return starts, lost
