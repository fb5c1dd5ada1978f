"""Connected clients in their producer and consumer groups, and what each group subscribes to.

A client is a member of a group through one connection. It leaves when that connection closes, when
it says so, or when it has been silent for too long. The caller passes the time in.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cometmq.broker.errors import LimitError
from cometmq.net import Peer
from cometmq.proto.bodies import SubscriptionData
from cometmq.proto.bodies.enums import ConsumeType, MessageModel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.filter.errors import FilterError
    from cometmq.proto.bodies import ConsumerData
    from cometmq.store.messages.reading import Filter


@dataclass(slots=True)
class Member:
    """One client in one group."""

    client_id: str
    heard_ms: int
    language: int
    version: int
    fingerprint: int = 0
    size: int = 0
    """Its share of the heartbeat's bytes."""


@dataclass(slots=True)
class ConsumerGroup:
    """The members of one consumer group, and their subscriptions."""

    name: str
    members: dict[Peer, Member] = field(default_factory=dict[Peer, Member])
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict[str, SubscriptionData])
    filters: dict[str, Filter | FilterError] = field(
        default_factory=dict[str, "Filter | FilterError"]
    )
    """By topic, the compiled subscription, or its error; made when a pull first needs it. Only for
    subscriptions that are not by tag."""
    data: ConsumerData | None = None
    """The data about the group in its last heartbeat."""

    @property
    def is_broadcasting(self) -> bool:
        """Whether each member gets all messages."""
        return self.data is not None and self.data.message_model is MessageModel.BROADCASTING

    def client_ids(self) -> list[str]:
        """Return the client ids of the members, each once."""
        return list(dict.fromkeys(member.client_id for member in self.members.values()))

    def find(self, client_id: str) -> tuple[Peer, Member] | None:
        """Find a member by its client id; of several connections, the one heard from last."""
        found = [item for item in self.members.items() if item[1].client_id == client_id]
        return max(found, key=lambda item: item[1].heard_ms, default=None)

    def subscribe(self, subscriptions: Iterable[SubscriptionData]) -> bool:
        """Take over subscriptions, the newest of each topic; return whether the topics changed."""
        wanted = {each.topic: each for each in subscriptions}
        changed = wanted.keys() != self.subscriptions.keys()
        for topic, new in wanted.items():
            old = self.subscriptions.get(topic)
            if old is None or new.sub_version > old.sub_version:
                self.subscriptions[topic] = new
                self.filters.pop(topic, None)
        for topic in self.subscriptions.keys() - wanted.keys():
            del self.subscriptions[topic]
            self.filters.pop(topic, None)
        return changed


class Memberships:
    """The number of memberships, and the size of their heartbeats."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._count = 0
        self._size = 0

    def put(self, old: Member | None, new: Member) -> None:
        """Count a membership that is new or replaces an old one; `LimitError` beyond the limits."""
        config = self._config
        size = self._size + new.size - (0 if old is None else old.size)
        if old is None and self._count >= config.clients_max:
            raise LimitError("clients_max", config.clients_max, "memberships of clients")
        if new.size and size > config.heartbeat_bytes_max:
            raise LimitError("heartbeat_bytes_max", self._size, "bytes of heartbeats")
        self._count += old is None
        self._size = size

    def remove(self, old: Member) -> None:
        """Count one membership less."""
        self._count -= 1
        self._size -= old.size


class Consumers:
    """The consumer groups that have members."""

    def __init__(self, memberships: Memberships) -> None:
        self._memberships = memberships
        self._groups: dict[str, ConsumerGroup] = {}
        self._of_peer: dict[Peer, set[str]] = {}
        self.find = self._groups.get
        self.broadcasting: set[str] = set()
        """The broadcasting groups that get their messages as they come (`CONSUME_PASSIVELY`)."""

    def beat(
        self, peer: Peer, data: ConsumerData, member: Member, *, without_subscriptions: bool
    ) -> bool:
        """Take a heartbeat; return whether the group's members should hear of a change.

        Raises a `LimitError` beyond the limits of memberships.
        """
        group = self._groups.get(data.group_name)
        old = None if group is None else group.members.get(peer)
        known = old is not None
        if without_subscriptions and old is not None:  # Its last full heartbeat is still kept.
            member = replace(member, size=max(old.size, member.size))
        self._memberships.put(old, member)
        if group is None:
            group = self._groups[data.group_name] = ConsumerGroup(data.group_name)
        if not known:
            self._of_peer.setdefault(peer, set()).add(group.name)
        group.members[peer] = member
        group.data = data
        if group.is_broadcasting and data.consume_type is ConsumeType.CONSUME_PASSIVELY:
            self.broadcasting.add(group.name)
        elif group.name in self.broadcasting:
            self.broadcasting.remove(group.name)
        if without_subscriptions:
            return not known
        changed = group.subscribe(data.subscription_data_set)
        return changed or not known

    def __iter__(self) -> Iterator[ConsumerGroup]:
        return iter(self._groups.values())

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that subscribe to a topic."""
        return [group.name for group in self if topic in group.subscriptions]

    def peer_of(self, group: str, client_id: str) -> Peer | None:
        """Return the connection over which a client is a member of a group."""
        found = self._groups.get(group)
        member = None if found is None else found.find(client_id)
        return None if member is None else member[0]

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """Return a group's subscription to a topic; None if it has none or has no members."""
        found = self._groups.get(group)
        return None if found is None else found.subscriptions.get(topic)

    def fingerprint(self, peer: Peer) -> int | None:
        """Return the fingerprint of a peer's last heartbeat; None if the peer is unknown."""
        for name in self._of_peer.get(peer, ()):
            return self._groups[name].members[peer].fingerprint
        return None

    def leave(self, peer: Peer, name: str) -> ConsumerGroup | None:
        """Take a peer out of a group; return the group if the peer was a member."""
        group = self._groups.get(name)
        member = None if group is None else group.members.pop(peer, None)
        if group is None or member is None:
            return None
        self._memberships.remove(member)
        names = self._of_peer[peer]
        names.discard(name)
        if not names:
            del self._of_peer[peer]
        if not group.members:
            del self._groups[name]
            self.broadcasting.discard(name)
        return group

    def leave_all(self, peer: Peer) -> list[ConsumerGroup]:
        """Take a peer that is gone out of all its groups, and return these."""
        names = tuple(self._of_peer.get(peer, ()))
        return [group for name in names if (group := self.leave(peer, name)) is not None]

    def expire(self, before_ms: int) -> Iterator[ConsumerGroup]:
        """Take out the members not heard from since then, and yield the group of each."""
        for peer, names in tuple(self._of_peer.items()):
            for name in tuple(names):
                if self._groups[name].members[peer].heard_ms < before_ms:
                    group = self.leave(peer, name)
                    if group is not None:
                        yield group


