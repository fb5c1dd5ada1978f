"""Reading queues by hand: the caller chooses the queues, the positions and when to commit."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal

import anyio

from cometmq.client._core.checking import check_time, check_whole
from cometmq.client._core.outgoing import check_queue_of
from cometmq.client._reading import PULL_COUNT, check_wait
from cometmq.client.errors import ClientError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cometmq.client._core.filters import Filter
    from cometmq.client._core.queues import Queue
    from cometmq.client._parts import Parts
    from cometmq.client.messages import Pulled, ReceivedMessage
    from cometmq.proto.message import StoredMessage

Place = int | Literal["first", "last", "committed"] | datetime

COUNT_MAX: Final = 10_000


class Reader:
    """A reader of the queues that are assigned to it; made by `Client.reader`.

    ::

        reader = mq.reader("orders", group="reports")
        await reader.assign()                      # all queues, each where the group is
        while messages := await reader.pull(count=100, wait=5):
            ...
            await reader.commit()

    It ignores other members of the group, and no queue is taken away from it: it is for programs
    that divide a topic's queues among themselves. Only one task at a time may use it.
    """

    def __init__(
        self,
        topic: str,
        group: str,
        wanted: Filter,
        parts: Callable[[], Parts],
        make: Callable[[StoredMessage, Queue], ReceivedMessage],
    ) -> None:
        self._topic = topic
        self._group = group
        self._filter = wanted
        self._parts = parts
        self._make = make
        self._positions: dict[Queue, int] = {}
        self._committed: dict[Queue, int] = {}
        self._turn = 0

    def __repr__(self) -> str:
        return f"<Reader of {self._topic} as {self._group!r}, {len(self._positions)} queues>"

    @property
    def queues(self) -> list[Queue]:
        """The queues that are read from.

        ::

            assert reader.queues == await mq.queues("orders")
        """
        return list(self._positions)

    async def assign(
        self, queues: Iterable[Queue] | None = None, *, start: Place = "committed"
    ) -> None:
        """Read from these queues only, or from all queues of the topic if none are named.

        ::

            await reader.assign([queue], start="first")

        `start` is as in `seek`. A group that has committed nothing begins with the first message.
        """
        parts = self._parts()
        if queues is None:
            queues = await parts.reading.queues(self._topic, parts.config.timeout)
        chosen = list(queues)
        for queue in chosen:
            check_queue_of(self._topic, queue)
        if not chosen:
            raise UsageError(
                "queues: must not be empty; name some, or leave it out for all of the topic"
            )
        self._positions = {queue: await self._find(queue, start) for queue in chosen}
        self._committed = dict(self._positions)

    async def seek(self, queue: Queue, place: Place) -> int:
        """Continue in a queue at an offset, "first", "last", "committed" or a `datetime`.

        ::

            await reader.seek(queue, datetime.now(UTC) - timedelta(hours=1))

        "last" is the end, after the last message there is now. Returns the offset.
        """
        self._check(queue)
        self._positions[queue] = await self._find(queue, place)
        return self._positions[queue]

    def position(self, queue: Queue) -> int:
        """Return the offset that will be read next.

        ::

            lag = await mq.end_offset(queue) - reader.position(queue)
        """
        self._check(queue)
        return self._positions[queue]

    async def pull(self, *, count: int = PULL_COUNT, wait: float = 0.0) -> list[ReceivedMessage]:
        """Return up to `count` messages of the queues, and move past them.

        ::

            messages = await reader.pull(count=500, wait=5)

        It returns the messages that are there; if there are none, it waits up to `wait` seconds for
        some. In a queue whose next messages have expired, it continues with the first one left. A
        call that is cancelled or raises moves no position.
        """
        check_whole("count", count, 1, COUNT_MAX)
        check_wait(wait)
        if not self._positions:
            raise UsageError("no queue is assigned: call `await reader.assign()`")
        messages = await self._what_there_is(count)
        if not messages and wait > 0:
            messages = await self._what_comes(count, wait)
        return messages

    async def commit(self) -> None:
        """Commit the group's offsets on the brokers: all messages that `pull` returned are done.

        ::

            await reader.commit()
        """
        parts = self._parts()
        for queue, offset in self._positions.items():
            if self._committed.get(queue) != offset:
                await parts.reading.commit(queue, self._group, offset, parts.config.timeout)
                self._committed[queue] = offset

    async def _what_there_is(self, count: int) -> list[ReceivedMessage]:
        """Read the queues in turn until all are empty or `count` is reached; rotate the first."""
        queues = list(self._positions)
        self._turn = (self._turn + 1) % len(queues)
        left = queues[self._turn :] + queues[: self._turn]
        messages: list[ReceivedMessage] = []
        places = dict(self._positions)
        while left and len(messages) < count:
            for queue in tuple(left):
                if len(messages) >= count:
                    break
                found = await self._pull(queue, places[queue], count - len(messages), 0)
                messages += found.messages
                if found.next_offset == places[queue]:
                    left.remove(queue)
                places[queue] = found.next_offset
        self._positions = places
        return messages

    async def _what_comes(self, count: int, wait: float) -> list[ReceivedMessage]:
        """Wait at all queues until one has messages."""
        messages: list[ReceivedMessage] = []
        places: dict[Queue, int] = {}
        failed: list[ClientError] = []

        async def wait_at(queue: Queue) -> None:
            try:
                found = await self._pull(queue, self._positions[queue], count, wait)
            except ClientError as error:
                failed.append(error)
                tasks.cancel_scope.cancel()
                return
            if not messages:
                messages.extend(found.messages)
                places[queue] = found.next_offset
            if messages:
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            for queue in self._positions:
                tasks.start_soon(wait_at, queue)
        if failed and not messages:
            raise failed[0]
        self._positions |= places
        return messages

    async def _pull(
        self, queue: Queue, offset: int, count: int, wait: float
    ) -> Pulled[ReceivedMessage]:
        return await self._parts().reading.pull(
            queue,
            offset,
            group=self._group,
            count=count,
            filter=self._filter,
            wait=wait,
            make=self._make,
        )

    async def _find(self, queue: Queue, place: Place) -> int:
        parts = self._parts()
        timeout = parts.config.timeout
        if isinstance(place, datetime):
            return await parts.reading.offset_at(queue, check_time("place", place), timeout)
        if isinstance(place, int):
            return check_whole("offset", place, 0)
        if place == "committed":
            offset = await parts.reading.committed(queue, self._group, timeout)
            if offset is not None:
                return offset
        elif place == "last":
            return await parts.reading.end_offset(queue, timeout)
        elif place != "first":
            raise UsageError(
                f"{place!r}: must be an offset, 'first', 'last', 'committed' or a datetime"
            )
        return await parts.reading.first_offset(queue, timeout)

    def _check(self, queue: Queue) -> None:
        if queue not in self._positions:
            raise UsageError(f"queue {queue}: is not assigned to this reader")
