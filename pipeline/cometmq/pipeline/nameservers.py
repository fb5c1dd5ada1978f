"""Which of several name servers is asked: one that answers, and the same one as long as it does.

They do not know one another, and each learns of brokers one by one after its start (within half a
minute, if Apache's). So answers of two do not fit together: one may know a topic that, by the
other, was deleted. And one that does not answer takes the whole timeout each time.
"""

from __future__ import annotations

import random
import re
import time
from typing import TYPE_CHECKING, Final

from cometmq.pipeline.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

_PORT_MAX: Final = 65535
_HOST: Final = re.compile(r"[^\s:/\[\]@]+|\[[0-9A-Fa-f:.]+(%[^\s\]]+)?\]", re.ASCII)
"""A name, an IPv4 address, or an IPv6 address in brackets."""
_SILENT_SECONDS: Final = 60.0
"""For how long a name server that did not answer is asked only if the others do not answer."""

_orders: Final[dict[tuple[str, ...], list[str]]] = {}
"""The order in which this process asks the name servers of a cluster. While a list is sorted in
place, other threads see it empty."""
_failed_at: Final[dict[str, float]] = {}


class NameServers:
    """The name servers of one cluster; the first is chosen at random."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._order = _orders.setdefault(tuple(addresses), random.sample(addresses, len(addresses)))

    def in_turn(self) -> list[str]:
        """Return all, in the order in which they are to be asked."""
        return list(self._order)

    def others(self) -> list[str]:
        """Return the others, except those that lately did not answer."""
        since = time.monotonic() - _SILENT_SECONDS
        return [each for each in self._order[1:] if _failed_at.get(each, since) <= since]

    def prefer(self, address: str) -> None:
        """Ask this one first from now on."""
        self._order[:] = sorted(self._order, key=lambda each: each != address)

    def leave(self, address: str) -> None:
        """Ask this one last from now on, as it did not answer."""
        _failed_at[address] = time.monotonic()
        self._order[:] = sorted(self._order, key=lambda each: each == address)


def read_nameservers(text: str, option: str = "nameserver") -> tuple[str, ...]:
    """Read addresses, separated by semicolons or commas; an error names the option."""
    found = tuple(each.strip() for each in re.split("[;,]", text) if each.strip())
    for address in found:
        host, _, port = address.rpartition(":")
        is_number = re.fullmatch(r"[0-9]{1,5}", port, re.ASCII) is not None
        is_port = is_number and 0 < int(port) <= _PORT_MAX
        if not _HOST.fullmatch(host) or not is_port:
            raise OptionError(f"{option}: {address!r} is not HOST:PORT, such as 127.0.0.1:9876")
    if not found:
        raise OptionError(f"{option}: must not be empty; write HOST:PORT, such as 127.0.0.1:9876")
    return found
