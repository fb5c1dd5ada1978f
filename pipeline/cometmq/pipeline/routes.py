"""Answers of name servers: where a topic is, and which brokers there are."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

_READ: Final = 4
_WRITE: Final = 2
_MASTER: Final = "0"
_NAME = re.compile(r'"brokerName"\s*:\s*("(?:[^"\\]|\\.)+")')
_ADDRESSES = re.compile(r'"brokerAddrs"\s*:\s*\{([^{}]*)\}')
_ADDRESS = re.compile(r':\s*"([^"]+)"')
"""An address in the answer to 106, whose keys are numbers."""


@dataclass(frozen=True, slots=True)
class Route:
    """Where a topic is: its brokers' addresses by name, and each broker's number of queues."""

    addresses: Mapping[str, str]
    read_queues: Mapping[str, int] = field(default_factory=dict[str, int])
    write_queues: Mapping[str, int] = field(default_factory=dict[str, int])
    """Only for brokers whose master is there: a slave takes no messages."""
    slaves: frozenset[str] = frozenset()
    """Brokers whose address is a slave's, as their master is away."""


class Brokers(NamedTuple):
    """All brokers that have registered."""

    names: frozenset[str]
    addresses: frozenset[str]
    """If two clusters have an address in common, they are one cluster, however their name servers
    are written: reading one and writing the other reaches the same server."""


def read_brokers(body: bytes) -> Brokers:
    """Parse the answer to 106."""
    text = body.decode()
    tables = _ADDRESSES.findall(text)
    addresses = frozenset(address for each in tables for address in _ADDRESS.findall(each))
    return Brokers(frozenset(map(json.loads, _NAME.findall(text))), addresses)


def read_route(said: Mapping[str, Any]) -> Route:
    """Parse the answer to 105."""
    addresses: dict[str, str] = {}
    slaves: set[str] = set()
    for broker in said.get("brokerDatas") or ():
        of_broker: Mapping[str, str] = broker["brokerAddrs"]
        # A slave has the same messages; without a master it can still be read.
        if of_broker:
            name = _MASTER if _MASTER in of_broker else min(of_broker, key=int)
            addresses[broker["brokerName"]] = of_broker[name]
            if name != _MASTER:
                slaves.add(broker["brokerName"])
    queues = [q for q in said.get("queueDatas") or () if q["brokerName"] in addresses]
    of_masters = [q for q in queues if q["brokerName"] not in slaves]
    return Route(
        addresses,
        {q["brokerName"]: q["readQueueNums"] for q in queues if q["perm"] & _READ},
        {q["brokerName"]: q["writeQueueNums"] for q in of_masters if q["perm"] & _WRITE},
        frozenset(slaves),
    )
