"""The client without async: the same verbs, from any thread.

How it works. A background thread runs an event loop with a `Client` on it; each verb runs the async
verb there and waits. There is no second implementation and the signatures are the same, so the
documentation of `Client` applies here, without `await`.

The thread starts with the first verb. After a fork, the child does not have that thread: its first
verb starts another, with new connections, and leaves the parent's alone.
"""

from __future__ import annotations

import os
import threading
import weakref
from functools import partial, wraps
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Self, TypeVar

import anyio

from cometmq.client._background import Background
from cometmq.client.admin import Admin
from cometmq.client.client import Client
from cometmq.client.errors import ClosedError, UsageError
from cometmq.client.sync_consumer import SyncConsumer
from cometmq.client.sync_kinds import SyncDeadLetters, SyncTransactionAdmin
from cometmq.client.sync_verbs import SyncReader, SyncTransaction

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from types import TracebackType

    from cometmq.client.config import ClientConfig
    from cometmq.client.messages import ReceivedMessage
    from cometmq.client.transaction import Decision

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")

_inherited: Final[list[object]] = []
"""The parent's loops, in a child: kept alive, as their destruction would affect the parent."""


def _verb(
    verb: Callable[Concatenate[Client, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[SyncClient, P], R]:
    """Make the sync verb of an async one."""

    @wraps(verb)
    def call(self: SyncClient, /, *args: P.args, **kwargs: P.kwargs) -> R:
        background = self.background()
        return background.run(verb(background.client, *args, **kwargs))

    return call


def _making(
    verb: Callable[Concatenate[Client, P], R], twin: Callable[[R, Background], S]
) -> Callable[Concatenate[SyncClient, P], S]:
    """Make the sync verb of one that returns an object with a sync twin."""

    @wraps(verb)
    def call(self: SyncClient, /, *args: P.args, **kwargs: P.kwargs) -> S:
        background = self.background()

        async def make() -> R:
            return verb(background.client, *args, **kwargs)

        return twin(background.run(make()), background)

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


def _answer_with(client: Client, check: Callable[[ReceivedMessage], Decision]) -> None:
    """Have a client answer a broker's questions with a sync function."""

    async def answer(message: ReceivedMessage) -> Decision:
        return await anyio.to_thread.run_sync(check, message)

    client.on_transaction_check(answer)


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
    groups = _admin_verb(Admin.groups)
    create_group = _admin_verb(Admin.create_group)
    delete_group = _admin_verb(Admin.delete_group)
    group_members = _admin_verb(Admin.group_members)
    group_progress = _admin_verb(Admin.group_progress)
    reset_offsets = _admin_verb(Admin.reset_offsets)
    set_offset = _admin_verb(Admin.set_offset)
    settings = _admin_verb(Admin.settings)
    change_settings = _admin_verb(Admin.change_settings)
    message = _admin_verb(Admin.message)
    find_messages = _admin_verb(Admin.find_messages)
    message_trace = _admin_verb(Admin.message_trace)

    @property
    def dead_letters(self) -> SyncDeadLetters:
        """The calls about dead letters; see `DeadLetters`.

        ::

            mq.admin.dead_letters.redrive("billing")
        """
        return SyncDeadLetters(self.background)

    @property
    def transactions(self) -> SyncTransactionAdmin:
        """The calls about undecided transactions; see `TransactionAdmin`.

        ::

            stuck = mq.admin.transactions.pending()
        """
        return SyncTransactionAdmin(self.background)


class SyncClient:
    """A client for programs without async: the same verbs as `Client`, from any thread.

    ::

        with SyncClient("127.0.0.1:9876") as mq:
            receipt = mq.send("orders", b"...", key="o-17", tag="paid")
            for message in mq.consume("orders", group="billing"):
                with message:
                    print(message.body)

    Without `with`, it opens with the first verb, and `close` ends it. One per process is enough:
    the verbs of many threads are pipelined over one connection to each broker. It may be created
    before a fork, but create consumers after it.
    """

    def __init__(
        self, nameservers: str | Sequence[str] | None = None, config: ClientConfig | None = None
    ) -> None:
        self._arguments = (nameservers, config)
        self._repr = repr(Client(nameservers, config))  # Raises now if they are wrong.
        self._lock = threading.Lock()
        self._background: Background | None = None
        self._is_closed = False
        self._check: Callable[[ReceivedMessage], Decision] | None = None
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
        """Close all connections and end the background thread; a second call does nothing.

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
    request = _verb(Client.request)
    queues = _verb(Client.queues)
    first_offset = _verb(Client.first_offset)
    end_offset = _verb(Client.end_offset)
    offset_at = _verb(Client.offset_at)
    committed = _verb(Client.committed)
    commit = _verb(Client.commit)
    pull = _verb(Client.pull)
    consume = _making(Client.consume, SyncConsumer)
    reader = _making(Client.reader, SyncReader)
    transaction = _making(Client.transaction, SyncTransaction)

    def on_transaction_check(self, check: Callable[[ReceivedMessage], Decision]) -> None:
        """Set the function that decides transactions; see `Client.on_transaction_check`.

        ::

            mq.on_transaction_check(lambda message: "commit" if paid(message.key) else "rollback")

        It is called on a separate thread. Set it before the first transaction; a child inherits it
        after a fork.
        """
        if iscoroutinefunction(check):
            raise UsageError(
                f"check={check!r}: must be a plain function (`def`), not an async function"
            )
        self._check = check
        background = self.background()
        background.call_soon(partial(_answer_with, background.client, check))

    def background(self) -> Background:
        """Return the background thread, and start it if necessary."""
        background = self._background
        if background is None:
            with self._lock:
                if self._is_closed:
                    raise ClosedError("the client is closed: make another one")
                background = self._background
                if background is None:
                    background = Background(Client(*self._arguments))
                    background.start()
                    if self._check is not None:
                        background.call_soon(partial(_answer_with, background.client, self._check))
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
        """Let go of the parent's thread and lock in a child; the fork itself calls this."""
        _inherited.append(self._background)
        self._background = None
        self._lock = threading.Lock()


_clients: Final[weakref.WeakSet[SyncClient]] = weakref.WeakSet()


def _forked() -> None:
    for client in _clients:
        client.forget_the_parents()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
