"""Whether topics are still those that were read, by the store times of their first messages.

A topic that was deleted and recreated has offsets from 0 again, and if it has more messages than
were read from the old topic, these look like new ones. Brokers keep no date of a topic. But its
first message is a different one, and brokers, Apache's too, can be asked when that was stored (32).
So a stream notes it for one queue of each topic and broker, as a topic is deleted with all its
queues. That costs one request per batch for each of them, and none while there is nothing new.

First messages expire, and replicas expire them at different times. So two first messages are
compared only as far as that is conclusive: at the same offset they must be equal, and none at a
lower offset can have been stored later. At a higher offset anything is possible, so if the first
messages expired before the stream looked again, a recreated topic is not detected.

If all messages of a topic have expired when a stream first sees it, the stream notes its offset and
the time: a message at a lower offset that is stored later belongs to another topic.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from cometmq.pipeline.cluster import by_broker
from cometmq.pipeline.errors import PASSING, BusyError, ConnectionLostError, RefusedError
from cometmq.pipeline.offsets import First

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cometmq.pipeline.cluster import Cluster, Queue, Survey
    from cometmq.pipeline.options import ReadOptions

    Part = tuple[str, str]
    """A topic on a broker."""
    Firsts = Mapping[Queue, First]


class Looked(NamedTuple):
    """The result of looking at first messages."""

    now: Firsts
    """The first messages of the queues that were looked at."""
    other: frozenset[Part]
    """Topics, each with its broker, that are not the ones that were read."""
    silent: frozenset[str] = frozenset()
    """Brokers that did not answer: their topics may be others, and must not be read."""

    def kept(self, before: Firsts) -> dict[Queue, First]:
        """Return what to note: what was seen now and, for the rest, what was noted before."""
        renewed = {part_of(queue) for queue in self.now} | self.other
        rest = {queue: first for queue, first in before.items() if part_of(queue) not in renewed}
        return rest | dict(self.now)


def look(
    cluster: Cluster, before: Firsts, found: Survey, news: Iterable[Queue], options: ReadOptions
) -> Looked:
    """Look at one queue of each topic and broker that has new messages.

    Of a broker that refuses, nothing is known, and the next batch asks again.
    """
    each = [
        _of_broker(cluster, before, found, queues, options) for queues in by_broker(news).values()
    ]
    return Looked(
        {queue: first for looked in each for queue, first in looked.now.items()},
        frozenset().union(*(looked.other for looked in each)),
        frozenset().union(*(looked.silent for looked in each)),
    )


def look_at_all(
    cluster: Cluster, before: Firsts, found: Survey, news: Iterable[Queue], options: ReadOptions
) -> Looked:
    """Do the same for a caller that does not ask again: raise an error if a broker is silent."""
    looked = look(cluster, before, found, news, options)
    if looked.silent:
        raise ConnectionLostError(
            f"broker {min(looked.silent)}: did not say when its first messages were stored, by"
            " which recreated topics are known; start again when it answers"
        )
    return looked


def _of_broker(
    cluster: Cluster, before: Firsts, found: Survey, news: Sequence[Queue], options: ReadOptions
) -> Looked:
    looked = Looked({}, frozenset())
    try:
        found = options.retried(partial(_with_noted, cluster, before, found, news))
        looked = options.retried(partial(compare, cluster, before, found, news))
    except PASSING:
        return Looked({}, frozenset(), frozenset({news[0].broker}))
    except RefusedError:
        pass
    now = {**_expired(before, found, news), **looked.now}
    return Looked(now, looked.other | _emptied(before, found, news))


def compare(cluster: Cluster, before: Firsts, found: Survey, news: Iterable[Queue]) -> Looked:
    """Do the same for a caller that does not ask again: no answer is an error."""
    queues = _chosen(before, found, news)
    stored = cluster.stored_first(queues, found.addresses) if queues else {}
    now = {queue: First(found.queues[queue].first, at) for queue, at in stored.items()}
    doubtful = {each for each in now if each in before and _differ(before[each], now[each])}
    again = found
    if doubtful:
        again = cluster.bounds(sorted({queue.topic for queue in doubtful}))
        for broker in sorted({queue.broker for queue in doubtful}):
            if broker in again.missing or broker not in again.addresses:
                away = ConnectionLostError(f"broker {broker}: no name server knows it now")
                raise again.missing.get(broker, away)
        again = _with_noted(cluster, before, again, doubtful)
    for queue in doubtful:
        # It may have expired between the two answers, so that the time is the next message's.
        there = again.queues.get(queue)
        if there is None or there.first != now[queue].offset:
            del now[queue]
    emptied = {part_of(queue) for queue, first in before.items() if _is_gone(first, queue, found)}
    lowest = {part_of(queue): queue for queue in sorted(now, reverse=True)}
    return Looked(
        {queue: now[queue] for queue in lowest.values()},
        frozenset(
            part_of(queue) for queue in now if queue in doubtful or part_of(queue) in emptied
        ),
    )


def begins_otherwise(cluster: Cluster, queue: Queue, before: First, found: Survey) -> bool:
    """Whether a queue, or the first one on its broker, begins with another message.

    `before` is any message that it had. A damaged first message is not conclusive.
    """
    try:
        return bool(compare(cluster, {queue: before}, found, [queue]).other)
    except BusyError:
        raise
    except RefusedError:
        return False


def _with_noted(cluster: Cluster, before: Firsts, found: Survey, news: Iterable[Queue]) -> Survey:
    """Add noted queues that are not readable now: a topic that has fewer queues still has them.

    Only they show whether it was recreated, if no other queue of its part was noted.
    """
    parts = {part_of(queue) for queue in news if queue.broker not in found.slaves}
    hidden = [each for each in before if part_of(each) in parts and each not in found.queues]
    if not hidden:
        return found
    return replace(found, queues={**found.queues, **cluster.spans(hidden, found.addresses)})


def part_of(queue: Queue) -> Part:
    """Return the topic and the broker of a queue."""
    return queue.topic, queue.broker


def _chosen(before: Firsts, found: Survey, news: Iterable[Queue]) -> list[Queue]:
    """Return, for each part, the queue that was noted and the lowest one that has messages.

    The lowest is noted from then on: a topic that is recreated with fewer queues still has it. A
    slave is not asked about a topic of which a message was noted, as it may still have messages
    that its master does not have, or the reverse.
    """
    parts = {part_of(queue) for queue in news}
    parts -= {part_of(queue) for queue in before if queue.broker in found.slaves}
    noted: set[Queue] = set()
    lowest: dict[Part, Queue] = {}
    for queue in sorted(found.queues):
        there = found.queues[queue]
        if part_of(queue) in parts and there.first < there.end:
            lowest.setdefault(part_of(queue), queue)
            if queue in before:
                noted.add(queue)
    return sorted(noted | {*lowest.values()})


def _expired(before: Firsts, found: Survey, news: Iterable[Queue]) -> Firsts:
    """Return the offsets of topics that have no messages left and of which nothing is noted."""
    known = {part_of(queue) for queue in before} | _filled(found)
    seen_ms = -round(time.time() * 1000)
    lowest: dict[Part, Queue] = {}
    for queue in sorted(news):
        part, stands_at = part_of(queue), found.queues[queue].first
        if stands_at > 0 and part not in known and queue.broker not in found.slaves:
            lowest.setdefault(part, queue)
    return {queue: First(found.queues[queue].first, seen_ms) for queue in lowest.values()}


def _filled(found: Survey) -> set[Part]:
    return {part_of(queue) for queue, there in found.queues.items() if there.first < there.end}


def _emptied(before: Firsts, found: Survey, news: Iterable[Queue]) -> frozenset[Part]:
    """Return recreated topics without messages: they had some, and their queues start again."""
    parts = {part_of(queue) for queue in news if queue.broker not in found.slaves}
    parts -= _filled(found)
    return frozenset(
        part_of(queue)
        for queue, first in before.items()
        if part_of(queue) in parts and _is_gone(first, queue, found)
    )


def _is_gone(first: First, queue: Queue, found: Survey) -> bool:
    """Whether the queue now ends before its noted first message."""
    least = first.offset + (first.stored_ms >= 0)  # If all had expired, `offset` is the end.
    return queue in found.queues and found.queues[queue].end < least


def _differ(old: First, now: First) -> bool:
    if now.offset == old.offset and old.stored_ms >= 0:
        return now.stored_ms != old.stored_ms
    return now.offset < old.offset and now.stored_ms > abs(old.stored_ms)
