"""Who consumes what: the groups of a topic (300), the topics of a group (343), and the subscription
of a group to a topic (345)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.proto.bodies import GroupList, GroupSubscription, TopicList
from cometmq.proto.codes import ResponseCode
from cometmq.proto.commands.group import QuerySubscriptionByConsumer, QueryTopicsByConsumer
from cometmq.proto.commands.topic import QueryTopicConsumeByWho

if TYPE_CHECKING:
    from cometmq.broker.session import Session
    from cometmq.proto.command import Command


def query_topic_consume_by_who(request: Command, session: Session) -> Command:
    """300: the groups whose members subscribe to a topic, and those that have consumed it."""
    topic = request.read(QueryTopicConsumeByWho).topic
    state = session.state
    groups = dict.fromkeys([*state.consumers.groups_of(topic), *state.offsets.groups_of(topic)])
    return request.answer(ResponseCode.SUCCESS, body=GroupList(group_list=tuple(groups)).encode())


def query_topics_by_consumer(request: Command, session: Session) -> Command:
    """343: the topics that a group has consumed."""
    state = session.state
    topics = state.offsets.topics_of(request.read(QueryTopicsByConsumer).group)
    body = TopicList(broker_addr=str(state.address), topic_list=topics)
    return request.answer(ResponseCode.SUCCESS, body=body.encode())


def query_subscription_by_consumer(request: Command, session: Session) -> Command:
    """345: the subscription of a group to a topic, if the group has members."""
    header = request.read(QuerySubscriptionByConsumer)
    body = GroupSubscription(
        group=header.group,
        topic=header.topic,
        subscription_data=session.state.consumers.subscription(header.group, header.topic),
    )
    return request.answer(ResponseCode.SUCCESS, body=body.encode())
