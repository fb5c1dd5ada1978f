"""Clients and their groups: heartbeats (34), leaving (35), members (38), filters (46)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.broker.consumers import Member
from cometmq.broker.errors import RequestError
from cometmq.broker.filter.errors import FilterError, FilterTypeError
from cometmq.broker.filter.subscriptions import filter_of, is_tag_type
from cometmq.broker.topic_names import retry_topic
from cometmq.proto.bodies import CheckClientConfig, ConsumerList, HeartbeatData
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands.consumer import (
    GetConsumerListByGroup,
    HeartBeatResponse,
    NotifyConsumerIdsChanged,
    UnregisterClient,
)

_UNIT_SUBSCRIPTION: Final = 2
"""The bit of a topic's system flags for consumption by a group of a unit."""

if TYPE_CHECKING:
    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.consumers import ConsumerGroup
    from cometmq.broker.session import Session, State
    from cometmq.proto.bodies import ConsumerData, SubscriptionData


def heart_beat(request: Command, session: Session) -> Command:
    """34: a client is alive, is a member of these groups, and subscribes to these topics."""
    data = HeartbeatData.decode(request.body or b"")
    state = session.state
    fingerprint = data.heartbeat_fingerprint
    known = state.consumers.fingerprint(session.peer)
    # A heartbeat without subscriptions from an unknown client is asked for again, in full.
    is_lacking = data.without_sub and not known
    changed = fingerprint == 0 or is_lacking or (bool(known) and known != fingerprint)
    memberships = len(data.consumer_data_set) + len(data.producer_data_set)
    member = Member(
        data.client_id,
        state.alive_ms(),
        request.language,
        request.version,
        0 if is_lacking else fingerprint,
        len(request.body or b"") // max(memberships, 1),
    )
    for consumer in data.consumer_data_set:
        _consumer_beat(consumer, member, session, without_subscriptions=data.without_sub)
    for producer in data.producer_data_set:
        state.producers.beat(session.peer, producer.group_name, member)
    return request.answer(
        ResponseCode.SUCCESS, HeartBeatResponse(heart_beat_v2=True, sub_changed=changed)
    )


def _consumer_beat(
    data: ConsumerData, member: Member, session: Session, *, without_subscriptions: bool
) -> None:
    """Take one group of a heartbeat; ignore a group that may not be created, as Apache does."""
    state = session.state
    now_ms = state.now_ms()
    group = state.groups.find_or_make(data.group_name, now_ms)
    if group is None:
        return
    if group.retry_queue_nums > 0 and not without_subscriptions:
        found = [state.topics.find(each.topic) for each in data.subscription_data_set]
        state.topics.make_derived(
            retry_topic(group.group_name),
            group.retry_queue_nums,
            now_ms,
            is_order=any(topic is not None and topic.config.order for topic in found),
            topic_sys_flag=_UNIT_SUBSCRIPTION if data.unit_mode else 0,
        )
    if state.consumers.beat(
        session.peer, data, member, without_subscriptions=without_subscriptions
    ):
        notify_members(state.consumers.find(data.group_name), state)


def unregister_client(request: Command, session: Session) -> Command:
    """35: a client leaves groups."""
    header = request.read(UnregisterClient)
    state = session.state
    if header.producer_group is not None:
        state.producers.leave(session.peer, header.producer_group)
    if header.consumer_group is not None:
        notify_members(state.consumers.leave(session.peer, header.consumer_group), state)
    return request.answer(ResponseCode.SUCCESS)


def get_consumer_list_by_group(request: Command, session: Session) -> Command:
    """38: the client ids of a group's members."""
    name = request.read(GetConsumerListByGroup).consumer_group
    group = session.state.consumers.find(name)
    if group is None:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {name}")
    body = ConsumerList(consumer_id_list=tuple(group.client_ids())).encode()
    return request.answer(ResponseCode.SUCCESS, body=body)


def check_client_config(request: Command, session: Session) -> Command:
    """46: whether a consumer's filter can be compiled; asked before it starts."""
    if request.body:
        subscription = CheckClientConfig.decode(request.body).subscription_data
        if subscription is not None and not is_tag_type(subscription.expression_type):
            _check_filter(subscription, session.state.config)
    return request.answer(ResponseCode.SUCCESS)


def _check_filter(subscription: SubscriptionData, config: BrokerConfig) -> None:
    try:
        filter_of(subscription.expression_type, subscription.sub_string, config)
    except FilterTypeError as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from None
    except FilterError as error:
        raise RequestError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from None


def notify_members(group: ConsumerGroup | None, state: State) -> None:
    """Tell the members of a group to share its queues again (40)."""
    if group is None or group.is_broadcasting:
        return
    config = state.groups.find(group.name)
    if config is not None and not config.notify_consumer_ids_changed_enable:
        return
    word = Command.request(
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, NotifyConsumerIdsChanged(group.name), oneway=True
    )
    for peer in group.members:
        peer.tell(word)
