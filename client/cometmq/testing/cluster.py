"""A name server, a broker and a client, for the duration of a test."""

from __future__ import annotations

import asyncio
import time
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Self, TypeVar

import anyio
import anyio.to_thread

from cometmq.client import Client, NotFoundError, SyncClient, UsageError
from cometmq.client._core.checking import check_seconds, check_whole
from cometmq.client._core.names import check_group, dead_letter_topic
from cometmq.client._runtime import in_trio_task
from cometmq.testing.clock import JumpingClock
from cometmq.testing.servers import NOT_RUNNING, Servers

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import TracebackType

    from cometmq.client import Queue, ReceivedMessage, SyncAdmin

P = ParamSpec("P")
R = TypeVar("R")

_LOOK_SECONDS: Final = 0.005
TIMEOUT: Final = 5.0


class MissingMessagesError(AssertionError):
    """Fewer messages arrived in time than a test waits for; the text lists those that did."""


def _verb(
    verb: Callable[Concatenate[Client, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Cluster, P], R]:
    """Make the cluster's verb of a client's."""

    @wraps(verb)
    def call(self: Cluster, /, *args: P.args, **kwargs: P.kwargs) -> R:
        background = self.client.background()
        return background.run(verb(background.client, *args, **kwargs))

    return call


def _in_thread(
    verb: Callable[Concatenate[Cluster, P], R],
) -> Callable[Concatenate[AsyncCluster, P], Coroutine[Any, Any, R]]:
    """Make the async verb of a sync one, which waits in a thread."""

    @wraps(verb)
    async def call(self: AsyncCluster, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await anyio.to_thread.run_sync(
            lambda: verb(self.cluster, *args, **kwargs), abandon_on_cancel=True
        )

    return call


class Cluster:
    """A name server and a broker in this process: the value of the fixture `rocketmq`.

    ::

        with Cluster() as rocketmq:
            rocketmq.send("orders", b"o-17")
            assert rocketmq.sent("orders", count=1)[0].body == b"o-17"

    It uses real sockets on free ports, and a store in a temporary folder that is removed at the
    end. Clients in any language connect to `nameserver`. `settings` are the broker's, as for
    `cometmq up --set`; by default, sends are acknowledged before they are synced to the disk.

    In an async test, use `aio` for the verbs that wait.
    """

    def __init__(self, **settings: object) -> None:
        self._servers = Servers(settings)
        self._client: SyncClient | None = None
        self._clock = JumpingClock(self._servers)

    def __repr__(self) -> str:
        return f"<Cluster {self.nameserver}>" if self._client else "<Cluster, not running>"

    def start(self) -> None:
        """Start both; `with` calls it.

        ::

            rocketmq.start()
        """
        self._servers.start()
        self._client = SyncClient(self.nameserver)

    def stop(self) -> None:
        """Stop both, and remove the store; `with` calls it.

        ::

            rocketmq.stop()
        """
        if self._client is not None:
            self._client.close()
        self._servers.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def nameserver(self) -> str:
        """The address that clients connect to.

        ::

            monkeypatch.setenv("NAMESRV_ADDR", rocketmq.nameserver)
        """
        return str(self._servers.nameserver)

    @property
    def broker(self) -> str:
        """The address of the broker; clients find it by themselves.

        ::

            host, port = rocketmq.broker.split(":")
        """
        return str(self._servers.broker)

    @property
    def clock(self) -> JumpingClock:
        """The broker's clock.

        ::

            rocketmq.clock.jump(3600)
        """
        return self._clock

    @property
    def client(self) -> SyncClient:
        """A client of this cluster, for everything that has no verb here.

        ::

            rocketmq.client.send_batch("orders", [b"one", b"two"])
        """
        if self._client is None:
            raise UsageError(NOT_RUNNING)
        return self._client

    @property
    def admin(self) -> SyncAdmin:
        """The administrative calls; see `cometmq.client.Admin`.

        ::

            rocketmq.admin.create_topic("orders", queues=1)
        """
        return self.client.admin

    @property
    def aio(self) -> AsyncCluster:
        """The same verbs for async tests.

        ::

            await rocketmq.aio.sent("refunds", count=1)
        """
        return AsyncCluster(self)

    send = _verb(Client.send)

    def sent(
        self, topic: str, *, count: int = 0, timeout: float = TIMEOUT
    ) -> list[ReceivedMessage]:
        """Return all messages of a topic, oldest first, once there are at least `count`.

        ::

            assert [each.body for each in rocketmq.sent("refunds", count=1)] == [b"o-17"]

        Without `count`, it returns at once. If there are fewer after `timeout` seconds, it raises
        `MissingMessagesError`, which pytest shows as a failed assertion. A delayed message counts
        once it is delivered, a transactional one once it is committed.
        """
        check_whole("count", count, 0)
        check_seconds("timeout", timeout)
        if count and _runs_a_loop():
            raise UsageError(
                "sent(count=...) would block the event loop that this test runs on, and with it"
                " whoever is to send: use `await rocketmq.aio.sent(...)`"
            )
        background = self.client.background()
        return background.run(_sent(background.client, topic, count, timeout))

    def dead_letters(
        self, group: str, *, count: int = 0, timeout: float = TIMEOUT
    ) -> list[ReceivedMessage]:
        """Return the messages that a consumer group has given up; it waits as `sent` does.

        ::

            assert not rocketmq.dead_letters("billing")
        """
        return self.sent(dead_letter_topic(check_group(group)), count=count, timeout=timeout)


class AsyncCluster:
    """The verbs of a `Cluster` that wait, for tests on asyncio or trio: `Cluster.aio`.

    ::

        async def test_refund(rocketmq: Cluster) -> None:
            await rocketmq.aio.send("orders", b"o-17")
            assert await rocketmq.aio.sent("refunds", count=1)
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    send = _in_thread(Cluster.send)
    sent = _in_thread(Cluster.sent)
    dead_letters = _in_thread(Cluster.dead_letters)


def _runs_a_loop() -> bool:
    if in_trio_task():
        return True
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _sent(client: Client, topic: str, count: int, timeout: float) -> list[ReceivedMessage]:
    """Poll, as a client that waits would have to wait at each queue."""
    deadline = time.monotonic() + timeout
    found: dict[Queue, list[ReceivedMessage]] = {}
    while True:
        await _read_on(client, topic, found)
        messages = sorted(
            (each for part in found.values() for each in part),
            key=lambda each: (each.stored_at, each.physical_offset),
        )
        if len(messages) >= count:
            return messages
        if time.monotonic() >= deadline:
            raise MissingMessagesError(
                f"{topic}: {len(messages)} of {count} messages within {timeout:g} s: {messages}"
            )
        await anyio.sleep(_LOOK_SECONDS)


async def _read_on(client: Client, topic: str, found: dict[Queue, list[ReceivedMessage]]) -> None:
    """Add the messages that arrived since the last call."""
    try:
        queues = await client.admin.topic_status(topic)
    except NotFoundError:
        return  # The first send creates it.
    for status in queues:
        known = found.setdefault(status.queue, [])
        offset = known[-1].offset + 1 if known else status.first_offset
        while offset < status.end_offset:
            pulled = await client.pull(status.queue, offset)
            known += pulled.messages
            if pulled.next_offset <= offset:
                break
            offset = pulled.next_offset
