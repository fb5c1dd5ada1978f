"""Administration of topics: their names, routes and contents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from cometmq.client._admin_asking import AdminAsking, Change, time_of
from cometmq.client._core.checking import check_whole
from cometmq.client._core.names import DLQ_PREFIX, RETRY_PREFIX, TEMPLATE, check_topic
from cometmq.client._core.queues import Queue, from_wire, share_order
from cometmq.client._core.routes import MASTER
from cometmq.client.errors import NotFoundError, RefusedError, UsageError
from cometmq.proto.bodies import TopicConfig, TopicConfigTable, TopicList, TopicStats
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.commands import (
    DeleteKvConfig,
    DeleteTopicInBroker,
    DeleteTopicInNamesrv,
    GetKvConfig,
    GetKvConfigResponse,
    GetTopicConfig,
    GetTopicStatsInfo,
    Permission,
    PutKvConfig,
    UpdateAndCreateTopic,
)
from cometmq.proto.commands.topic_attributes import encode_attributes
from cometmq.proto.errors import LocalProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from cometmq.proto.header import Header

TopicKind = Literal["user", "retry", "dead letters", "system"]

ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"
QUEUE_COUNT: Final = 8
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
    """A topic and its owner: a user, a group (retries, dead letters) or the system."""

    name: str
    kind: TopicKind


@dataclass(frozen=True, slots=True)
class BrokerRoute:
    """A topic on one broker: its queues and permission, and the broker's addresses by id."""

    broker: str
    cluster: str
    addresses: Mapping[int, str]
    read_queues: int
    write_queues: int
    permission: str


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """Both ends of a queue; `stored_at` is when its last message was stored, None if none was."""

    queue: Queue
    first_offset: int
    end_offset: int
    stored_at: datetime | None

    @property
    def message_count(self) -> int:
        """The number of messages in it."""
        return self.end_offset - self.first_offset


class TopicAdmin(AdminAsking):
    """The calls about topics; see `Admin`."""

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
        """Return the brokers of a topic; `NotFoundError` if there are none.

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
        queues: int | None = None,
        permission: Literal["rw", "r", "w"] | None = None,
        broker: str | None = None,
        ordered: bool | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> dict[str, Change]:
        """Create a topic on every broker, or on one; where it exists, change the given settings.

        ::

            await mq.admin.create_topic("orders", queues=8)

        Settings that are not given stay as they are; the defaults of a new topic are 8 queues, "rw"
        and not ordered. So a program may make the same call at each start. `attributes` are
        Apache's, such as ``{"message.type": "FIFO"}``. Returns what happened on each broker:
        "made", "changed" or "kept" (unchanged).

        With `ordered`, the name servers are told how many queues each broker has, as `mqadmin`
        does. Producers rely on that: while a broker is away, they do not send its sharding keys to
        other queues.
        """
        named: dict[str, int | bool] = {}
        if queues is not None:
            check_whole("queues", queues, 1, QUEUE_COUNT_MAX)
            named |= {"read_queue_nums": queues, "write_queue_nums": queues}
        if permission is not None:
            if permission not in _PERMISSIONS:
                raise UsageError(f"permission={permission!r}: must be 'rw', 'r' or 'w'")
            named["perm"] = int(_PERMISSIONS[permission])
        if ordered is not None:
            named["order"] = ordered
        try:
            changes = encode_attributes(dict(attributes)) if attributes else None
        except LocalProtocolError as error:
            raise UsageError(str(error)) from None
        fresh = TopicConfig(
            topic_name=check_topic(topic),
            read_queue_nums=QUEUE_COUNT,
            write_queue_nums=QUEUE_COUNT,
        )
        done: dict[str, Change] = {}
        masters = await self._masters(broker)
        for name, address in masters.items():
            old = await self._topic_at(address, topic)
            wanted = msgspec.structs.replace(old or fresh, **named)
            is_kept = wanted == old and (attributes or {}).items() <= wanted.attributes.items()
            done[name] = "made" if old is None else "kept" if is_kept else "changed"
            if not is_kept:
                request = _request_for(wanted, changes)
                await self._ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, request)
        if ordered is not None:
            await self._tell_order(topic, masters, ordered=ordered)
        self._get_parts().routes.forget(topic)
        return done

    async def _tell_order(self, topic: str, masters: Mapping[str, str], *, ordered: bool) -> None:
        """Tell all name servers how many queues of an ordered topic these brokers have."""
        for address in self._get_parts().nameservers.addresses:
            counts = await self._order_at(address, topic)
            before = dict(counts)
            for name, master in masters.items():
                counts.pop(name, None)
                config = await self._topic_at(master, topic) if ordered else None
                if config is not None:
                    counts[name] = str(config.write_queue_nums)
            conf = ";".join(f"{name}:{count}" for name, count in sorted(counts.items()))
            fields: Header = PutKvConfig(ORDER_NAMESPACE, topic, conf)
            code = RequestCode.PUT_KV_CONFIG
            if not counts:
                fields = DeleteKvConfig(ORDER_NAMESPACE, topic)
                code = RequestCode.DELETE_KV_CONFIG
            if counts != before:
                await self._ask(address, code, fields, is_broker=False)

    async def _order_at(self, address: str, topic: str) -> dict[str, str]:
        """Ask a name server for the queues of an ordered topic, by broker."""
        fields = GetKvConfig(ORDER_NAMESPACE, topic)
        try:
            response = await self._ask(address, RequestCode.GET_KV_CONFIG, fields, is_broker=False)
        except (NotFoundError, RefusedError) as error:
            if error.code != ResponseCode.QUERY_NOT_FOUND:
                raise
            return {}
        conf = response.read(GetKvConfigResponse).value or ""
        pairs = [pair.partition(":") for pair in conf.split(";") if pair]
        return {name: count for name, _, count in pairs}

    async def _topic_at(self, address: str, topic: str) -> TopicConfig | None:
        """Ask a broker for its settings of a topic; None if it does not have the topic."""
        try:
            request = GetTopicConfig(topic)
            response = await self._ask(address, RequestCode.GET_TOPIC_CONFIG, request)
        except NotFoundError:
            return None
        except RefusedError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
        else:
            return self._read(TopicConfig, address, response)
        # Apache's brokers before 5.0 can only list all topics.
        response = await self._ask(address, RequestCode.GET_ALL_TOPIC_CONFIG, None)
        return self._read(TopicConfigTable, address, response).topic_config_table.get(topic)

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
            table = self._read_of_many(TopicStats, address, response).offset_table
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


def _request_for(topic: TopicConfig, changes: str | None) -> UpdateAndCreateTopic:
    return UpdateAndCreateTopic(
        topic.topic_name,
        TEMPLATE,
        topic.read_queue_nums,
        topic.write_queue_nums,
        topic.perm,
        topic.topic_filter_type.value,
        topic.topic_sys_flag,
        order=topic.order,
        attributes=changes,
    )


def permission_text(perm: int) -> str:
    """Return a permission as text: `rw`, `r`, `w`, or `-` for none."""
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
