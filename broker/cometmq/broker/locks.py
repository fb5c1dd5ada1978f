"""Locks of queues for consumption in order: a queue has one client, until that gives the queue back
or has been silent for a while.

A client renews its locks every 20 s. It loses them with its connection, unless it has another one
as a member of the group. (With Apache's brokers the group then waits until the lifetime is over.)

A client that was refused a queue asks again only much later, old ones after 20 s. So `unlock` tells
whether another client wanted the queue: then the group's members should share their queues again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cometmq.broker.config import BrokerConfig
    from cometmq.net import Peer
    from cometmq.proto.bodies import MessageQueue


@dataclass(slots=True)
class _Lock:
    client_id: str
    peer: Peer
    """The connection over which it was last renewed."""
    renewed_ms: int


class Locks:
    """All locks of one broker. `now_ms` comes from a clock that never goes back."""

    def __init__(self, config: BrokerConfig) -> None:
        self._lifetime_ms = config.lock_lifetime_ms
        self._locks_max = config.locks_max
        self._count = 0
        self._locks: dict[str, dict[MessageQueue, _Lock]] = {}
        self._groups_of: dict[Peer, set[str]] = {}
        self._wanted: set[tuple[str, MessageQueue]] = set()
        """Locked queues that another client of the group has asked for in vain."""

    def __len__(self) -> int:
        return self._count

    def lock(
        self, group: str, queues: Iterable[MessageQueue], client_id: str, peer: Peer, now_ms: int
    ) -> list[MessageQueue]:
        """Lock queues for a client, or renew its locks; return the queues that it holds now.

        Beyond `locks_max` no queue is locked that was not locked before.
        """
        locks = self._locks.get(group, {})
        held: list[MessageQueue] = []
        for queue in queues:
            lock = locks.get(queue)
            if lock is None:
                if self._count >= self._locks_max:
                    continue
                self._count += 1
            elif lock.client_id != client_id and not self._has_expired(lock, now_ms):
                self._wanted.add((group, queue))
                continue
            self._wanted.discard((group, queue))
            locks[queue] = _Lock(client_id, peer, now_ms)
            held.append(queue)
        if held:
            self._locks[group] = locks
            self._groups_of.setdefault(peer, set()).add(group)
        return held

    def is_ordered(self, group: str, now_ms: int) -> bool:
        """Whether any client of this group consumes a queue in order."""
        locks = self._locks.get(group)
        return locks is not None and not all(
            self._has_expired(lock, now_ms) for lock in locks.values()
        )

    def unlock(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> bool:
        """Give back those of these queues that the client holds; return whether one is wanted."""
        locks = self._locks.get(group, {})
        is_wanted = False
        for queue in queues:
            lock = locks.get(queue)
            if lock is not None and lock.client_id == client_id:
                is_wanted |= (group, queue) in self._wanted
                self._remove(group, queue)
        return is_wanted

    def leave(self, peer: Peer, peer_of: Callable[[str, str], Peer | None]) -> None:
        """Give back the queues locked over a connection that is gone.

        `peer_of`, of a group and a client id, returns another connection of that member.
        """
        for group in self._groups_of.pop(peer, ()):
            for queue, lock in tuple(self._locks.get(group, {}).items()):
                if lock.peer is not peer:
                    continue
                other = peer_of(group, lock.client_id)
                if other is None:
                    self._remove(group, queue)
                else:
                    lock.peer = other
                    self._groups_of.setdefault(other, set()).add(group)

    def expire(self, now_ms: int) -> None:
        """Forget the locks that have not been renewed."""
        for group, locks in tuple(self._locks.items()):
            for queue in [each for each, lock in locks.items() if self._has_expired(lock, now_ms)]:
                self._remove(group, queue)

    def _has_expired(self, lock: _Lock, now_ms: int) -> bool:
        return now_ms - lock.renewed_ms > self._lifetime_ms

    def _remove(self, group: str, queue: MessageQueue) -> None:
        locks = self._locks[group]
        del locks[queue]
        self._wanted.discard((group, queue))
        self._count -= 1
        if not locks:
            del self._locks[group]
