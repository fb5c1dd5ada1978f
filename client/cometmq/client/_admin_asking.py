"""What all administrative calls stand on: whom they ask, and how answers are read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

from cometmq.client._core.routes import MASTER
from cometmq.client.errors import NotFoundError, ProtocolViolationError, UsageError, refusal
from cometmq.proto.bodies import ClusterInfo
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.errors import BodyError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cometmq.client._parts import Parts
    from cometmq.proto.body import Body
    from cometmq.proto.header import Header

B = TypeVar("B", bound="Body")


@dataclass(frozen=True, slots=True)
class BrokerListed:
    """A broker of a cluster, with its addresses by id; 0 is the master."""

    name: str
    cluster: str
    addresses: Mapping[int, str]


def time_of(milliseconds: int) -> datetime | None:
    """Return a time of the wire; None where there is none."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC) if milliseconds > 0 else None


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
            raise UsageError(f"broker {broker!r}: there are {', '.join(sorted(found)) or 'none'}")
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

    def _read(self, kind: type[B], address: str, response: Command) -> B:
        try:
            return kind.decode(response.body)
        except BodyError as error:
            raise ProtocolViolationError(response.code, str(error), address) from None
