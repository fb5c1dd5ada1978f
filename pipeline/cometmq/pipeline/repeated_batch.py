"""A stream's batch that is read again by a later run: what is left of it.

Since it was planned, its topic may have been deleted and recreated: the same offsets then hold
other messages, which are read from the start when the stream looks again. And a slave may have
taken the place of a master that had more messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.pipeline import first_messages, gone_topics
from cometmq.pipeline.errors import ConnectionLostError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cometmq.pipeline.cluster import Bounds, Cluster, Queue, Survey
    from cometmq.pipeline.offsets import First
    from cometmq.pipeline.options import ReadOptions


def left_of(
    cluster: Cluster,
    options: ReadOptions,
    wanted: Mapping[Queue, Bounds],
    firsts: Mapping[Queue, First],
    found: Survey,
    away: frozenset[str],
) -> tuple[dict[Queue, Bounds], list[str]]:
    """Return what is left of a batch, and what is lost of it.

    `firsts` are the first messages that were noted when it was planned.
    """
    gone = {queue.topic for queue in wanted if options.reads(queue.topic)} - found.topics
    gone -= {queue.topic for queue in wanted if queue.broker in away}
    if found.missing:  # Not certain while brokers are missing.
        gone.clear()
    there = [queue for queue in wanted if queue in found.queues]
    other = first_messages.look_at_all(cluster, firsts, found, there, options).other
    lacking = gone_topics.lacking(wanted, found, away)
    lost = [gone_topics.why_gone(options, topic) for topic in sorted(gone)]
    lost += [gone_topics.made_anew(*part) for part in sorted(other)]
    lost += lacking.values()
    left = {
        queue: each
        for queue, each in wanted.items()
        if queue.topic not in gone
        and first_messages.part_of(queue) not in other
        and queue not in lacking
    }
    return left, lost


def require_whole(wanted: Mapping[Queue, Bounds], found: Survey) -> None:
    """Refuse to read from a slave that is behind: tasks would take the rest for lost."""
    for queue, each in sorted(wanted.items()):
        if queue.broker in found.slaves and found.queues.get(queue, each).end < each.end:
            raise ConnectionLostError(
                f"queue {queue}: a batch ends at {each.end}, but only a slave of its broker is"
                f" there, which has messages up to {found.queues[queue].end}; start the query again"
                " when it has all, or when the master is back"
            )
