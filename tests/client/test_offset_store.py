"""Where members begin in a queue, and what they commit, tested without a broker."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cometmq.client import ClientConfig, Queue, UnreachableError
from cometmq.client._core.process_queue import ProcessQueue
from cometmq.client._offset_store import AGAIN_MS, GroupOffsets, Places

QUEUE = Queue("orders", "b", 0)
END = 100


class Broker:
    """A broker that has an offset of the group, or none."""

    def __init__(self, offset: int | None) -> None:
        self.offset = offset
        self.commits: list[int] = []
        self.is_down = False

    async def committed(self, *_: object, **__: object) -> int | None:
        return self.offset

    async def end_offset(self, *_: object) -> int:
        return END

    async def commit(self, _: Queue, __: str, offset: int, ___: float) -> None:
        if self.is_down:
            raise UnreachableError("no broker")
        self.commits.append(offset)


def offsets_of(broker: Broker) -> GroupOffsets:
    parts = SimpleNamespace(config=ClientConfig(), reading=broker)
    return GroupOffsets(cast("Any", parts), cast("Any", SimpleNamespace(group="g", start="last")))


@pytest.mark.parametrize(("stored", "commits"), [(None, [END]), (0, [0]), (7, [])])
def test_where_a_group_begins_is_committed(stored: int | None, commits: list[int]) -> None:
    """Brokers say 0, too, while they have no offset: only as long as the first message is there."""
    broker = Broker(stored)
    assert asyncio.run(offsets_of(broker).first(QUEUE)) == (END if stored is None else stored)
    assert broker.commits == commits


def test_no_member_begins_where_the_next_one_would_not() -> None:
    broker = Broker(None)
    broker.is_down = True
    with pytest.raises(UnreachableError):
        asyncio.run(offsets_of(broker).first(QUEUE))


def test_what_has_not_changed_is_committed_again_each_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker that went down may have lost it."""
    clock_ms = 1_000_000
    monkeypatch.setattr("cometmq.client._offset_store.elapsed_ms", lambda: clock_ms)
    broker = Broker(7)
    offsets, process_queue = offsets_of(broker), ProcessQueue(QUEUE, 7)
    process_queue.committed_ms = clock_ms
    for passed_ms, commits in ((AGAIN_MS - 1, []), (1, [7]), (AGAIN_MS - 1, [7]), (1, [7, 7])):
        clock_ms += passed_ms
        asyncio.run(offsets.commit(process_queue))
        assert broker.commits == commits
    process_queue.next_offset = 9
    asyncio.run(offsets.commit(process_queue))
    assert broker.commits == [7, 7, 9]


def moved(broker: Broker, at: int, to: int) -> Places:
    """A member that was told to move its queue while the broker was away."""
    places = Places(offsets_of(broker))
    process_queue = ProcessQueue(QUEUE, at)
    broker.is_down = True
    asyncio.run(places.move({QUEUE: to}, {QUEUE: process_queue}))
    broker.is_down = False
    return places


def test_where_an_operator_wants_it_is_committed_when_the_broker_is_back() -> None:
    broker = Broker(7)
    places = moved(broker, at=7, to=3)
    assert asyncio.run(places.first(QUEUE)) == 3
    assert broker.commits == [3]
    assert asyncio.run(places.first(QUEUE)) == 7, "it began there, and went on"


def test_a_queue_with_which_another_member_went_on_meanwhile_is_not_moved() -> None:
    broker = Broker(50)
    assert asyncio.run(moved(broker, at=7, to=3).first(QUEUE)) == 50
    assert not broker.commits


def test_a_queue_that_another_member_gets_is_not_moved_when_it_comes_back() -> None:
    broker = Broker(7)
    places = moved(broker, at=7, to=3)
    places.keep("orders", ())
    assert asyncio.run(places.first(QUEUE)) == 7
    assert not broker.commits


def test_a_reset_that_comes_while_a_member_asks_where_to_begin_counts() -> None:
    class Late(Broker):
        async def committed(self, *_: object, **__: object) -> int | None:
            await places.move({QUEUE: 3}, {})
            return self.offset

    broker = Late(7)
    places = Places(offsets_of(broker))
    assert asyncio.run(places.first(QUEUE)) == 3
