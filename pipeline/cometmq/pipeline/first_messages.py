"""Whether topics are still those that were read, told by when their first messages were stored.

A topic that was deleted and made anew has offsets from 0 on again, and where it has more messages
than were read of the one before it, they look like news. Brokers keep no date of a topic. But its
first message is another one, and when that was stored can be asked (32), Apache's brokers, too. So
a stream notes it of one queue of each topic and broker, for a topic is deleted with all its queues:
one request for each batch of them, and none while there is no news.

Expiry takes first messages away, and replicas do so each in its own time. So two first messages are
compared as far as they can tell: of one offset they must be the same; in front of the old one there
can be none that was stored later. Behind it anything can be, so a topic whose first messages
expired before the stream looked again is not known for another one.

Of a topic whose messages have all expired when a stream sees it first, it notes where that stood,
and when: what is stored later in front of that place is of another.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from cometmq.pipeline.errors import BusyError, ConnectionLostError, RefusedError
from cometmq.pipeline.offsets import First

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cometmq.pipeline.cluster import Cluster, Queue, Survey

    Part = tuple[str, str]
    """A topic on a broker."""
    Firsts = Mapping[Queue, First]


class Looked(NamedTuple):
    """What first messages say."""

    now: Firsts
    """Those of queues that were looked at."""
    other: frozenset[Part]
    """Topics, each with its broker, that are not those that were read."""

    def kept(self, before: Firsts) -> dict[Queue, First]:
        """Return what is to be noted: what was seen now, and else what was noted before."""
        renewed = {part_of(queue) for queue in self.now} | self.other
        rest = {queue: first for queue, first in before.items() if part_of(queue) not in renewed}
        return rest | dict(self.now)


def look(cluster: Cluster, before: Firsts, found: Survey, news: Iterable[Queue]) -> Looked:
    """Look at one queue of each topic and broker that has news.

    Where nobody answers, nothing is known: it is asked again with the next batch.
    """
    news = list(news)
    try:
        looked = compare(cluster, before, found, news)
    except (ConnectionLostError, RefusedError):
        looked = Looked({}, frozenset())
    now = {**_expired(before, found, news), **looked.now}
    return Looked(now, looked.other | _emptied(before, found, news))


def compare(cluster: Cluster, before: Firsts, found: Survey, news: Iterable[Queue]) -> Looked:
    """Look at them for who does not ask again: it is an error where nobody answers."""
    queues = _chosen(before, found, news)
    stored = cluster.stored_first(queues, found.addresses) if queues else {}
    now = {queue: First(found.queues[queue].first, at) for queue, at in stored.items()}
    doubtful = {each for each in now if each in before and _differ(before[each], now[each])}
    again = cluster.bounds(sorted({queue.topic for queue in doubtful})) if doubtful else found
    for queue in doubtful:
        # It may have expired between the two answers, and what was told is the next one's.
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
    """Whether a queue, or the first one of its broker, begins with another message.

    `before` is any message that it had. Of a damaged first message nothing is known.
    """
    try:
        return bool(compare(cluster, {queue: before}, found, [queue]).other)
    except BusyError:
        raise
    except RefusedError:
        return False


def part_of(queue: Queue) -> Part:
    """Return which topic it is, on which broker."""
    return queue.topic, queue.broker


def _chosen(before: Firsts, found: Survey, news: Iterable[Queue]) -> list[Queue]:
    """Return of each part the queue that was noted, and the lowest one that has messages.

    The lowest is noted from then on: a topic that is made anew with fewer queues has that one.
    Of a slave nothing is asked: what it still has differs from what its master has.
    """
    parts = {part_of(queue) for queue in news if queue.broker not in found.slaves}
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
    """Return where topics stand of which nothing is left, and nothing is noted."""
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
    """Return topics that had messages, and whose queues begin again, without any: made anew."""
    parts = {part_of(queue) for queue in news if queue.broker not in found.slaves}
    parts -= _filled(found)
    return frozenset(
        part_of(queue)
        for queue, first in before.items()
        if part_of(queue) in parts and _is_gone(first, queue, found)
    )


def _is_gone(first: First, queue: Queue, found: Survey) -> bool:
    """Whether the queue does not reach to its first message any more."""
    least = first.offset + (first.stored_ms >= 0)  # Where it had expired, that is where it stood.
    return queue in found.queues and found.queues[queue].end < least


def _differ(old: First, now: First) -> bool:
    if now.offset == old.offset and old.stored_ms >= 0:
        return now.stored_ms != old.stored_ms
    return now.offset < old.offset and now.stored_ms > abs(old.stored_ms)
