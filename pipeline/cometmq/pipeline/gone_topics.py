"""Topics that a stream has read and that no longer exist: how that is known, and reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.pipeline.first_messages import part_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cometmq.pipeline.cluster import Bounds, Cluster, Queue, Survey
    from cometmq.pipeline.first_messages import Part
    from cometmq.pipeline.offsets import StreamOffset
    from cometmq.pipeline.options import ReadOptions


def away(
    cluster: Cluster, options: ReadOptions, before: StreamOffset, found: Survey
) -> frozenset[str]:
    """Return the brokers that were read and that no name server knows now.

    They may come back, as when a name server has just started and learns of brokers one by one.
    """
    absent = {queue.broker for queue in before.queues} - found.addresses.keys()
    if not absent and found.topics.issuperset(queue.topic for queue in before.queues):
        return frozenset()
    return frozenset(absent - options.retried(cluster.brokers).names)


def away_for_certain(
    cluster: Cluster,
    options: ReadOptions,
    before: StreamOffset,
    survey: Callable[[], Survey],
    *,
    is_repeated: bool,
) -> tuple[Survey, frozenset[str]]:
    """Return a survey and these brokers, for a caller to whom what is not there is lost.

    A broker that registers between two requests seems to have lost topics. So these are asked for
    again. They are lost only if the broker was known before and after that, also by the name server
    that answered last, and if no other name server knows that it has them. If a batch is repeated,
    the same is true of a broker that has lost a topic which others still have.
    """
    parts = {part_of(queue) for queue in before.queues}

    def absent(found: Survey) -> set[Part]:
        return {
            (topic, broker)
            for topic, broker in parts
            if topic not in found.topics or (is_repeated and broker not in found.addresses)
        }

    found = survey()
    if not absent(found) and {broker for _, broker in parts} <= found.addresses.keys():
        return found, frozenset()
    known = options.retried(cluster.brokers).names
    elsewhere: set[Part] = set()
    if any(broker in known for _, broker in absent(found)):
        found = survey()
        known &= options.retried(cluster.known)
        elsewhere = cluster.having(absent(found))
    return found, frozenset(
        {each[1] for each in parts if each in elsewhere or each[1] not in known}
    )


def gone_topics(
    options: ReadOptions, before: StreamOffset, found: Survey, away: frozenset[str]
) -> frozenset[str]:
    """Return the topics that were read and are gone or no longer named by the options."""
    absent = {queue.topic for queue in before.queues} - found.topics
    waiting = {
        queue.topic
        for queue in before.queues
        if queue.broker in away and options.reads(queue.topic)
    }
    if found.missing:  # Not certain while brokers are missing.
        waiting = absent
    return frozenset((absent - waiting) | (absent & before.gone))


def lacking(
    wanted: Mapping[Queue, Bounds], found: Survey, away: frozenset[str]
) -> dict[Queue, str]:
    """Return queues whose brokers have registered without the topic, which other brokers have."""
    expected = found.addresses.keys() | away
    return {
        queue: f"queue {queue}: messages from {first} to {end} were to be read, but its broker no"
        " longer has the topic"
        for queue, (first, end) in sorted(wanted.items())
        if queue.topic in found.topics and queue.broker not in expected
    }


def why_gone(options: ReadOptions, topic: str) -> str:
    """Say why a topic that was read is gone: it is no longer asked for, or it was deleted."""
    if options.reads(topic):
        return f"topic {topic} no longer exists"
    option = "topic" if options.topic else "topicPattern"
    return (
        f"topic {topic} was read until now, but {option} no longer names it: name it, or give the"
        " stream a new checkpoint"
    )


def made_anew(topic: str, broker: str) -> str:
    """Say that a topic was deleted and recreated."""
    return (
        f"topic {topic} of broker {broker} was deleted and recreated: the message that it began"
        " with is gone, and did not expire"
    )
