"""Topics that a stream has read and that no longer exist, and how each is reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cometmq.pipeline.cluster import Bounds, Queue, Survey
    from cometmq.pipeline.offsets import StreamOffset
    from cometmq.pipeline.options import ReadOptions


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
