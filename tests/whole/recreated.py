"""A topic that is deleted and created again, again and again, while programs use it.

What was stored before a deletion is gone after it, whatever ends a broker. What was sent since is
there, and reaches the group, though the topic's numbers begin anew.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.client.simulated_network import now

from cometmq.client import ClientError

if TYPE_CHECKING:
    from tests.whole.test_whole_simulated import World

    from cometmq.client import Client, Consumer, Message

TOPIC: Final = "spare"
GROUP: Final = "spares"
QUEUES: Final = 4
"""As many as a send makes that comes before it is created again: with fewer, some are unread."""
AHEAD_SECONDS: Final = 12.0
"""After a power cut without sync flush, a group may be ahead of its queues for so long."""


class _Sent(NamedTuple):
    began: float
    ended: float
    is_answered: bool


class Recreated:
    """The topic, its programs, and what they were told."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._sent: dict[bytes, _Sent] = {}
        self._handled: set[bytes] = set()
        self._deletions: list[tuple[float, float, bool]] = []
        """When each began and ended, and whether all brokers have the topic no more."""
        self.is_sending = True

    async def create(self, mq: Client) -> None:
        """Create it, and begin to use it."""
        await mq.admin.create_topic(TOPIC, queues=QUEUES)
        self._world.start(self._produce())
        self._world.start(self._consume())

    async def recreate(self) -> None:
        """Delete it, and create it again after a while."""
        began, is_whole = now(), False
        async with self._world.client("operator") as mq:
            try:
                route = await mq.admin.route(TOPIC)
                is_whole = len({each.broker for each in route}) == len(self._world.brokers)
                await mq.admin.delete_topic(TOPIC)
            except ClientError:
                is_whole = False
            self._world.counts["deleted" if is_whole else "maybe deleted"] += 1
            self._world.tell(f"{TOPIC} is {'' if is_whole else 'maybe '}deleted")
            self._deletions.append((began, now(), is_whole))
            await asyncio.sleep(self._world.choose((0, 0.5, 10)))
            await self._create_again(mq)

    async def _create_again(self, mq: Client) -> None:
        while True:
            try:
                await mq.admin.create_topic(TOPIC, queues=QUEUES)
                return
            except ClientError:
                await asyncio.sleep(1)

    async def _produce(self) -> None:
        number = 0
        async with self._world.client("spare-producer") as mq:
            while self.is_sending:
                await asyncio.sleep(self._world.choose((0.05, 0.5, 3)))
                body = b"spare-%d" % number
                number += 1
                began, is_answered = now(), False
                try:
                    await mq.send(TOPIC, body, timeout=5.0)
                    is_answered = True
                except ClientError:
                    pass
                self._sent[body] = _Sent(began, now(), is_answered)

    async def _consume(self) -> None:
        async with self._world.client("spare-member") as mq:
            while True:
                consumer: Consumer = mq.consume(TOPIC, group=GROUP, start="first")
                try:
                    await consumer.run(self._handle)
                except ClientError as error:
                    if not error.can_retry:
                        self._world.problems.append(f"{GROUP} cannot begin: {error}")
                        return
                    await asyncio.sleep(1)

    async def _handle(self, message: Message) -> None:
        self._handled.add(message.body)

    async def end(self) -> None:
        """Let everything sent since the last deletion arrive, and check what is in the topic."""
        for _ in range(100):
            await asyncio.sleep(4)
            if not self._lacking():
                break
        else:
            self._world.problems.append(f"{GROUP}: not delivered: {self._lacking()}")
        async with self._world.client("spare-reader") as mq:
            await self._check(mq)

    def _lacking(self) -> list[bytes]:
        """What was stored after all deletions, and has not been handled."""
        last = max((ended for _, ended, _ in self._deletions), default=0.0)
        return [
            body
            for body, sent in self._sent.items()
            if sent.is_answered and sent.began > last and body not in self._handled
            if self._world.is_synced(sent.began - AHEAD_SECONDS, sent.ended)
        ]

    async def _check(self, mq: Client) -> None:
        """Nothing from before a deletion is there."""
        gone = max((began for began, _, is_whole in self._deletions if is_whole), default=0.0)
        for queue in await mq.queues(TOPIC):
            at, end = await mq.first_offset(queue), await mq.end_offset(queue)
            while at < end:
                batch = await mq.pull(queue, at, count=32)
                for each in batch.messages:
                    sent = self._sent[each.body]
                    if sent.ended < gone:
                        self._world.problems.append(f"{queue}: {each.body!r} was deleted")
                at = batch.next_offset
