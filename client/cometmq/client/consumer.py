"""Consuming: one message after the other, each acknowledged or given back to be delivered again."""

from __future__ import annotations

import logging
from inspect import isawaitable
from typing import TYPE_CHECKING, Self

import anyio

from cometmq.client._core.checking import check_whole
from cometmq.client._core.options import GIVE_UP_LEVEL
from cometmq.client._core.outgoing import check_retry_level
from cometmq.client._watching import tell_each
from cometmq.client.errors import SettledError, UsageError
from cometmq.client.messages import ReceivedMessage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from types import TracebackType

    from cometmq.client._consumption import Consumption
    from cometmq.client._core.process_queue import ProcessQueue
    from cometmq.client._core.queues import Queue
    from cometmq.client.hooks import ConsumeWatch, Settled
    from cometmq.proto.buffer import Buffer
    from cometmq.proto.message import StoredMessage

_log = logging.getLogger("cometmq.client")


class Message(ReceivedMessage):
    """A message from `consume`, to be acknowledged when you are done with it.

    ::

        async for message in mq.consume("orders", group="billing"):
            async with message:
                await bill(message.body)

    Leaving the block normally acknowledges the message. An exception gives it back, to be delivered
    again later to any member of the group (after `max_retries`, 16 by default, it goes to the dead
    letters); the exception is logged and suppressed, so that the loop continues. If the task of the
    block is cancelled, the message is delivered again at once. `ack`, `retry` and `reject` do the
    same by hand; a block that begins after one of them raises `SettledError`.
    """

    __slots__ = ("_consumption", "_failures", "_is_in_hand", "process_queue", "watches")

    def __init__(
        self,
        consumption: Consumption,
        stored: StoredMessage,
        queue: Queue,
        process_queue: ProcessQueue,
        inflated_size_max: int,
        namespace: str = "",
    ) -> None:
        super().__init__(stored, queue, inflated_size_max, namespace)
        self._consumption = consumption
        self.process_queue = process_queue
        self._is_in_hand = False
        self._failures = 0
        self.watches: Sequence[ConsumeWatch] = ()

    async def __aenter__(self) -> Self:
        self._check_in_hand()
        self.tell_entered()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        self.tell_left()
        return await self.end_block(error)

    def tell_entered(self) -> None:
        """Tell hooks, in the task or thread of the block, that the block begins."""
        tell_each(self.watches, lambda watch: watch.entered())

    def tell_left(self) -> None:
        """Tell hooks that the block ends."""
        tell_each(self.watches, lambda watch: watch.left())

    async def end_block(self, error: BaseException | None) -> bool:
        """Settle it as the end of its block does; return whether that handles the exception."""
        if not self._is_in_hand:
            return False
        if error is None:
            self.ack()
            return False
        if not isinstance(error, Exception):
            self._leave_hand("cancelled")
            self._consumption.delivery.give_back(self)
            return False
        return await self.fail(error)

    async def fail(self, error: Exception) -> bool:
        """Give it back because of an exception; return whether that handles the exception.

        The same as the end of `async with message`, for a caller without such a block.
        """
        raises = self._consumption.options.on_error == "raise"
        if not raises:
            _log.error("%r failed and will be delivered again", self, exc_info=error)
        await self._give_back(0, error)
        return not raises

    @property
    def attempt(self) -> int:
        """The number of this delivery to the group: 1, or more for a redelivery."""
        return super().attempt + self._failures

    def ack(self) -> None:
        """Acknowledge it: it is not delivered again.

        ::

            message.ack()

        The broker learns of it within seconds, once all messages before it are settled; after a
        crash before that, it is delivered again.
        """
        self._consumption.check_here()
        self._leave_hand("ack")
        self._consumption.delivery.settle(self)

    async def retry(self, *, delay_level: int = 0) -> None:
        """Give it back, to be delivered again later.

        ::

            await message.retry(delay_level=5)  # in a minute

        The broker's levels are 1 to 18; with 0 the broker chooses, and waits longer each time.
        """
        check_retry_level(delay_level)
        await self._give_back(delay_level, None)

    async def reject(self) -> None:
        """Give it up: it goes to the group's dead letters, the topic `%DLQ%` plus the group's name.

        ::

            await message.reject()
        """
        self._consumption.check_here()
        self._leave_hand("reject")
        await self._consumption.send_back(self, GIVE_UP_LEVEL)

    async def reply(self, body: Buffer, *, properties: Mapping[str, str] | None = None) -> None:
        """Reply to a request: `Client.request` returns this to the sender.

        ::

            async for message in mq.consume("quotes", group="bank"):
                async with message:
                    await message.reply(b"1.0712", properties={"date": "2026-03-01"})

        It does not settle the message. If the sender is gone or no longer waits, it raises
        `RefusedError`.
        """
        await self._consumption.reply(self, body, properties)

    def taken(self) -> None:
        """Note that the consumer hands it out; only the consumer calls this."""
        self._is_in_hand = True

    async def _give_back(self, delay_level: int, error: Exception | None) -> None:
        self._consumption.check_here()
        self._leave_hand("retry", error)
        self._failures += 1  # Counts if it comes again here; elsewhere, the broker counts.
        await self._consumption.send_back(self, delay_level, error)

    def _leave_hand(self, how: Settled, error: Exception | None = None) -> None:
        self._check_in_hand()
        self._is_in_hand = False
        if self.watches:
            tell_each(self.watches, lambda watch: watch.ended(how, error))

    def _check_in_hand(self) -> None:
        if not self._is_in_hand:
            raise SettledError(f"{self!r} is already acknowledged or given back")


