"""Queues with messages that cannot be read now, though they may be again later.

A topic that gets fewer queues, or no longer allows reads, keeps the messages of its queues; brokers
still tell their bounds. A queue may also be on a broker that is away, of which nothing is known.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from cometmq.pipeline.errors import PipelineError
from cometmq.pipeline.jobs.streams import source_end, source_options, there_now
from cometmq.pipeline.jobs.torn_checkpoints import next_batch
from cometmq.pipeline.offsets import read_stream_offset
from cometmq.pipeline.options import read_options

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cometmq.pipeline.cluster import Cluster, Queue, Survey
    from cometmq.pipeline.jobs.folders import Folder
    from cometmq.pipeline.jobs.job import Run
    from cometmq.pipeline.jobs.streams import StreamSettings


class Looked(NamedTuple):
    """What one look at a cluster found."""

    cluster: Cluster
    found: Survey
    """The queues that can be read now."""
    hidden: Survey
    """Others that brokers have, with their bounds."""
    away: list[Queue]
    """Others, of brokers that are away."""


def look(settings: StreamSettings, queues: Iterable[Queue]) -> Looked:
    """Look which queues of the topics that are read can be read now, and where the others are."""
    options = read_options(source_options(settings))
    cluster, found = there_now(settings)
    absent = [each for each in queues if options.reads(each.topic) and each not in found.queues]
    hidden: list[Queue] = []
    away: list[Queue] = []
    if absent:
        names = options.retried(cluster.brokers).names
        routes = cluster.routes(sorted({queue.topic for queue in absent}))
        for queue in sorted(absent):
            route = routes.get(queue.topic)
            if queue.broker not in names or (route and queue.broker in route.slaves):
                away.append(queue)
            elif route and queue.broker in route.addresses:
                hidden.append(queue)
                found.addresses[queue.broker] = route.addresses[queue.broker]
    there = replace(found, queues=cluster.spans(hidden, found.addresses))
    return Looked(cluster, found, there, away)


def tell_of_unread(settings: StreamSettings, checkpoint: Folder, run: Run) -> None:
    """Warn if a stream that ended has left messages in queues that it read before."""
    if (done := next_batch(checkpoint) - 1) < 0:
        return
    reached = read_stream_offset(source_end(checkpoint, done)).queues
    with suppress(PipelineError):  # What was read is complete all the same.
        left = {
            queue: there.end - reached[queue]
            for queue, there in look(settings, reached).hidden.queues.items()
            if there.end > reached[queue]
        }
        if left:
            run.tell(
                warning=f"{sum(left.values())} messages were not read, because their queues, such"
                f" as {min(left)}, cannot be read now: the topic has fewer queues, or its broker"
                " does not allow it. They are read once it can"
            )
