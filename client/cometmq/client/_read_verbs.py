"""The verbs of a client that look into queues, without being a member of a group."""

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
        """Return the queues of a topic, those that can be read from.

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
        """Return the offset of the first message that a queue still has.

        ::

            found = await mq.pull(queue, await mq.first_offset(queue))
        """
        self._check_here()
        return await self._parts.reading.first_offset(check_queue(queue), self._seconds(timeout))

    async def end_offset(self, queue: Queue, *, timeout: float | None = None) -> int:
        """Return the offset that the next message of a queue gets.

        ::

            lag = await mq.end_offset(queue) - (await mq.committed(queue, "billing") or 0)
        """
        self._check_here()
        return await self._parts.reading.end_offset(check_queue(queue), self._seconds(timeout))

    async def offset_at(self, queue: Queue, time: datetime, *, timeout: float | None = None) -> int:
        """Return the offset of the first message that was stored at a time, or later.

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
        """Return where a group goes on in a queue; None when it has not committed anything.

        ::

            offset = await mq.committed(queue, "billing")

        Brokers answer 0 for a group without an offset while a queue still has its first message.
        """
        self._check_here()
        group = self._named(check_group(group))
        return await self._parts.reading.committed(
            check_queue(queue), group, self._seconds(timeout)
        )

    async def commit(
        self, queue: Queue, group: str, offset: int, *, timeout: float | None = None
    ) -> None:
        """Say where a group goes on in a queue: all before `offset` is consumed.

        ::

            await mq.commit(queue, "billing", found.next_offset)

        Brokers do not know a group that has neither pulled nor consumed: that is refused.
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
        """Pull up to `count` messages of a queue, from an offset on.

        ::

            found = await mq.pull(queue, offset, wait=5)
            for message in found.messages:
                print(message.body)
            offset = found.next_offset

        Without messages the broker answers at once, or, with `wait`, when one comes or that many
        seconds (20 at most) have passed. It commits nothing: see `commit`, and `consume` for who
        wants none of this. Brokers give 32 messages or 256 KiB at a time; CometMQ's, for a
        larger `count` and from a group's second pull on, 1 MiB whatever the number.
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
        """Read queues of a topic by hand: assign, seek, pull and commit.

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
