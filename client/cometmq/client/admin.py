"""Administration: topics, groups and messages, asked of name servers and brokers.

::

    await mq.admin.create_topic("orders", queues=8)
    for status in await mq.admin.topic_status("orders"):
        print(status.queue, status.message_count)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from cometmq.client._admin_asking import BrokerListed, time_of
from cometmq.client._admin_groups import GroupAdmin, GroupListed, MemberListed, QueueProgress
from cometmq.client._admin_messages import MessageAdmin
from cometmq.client._core.names import DLQ_PREFIX, RETRY_PREFIX, TEMPLATE, check_topic
from cometmq.client._core.queues import Queue, from_wire, share_order
from cometmq.client._core.routes import MASTER
from cometmq.client.errors import (
    UsageError,
)
from cometmq.proto.bodies import TopicList, TopicStats
from cometmq.proto.codes import RequestCode
from cometmq.proto.commands import (
    DeleteTopicInBroker,
    DeleteTopicInNamesrv,
    GetTopicStatsInfo,
    Permission,
    UpdateAndCreateTopic,
)
from cometmq.proto.commands.topic_attributes import encode_attributes
from cometmq.proto.errors import LocalProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from cometmq.proto.body import Body

B = TypeVar("B", bound="Body")

TopicKind = Literal["user", "retry", "dead letters", "system"]

QUEUE_COUNT_MAX: Final = 65_535

_SYSTEM: Final = frozenset(
    {
        TEMPLATE,
        "BenchmarkTest",
        "OFFSET_MOVED_EVENT",
        "SCHEDULE_TOPIC_XXXX",
        "SELF_TEST_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
    }
)
_PERMISSIONS: Final = {
    "rw": Permission.READ | Permission.WRITE,
    "r": Permission.READ,
    "w": Permission.WRITE,
}


@dataclass(frozen=True, slots=True)
class TopicListed:
    """A topic, and whose it is: a user's, a group's (retries, dead letters), the system's."""

    name: str
    kind: TopicKind


@dataclass(frozen=True, slots=True)
class BrokerRoute:
    """A topic on one broker: its queues, what may be done, and the broker's addresses by id."""

    broker: str
    cluster: str
    addresses: Mapping[int, str]
    read_queues: int
    write_queues: int
    permission: str


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """The ends of one queue; `stored_at` is when its last message came, None if there is none."""

    queue: Queue
    first_offset: int
    end_offset: int
    stored_at: datetime | None

    @property
    def message_count(self) -> int:
        """How many messages it has."""
        return self.end_offset - self.first_offset


class Admin(GroupAdmin, MessageAdmin):
    """The administrative calls of a client: `Client.admin`.

    ::

        print([topic.name for topic in await mq.admin.topics()])

    What changes something asks every master that is concerned. A failure in the middle leaves the
    others changed; the same call again does the rest.
    """

    async def topics(self) -> list[TopicListed]:
        """Return all topics, with their kind.

        ::

            mine = [each.name for each in await mq.admin.topics() if each.kind == "user"]
        """
        address, response = await self._ask_names(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        names = self._read(TopicList, address, response).topic_list
        brokers = await self.brokers()
        own = {each.name for each in brokers} | {each.cluster for each in brokers}
        return [TopicListed(name, _kind(name, own)) for name in sorted(names)]

    async def route(self, topic: str) -> list[BrokerRoute]:
        """Return where a topic is; a `NotFoundError` when it is nowhere.

        ::

            for each in await mq.admin.route("orders"):
                print(each.broker, each.write_queues)
        """
        parts = self._get_parts()
        data = await parts.routes.fetch(check_topic(topic), parts.config.timeout)
        brokers = {each.broker_name: each for each in data.broker_datas}
        return [
            BrokerRoute(
                row.broker_name,
                brokers[row.broker_name].cluster or "",
                dict(brokers[row.broker_name].broker_addrs),
                row.read_queue_nums,
                row.write_queue_nums,
                permission_text(row.perm),
            )
            for row in sorted(data.queue_datas, key=lambda row: row.broker_name)
            if row.broker_name in brokers
        ]

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = 8,
        permission: Literal["rw", "r", "w"] = "rw",
        broker: str | None = None,
        ordered: bool = False,
        attributes: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Make a topic on every broker, or on one; or change it, where it exists.

        ::

            await mq.admin.create_topic("orders", queues=8)

        Returns the names of the brokers. `attributes` are Apache's, such as
        ``{"message.type": "FIFO"}``.
        """
        if not 1 <= queues <= QUEUE_COUNT_MAX:
            raise UsageError(f"queues={queues}: from 1 to {QUEUE_COUNT_MAX}")
        if permission not in _PERMISSIONS:
            raise UsageError(f"permission={permission!r}: 'rw', 'r' or 'w'")
        try:
            changes = encode_attributes(dict(attributes)) if attributes else None
        except LocalProtocolError as error:
            raise UsageError(str(error)) from None
        fields = UpdateAndCreateTopic(
            check_topic(topic),
            TEMPLATE,
            queues,
            queues,
            int(_PERMISSIONS[permission]),
            "SINGLE_TAG",
            order=ordered,
            attributes=changes,
        )
        chosen = await self._masters(broker)
        for address in chosen.values():
            await self._ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
        self._get_parts().routes.forget(topic)
        return list(chosen)

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic on all brokers and name servers, with its messages.

        ::

            await mq.admin.delete_topic("orders")
        """
        brokers = {each.broker: each.addresses.get(MASTER) for each in await self.route(topic)}
        for address in filter(None, brokers.values()):
            await self._ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicInBroker(topic))
        parts = self._get_parts()
        for address in parts.nameservers.addresses:
            fields = DeleteTopicInNamesrv(topic)
            await self._ask(address, RequestCode.DELETE_TOPIC_IN_NAMESRV, fields, is_broker=False)
        parts.routes.forget(topic)

    async def topic_status(self, topic: str) -> list[QueueStatus]:
        """Return the ends of all queues of a topic.

        ::

            total = sum(each.message_count for each in await mq.admin.topic_status("orders"))
        """
        found: list[QueueStatus] = []
        for each in await self.route(topic):
            address = each.addresses.get(MASTER) or next(iter(each.addresses.values()), None)
            if address is None:
                continue
            request = GetTopicStatsInfo(topic)
            response = await self._ask(address, RequestCode.GET_TOPIC_STATS_INFO, request)
            table = self._read(TopicStats, address, response).offset_table
            found += [
                QueueStatus(
                    from_wire(queue),
                    ends.min_offset,
                    ends.max_offset,
                    time_of(ends.last_update_timestamp),
                )
                for queue, ends in table.items()
            ]
        return sorted(found, key=lambda status: share_order(status.queue))


def permission_text(perm: int) -> str:
    """Say what may be done, as people write it: `rw`, `r`, `w`, or nothing."""
    bits = ((Permission.READ, "r"), (Permission.WRITE, "w"))
    return "".join(letter for bit, letter in bits if perm & bit) or "-"


def _kind(name: str, own: Iterable[str]) -> TopicKind:
    if name.startswith(RETRY_PREFIX):
        return "retry"
    if name.startswith(DLQ_PREFIX):
        return "dead letters"
    is_system = (
        name in _SYSTEM
        or name.lower().startswith("rmq_sys_")
        or name.endswith("_REPLY_TOPIC")
        or name in own
    )
    return "system" if is_system else "user"


__all__ = [
    "Admin",
    "BrokerListed",
    "BrokerRoute",
    "GroupListed",
    "MemberListed",
    "QueueProgress",
    "QueueStatus",
    "TopicListed",
    "permission_text",
]
