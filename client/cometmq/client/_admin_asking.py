"""The base of all administrative calls: whom they ask, and how they read the answers."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

from cometmq.client._core.checking import time_at
from cometmq.client._core.filters import parse_filter
from cometmq.client._core.names import READER_GROUP
from cometmq.client._core.routes import MASTER
from cometmq.client._reading import PULL_COUNT
from cometmq.client.errors import NotFoundError, ProtocolViolationError, UsageError, refusal
from cometmq.client.messages import ReceivedMessage
from cometmq.proto.bodies import ClusterInfo
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.errors import BodyError, MessageError
from cometmq.proto.message_list import MessageList

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping
    from datetime import datetime

    from cometmq.client._core.filters import Sql
    from cometmq.client._core.queues import Queue
    from cometmq.client._parts import Parts
    from cometmq.proto.body import Body
    from cometmq.proto.header import Header
    from cometmq.proto.message import StoredMessage

_log = logging.getLogger("cometmq.client")

B = TypeVar("B", bound="Body")

Change = Literal["made", "changed", "kept"]
"""What a call did on one broker; "kept" means unchanged, as it already was what was asked for."""


@dataclass(frozen=True, slots=True)
class BrokerListed:
    """A broker of a cluster, with its addresses by id; 0 is the master."""

    name: str
    cluster: str
    addresses: Mapping[int, str]


def time_of(milliseconds: int) -> datetime | None:
    """Convert a time from the wire; None if there is none."""
    return time_at(milliseconds) if milliseconds > 0 else None


class AdminAsking:
    """Asks masters and name servers."""

    def __init__(self, parts: Callable[[], Parts]) -> None:
        self._get_parts = parts

    async def brokers(self) -> list[BrokerListed]:
        """Return the brokers that the name servers know.

        ::

            for broker in await mq.admin.brokers():
                print(broker.name, broker.addresses)
        """
        address, response = await self._ask_names(RequestCode.GET_BROKER_CLUSTER_INFO)
        found = self._read(ClusterInfo, address, response)
        return [
            BrokerListed(name, data.cluster or "", dict(data.broker_addrs))
            for name, data in sorted(found.broker_addr_table.items())
        ]

    async def _masters(self, broker: str | None) -> dict[str, str]:
        found = {
            each.name: each.addresses[MASTER]
            for each in await self.brokers()
            if MASTER in each.addresses
        }
        if broker is None:
            if not found:
                raise NotFoundError(
                    ResponseCode.BROKER_NOT_EXIST, "no broker is registered", "the name server"
                )
            return found
        if broker not in found:
            known = ", ".join(sorted(found)) or "none"
            raise UsageError(f"broker {broker!r} is not registered: the name servers know {known}")
        return {broker: found[broker]}

    async def _ask_names(self, code: RequestCode) -> tuple[str, Command]:
        parts = self._get_parts()
        request = Command.request(code)
        address, response = await parts.nameservers.call(request, timeout=parts.config.timeout)
        if response.code != ResponseCode.SUCCESS:
            raise refusal(response.code, response.remark, address)
        return address, response

    async def _ask(
        self,
        address: str,
        code: RequestCode,
        fields: Header | None,
        *,
        body: bytes | None = None,
        is_broker: bool = True,
    ) -> Command:
        parts = self._get_parts()
        response = await parts.connections.call(
            address,
            Command.request(code, fields, body=body),
            timeout=parts.config.timeout,
            is_broker=is_broker,
        )
        if response.code != ResponseCode.SUCCESS:
            raise refusal(response.code, response.remark, address)
        return response

    async def _messages(
        self, queue: Queue, begin: int, end: int, filter: str | Sql = "*"
    ) -> AsyncGenerator[ReceivedMessage, None]:
        """Yield the messages of a range of a queue that still exist."""
        parts = self._get_parts()
        wanted = parse_filter(filter)

        def make(stored: StoredMessage, queue: Queue) -> ReceivedMessage:
            return ReceivedMessage(stored, queue, parts.config.inflated_size_max)

        while begin < end:
            pulled = await parts.reading.pull(
                queue, begin, group=READER_GROUP, count=PULL_COUNT, filter=wanted, wait=0, make=make
            )
            for message in pulled.messages:
                if message.offset < end:
                    yield message
            if pulled.next_offset <= begin:
                return
            begin = pulled.next_offset

    def _read_messages(self, address: str, response: Command) -> list[StoredMessage]:
        try:
            return list(MessageList(response.body))
        except MessageError as error:
            raise ProtocolViolationError(response.code, str(error), address) from None

    def _read_of_many(self, kind: type[B], address: str, response: Command) -> B:
        """Read an answer about many queues; its remark names damaged ones, which are left out."""
        if response.remark:
            _log.warning("%s: %s", address, response.remark)
        return self._read(kind, address, response)

    def _read(self, kind: type[B], address: str, response: Command) -> B:
        try:
            return kind.decode(response.body)
        except BodyError as error:
            raise ProtocolViolationError(response.code, str(error), address) from None
