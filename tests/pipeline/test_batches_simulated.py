"""Batch reads, while a simulated cluster does what it may do.

Whatever happens, each message between the ends of a batch is read once, those of a queue in order,
or is told as lost, or the batch fails. Only queues of brokers that every name server that was asked
may have forgotten are left out without a word, unless they are named.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

from tests.pipeline.simulated import World, of_all
from tests.pipeline.simulated_query import (
    BODY,
    chosen_options,
    simulate,
    span_of,
    start_of,
)
from tests.pipeline.simulated_rows import rows_of

from cometmq.pipeline.errors import DataLossError, PipelineError
from cometmq.pipeline.options import read_options
from cometmq.pipeline.source import TopicReader

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.pipeline.simulated_servers import Life

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]

SEEDS: Final = 400


def test_a_batch_has_what_is_there_between_its_ends() -> None:
    ends = of_all(range(SEEDS), partial(read_once, moves=False))
    assert ends.keys() >= {"done", "ConnectionLostError", "DataLossError", "RefusedError"}
    assert ends["done"] > SEEDS // 2, ends
    assert ends["read"] > 2 * SEEDS, ends


def test_a_batch_leaves_out_only_brokers_that_were_forgotten_and_that_it_does_not_name() -> None:
    ends = of_all(range(SEEDS), partial(read_once, moves=True))
    assert ends.keys() >= {"done", "ConnectionLostError", "OptionError", "forgotten"}, ends
    assert ends["done"] > SEEDS // 2, ends


def read_once(seed: int, monkeypatch: pytest.MonkeyPatch, *, moves: bool) -> Counter[str]:
    """Read once, while messages come and expire, and servers go and come; return how it ended."""
    random.seed(seed)
    return Once(seed, monkeypatch, moves=moves).read()


class Once:
    """One batch read."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch, *, moves: bool) -> None:
        world = self.world = World(seed)
        self.told = simulate(world, monkeypatch)
        self.forgotten: set[str] = set()
        """The brokers that a name server did not know for a moment."""
        servers = (world.move, world.register) if moves else ()
        small = (world.send, world.send, world.expire, *servers)
        world.small = [partial(self._let, each) for each in small]
        options = self.options = chosen_options(world)
        stored = [at for each in world.lives for at in each.stored]
        if stored and world.random.random() < 0.3:
            options["endingTimestamp"] = str(world.random.choice(stored))
        if moves:
            for _ in range(3):
                self._let(world.random.choice(servers))
            topic, broker, number = world.random.choice(world.lives).queue
            if world.random.random() < 0.5:
                options.pop("startingTimestamp", None)
                options["startingOffsets"] = json.dumps({topic: {broker: {str(number): -2}}})

    def _let(self, happen: Callable[[], None]) -> None:
        happen()
        for server in self.world.nameservers.values():
            self.forgotten.update(self.world.brokers.keys() - server.known.keys())

    def read(self) -> Counter[str]:
        """Read, check what was read, and return how it ended."""
        world = self.world
        before = {each.number: span_of(world, each) for each in world.lives}
        try:
            reader = TopicReader(read_options(self.options), BODY)
            tasks = [each.value for each in reader.partitions()]
            after = {each.number: span_of(world, each) for each in world.lives}
            rows = rows_of(world, tasks, reader.executing.how)
        except PipelineError as error:
            if isinstance(error, DataLossError) and self.options["failOnDataLoss"] == "false":
                raise AssertionError(error) from error
            return Counter([type(error).__name__])
        planned = {part.queue[:2] for task in tasks for part in task}
        ends = Counter({"done": 1, "read": len(rows)})
        for life in world.lives:
            got = [offset for number, offset in rows if number == life.number]
            edges = [before[life.number], after[life.number]]
            starts = [start_of(world, self.options, life.queue, each) for each in edges]
            stops = [end_of(self.options, each) for each in edges]
            case = f"{life}: {got}, but from {starts} to {stops}"
            assert got == sorted({*got}), case
            assert all(min(starts) <= each < max(stops) for each in got), case
            missing = {*range(max(starts), min(stops))} - {*got}
            if missing and read_options(self.options).reads(life.queue.topic):
                is_planned = life.queue[:2] in planned
                ends["forgotten"] += self._may_lack(life, missing, case, is_planned=is_planned)
        return ends

    def _may_lack(self, life: Life, missing: set[int], case: str, *, is_planned: bool) -> bool:
        """Check that it is told why messages are missing, or that their broker was forgotten."""
        topic, broker, _ = life.queue
        if broker in self.forgotten and not is_planned:
            named = self.options.get("startingOffsets", "")
            assert not (f'"{topic}"' in named and f'"{broker}"' in named), case
            return True
        assert self.options["failOnDataLoss"] == "false", case
        assert max(missing) < life.first, case
        assert any(f"data loss: queue {life.queue}: " in each for each in self.told.texts), case
        return False


def end_of(options: dict[str, str], span: tuple[int, int, list[int]]) -> int:
    """Return where a batch ends in a queue that has this at the moment."""
    first, end, stored = span
    until = options.get("endingTimestamp")
    return min(max(sum(at < int(until) for at in stored), first), end) if until else end
