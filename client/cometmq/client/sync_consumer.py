"""Consuming without async: the consumer of `SyncClient.consume` and its messages."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from inspect import iscoroutine, iscoroutinefunction
from typing import TYPE_CHECKING, Self

from cometmq.client._core.checking import check_whole
from cometmq.client._core.outgoing import check_retry_level
from cometmq.client.errors import ClientError, SettledError, UsageError
from cometmq.client.messages import ReceivedMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from cometmq.client._background import Background
    from cometmq.client._core.queues import Queue
    from cometmq.client.consumer import Consumer, Message
    from cometmq.proto.buffer import Buffer


class SyncMessage(ReceivedMessage):
    """A message from `SyncClient.consume`; see `Message`.

    ::

        for message in mq.consume("orders", group="billing"):
            with message:
                bill(message.body)
    """

    __slots__ = ("_background", "_is_settled", "_message")

    def __init__(self, message: Message, background: Background) -> None:
        self.copy_from(message)
        self._message = message
        self._background = background
        self._is_settled = False

    def __enter__(self) -> Self:
        self._check_unsettled()
        self._message.tell_entered()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        self._message.tell_left()
        if self._is_settled:
            return False
        if error is None:
            self.ack()
            return False
        self._settle()
        return self._background.run(self._message.end_block(error))

    @property
    def attempt(self) -> int:
        """The number of this delivery to the group: 1, or more for a redelivery."""
        return self._message.attempt

    def ack(self) -> None:
        """Acknowledge it: it is not delivered again.

        ::

            message.ack()
        """
        self._settle()
        self._background.call_soon(self._message.ack)

    def retry(self, *, delay_level: int = 0) -> None:
        """Give it back, to be delivered again later; see `Message.retry`.

        ::

            message.retry(delay_level=5)  # in a minute
        """
        self._check_unsettled()
        check_retry_level(delay_level)  # Before it is settled: a wrong level changes nothing.
        self._settle()
        self._background.run(self._message.retry(delay_level=delay_level))

    def reject(self) -> None:
        """Give it up: it goes to the group's dead letters.

        ::

            message.reject()
        """
        self._settle()
        self._background.run(self._message.reject())

    def reply(self, body: Buffer, *, properties: Mapping[str, str] | None = None) -> None:
        """Reply to a request; see `Message.reply`.

        ::

            message.reply(b"1.0712")
        """
        self._background.run(self._message.reply(body, properties=properties))

    def _settle(self) -> None:
        self._check_unsettled()
        self._is_settled = True

    def _check_unsettled(self) -> None:
        if self._is_settled:
            raise SettledError(f"{self!r} is already acknowledged or given back")


def _async_handler(handler: object) -> UsageError:
    return UsageError(
        f"the handler {handler!r} is an async function, which nothing would await here: write"
        " `def`, or use Client, whose `run` awaits it"
    )


class SyncConsumer:
    """An iterator over the messages of a group, for any number of threads; see `Consumer`.

    ::

        with mq.consume("orders", group="billing") as consumer:
            for message in consumer:
                with message:
                    ...
    """

    def __init__(self, consumer: Consumer, background: Background) -> None:
        self._consumer = consumer
        self._background = background

    def __repr__(self) -> str:
        return f"<Sync{repr(self._consumer)[1:]}"

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> SyncMessage:
        message = self._background.run(self._next())
        if message is None:
            raise StopIteration
        return SyncMessage(message, self._background)

    def __enter__(self) -> Self:
        self._background.run(self._consumer.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._background.run(self._consumer.__aexit__(kind, error, traceback))

    @property
    def queues(self) -> list[Queue]:
        """The queues that are this member's current share of the group.

        ::

            print([str(queue) for queue in consumer.queues])
        """
        return self._consumer.queues

    @property
    def in_hand(self) -> int:
        """The number of messages that are handed out and not settled."""
        return self._consumer.in_hand

    def run(self, handler: Callable[[SyncMessage], object], *, threads: int = 8) -> None:
        """Call a handler for each message, on `threads` threads, until the consumer ends.

        ::

            mq.consume("orders", group="billing").run(bill, threads=8)

        Ctrl-C first drains the consumer, and propagates when the messages in hand are settled. With
        ``on_error="raise"``, so does an exception of a handler.
        """
        check_whole("threads", threads, 1)
        if iscoroutinefunction(handler):
            raise _async_handler(handler)

        def work() -> None:
            for message in self:
                misuse: UsageError | None = None
                with message:
                    handled = handler(message)
                    if iscoroutine(handled):  # From a lambda, say. It has not begun to run.
                        handled.close()
                        misuse = _async_handler(handler)
                        raise misuse
                if misuse is not None:
                    raise misuse

        with ThreadPoolExecutor(threads, thread_name_prefix="cometmq-handler") as pool:
            try:
                for done in as_completed([pool.submit(work) for _ in range(threads)]):
                    done.result()
            except BaseException:
                with suppress(ClientError):  # That error may be why it ended.
                    self.drain()  # Otherwise the threads would go on waiting for messages.
                raise

    def drain(self, *, timeout: float | None = 30.0) -> bool:
        """Shut down gracefully; see `Consumer.drain`. In a signal handler, call it on a thread.

        ::

            threading.Thread(target=consumer.drain).start()
        """
        return self._background.run(self._consumer.drain(timeout=timeout))

    def pause(self) -> None:
        """Stop fetching messages until `resume`.

        ::

            consumer.pause()
        """
        self._background.call_soon(self._consumer.pause)

    def resume(self) -> None:
        """Fetch messages again.

        ::

            consumer.resume()
        """
        self._background.call_soon(self._consumer.resume)

    async def _next(self) -> Message | None:
        try:
            return await anext(self._consumer)
        except StopAsyncIteration:
            return None
