"""The client without async: the same verbs, from any thread.

How it works. One thread in the background runs an event loop with a `Client` on it; a verb runs the
async verb there and waits. There is no second implementation, and signatures are taken over, so the
documentation of `Client` holds here without its `await`.

The thread starts with the first verb. After a fork the child has no such thread: its first verb
starts another, with connections of its own, and the parent's are left alone.
"""

from __future__ import annotations

import os
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Self, TypeVar

from cometmq.client._background import Background
from cometmq.client.admin import Admin
from cometmq.client.client import Client
from cometmq.client.errors import ClosedError, SettledError, UsageError
from cometmq.client.messages import ReceivedMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from types import TracebackType

    from cometmq.client._core.queues import Queue
    from cometmq.client.config import ClientConfig
    from cometmq.client.consumer import Consumer, Message

P = ParamSpec("P")
R = TypeVar("R")

_inherited: Final[list[object]] = []
"""The parent's loops, in a child: kept, for their end would reach into what the parent uses."""


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
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if self._is_settled:
            return False
        if error is None:
            self.ack()
            return False
        self._settle()
        return self._background.run(self._message.__aexit__(kind, error, traceback))

    @property
    def attempt(self) -> int:
        """Which delivery to this group it is: 1, or more when it comes again."""
        return self._message.attempt

    def ack(self) -> None:
        """Say that it is done with: it does not come again.

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
        self._settle()
        self._background.run(self._message.retry(delay_level=delay_level))

    def reject(self) -> None:
        """Give it up: it goes to the group's dead letters.

        ::

            message.reject()
        """
        self._settle()
        self._background.run(self._message.reject())

    def _settle(self) -> None:
        if self._is_settled:
            raise SettledError(f"{self!r} is acknowledged or given back already")
        self._is_settled = True


class SyncConsumer:
    """The messages of a group, one after the other, for any number of threads; see `Consumer`.

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
        """The queues that are this member's share at the moment.

        ::

            print([str(queue) for queue in consumer.queues])
        """
        return self._consumer.queues

    @property
    def in_hand(self) -> int:
        """How many messages are handed out and not settled."""
        return self._consumer.in_hand

    def run(self, handler: Callable[[SyncMessage], object], *, threads: int = 8) -> None:
        """Call a handler for each message, on so many threads, until the consumer ends.

        ::

            mq.consume("orders", group="billing").run(bill, threads=8)
        """
        if threads < 1:
            raise UsageError(f"threads={threads}: at least 1")

        def work() -> None:
            for message in self:
                with message:
                    handler(message)

        with ThreadPoolExecutor(threads, thread_name_prefix="cometmq-handler") as pool:
            for done in [pool.submit(work) for _ in range(threads)]:
                done.result()

    def drain(self, *, timeout: float | None = 30.0) -> bool:
        """End in peace; see `Consumer.drain`. From a signal handler, call it on a thread.

        ::

            threading.Thread(target=consumer.drain).start()
        """
        return self._background.run(self._consumer.drain(timeout=timeout))

    def pause(self) -> None:
        """Fetch no more messages until `resume`.

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


def _verb(
    verb: Callable[Concatenate[Client, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[SyncClient, P], R]:
    """Make the sync verb of an async one."""

    @wraps(verb)
    def call(self: SyncClient, /, *args: P.args, **kwargs: P.kwargs) -> R:
        background = self.background()
        return background.run(verb(background.client, *args, **kwargs))

    return call


def _consuming(
    verb: Callable[Concatenate[Client, P], Consumer],
) -> Callable[Concatenate[SyncClient, P], SyncConsumer]:
    """Make the sync `consume` of the async one."""

    @wraps(verb)
    def call(self: SyncClient, /, *args: P.args, **kwargs: P.kwargs) -> SyncConsumer:
        background = self.background()

        async def make() -> Consumer:
            return verb(background.client, *args, **kwargs)

        return SyncConsumer(background.run(make()), background)

    return call


def _admin_verb(
    verb: Callable[Concatenate[Admin, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[SyncAdmin, P], R]:
    """Make the sync administrative verb of an async one."""

    @wraps(verb)
    def call(self: SyncAdmin, /, *args: P.args, **kwargs: P.kwargs) -> R:
        background = self.background()
        return background.run(verb(background.client.admin, *args, **kwargs))

    return call


class SyncAdmin:
    """The administrative calls of a `SyncClient`; see `Admin`.

    ::

        print([topic.name for topic in mq.admin.topics()])
    """

    def __init__(self, background: Callable[[], Background]) -> None:
        self.background = background

    brokers = _admin_verb(Admin.brokers)
    topics = _admin_verb(Admin.topics)
    route = _admin_verb(Admin.route)
    create_topic = _admin_verb(Admin.create_topic)
    delete_topic = _admin_verb(Admin.delete_topic)
    topic_status = _admin_verb(Admin.topic_status)


class SyncClient:
    """A client for programs without async: the same verbs as `Client`, from any thread.

    ::

        with SyncClient("127.0.0.1:9876") as mq:
            receipt = mq.send("orders", b"...", key="o-17", tag="paid")
            for message in mq.consume("orders", group="billing"):
                with message:
                    print(message.body)

    Without `with`, it opens itself with its first verb, and `close` ends it. One for a process is
    enough: verbs of many threads travel pipelined over one connection to each broker. It may be
    made before a fork; consumers are made after it.
    """

    def __init__(
        self, nameservers: str | Sequence[str] | None = None, config: ClientConfig | None = None
    ) -> None:
        self._arguments = (nameservers, config)
        self._repr = repr(Client(nameservers, config))  # What is wrong with them is said here.
        self._lock = threading.Lock()
        self._background: Background | None = None
        self._is_closed = False
        _clients.add(self)

    def __repr__(self) -> str:
        background = self._background
        shown = self._repr if background is None else repr(background.client)
        return f"<Sync{shown[1:]}"

    def __enter__(self) -> Self:
        self.background()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections and end the thread in the background; twice is fine.

        ::

            mq.close()
        """
        with self._lock:
            self._is_closed = True
            background, self._background = self._background, None
        if background is not None:
            background.close()

    send = _verb(Client.send)
    send_oneway = _verb(Client.send_oneway)
    send_batch = _verb(Client.send_batch)
    queues = _verb(Client.queues)
    first_offset = _verb(Client.first_offset)
    end_offset = _verb(Client.end_offset)
    offset_at = _verb(Client.offset_at)
    committed = _verb(Client.committed)
    commit = _verb(Client.commit)
    pull = _verb(Client.pull)
    consume = _consuming(Client.consume)

    def background(self) -> Background:
        """Return the thread in the background, started if it is not there."""
        background = self._background
        if background is None:
            with self._lock:
                if self._is_closed:
                    raise ClosedError("the client is closed")
                background = self._background
                if background is None:
                    background = Background(Client(*self._arguments))
                    background.start()
                    self._background = background
        return background

    @property
    def admin(self) -> SyncAdmin:
        """The administrative calls; see `Admin`.

        ::

            mq.admin.create_topic("orders")
        """
        return SyncAdmin(self.background)

    def forget_the_parents(self) -> None:
        """Let go of what is the parent's, in a child after a fork; called by the fork itself."""
        _inherited.append(self._background)
        self._background = None
        self._lock = threading.Lock()


_clients: Final[weakref.WeakSet[SyncClient]] = weakref.WeakSet()


def _forked() -> None:
    for client in _clients:
        client.forget_the_parents()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
