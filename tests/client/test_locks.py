"""How long the lock of a queue counts, tested without a broker."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from cometmq.client import Queue, UnreachableError
from cometmq.client._locks import QueueLocks

ONE, TWO = Queue("orders", "b", 1), Queue("orders", "b", 2)


class Asked(QueueLocks):
    """Locks of which the test decides which are granted."""

    def __init__(self) -> None:
        super().__init__(cast("Any", None), "billing")
        self.grants: set[Queue] | None = {ONE, TWO}
        self.clock_ms = 1_000_000
        self.answer_takes_ms = 0

    async def _granted(self, broker: str, queues: list[Queue]) -> set[Queue]:
        assert {queue.broker for queue in queues} == {broker}
        self.clock_ms += self.answer_takes_ms
        if self.grants is None:
            raise UnreachableError("no broker")
        return self.grants & set(queues)


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
