"""Administration of consumer groups: their names, members and progress."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from cometmq.client._admin_asking import AdminAsking, Change, time_of
from cometmq.client._core.checking import check_time, check_whole
from cometmq.client._core.names import READER_GROUP, check_group, check_topic
from cometmq.client._core.queues import Queue, check_queue, from_wire, share_order
from cometmq.client.errors import (
    NotFoundError,
    ProtocolViolationError,
    RefusedError,
    UsageError,
)
from cometmq.proto.bodies import (
    ConsumerConnections,
    ConsumeStats,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    decode_reset_offsets,
)
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.commands import (
    DeleteSubscriptionGroup,
    GetConsumerConnectionList,
    GetConsumeStats,
    ResetOffset,
)
from cometmq.proto.errors import BodyError
from cometmq.proto.version import version_name

if TYPE_CHECKING:
    from collections.abc import Mapping

ResetTo = Literal["first", "last"] | datetime

_SYSTEM: Final = frozenset(
    {
        "TOOLS_CONSUMER",
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        READER_GROUP,
    }
)
_SYSTEM_PREFIXES: Final = ("CID_RMQ_SYS_", "CID_ONSAPI_")
_FIRST_MS: Final = 0
_LAST_MS: Final = -1
_OFFSET_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class GroupListed:
    """A consumer group and the names of the brokers that know it.

    ::

        disabled = [each.name for each in await mq.admin.groups() if not each.is_enabled]

    `max_retries` is how often brokers redeliver a message if its consumer does not say;
    `is_enabled` says whether the group may consume, `is_system` whether brokers or tools created it
    for themselves.
    """

    name: str
    max_retries: int
    is_enabled: bool
    brokers: tuple[str, ...]

    @property
    def is_system(self) -> bool:
        """Whether it belongs to brokers or tools and not to a user."""
        return self.name in _SYSTEM or self.name.startswith(_SYSTEM_PREFIXES)


@dataclass(frozen=True, slots=True)
class MemberListed:
    """A currently connected member of a group, and its filters by topic.

    ::

        pythons = [each for each in members if each.language == "PYTHON"]
    """

    client_id: str
    address: str
    language: str
    version: str
    subscriptions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """A group's progress in a queue; `consumed_at` is when its last consumed message was stored.

    ::

        behind = [each for each in await mq.admin.group_progress("billing") if each.lag > 1000]
    """

    queue: Queue
    offset: int
    end_offset: int
    consumed_at: datetime | None

    @property
    def lag(self) -> int:
        """The number of messages that are still to be consumed."""
        return max(0, self.end_offset - self.offset)


class GroupAdmin(AdminAsking):
    """The calls about groups; see `Admin`."""

    async def groups(self) -> list[GroupListed]:
        """Return the groups that brokers know.

        ::

            for group in await mq.admin.groups():
                print(group.name, group.brokers)
        """
        found: dict[str, SubscriptionGroupConfig] = {}
        brokers: defaultdict[str, list[str]] = defaultdict(list)
        for broker, address in (await self._masters(None)).items():
            for name, config in (await self._groups_at(address)).items():
                found[name] = config
                brokers[name].append(broker)
        return [
            GroupListed(name, each.retry_max_times, each.consume_enable, tuple(brokers[name]))
            for name, each in sorted(found.items())
        ]

    async def create_group(
        self,
        group: str,
        *,
        max_retries: int | None = None,
        enabled: bool | None = None,
        ordered: bool | None = None,
        broker: str | None = None,
    ) -> dict[str, Change]:
        """Create a group on every broker, or on one; where it exists, change the given settings.

        ::

            await mq.admin.create_group("billing", max_retries=5)

        Settings that are not given stay as they are; the defaults of a new group are 16 retries,
        enabled, not ordered. So a program may make the same call at each start. Most brokers create
        a group by themselves when its first member connects. A group that is not `enabled` gets no
        messages. Returns what happened on each broker: "made", "changed" or "kept" (unchanged).
        """
        named: dict[str, int | bool | None] = {
            "retry_max_times": max_retries,
            "consume_enable": enabled,
            "consume_message_orderly": ordered,
        }
        if max_retries is not None:
            check_whole("max_retries", max_retries, 0)
        settings = {name: value for name, value in named.items() if value is not None}
        done: dict[str, Change] = {}
        fresh = SubscriptionGroupConfig(group_name=check_group(group))
        for name, address in (await self._masters(broker)).items():
            old = (await self._groups_at(address)).get(group)
            config = msgspec.structs.replace(old or fresh, **settings)
            done[name] = "made" if old is None else "kept" if config == old else "changed"
            if config != old:
                code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
                await self._ask(address, code, None, body=config.encode())
        return done

    async def delete_group(self, group: str) -> None:
        """Delete a group and its offsets on all brokers; `NotFoundError` if none knows it.

        ::

            await mq.admin.delete_group("billing")

        Its retry messages and dead letters stay, as they have their own topics.
        """
        header = DeleteSubscriptionGroup(check_group(group), clean_offset=True)
        await self.check_group_exists(group)
        for address in (await self._masters(None)).values():
            await self._ask(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)

    async def group_members(self, group: str) -> list[MemberListed]:
        """Return the currently connected members of a group; the list may be empty.

        It raises `NotFoundError` for a group that no broker knows.

        ::

            for member in await mq.admin.group_members("billing"):
                print(member.client_id, member.language, member.subscriptions)
        """
        header = GetConsumerConnectionList(check_group(group))
        found: dict[str, MemberListed] = {}
        for address in (await self._masters(None)).values():
            try:
                code = RequestCode.GET_CONSUMER_CONNECTION_LIST
                response = await self._ask(address, code, header)
            except RefusedError as error:
                if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
                    raise
                continue
            members = self._read(ConsumerConnections, address, response)
            wanted = {
                topic: each.sub_string or "*" for topic, each in members.subscription_table.items()
            }
            for each in members.connection_set:
                found[each.client_id or ""] = MemberListed(
                    each.client_id or "",
                    each.client_addr or "",
                    each.language or "",
                    version_name(each.version),
                    wanted,
                )
        if not found:
            await self.check_group_exists(group)
        return [found[client_id] for client_id in sorted(found)]

    async def group_progress(self, group: str, topic: str | None = None) -> list[QueueProgress]:
        """Return a group's progress in each queue, of all its topics or of one.

        ::

            lag = sum(each.lag for each in await mq.admin.group_progress("billing", "orders"))

        It raises `NotFoundError` for a group or topic that no broker knows.
        """
        if topic is not None:
            parts = self._get_parts()
            await parts.routes.fetch(check_topic(topic), parts.config.timeout)
        header = GetConsumeStats(check_group(group), topic)
        found: list[QueueProgress] = []
        problem: NotFoundError | None = None
        for address in (await self._masters(None)).values():
            try:
                response = await self._ask(address, RequestCode.GET_CONSUME_STATS, header)
            except NotFoundError as error:
                problem = error  # Not every broker needs to know the group.
                continue
            table = self._read_of_many(ConsumeStats, address, response).offset_table
            found += [
                QueueProgress(
                    from_wire(queue),
                    each.consumer_offset,
                    each.broker_offset,
                    time_of(each.last_timestamp),
                )
                for queue, each in table.items()
            ]
        if not any(each.offset for each in found):  # For an unknown group, all are 0.
            await self.check_group_exists(group)
        if not found and problem is not None:
            raise problem
        return sorted(found, key=lambda each: share_order(each.queue))

    async def reset_offsets(self, group: str, topic: str, to: ResetTo) -> dict[Queue, int]:
        """Move a group to another position in all queues of a topic; return the new offsets.

        ::

            an_hour_ago = datetime.now(UTC) - timedelta(hours=1)
            await mq.admin.reset_offsets("billing", "orders", an_hour_ago)

        `to` is "first" (the first message there is), "last" (the next message to arrive) or a
        `datetime` (the first message stored then or later). Connected members follow at once; the
        messages they have in hand may or may not be delivered again.
        """
        if isinstance(to, datetime):
            time_ms = check_time("to", to)
        elif to in ("first", "last"):
            time_ms = _FIRST_MS if to == "first" else _LAST_MS
        else:
            raise UsageError(f"to={to!r}: must be 'first', 'last' or a datetime")
        header = ResetOffset(check_topic(topic), check_group(group), time_ms, is_force=True)
        return await self._reset(header, None)

    async def set_offset(self, group: str, queue: Queue, offset: int) -> None:
        """Move a group to an offset of one queue.

        ::

            await mq.admin.set_offset("billing", Queue("orders", "broker-a", 3), 17)

        The member that has the queue follows at once. To read by hand, use `Client.commit` instead.
        """
        header = ResetOffset(
            check_topic(check_queue(queue).topic),
            check_group(group),
            _LAST_MS,
            is_force=True,
            queue_id=queue.id,
            offset=check_whole("offset", offset, 0, _OFFSET_MAX),
        )
        await self._reset(header, queue.broker)

    async def check_group_exists(self, group: str) -> None:
        """Raise a `NotFoundError` for a group that no broker knows.

        ::

            await mq.admin.check_group_exists("billing")
        """
        names = {each.name for each in await self.groups()}
        if check_group(group) not in names:
            alike = get_close_matches(group, names, 1)
            hint = f"did you mean {alike[0]!r}?" if alike else "`cometmq group list` shows all"
            raise NotFoundError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"no broker knows the group {group!r}; {hint}",
                "the cluster",
            )

    async def _groups_at(self, address: str) -> dict[str, SubscriptionGroupConfig]:
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        response = await self._ask(address, code, None)
        return self._read(SubscriptionGroupTable, address, response).subscription_group_table

    async def _reset(self, header: ResetOffset, broker: str | None) -> dict[Queue, int]:
        parts = self._get_parts()
        route = await parts.routes.fetch(header.topic, parts.config.timeout)
        on_topic = {each.broker_name for each in route.broker_datas}
        found: dict[Queue, int] = {}
        for name, address in (await self._masters(broker)).items():
            if name in on_topic:
                code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
                response = await self._ask(address, code, header)
                try:
                    table = decode_reset_offsets(response.body).offset_table
                except BodyError as error:
                    raise ProtocolViolationError(response.code, str(error), address) from None
                found |= {from_wire(queue): offset for queue, offset in table.items()}
        return dict(sorted(found.items(), key=lambda item: share_order(item[0])))
