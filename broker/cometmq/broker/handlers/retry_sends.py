"""Sends to the retry topic of a group, by a consumer that could not send a message back (36), or
that consumes in order and gives up on a message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.broker.errors import RequestError
from cometmq.broker.refusals import send_refusal
from cometmq.broker.topic_names import RETRY_PREFIX, dead_letter_topic
from cometmq.proto.codes import ResponseCode
from cometmq.proto.commands.topic import may_write

if TYPE_CHECKING:
    from cometmq.broker.session import State
    from cometmq.broker.topics import Topic
    from cometmq.proto.bodies import SubscriptionGroupConfig
    from cometmq.proto.command import Command
    from cometmq.proto.commands.send import SendMessage

VERSION_WITH_MAX: Final = 121
"""V3_4_9: since then clients say themselves how often a message may come back."""


def dead_letters(request: Command, header: SendMessage, state: State) -> Topic | None:
    """Find or create the dead-letter topic for a send that must not be retried; else None.

    It must not if it has come back too often, or if its group consumes in order: then a message
    that holds up its queue is not retried beside it. Raises a `RequestError` without such a group.
    """
    name = header.topic[len(RETRY_PREFIX) :].partition("+")[0]
    group = state.groups.find_or_make(name, state.now_ms())
    if group is None:
        raise send_refusal(
            state.config,
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"subscription group not exist, {name}",
        )
    times_max = retries_max(request, header.max_reconsume_times, group)
    if header.reconsume_times <= times_max and not state.locks.is_ordered(name, state.alive_ms()):
        return None
    return writeable(dead_letter_topic(name), 1, state)


def writeable(name: str, queues: int, state: State) -> Topic:
    """Find or create a topic of a group, for its retries or its dead letters."""
    topic = state.topics.make_derived(name, queues, state.now_ms())
    if topic is None:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"topic[{name}] not exist")
    if not may_write(topic.config.perm):
        raise RequestError(
            ResponseCode.NO_PERMISSION, f"the topic[{name}] sending message is forbidden"
        )
    return topic


def retries_max(request: Command, wanted: int | None, group: SubscriptionGroupConfig) -> int:
    """Return how often a message may come back, as newer clients or else the group's config say.

    If the group is configured for no retries, there are none: Java clients always ask for 16.
    """
    if request.version >= VERSION_WITH_MAX and wanted is not None and group.retry_max_times:
        return wanted
    return group.retry_max_times
