"""The verbs of a client that read queues without being a member of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.client._core.checking import check_time, check_whole
from cometmq.client._core.filters import Sql, parse_filter
from cometmq.client._core.names import READER_GROUP, check_group, check_topic
from cometmq.client._core.queues import Queue, check_queue
from cometmq.client._life import Life
from cometmq.client._reading import PULL_COUNT, check_wait
from cometmq.client.admin import Admin
from cometmq.client.messages import ReceivedMessage
from cometmq.client.reader import Reader

if TYPE_CHECKING:
    from datetime import datetime

    from cometmq.client.messages import Pulled
    from cometmq.proto.message import StoredMessage


class ReadVerbs(Life):
    """`queues`, offsets and `pull` of a `Client`."""

    async def queues(self, topic: str, *, timeout: float | None = None) -> list[Queue]:
        """Return the readable queues of a topic.

        ::

            for queue in await mq.queues("orders"):
                print(queue, await mq.end_offset(queue))
        """
        self._check_here()
        return list(
            await self._parts.reading.queues(
                self._named(check_topic(topic)), self._seconds(timeout)
            )
        )

    async def first_offset(self, queue: Queue, *, timeout: float | None = None) -> int:
        """Return the offset of the first message still in a queue.

        ::

            found = await mq.pull(queue, await mq.first_offset(queue))
        """
        self._check_here()
        return await self._parts.reading.first_offset(check_queue(queue), self._seconds(timeout))

    async def end_offset(self, queue: Queue, *, timeout: float | None = None) -> int:
        """Return the offset that the next message of a queue will get.

        ::

            lag = await mq.end_offset(queue) - (await mq.committed(queue, "billing") or 0)
        """
        self._check_here()
        return await self._parts.reading.end_offset(check_queue(queue), self._seconds(timeout))

    async def offset_at(self, queue: Queue, time: datetime, *, timeout: float | None = None) -> int:
        """Return the offset of the first message that was stored at or after a time.

        ::

            an_hour_ago = datetime.now(UTC) - timedelta(hours=1)
            found = await mq.pull(queue, await mq.offset_at(queue, an_hour_ago))
        """
        self._check_here()
        return await self._parts.reading.offset_at(
            check_queue(queue), check_time("time", time), self._seconds(timeout)
        )

    async def committed(
        self, queue: Queue, group: str, *, timeout: float | None = None
    ) -> int | None:
        """Return the offset that a group has committed in a queue; None if it has committed none.

        ::

            offset = await mq.committed(queue, "billing")

        As long as a queue still has its first message, brokers answer 0 for a group without an
        offset.
        """
        self._check_here()
        group = self._named(check_group(group))
        return await self._parts.reading.committed(
            check_queue(queue), group, self._seconds(timeout)
        )

    async def commit(
        self, queue: Queue, group: str, offset: int, *, timeout: float | None = None
    ) -> None:
        """Commit the offset of a group in a queue: all messages before `offset` are consumed.

        ::

            await mq.commit(queue, "billing", found.next_offset)

        Refused for a group that has neither pulled nor consumed: brokers do not know it.
        """
        self._check_here()
        group = self._named(check_group(group))
        check_whole("offset", offset, 0)
        await self._parts.reading.commit(check_queue(queue), group, offset, self._seconds(timeout))

    async def pull(
        self,
        queue: Queue,
        offset: int,
        *,
        count: int = PULL_COUNT,
        filter: str | Sql = "*",
        group: str = READER_GROUP,
        wait: float = 0.0,
    ) -> Pulled[ReceivedMessage]:
        """Pull up to `count` messages of a queue, starting at an offset.

        ::

            found = await mq.pull(queue, offset, wait=5)
            for message in found.messages:
                print(message.body)
            offset = found.next_offset

        If there are none, the broker answers at once or, with `wait`, when a message arrives or
        after that many seconds (20 at most). A pull commits nothing: call `commit`, or use
        `consume`, which does all of this. Brokers return up to 32 messages or 256 KiB at a time;
        for a larger `count`, CometMQ's return up to 1 MiB of any number of messages, from a group's
        second pull on.
        """
        self._check_here()
        group = self._named(check_group(group))
        check_wait(wait)
        return await self._parts.reading.pull(
            check_queue(queue),
            check_whole("offset", offset, 0),
            group=group,
            count=check_whole("count", count, 1),
            filter=parse_filter(filter),
            wait=wait,
            make=self._make_received,
        )

    def reader(self, topic: str, *, group: str = READER_GROUP, filter: str | Sql = "*") -> Reader:
        """Return a reader of a topic's queues, to assign, seek, pull and commit by hand.

        ::

            reader = mq.reader("orders", group="reports")
            await reader.assign()
            messages = await reader.pull(count=100, wait=5)
            await reader.commit()
        """
        return Reader(
            self._named(check_topic(topic)),
            self._named(check_group(group)),
            parse_filter(filter),
            self._open_parts,
            self._make_received,
        )

    @property
    def admin(self) -> Admin:
        """The administrative calls: topics, brokers, routes.

        ::

            await mq.admin.create_topic("orders", queues=8)
        """
        return Admin(self._open_parts)

    def _make_received(self, stored: StoredMessage, queue: Queue) -> ReceivedMessage:
        return ReceivedMessage(stored, queue, self.config.inflated_size_max, self.config.namespace)