class Consumer:
    """An async iterator over the messages of a group; made by `Client.consume`.

    ::

        async for message in mq.consume("orders", group="billing", filter="paid || refunded"):
            async with message:
                ...

        async with mq.consume("orders", group="billing") as consumer:
            await consumer.run(handle, concurrency=20)

    It joins the group when the first message is asked for; any number of tasks may ask it for
    messages. It ends with `drain`, with its `async with` block, with the client, or when nothing
    refers to it any more, as after a `break` out of the loop above. Messages then in hand are
    delivered again, here or elsewhere.
    """

    def __init__(self, consumption: Consumption) -> None:
        self._consumption = consumption

    def __del__(self) -> None:
        # It is missing if __init__ failed.
        if consumption := getattr(self, "_consumption", None):
            consumption.abandon_soon()

    def __repr__(self) -> str:
        consumption = self._consumption
        topics = ", ".join(consumption.options.filters)
        return f"<Consumer of {topics} as {consumption.options.group!r}, {consumption.state.value}>"

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        return await self._consumption.next()

    async def __aenter__(self) -> Self:
        self._consumption.check_here()
        await self._consumption.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            await self.drain()
        else:
            await self._consumption.stop()

    @property
    def queues(self) -> list[Queue]:
        """The queues that are this member's current share of the group.

        ::

            print([str(queue) for queue in consumer.queues])
        """
        return self._consumption.member.queues

    @property
    def in_hand(self) -> int:
        """The number of messages that are handed out and not settled."""
        return self._consumption.delivery.in_hand

    async def run(
        self, handler: Callable[[Message], Awaitable[object]], *, concurrency: int = 20
    ) -> None:
        """Call a handler for each message, up to `concurrency` at a time, until the consumer ends.

        ::

            async def bill(message: Message) -> None:
                ...

            await mq.consume("orders", group="billing").run(bill, concurrency=50)

        A message is acknowledged when the handler returns, and given back when it raises.
        """
        check_whole("concurrency", concurrency, 1)
        delivery = self._consumption.delivery
        delivery.concurrency = max(delivery.concurrency, concurrency)
        self._consumption.check_here()
        await self._consumption.start()  # Here, as an error in the tasks would come in a group.
        is_async = True

        async def work() -> None:
            nonlocal is_async
            async for message in self:
                async with message:
                    handling: object = handler(message)
                    if isawaitable(handling):
                        await handling
                        continue
                    is_async = False  # Its work is done: failing here would have it done twice.
                if not is_async:
                    tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            for _ in range(concurrency):
                tasks.start_soon(work)
        if not is_async:
            raise UsageError(
                f"the handler {handler!r} is not an async function: write `async def`, or use"
                " SyncClient, whose `run` calls plain ones on threads"
            )

    async def drain(self, *, timeout: float | None = 30.0) -> bool:
        """Shut down gracefully: stop fetching, wait for messages in hand, commit, and leave.

        ::

            signal_came.wait()
            await consumer.drain()

        Iterations that wait for a message end. Returns whether all messages in hand were settled
        within `timeout` seconds; the others are delivered again, here or elsewhere.
        """
        self._consumption.check_here()
        return await self._consumption.drain(timeout)

    def pause(self) -> None:
        """Stop fetching until `resume`. Messages already fetched are still handed out.

        ::

            consumer.pause()
        """
        self._consumption.check_here()
        self._consumption.member.pause()

    def resume(self) -> None:
        """Fetch messages again.

        ::

            consumer.resume()
        """
        self._consumption.check_here()
        self._consumption.member.resume()
