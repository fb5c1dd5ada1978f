"""Checks that the members of a group ask for the same topics and filters.

Members share queues whatever each of them asks for, and a broker uses the filter that it was told
last. So a member that asks for something else gets messages that it should not, and the others
miss them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.client._admin_asking import AdminAsking
from cometmq.client._core.names import RETRY_PREFIX
from cometmq.client._core.routes import MASTER
from cometmq.client.errors import ClientError, NotFoundError, UsageError, refusal
from cometmq.proto.bodies import CheckClientConfig, ConsumerConnections, MessageModel
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands import GetConsumerConnectionList
from cometmq.proto.errors import BodyError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cometmq.client._core.options import ConsumeOptions
    from cometmq.client._parts import Parts
    from cometmq.proto.bodies import SubscriptionData


async def check_agreement(parts: Parts, options: ConsumeOptions) -> None:
    """Raise a `UsageError` if current members of the group ask for something else.

    If that cannot be found out, the consumer may begin.
    """
    ours = {topic: each.subscription(topic, 0) for topic, each in options.filters.items()}
    for topic in options.filters:
        try:
            members = await _members(parts, options.group, topic)
        except (ClientError, BodyError):
            continue
        others = [
            each for each in members.connection_set if each.client_id != parts.identity.client_id
        ]
        problem = _other_sharing(options, members) or differing(ours, members.subscription_table)
        if others and problem is not None:
            raise UsageError(
                f"group {options.group!r} has members that ask for {problem} (one is"
                f" {others[0].client_id}): all members of a group must ask for the same; stop"
                " those, or use another group"
            )


async def check_expressions(parts: Parts, options: ConsumeOptions, version: int) -> None:
    """Have a broker of each topic check the SQL filter; a `RefusedError` says what is wrong."""
    timeout = parts.config.timeout
    for topic, each in options.filters.items():
        if each.kind == "TAG":
            continue
        body = CheckClientConfig(
            client_id=parts.identity.client_id,
            group=options.group,
            subscription_data=each.subscription(topic, version),
        ).encode()
        route = await parts.routes.get(topic, timeout=timeout)
        addresses = (route.address_of(broker) for broker in route.addresses)
        address = next((found for found in addresses if found is not None), None)
        if address is not None:
            request = Command.request(RequestCode.CHECK_CLIENT_CONFIG, body=body)
            response = await parts.connections.call(address, request, timeout=timeout)
            if response.code != ResponseCode.SUCCESS:
                raise refusal(response.code, response.remark, address)


def differing(
    ours: Mapping[str, SubscriptionData], theirs: Mapping[str, SubscriptionData]
) -> str | None:
    """Describe how others ask for something else; None if they do not."""
    wanted = {topic: each for topic, each in theirs.items() if not topic.startswith(RETRY_PREFIX)}
    for topic in sorted(ours.keys() | wanted.keys()):
        here, there = ours.get(topic), wanted.get(topic)
        if here is None:
            return f"{topic!r} too"
        if there is None:
            return f"topics other than {topic!r}"
        if _meaning(here) != _meaning(there):
            return f"{topic!r} with the filter {there.sub_string!r}, not {here.sub_string!r}"
    return None


def _other_sharing(options: ConsumeOptions, members: ConsumerConnections) -> str | None:
    """Describe how others consume if they broadcast and this one shares, or the reverse."""
    broadcasts = members.message_model is MessageModel.BROADCASTING
    if members.message_model is None or broadcasts == options.is_broadcast:
        return None
    return "each message for every member" if broadcasts else "each message for one member only"


def _meaning(subscription: SubscriptionData) -> object:
    if subscription.expression_type == "SQL92":
        return subscription.sub_string
    return frozenset(subscription.tags_set)


async def _whom_to_ask(parts: Parts, topic: str) -> list[str]:
    try:
        route = await parts.routes.get(topic, timeout=parts.config.timeout)
    except NotFoundError:
        brokers = await AdminAsking(lambda: parts).brokers()
        found = [each.addresses.get(MASTER) for each in brokers]
    else:
        found = [route.address_of(broker) for broker in route.addresses]
    return [address for address in found if address is not None]


async def _members(parts: Parts, group: str, topic: str) -> ConsumerConnections:
    """Ask a broker of the topic, or any broker if the topic has none yet, for the members."""
    timeout = parts.config.timeout
    for address in await _whom_to_ask(parts, topic):
        request = Command.request(
            RequestCode.GET_CONSUMER_CONNECTION_LIST, GetConsumerConnectionList(group)
        )
        response = await parts.connections.call(address, request, timeout=timeout)
        if response.code == ResponseCode.SUCCESS:
            return ConsumerConnections.decode(response.body)
    return ConsumerConnections()
