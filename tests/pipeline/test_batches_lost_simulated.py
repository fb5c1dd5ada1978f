"""Batch reads, while topics are deleted and recreated, and queues lose their beginnings and ends.

Whatever happens, a batch that ends well with `failOnDataLoss=true` has each offset that was planned
once, in order. With `false` the log names each offset that is missing. Nobody speaks of a loss in a
queue to which nothing happened, and such a queue is planned from where to where the options say. A
topic that is recreated while it is read is not noticed (see the roadmap): its messages are then
those of either life.

`SIMULATED_SEEDS=1000..9000 pytest tests/pipeline/test_batches_lost_simulated.py` plays these.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from typing import TYPE_CHECKING, Final

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

from tests.client.simulated_run import seeds_of
from tests.pipeline.simulated import World, of_all
from tests.pipeline.simulated_query import (
    BODY,
    chosen_options,
    simulate,
    span_of,
    start_of,
)
from tests.pipeline.simulated_rows import rows_of
from tests.pipeline.simulated_servers import FORBIDDEN

from cometmq.pipeline.errors import DataLossError, OptionError, PipelineError, RefusedError
from cometmq.pipeline.options import read_options
from cometmq.pipeline.source import TopicReader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cometmq.pipeline.cluster import Queue
    from cometmq.pipeline.planning import Range

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]

SEEDS: Final = 800
FILTERS: Final[tuple[dict[str, str], ...]] = ({}, {"tags": "paid"}, {"sqlFilter": "amount > 100"})
_QUEUE: Final = re.compile(r"queue (\S+/\S+/\d+)")
_EXPIRED: Final = re.compile(r"data loss: queue (\S+): messages from (\d+) to (\d+) expired")
_NOT_THERE: Final = re.compile(
    r"data loss: queue (\S+): messages from (\d+) on were to be read,"
    r" (?:but it has those from (\d+) to|and its topic)"
)


def test_a_batch_has_all_that_was_planned_or_names_what_is_lost() -> None:
    seeds = seeds_of(SEEDS)
    ends = of_all(seeds, lambda seed, monkeypatch: Batch(seed, monkeypatch).read())
    assert ends.keys() >= {"done", "lost", "DataLossError", "OptionError"}, ends
    assert ends["done"] > len(seeds) // 3, ends
    assert ends["read"] > 2 * len(seeds), ends


class Batch:
    """One batch read of a cluster whose topics change."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        random.seed(seed)
        world = self.world = World(seed)
        world.deletes = True
        world.happening = world.random.choice((0.02, 0.1, 0.2))
        self.told = simulate(world, monkeypatch)
        events = (world.send, world.expire, world.lose_end, world.alter, world.alter)
        world.small = [self._noting(each) for each in events]
        self.options = chosen_options(world)
        self.options |= world.random.choice(FILTERS)
        if world.random.random() < 0.2:
            self._begin_anywhere()
        self.touched: set[Queue] = set()
        """Queues to which more happened than new messages."""

    def _begin_anywhere(self) -> None:
        """Name an offset at which a queue may have nothing."""
        for _ in range(3):
            self.world.expire()
        life = self.world.random.choice(self.world.lives)
        topic, broker, number = life.queue
        at = self.world.random.randrange(len(life.stored) + 5)
        self.options.pop("startingTimestamp", None)
        self.options["startingOffsets"] = json.dumps({topic: {broker: {str(number): at}}})

    def _noting(self, happen: Callable[[], None]) -> Callable[[], None]:
        def happens() -> None:
            before = self._standing()
            happen()
            after = self._standing()
            both = before.keys() | after.keys()
            self.touched |= {each for each in both if before.get(each) != after.get(each)}

        return happens

    def _standing(self) -> dict[Queue, tuple[int, int, int]]:
        return {
            each.queue: (each.number, each.first, each.ends_lost) for each in self.world.readable()
        }

    def read(self) -> Counter[str]:
        """Read, check what was read, and return how it ended."""
        world = self.world
        there = world.readable()
        before = {each.number: span_of(world, each) for each in there}
        try:
            reader = TopicReader(read_options(self.options), BODY)
            tasks: list[list[Range]] = [each.value for each in reader.partitions()]
        except PipelineError as error:
            self._check_error(error)
            return Counter([type(error).__name__])
        planned: dict[Queue, list[int]] = {}
        for part in sorted(part for task in tasks for part in task):
            planned.setdefault(part.queue, []).extend(range(part.first, part.end))
        for life in there:
            if life.queue not in self.touched and read_options(self.options).reads(life.queue[0]):
                edges = (before[life.number], span_of(world, life))
                starts = [start_of(world, self.options, life.queue, each) for each in edges]
                got = planned.get(life.queue, [])
                case = f"{life}: planned {got}, but it begins at {starts} and has {edges}"
                assert {*got} >= {*range(max(starts), edges[0][1])}, case
                assert {*got} <= {*range(min(starts), edges[1][1])}, case
        try:
            rows = rows_of(world, tasks, reader.executing.how)
        except PipelineError as error:
            self._check_error(error)
            return Counter([type(error).__name__])
        return Counter({"done": 1, "read": len(rows)}) + self._check(planned, rows, tasks)

    def _check_error(self, error: PipelineError) -> None:
        if isinstance(error, OptionError):
            assert self.touched or self.world.trouble, error
        elif isinstance(error, DataLossError):
            assert self.options["failOnDataLoss"] == "true", error
            if not str(error).startswith("startingOffsets: "):
                self._require_touched(str(error))
        elif not self.world.trouble:
            # What is gone is a loss, and not a server that may come back.
            assert isinstance(error, RefusedError), error
            assert error.code == FORBIDDEN, error

    def _require_touched(self, text: str) -> None:
        named = _QUEUE.search(text)
        assert named, text
        assert named[1] in {str(each) for each in self.touched}, f"nothing is lost: {text}"

    def _check(
        self,
        planned: dict[Queue, list[int]],
        rows: Sequence[tuple[int, int]],
        tasks: Sequence[Sequence[Range]],
    ) -> Counter[str]:
        ends: Counter[str] = Counter()
        parts = [part for task in tasks for part in task]
        losses = [each for each in self.told.texts if each.startswith("data loss: ")]
        for text in losses:
            self._require_touched(text)
        named = {place for text in losses for place in named_by(text, parts)}
        of_queue: dict[Queue, list[int]] = {}
        lives: dict[Queue, set[int]] = {}
        for number, offset in rows:
            queue = self.world.lives[number].queue
            of_queue.setdefault(queue, []).append(offset)
            lives.setdefault(queue, set()).add(number)
        assert of_queue.keys() <= planned.keys(), of_queue.keys() - planned.keys()
        for queue, wanted in planned.items():
            got = sorted(of_queue.get(queue, []))
            case = f"{queue}: {got} of {wanted}, {losses}"
            assert {*got} <= {*wanted}, case
            assert len({*got}) == len(got), f"twice: {case}"
            if missing := {*wanted} - {*got}:
                assert self.options["failOnDataLoss"] == "false", case
                assert {(str(queue), each) for each in missing} <= named, case
                ends["lost"] += len(missing)
            ends["mixed"] += len(lives.get(queue, ())) > 1
        return ends


def named_by(text: str, parts: Sequence[Range]) -> set[tuple[str, int]]:
    """Return the offsets that a text says are lost, each with its queue."""
    if found := _EXPIRED.match(text):
        queue, first, end = found[1], int(found[2]), int(found[3])
        return {(queue, at) for at in range(first, end)}
    found = _NOT_THERE.match(text)
    if not found:
        return set()
    queue, first = found[1], int(found[2])
    (end,) = (each.end for each in parts if str(each.queue) == queue and holds(each, first))
    if found[3] is not None and first < int(found[3]):
        end = min(end, int(found[3]))
    return {(queue, at) for at in range(first, end)}


def holds(part: Range, offset: int) -> bool:
    """Whether an offset is in a range."""
    return part.first <= offset < part.end