class Producers:
    """The producer groups that have members, which can be asked about their transactions."""

    def __init__(self, memberships: Memberships) -> None:
        self._memberships = memberships
        self._groups: dict[str, dict[Peer, Member]] = {}
        self._of_peer: dict[Peer, set[str]] = {}
        self._clients: dict[str, dict[Peer, int]] = {}
        """By client id: its connections, and the number of groups that each is in."""

    def __len__(self) -> int:
        return sum(len(members) for members in self._groups.values())

    def peer_of(self, client_id: str) -> Peer | None:
        """Return the newest connection over which a client is a member of any group."""
        return next(reversed(self._clients.get(client_id, {})), None)

    def members(self, group: str) -> dict[Peer, Member]:
        """Return the members of a group."""
        return self._groups.get(group, {})

    def groups(self) -> Iterable[tuple[str, dict[Peer, Member]]]:
        """Return all groups with their members."""
        return self._groups.items()

    def beat(self, peer: Peer, group: str, member: Member) -> None:
        """Take a heartbeat; raise a `LimitError` beyond the limits of memberships."""
        members = self._groups.get(group, {})
        before = members.get(peer)
        self._memberships.put(before, member)
        if before is None or before.client_id != member.client_id:
            if before is not None:
                self._forget_client(peer, before)
            connections = self._clients.setdefault(member.client_id, {})
            connections[peer] = connections.get(peer, 0) + 1
        members[peer] = member
        self._groups[group] = members
        self._of_peer.setdefault(peer, set()).add(group)

    def leave(self, peer: Peer, group: str) -> None:
        """Take a peer out of a group, if it is a member."""
        members = self._groups.get(group)
        member = None if members is None else members.pop(peer, None)
        if member is None:
            return
        self._memberships.remove(member)
        self._forget_client(peer, member)
        if not members:
            del self._groups[group]
        names = self._of_peer[peer]
        names.discard(group)
        if not names:
            del self._of_peer[peer]

    def _forget_client(self, peer: Peer, member: Member) -> None:
        connections = self._clients[member.client_id]
        connections[peer] -= 1
        if not connections[peer]:
            del connections[peer]
        if not connections:
            del self._clients[member.client_id]

    def leave_all(self, peer: Peer) -> None:
        """Take a peer that is gone out of all its groups."""
        for group in tuple(self._of_peer.get(peer, ())):
            self.leave(peer, group)

    def expire(self, before_ms: int) -> None:
        """Take out the members not heard from since then."""
        for name, members in tuple(self._groups.items()):
            for peer in [p for p, member in members.items() if member.heard_ms < before_ms]:
                self.leave(peer, name)
