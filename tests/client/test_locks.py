"""How long the lock of a queue counts, tested without a broker."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.client.running import PATIENCE_SECONDS

from cometmq.client import ClientConfig, DeadlineError, Queue, UnreachableError
from cometmq.client._core.routes import Route
from cometmq.client._locks import RENEW_SECONDS, VALID_MS, QueueLocks

if TYPE_CHECKING:
    from cometmq.client._runtime import Link
    from cometmq.proto.command import Command

ONE, TWO = Queue("orders", "b", 1), Queue("orders", "b", 2)


class Asked(QueueLocks):
    """Locks of which the test decides which are granted."""

    def __init__(self) -> None:
        super().__init__(cast("Any", None), "billing")
        self.grants: set[Queue] | None = {ONE, TWO}
        self.clock_ms = 1_000_000
        self.answer_takes_ms = 0
        self.meeting: asyncio.Barrier | None = None
        self.link: Any = SimpleNamespace(closed_because=None)

    async def _granted(self, broker: str, queues: list[Queue]) -> tuple[Link | None, set[Queue]]:
        assert {queue.broker for queue in queues} == {broker}
        if self.meeting is not None:
            await self.meeting.wait()
        self.clock_ms += self.answer_takes_ms
        if self.grants is None:
            raise UnreachableError("no broker")
        return self.link, self.grants & set(queues)

    async def _release_at(self, broker: str, queues: list[Queue]) -> None:
        """Succeed."""


@pytest.fixture
def locks(monkeypatch: pytest.MonkeyPatch) -> Asked:
    made = Asked()
    monkeypatch.setattr("cometmq.client._locks.elapsed_ms", lambda: made.clock_ms)
    return made


def test_a_lock_counts_for_thirty_seconds_from_when_it_was_asked_for(locks: Asked) -> None:
    """A broker keeps it twice as long, so that a member cut off stops before another begins."""
    locks.answer_takes_ms = 2_000
    assert asyncio.run(locks.acquire(ONE))
    locks.clock_ms += 27_999
    assert locks.holds(ONE)
    locks.clock_ms += 1
    assert not locks.holds(ONE)
    asyncio.run(locks.renew())
    assert locks.holds(ONE)
    locks.grants = None  # A failed renewal changes nothing.
    locks.clock_ms += 27_999 - 2_000
    asyncio.run(locks.renew())
    assert locks.holds(ONE)
    locks.clock_ms += 1
    assert not locks.holds(ONE)


def test_a_lock_ends_with_the_connection_over_which_it_was_confirmed(locks: Asked) -> None:
    """The broker may be letting another in already."""
    assert asyncio.run(locks.acquire(ONE))
    locks.link.closed_because = "reset by the peer"
    assert not locks.holds(ONE)
    locks.link = SimpleNamespace(closed_because=None)
    assert not locks.holds(ONE)
    asyncio.run(locks.renew())
    assert locks.holds(ONE)
    locks.link = None  # It ended just after the answer.
    asyncio.run(locks.renew())
    assert not locks.holds(ONE)


def test_a_lock_that_another_has_by_now_is_lost_at_once(locks: Asked) -> None:
    for queue in (ONE, TWO):
        assert asyncio.run(locks.acquire(queue))
    locks.grants = {TWO}
    asyncio.run(locks.renew())
    assert (locks.holds(ONE), locks.holds(TWO)) == (False, True)
    assert locks.of_topic("orders") == [TWO]
    locks.grants = set()
    assert not asyncio.run(locks.acquire(TWO))
    assert not locks.holds(TWO)


def test_a_lock_counts_for_nothing_until_it_is_granted_but_is_given_back(locks: Asked) -> None:
    locks.grants = None
    with pytest.raises(UnreachableError):
        asyncio.run(locks.acquire(ONE))
    assert not locks.holds(ONE)
    assert locks.of_topic("orders") == [ONE]
    locks.grants = {ONE}
    asyncio.run(locks.renew())
    assert locks.holds(ONE)


def test_locks_are_renewed_at_all_brokers_at_once(locks: Asked) -> None:
    """A broker that is slow to answer must not cost a member its locks at the others."""
    elsewhere = Queue("orders", "c", 0)
    locks.grants = {ONE, elsewhere}

    async def renew() -> None:
        for queue in (ONE, elsewhere):
            assert await locks.acquire(queue)
        locks.clock_ms += 20_000
        locks.meeting = asyncio.Barrier(2)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await locks.renew()

    asyncio.run(renew())
    locks.clock_ms += 20_000
    assert locks.holds(ONE)
    assert locks.holds(elsewhere)


def test_locks_that_are_given_back_as_their_renewal_begins_are_not_renewed(locks: Asked) -> None:
    async def give_back_first() -> None:
        assert await locks.acquire(ONE)
        renewal = asyncio.create_task(locks.renew())
        await asyncio.sleep(0)
        await locks.release([ONE])
        await renewal

    asyncio.run(give_back_first())
    assert locks.of_topic("orders") == []


@pytest.mark.parametrize(("timeout", "waits"), [(60.0, 4.0), (2.0, 2.0)])
def test_a_lock_is_not_waited_for_until_those_of_other_brokers_end(
    timeout: float, waits: float
) -> None:
    """They are renewed every 20 s, count for 30 s, and wait for a route and for an answer."""
    asked: list[float] = []

    class Silent:
        config = ClientConfig(timeout=timeout)
        identity = SimpleNamespace(client_id="c")

        @property
        def routes(self) -> Silent:
            return self

        @property
        def connections(self) -> Silent:
            return self

        async def get(self, topic: str, **how: float) -> Route:
            asked.append(how["timeout"])
            return Route(topic, (), (), {"b": {0: "127.0.0.1:1"}})

        async def call(self, address: str, _: Command, **how: float) -> Command:
            asked.append(how["timeout"])
            raise DeadlineError(address)

    locks = QueueLocks(cast("Any", Silent()), "billing")
    with pytest.raises(DeadlineError):
        asyncio.run(locks.acquire(ONE))
    assert asked == [waits, waits]
    asyncio.run(locks.release_all())
    assert asked == [waits] * 4
    assert RENEW_SECONDS + 2 * max(asked) < VALID_MS / 1000
