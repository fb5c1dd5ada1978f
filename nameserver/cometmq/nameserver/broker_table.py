"""The brokers that a name server knows: the processes of each broker name.

A broker name stands for a master (id 0) and its slaves; each of these processes is a `Member`. A
member is found by name and id, by (cluster, address), and by the connection over which it
registered; this table keeps the three indexes in step. Of topics it knows only the names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cometmq.proto.bodies import DataVersion

MASTER_ID = 0


@dataclass(slots=True, eq=False)
class Member:
    """One broker process, as it last registered."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str
    data_version: DataVersion
    timeout_ms: int
    """After a silence of this length it counts as gone."""
    connection_id: int
    seen_ms: int
    """When it last gave a sign of life."""


@dataclass(slots=True, eq=False)
class Broker:
    """One broker name: its processes by id, and the topics that they serve."""

    name: str
    enable_acting_master: bool = False
    zone_name: str | None = None
    members: dict[int, Member] = field(default_factory=dict[int, Member])
    topics: set[str] = field(default_factory=set[str])

    @property
    def first_id(self) -> int:
        """The lowest registered id: the master's, or that of the slave that acts for it."""
        return min(self.members)

    @property
    def cluster(self) -> str:
        """The cluster of the process with the lowest id."""
        return self.members[self.first_id].cluster

    @property
    def addresses(self) -> dict[int, str]:
        """The address of each process by its id, in the order of the ids."""
        return {broker_id: self.members[broker_id].address for broker_id in sorted(self.members)}


class BrokerTable:
    """Broker names, their members and clusters."""

    def __init__(self) -> None:
        self._brokers: dict[str, Broker] = {}
        self._clusters: dict[str, dict[str, None]] = {}  # Names in the order of registration.
        self._by_address: dict[tuple[str, str], Member] = {}
        self._by_connection: dict[int, dict[Member, None]] = {}
        self._member_count = 0

    @property
    def brokers(self) -> Mapping[str, Broker]:
        """The brokers by name; each has at least one member."""
        return self._brokers

    @property
    def clusters(self) -> Mapping[str, Iterable[str]]:
        """The names of the brokers, by cluster."""
        return self._clusters

    @property
    def member_count(self) -> int:
        """The number of known broker processes."""
        return self._member_count

    def at(self, cluster: str, address: str) -> Member | None:
        """Find a member by its address."""
        return self._by_address.get((cluster, address))

    def over(self, connection_id: int) -> list[Member]:
        """Find the members that registered over a connection."""
        return list(self._by_connection.get(connection_id, ()))

    def silent(self, now_ms: int) -> list[Member]:
        """Find the members that have been silent for too long."""
        return [
            member
            for broker in self._brokers.values()
            for member in broker.members.values()
            if member.seen_ms + member.timeout_ms < now_ms
        ]

    def put(self, member: Member) -> Broker:
        """Add a member, in place of any with the same name and the same id or address."""
        broker = self._brokers.get(member.broker_name)
        if broker is None:
            broker = self._brokers[member.broker_name] = Broker(member.broker_name)
        replaced = [
            held
            for held in broker.members.values()
            if held.broker_id == member.broker_id or held.address == member.address
        ]
        for held in replaced:
            self._unlink(broker, held)
        broker.members[member.broker_id] = member
        self._clusters.setdefault(member.cluster, {})[broker.name] = None
        for cluster in {held.cluster for held in replaced}:
            self._leave(broker, cluster)
        self._by_address[member.cluster, member.address] = member
        self._by_connection.setdefault(member.connection_id, {})[member] = None
        self._member_count += 1
        return broker

    def remove(self, member: Member) -> Broker:
        """Remove a member, and its broker with the last one; return that broker in either case."""
        broker = self._brokers[member.broker_name]
        self._unlink(broker, member)
        self._leave(broker, member.cluster)
        if not broker.members:
            del self._brokers[broker.name]
        return broker

    def _unlink(self, broker: Broker, member: Member) -> None:
        del broker.members[member.broker_id]
        place = (member.cluster, member.address)
        # Two names may have registered the same address: the later one is found by it.
        if self._by_address.get(place) is member:
            del self._by_address[place]
        connected = self._by_connection[member.connection_id]
        del connected[member]
        if not connected:
            del self._by_connection[member.connection_id]
        self._member_count -= 1

    def _leave(self, broker: Broker, cluster: str) -> None:
        """Forget that a broker is in a cluster, unless one of its processes still is."""
        if all(member.cluster != cluster for member in broker.members.values()):
            names = self._clusters[cluster]
            del names[broker.name]
            if not names:
                del self._clusters[cluster]
