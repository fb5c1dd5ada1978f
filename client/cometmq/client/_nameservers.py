"""Asking name servers: any one will do, and one that answers is used until it fails."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

import anyio

from cometmq.client._connections import WORTH_AN_ATTEMPT_MS, elapsed_ms
from cometmq.client.errors import DeadlineError, NetworkError, UnreachableError, UsageError
from cometmq.net import AddressError, parse_addresses
from cometmq.proto.codes import ResponseCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cometmq.client._connections import Connections
    from cometmq.proto.command import Command

_SHARE_SECONDS_MIN: Final = 0.2
_SHARE_SECONDS_MAX: Final = 2.0
"""How long to wait for one of several name servers before trying another."""


class NameServers:
    """The name servers of a client; it uses one until that one fails."""

    def __init__(self, connections: Connections, addresses: Sequence[str]) -> None:
        self.addresses = tuple(addresses)
        self._connections = connections
        self._current = random.randrange(len(self.addresses))

    async def call(self, request: Command, *, timeout: float) -> tuple[str, Command]:
        """Ask until one answers; return its address and its answer, whatever that is.

        Raise a `NetworkError` that describes all failures if none answers in time.
        """
        deadline_ms = elapsed_ms() + timeout * 1000
        problems: dict[str, NetworkError] = {}
        while True:
            for _ in self.addresses:
                address = self.addresses[self._current]
                remaining = (deadline_ms - elapsed_ms()) / 1000
                if remaining <= (WORTH_AN_ATTEMPT_MS / 1000 if address in problems else 0):
                    raise _none_answers(problems, timeout)
                share = self._share(remaining)
                try:
                    response = await self._connections.call(
                        address, request, timeout=min(share, remaining), is_broker=False
                    )
                except NetworkError as error:
                    problems[address] = error
                    self._current = (self._current + 1) % len(self.addresses)
                else:
                    if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                        raise UsageError(
                            f"name servers: {address} answers, but looks like a broker: give the"
                            " name server's address, port 9876 unless it was set otherwise"
                        )
                    return address, response
            delay = min(map(self._connections.delay_of, self.addresses))
            if delay >= (deadline_ms - elapsed_ms()) / 1000:
                raise _none_answers(problems, timeout)
            await anyio.sleep(max(delay, 0.01))

    def _share(self, remaining: float) -> float:
        count = len(self.addresses)
        if count == 1:
            return remaining
        return min(max(remaining / count, _SHARE_SECONDS_MIN), _SHARE_SECONDS_MAX)


def parse_nameservers(given: str | Sequence[str]) -> list[str]:
    """Read the addresses of name servers: a list, or a text that joins them with semicolons."""
    try:
        text = given if isinstance(given, str) else ";".join(given)
    except TypeError:
        raise UsageError(
            f"name servers: {given!r}: must be 'host:port', such as '127.0.0.1:9876', or a list"
        ) from None
    try:
        return [str(host) for host in parse_addresses(text.replace(",", ";"))]
    except AddressError as error:
        raise UsageError(
            f"name servers: {error}; write host:port, such as 127.0.0.1:9876"
        ) from None


def _none_answers(problems: dict[str, NetworkError], timeout: float) -> NetworkError:
    errors = problems.values()
    told = "; ".join(map(str, errors)) or "no time was left"
    was_sent = any(not isinstance(error, UnreachableError) for error in errors)
    kind = DeadlineError if was_sent or not problems else UnreachableError
    return kind(f"no name server answers within {timeout:.3g} s: {told}")
