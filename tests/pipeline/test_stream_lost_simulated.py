"""Streams with filters, and of queues that lose the end of their log.

Whatever happens, each message that passes the filter is read once, those of a queue in order, or is
told as lost. A queue that ends before the point up to which it was read is a loss, and is read from
its beginning; no other queue is. If it has as many messages again before a stream looks, nobody can
tell: it is read on from where it was.

`SIMULATED_SEEDS=1000..9000 pytest tests/pipeline/test_stream_lost_simulated.py` plays these.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

from tests.client.simulated_run import seeds_of
from tests.pipeline.simulated import World, of_all
from tests.pipeline.simulated_query import Query, simulate
from tests.pipeline.test_batches_lost_simulated import FILTERS
from tests.pipeline.test_stream_simulated import play

if TYPE_CHECKING:
    from collections import Counter

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]

SEEDS: Final = 60


def test_what_passes_a_filter_is_read_once() -> None:
    seeds = seeds_of(SEEDS)
    ends = of_all(seeds, filtered)
    assert ends["stopped"] > len(seeds), ends
    assert ends["lost"] > len(seeds) // 4, ends


def test_a_queue_that_lost_its_end_is_read_from_its_beginning() -> None:
    seeds = seeds_of(SEEDS)
    ends = of_all(seeds, ending)
    assert ends["stopped"] > len(seeds), ends
    assert ends["ends lost"] > len(seeds), ends
    assert ends["DataLossError"] > len(seeds) // 8, ends


def filtered(seed: int, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Run a query with a filter; return how its runs ended."""
    random.seed(seed)
    world = World(seed)
    query = Query(world, simulate(world, monkeypatch))
    query.options |= world.random.choice(FILTERS[1:])
    return play(query, monkeypatch)


def ending(seed: int, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Run a query of queues that lose their ends; return how its runs ended."""
    random.seed(seed)
    world = World(seed)
    world.keeps_first = seed % 2 == 0
    world.small = (*world.small, world.lose_end)
    query = Query(world, simulate(world, monkeypatch))
    query.options |= world.random.choice(FILTERS)
    ends = play(query, monkeypatch)
    ends["ends lost"] = sum(each.ends_lost for each in world.lives)
    return ends
