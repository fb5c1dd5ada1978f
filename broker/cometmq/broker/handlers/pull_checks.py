"""The checks of a pull before anything is read for it, in Apache's order, with its words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.errors import RequestError
from cometmq.broker.filter.errors import FilterError, FilterTypeError
from cometmq.broker.filter.subscriptions import filter_of, is_tag_type
from cometmq.broker.refusals import FAQ
from cometmq.broker.topics import READ
from cometmq.proto.codes import ResponseCode
from cometmq.proto.commands.pull import ForbiddenType, PullMessage, PullMessageRefusal

if TYPE_CHECKING:
    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.consumers import ConsumerGroup
    from cometmq.broker.session import Session, State
    from cometmq.broker.topics import Topic
    from cometmq.proto.bodies import SubscriptionData, SubscriptionGroupConfig
    from cometmq.store.messages.reading import Filter


def made_group(header: PullMessage, state: State) -> SubscriptionGroupConfig:
    """Create the group of a pull if that is allowed; refuse the pull otherwise."""
    group = state.groups.find_or_make(header.consumer_group, state.now_ms())
    if group is None:
        raise RequestError(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"subscription group [{header.consumer_group}] does not exist,{FAQ}",
        )
    return group


def unreadable(header: PullMessage, topic: Topic, session: Session) -> RequestError:
    """Refuse a queue that may not be read or does not exist."""
    if not topic.config.perm & READ:
        return forbidden(
            ForbiddenType.TOPIC, f"the topic[{header.topic}] pulling message is forbidden"
        )
    return RequestError(
        ResponseCode.INVALID_PARAMETER,
        f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}]"
        f" topicConfig.readQueueNums:[{topic.read_queue_count}]"
        f" consumer:[{session.peer.host}]",
    )


def wanted_by(header: PullMessage, group: SubscriptionGroupConfig, state: State) -> Filter | None:
    """Return the filter of a consumer, from its request or from its group's heartbeats."""
    if header.has_subscription:
        if header.subscription == "*" and header.expression_type == "TAG":
            return None  # The result of `_compiled`, without its six calls.
        return _compiled(header.expression_type, header.subscription, state.config)
    found = state.consumers.find(header.consumer_group)
    if found is None:
        raise RequestError(
            ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist{FAQ}"
        )
    _check_group(found, group, header.topic, state)
    subscription = found.subscriptions.get(header.topic)
    if subscription is None:
        raise RequestError(
            ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist{FAQ}"
        )
    if subscription.sub_version < header.sub_version:
        raise RequestError(
            ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest"
        )
    return _filter_of_group(found, subscription, state.config)


def _check_group(
    found: ConsumerGroup, group: SubscriptionGroupConfig, topic: str, state: State
) -> None:
    if found.is_broadcasting and not group.consume_broadcast_enable:
        raise forbidden(
            ForbiddenType.BROADCASTING,
            f"the consumer group[{group.group_name}] can not consume by broadcast way",
        )
    if not state.groups.may_read(group.group_name, topic):
        raise forbidden(
            ForbiddenType.SUBSCRIPTION,
            f"the consumer group[{group.group_name}] is forbidden for topic[{topic}]",
        )


def _filter_of_group(
    found: ConsumerGroup, subscription: SubscriptionData, config: BrokerConfig
) -> Filter | None:
    """Compile a subscription of a group; one not by tag only once, when a pull first needs it.

    Heartbeats compile nothing, so that one with thousands of expressions holds nobody up.
    """
    kind, topic = subscription.expression_type, subscription.topic
    if subscription.class_filter_mode:
        raise _unserved(FilterTypeError("class"))
    if is_tag_type(kind):
        return _compiled(kind, subscription.sub_string, config)
    compiled = found.filters.get(topic)
    if compiled is None:
        try:
            compiled = filter_of(kind, subscription.sub_string, config)
        except FilterTypeError as error:
            if kind == "SQL92":
                raise _unserved(error) from None
            compiled = error
        except FilterError as error:
            compiled = error
        assert compiled is not None  # Only a filter by tag takes everything.
        found.filters[topic] = compiled
    if isinstance(compiled, FilterError):
        raise RequestError(
            ResponseCode.FILTER_DATA_NOT_EXIST,
            "The broker's consumer filter data is not exist!Your expression may be wrong!"
            f" {compiled}",
        )
    return compiled


def _compiled(
    expression_type: str | None, expression: str | None, config: BrokerConfig
) -> Filter | None:
    try:
        return filter_of(expression_type, expression, config)
    except FilterTypeError as error:
        raise _unserved(error) from None
    except FilterError as error:
        why = "" if is_tag_type(expression_type) else f": {error}"
        raise RequestError(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"parse the consumer's subscription failed{why}"
        ) from None


def _unserved(error: FilterTypeError) -> RequestError:
    return RequestError(ResponseCode.SYSTEM_ERROR, str(error))


def forbidden(kind: ForbiddenType, remark: str) -> RequestError:
    """Refuse something that is forbidden."""
    return RequestError(
        ResponseCode.NO_PERMISSION, remark, PullMessageRefusal(forbidden_type=int(kind))
    )
