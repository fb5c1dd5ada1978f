"""Locks of queues, for ordered consumers: only the holder of its lock reads a queue.

A broker keeps a lock for 60 s. The member renews it every 20 s, and relies on it for 30 s after the
broker last confirmed it. So a member that is cut off stops before the broker lets another in.

A lock counts only while the connection lasts over which it was confirmed: with the connection,
CometMQ's brokers let others in at once, and if the broker itself went down, so do Apache's.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio

from cometmq.client._connections import elapsed_ms
from cometmq.client._core.queues import from_wire, to_wire
from cometmq.client.errors import ClientError, ProtocolViolationError, UnreachableError, refusal
from cometmq.proto.bodies import LockBatch, LockedQueues
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.errors import BodyError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cometmq.client._core.queues import Queue
    from cometmq.client._parts import Parts
    from cometmq.client._runtime import Link

_log = logging.getLogger("cometmq.client")

RENEW_SECONDS: Final = 20.0
VALID_MS: Final = 30_000
ANSWER_SECONDS: Final = 4.0
"""How long to wait for a route and for an answer: twice that is less than a lock has left at its
renewal, so that a broker which does not answer costs a member no lock of another broker."""


class LockedError(ClientError):
    """Another member still has the lock of a queue that is ours now; it is asked for again."""

    whose = "theirs"
    can_retry = True


class _Lock(NamedTuple):
    """A lock that is or was ours: since when, and over which connection; None if it is not sure."""

    since_ms: int
    link: Link | None


class QueueLocks:
    """The locks of one member of a group."""

    def __init__(self, parts: Parts, group: str) -> None:
        self._parts = parts
        self._group = group
        self._locks: dict[Queue, _Lock] = {}

    def holds(self, queue: Queue) -> bool:
        """Whether a queue is certainly ours at this moment."""
        lock = self._locks.get(queue)
        return (
            lock is not None
            and lock.link is not None
            and lock.link.closed_because is None
            and elapsed_ms() - lock.since_ms < VALID_MS
        )

    def of_topic(self, topic: str) -> list[Queue]:
        """Return the queues of a topic whose locks are or were ours and were not given back."""
        return [queue for queue in self._locks if queue.topic == topic]

    async def acquire(self, queue: Queue) -> bool:
        """Ask for the lock of a queue; return False if another member has it."""
        asked_ms = elapsed_ms()
        # Without an answer it must still be given back, as it may have been granted.
        self._locks[queue] = _Lock(asked_ms, None)
        link, granted = await self._granted(queue.broker, [queue])
        if queue not in granted:
            self._locks.pop(queue, None)
            return False
        self._locks[queue] = _Lock(asked_ms, link)
        return True

    async def renew(self) -> None:
        """Renew the locks that are ours, at all brokers at once: a slow one holds up no other."""
        async with anyio.create_task_group() as tasks:
            for broker in dict.fromkeys(queue.broker for queue in self._locks):
                tasks.start_soon(self._renew_at, broker)

    async def _renew_at(self, broker: str) -> None:
        queues = [queue for queue in self._locks if queue.broker == broker]
        if not queues:
            return  # They were given back before this task began.
        asked_ms = elapsed_ms()
        try:
            link, granted = await self._granted(broker, queues)
        except ClientError as error:
            _log.warning("locks of %s at %s: %s", self._group, broker, error)
            return
        # Locks given back meanwhile stay so: renewing one would keep out its next owner.
        for queue in self._locks.keys() & set(queues):
            if queue in granted:
                self._locks[queue] = _Lock(asked_ms, link)
            else:
                del self._locks[queue]

    async def release(self, queues: Iterable[Queue]) -> None:
        """Give locks back, so that others need not wait for them to expire."""
        of_brokers: dict[str, list[Queue]] = {}
        for queue in queues:
            if self._locks.pop(queue, None) is not None:
                of_brokers.setdefault(queue.broker, []).append(queue)
        async with anyio.create_task_group() as tasks:
            for broker, held in of_brokers.items():
                tasks.start_soon(self._release_at, broker, held)

    async def release_all(self) -> None:
        """Give all locks back, even those that may not be ours."""
        await self.release(tuple(self._locks))

    async def _release_at(self, broker: str, queues: list[Queue]) -> None:
        try:
            await self._call(broker, RequestCode.UNLOCK_BATCH_MQ, queues)
        except ClientError as error:
            names = ", ".join(map(str, queues))
            _log.info("locks of %s: %s; they expire by themselves", names, error)

    async def _granted(self, broker: str, queues: list[Queue]) -> tuple[Link | None, set[Queue]]:
        """Ask for locks; return those that were granted, and the connection if it still lasts."""
        address, response = await self._call(broker, RequestCode.LOCK_BATCH_MQ, queues)
        try:
            granted = LockedQueues.decode(response.body).lock_ok_mq_set
        except BodyError as error:
            raise ProtocolViolationError(response.code, str(error), address) from None
        return self._parts.connections.open_link(address), set(map(from_wire, granted))

    async def _call(
        self, broker: str, code: RequestCode, queues: list[Queue]
    ) -> tuple[str, Command]:
        timeout = min(self._parts.config.timeout, ANSWER_SECONDS)
        route = await self._parts.routes.get(queues[0].topic, timeout=timeout)
        address = route.master_of(broker)
        if address is None:
            raise UnreachableError(f"broker {broker!r} has no master at the moment")
        body = LockBatch(
            client_id=self._parts.identity.client_id,
            consumer_group=self._group,
            mq_set=tuple(map(to_wire, queues)),
        ).encode()
        request = Command.request(code, body=body)
        response = await self._parts.connections.call(address, request, timeout=timeout)
        if response.code != ResponseCode.SUCCESS:
            raise refusal(response.code, response.remark, address)
        return address, response
