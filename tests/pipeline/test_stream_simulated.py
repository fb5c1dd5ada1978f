"""Streams, while a simulated cluster and Spark do what they may do.

Whatever happens, each message is read once, those of a queue in order, or is told as lost.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import TYPE_CHECKING, Final

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

from tests.pipeline.simulated import World, of_all
from tests.pipeline.simulated_query import (
    KilledError,
    Query,
    forget,
    simulate,
)

from cometmq.pipeline.errors import DataLossError, OptionError, PipelineError

if TYPE_CHECKING:
    from tests.pipeline.simulated_servers import Life

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]

SEEDS: Final = 100
LAST: Final = 4
"""How often a query is started at the end, when all servers are there."""


@pytest.mark.parametrize("block", range(3))
def test_nothing_of_a_stream_is_lost_or_read_twice(block: int) -> None:
    ends = of_all(range(block * SEEDS, (block + 1) * SEEDS), stream)
    assert ends.keys() >= {
        *("available now", "stopped", "repeated", "deleted", "lives"),
        *("KilledError", "ConnectionLostError", "DataLossError", "RefusedError"),
    }
    assert ends["stopped"] > 2 * SEEDS, ends
    assert ends["read"] > 10 * SEEDS, ends
    assert ends["lost"] > SEEDS // 4, ends


def stream(seed: int, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Run a query as a seed has it; return how its runs ended."""
    random.seed(seed)
    world = World(seed)
    return play(Query(world, simulate(world, monkeypatch)), monkeypatch)


def play(query: Query, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Run a query again and again; return how its runs ended."""
    world = query.world
    for _ in range(world.random.randrange(1, 8)):
        run(query, monkeypatch, world.random.randrange(1, 6))
        world.changes()
    world.heals()
    there = sum(len(each.stored) for each in world.lives)
    is_done = [run(query, monkeypatch, there + 20) for _ in range(LAST)]
    assert is_done[-1] or not query.offsets, query.ends
    lives = [each for each in world.lives if query.reads(each.queue.topic)]
    query.ends["read"] = sum(each.reached - (each.known_from or 0) for each in lives)
    query.ends["lost"] = sum(each.skipped for each in lives)
    query.ends["lives"] = sum(not each.is_first and each.reached > 0 for each in lives)
    return query.ends


def run(query: Query, monkeypatch: pytest.MonkeyPatch, triggers: int) -> bool:
    """Run a query in a process of its own; return whether it came to its end."""
    world = query.world
    forget(monkeypatch)
    available_now = world.random.random() < 0.3
    try:
        query.run(1000 if available_now else triggers, available_now=available_now)
    except (KilledError, PipelineError) as error:
        query.ends[type(error).__name__] += 1
        query.told.texts.append(str(error))
        check_end(query, error)
        return False
    query.ends["available now" if available_now else "stopped"] += 1
    if world.is_quiet:
        look(query)
    return True


def check_end(query: Query, error: Exception) -> None:
    """Check an error that ends a run; after a loss, have the query go on all the same."""
    if isinstance(error, DataLossError):
        assert query.is_strict
        query.options["failOnDataLoss"] = "false"
    elif query.world.is_quiet:
        # What is at the start of a new query may be gone: its topic, or the group's offsets.
        assert isinstance(error, OptionError), f"at last: {error}"
        assert not query.offsets, f"at last: {error}"


def look(query: Query) -> None:
    """Check that a query, which has come to its end, has read all or told what it lost."""
    readable = {each.number for each in query.world.readable()}
    lives = [each for each in query.world.lives if query.reads(each.queue.topic)]
    for life in lives:
        if life.number in readable:
            if life.reached > len(life.stored):
                assert any(tells(text, life) for text in query.told.texts), f"nothing said: {life}"
            if life.known_from is not None or life.first < len(life.stored):
                query.pass_over(life, len(life.stored))
        elif (
            life.died
            and not life.ends_lost
            and life.known_from is not None
            and life.reached < life.noted
        ):
            assert any(tells(text, life) for text in query.told.texts), f"nothing said of {life}"
    if any(each.ends_lost for each in lives):
        return  # What is lost with them is told, but nobody counts it.
    unread = sum(len(e.stored) - e.reached for e in lives if e.number not in readable)
    skipped = sum(each.skipped for each in lives)
    lost = json.loads(query.offsets[-1]).get("lost", 0)
    case = f"{lost} and {query.told.lost} told as lost, {skipped} skipped, {unread} not there"
    assert lost <= skipped + unread, case
    # What is lost with a queue that a topic no longer has is told, but nobody counts it.
    if not any(each.endswith("fewer queues now") for each in query.told.texts):
        assert skipped <= lost + query.told.lost, case
    if query.ends.keys() <= {"stopped", "available now"} and not unread:
        assert lost + query.left == skipped, case


def tells(text: str, life: Life) -> bool:
    """Whether a text says that messages of a queue are not read."""
    topic, broker, _ = life.queue
    said = (
        f"topic {topic} no longer exists",
        f"topic {topic} of broker {broker} was deleted and recreated",
        f"not read: queue {life.queue}: its broker does not allow it",
        f"queue {life.queue}: was read up to",
        f"queue {life.queue}: messages",
    )
    return any(each in text for each in said)
