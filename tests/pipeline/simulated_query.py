"""Spark's part of a stream, as far as a source sees it, and what it keeps over restarts.

It calls the reader in the order in which Spark 4.3 does (`MicroBatchExecution`), and checks each
batch when it is committed.
"""

from __future__ import annotations

import json
import time
from bisect import bisect_left
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

from pyspark.sql.types import BinaryType, StructField, StructType
from tests.pipeline.simulated import PATTERN
from tests.pipeline.simulated_rows import rows_of

from cometmq.pipeline import (
    bounds,
    fetching,
    first_messages,
    nameservers,
    retrying,
    source,
    stream_source,
    wire,
)
from cometmq.pipeline.losses import Losses
from cometmq.pipeline.offsets import ranges, read_stream_offset
from cometmq.pipeline.options import read_options
from cometmq.pipeline.stream_source import TopicStreamReader

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pytest
    from pyspark.sql.streaming.datasource import ReadLimit
    from tests.pipeline.simulated import World
    from tests.pipeline.simulated_servers import Life

    from cometmq.pipeline.cluster import Queue
    from cometmq.pipeline.losses import Listener
    from cometmq.pipeline.offsets import StreamOffset
    from cometmq.pipeline.planning import Range

BODY: Final = StructType([StructField("body", BinaryType())])
Span = tuple[int, int, list[int]]
"""The first and the end offset of a queue, and when its messages were stored."""


class KilledError(Exception):
    """The driver was killed."""


class Heard(Losses):
    """Losses of which tasks tell without a connection."""

    def listener(self, addresses: Iterable[str]) -> Listener | None:
        """Return itself: nobody else need know."""
        del addresses
        return cast("Listener", self)

    def hear(self, part: Range, lost: int) -> None:
        """Note what a task tells."""
        self._heard[part.queue, part.first] = lost


class Told:
    """What is written into the log."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.lost = 0
        """How many messages tasks said that they passed over."""

    def warning(self, text: str, *args: object) -> None:
        """Note a warning."""
        self.texts.append(text % args)


def simulate(world: World, monkeypatch: pytest.MonkeyPatch) -> Told:
    """Have a world be asked, without pauses; return what is told."""
    told = Told()

    def nothing(*_: object) -> None:
        pass

    def tell(listener: Heard, part: Range, lost: int) -> None:
        told.lost += lost
        listener.hear(part, lost)

    monkeypatch.setattr(wire, "connect", world.connect)
    monkeypatch.setattr(wire, "keep", nothing)
    # Only for these modules: other threads of the process may sleep, too.
    clock = SimpleNamespace(
        sleep=world.waits, time=lambda: world.now / 1000, monotonic=time.monotonic
    )
    for module in (retrying, fetching, first_messages, stream_source):
        monkeypatch.setattr(module, "time", clock)
    for module in (stream_source, fetching, bounds, source):
        monkeypatch.setattr(module, "log", told)
    monkeypatch.setattr(stream_source, "Losses", Heard)
    monkeypatch.setattr(fetching, "tell", tell)
    forget(monkeypatch)
    return told


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what a process has learnt of servers, as another one does not know it."""
    monkeypatch.setattr(nameservers, "_orders", dict[tuple[str, ...], list[str]]())
    monkeypatch.setattr(nameservers, "_failed_at", dict[str, float]())
    monkeypatch.setattr(fetching, "without_bulk", set[str]())


def chosen_options(world: World) -> dict[str, str]:
    """Return options for reading, as a batch or as a stream."""
    choose = world.random
    topics = sorted({each.queue.topic for each in world.lives})
    return {
        "nameserver": ";".join(world.nameservers),
        "retries": "2",
        "retryIntervalMs": "1",
        "failOnDataLoss": choose.choice(("true", "false")),
        "minPartitions": choose.choice(("0", "5")),
        "inOrder": choose.choice(("true", "false")),
        **choose.choice(({"topicPattern": PATTERN}, {"topic": ",".join(topics)})),
        **_starting(world),
    }


def _starting(world: World) -> dict[str, str]:
    kind = world.random.randrange(6)
    life = world.random.choice(world.lives)
    topic, broker, number = life.queue
    if kind == 0:
        at = world.random.randrange(life.first, len(life.stored) + 1)
        return {"startingOffsets": json.dumps({topic: {broker: {str(number): at}}})}
    if kind == 1 and life.stored:
        return {"startingTimestamp": str(world.random.choice(life.stored))}
    if kind == 2:
        world.brokers[broker].groups["begun", topic, number] = len(life.stored)
        return {"startingOffsets": "group:begun"}
    return {"startingOffsets": ("earliest", "latest")[kind % 2]}


def span_of(world: World, life: Life) -> Span:
    """Return what there is of a queue now."""
    first, end = world.brokers[life.queue.broker].span(life)
    return first, end, life.stored[:end]


def start_of(world: World, options: Mapping[str, str], queue: Queue, span: Span) -> int:
    """Return where reading is to begin in a queue."""
    first, end, stored = span
    if since := options.get("startingTimestamp"):
        at = bisect_left(stored, int(since))
    elif (said := options["startingOffsets"]) in ("earliest", "latest"):
        at = first if said == "earliest" else end
    elif said.startswith("group:"):
        at = world.brokers[queue.broker].groups.get(("begun", queue.topic, queue.id), -2)
    else:
        of_topic: Any = json.loads(said).get(queue.topic, {})
        at = of_topic.get(queue.broker, {}).get(str(queue.id), -2)
    return min(max(at, first), end)


class Query:
    """A streaming query: its options, its checkpoint, and what was seen of it."""

    def __init__(self, world: World, told: Told) -> None:
        self.world, self.told = world, told
        choose = world.random.choice
        self.dying = choose((0.0, 0.05, 0.2))
        self.options = chosen_options(world)
        self.options["maxOffsetsPerTrigger"] = choose(("0", "1", "4", "20"))
        self.options["alignByTime"] = choose(("false", "true"))
        self.options |= choose(({}, {"group": "told"}))
        self.reads = read_options(self.options).reads
        """Whether it reads a topic."""
        self.offsets: list[str] = []
        """Spark's log of offsets; `committed` is how many of these batches are done."""
        self.committed = 0
        self.plans: dict[int, dict[Queue, tuple[int, int]]] = {}
        """By its number, what each batch was when it was planned first."""
        self.left = 0
        """Losses that tasks told, and that no batch came to report."""
        self.ends: Counter[str] = Counter()
        self._until: dict[int, int] = {}
        """Where each life ended when a run of AvailableNow began."""

    @property
    def is_strict(self) -> bool:
        """Whether losses are to end the query."""
        return self.options["failOnDataLoss"] == "true"

    def _may_die(self) -> None:
        if not self.world.is_quiet and self.world.random.random() < self.dying:
            raise KilledError

    def run(self, triggers: int, *, available_now: bool) -> None:
        """Run it until there is nothing new, or for so many batches."""
        reader = TopicStreamReader(read_options(self.options), BODY)
        self._until = {}
        try:
            self._run(reader, triggers, available_now=available_now)
        finally:
            losses = reader._losses  # pyright: ignore[reportPrivateUsage]  # Nobody else tells.
            self.left += losses.taken()

    def _run(self, reader: TopicStreamReader, triggers: int, *, available_now: bool) -> None:
        if available_now:
            reader.prepareForTriggerAvailableNow()
            self._until = {
                each.number: len(each.stored) for each in self.world.lives if not each.ends_lost
            }
        limit = reader.getDefaultReadLimit()
        if self.committed < len(self.offsets):
            self.ends["repeated"] += 1
            self._run_batch(reader)
        for _ in range(triggers):
            if not available_now and not self.world.is_quiet:
                self.world.changes()
            if self._construct(reader, limit):
                self._run_batch(reader)
            elif available_now or self.world.is_quiet:
                return
        assert not self.world.is_quiet, f"it did not come to an end in {triggers} batches"

    def _construct(self, reader: TopicStreamReader, limit: ReadLimit) -> bool:
        """Plan the next batch, if there is something new."""
        before = self._spans()
        start = json.loads(self.offsets[-1] if self.offsets else json.dumps(reader.initialOffset()))
        begun, after = self.world.now, self._spans()
        self._may_die()
        text = json.dumps(reader.latestOffset(start, limit))
        reader.reportLatestOffset()
        self._may_die()
        if self.offsets and self.offsets[-1] == text:
            return False
        self.offsets.append(text)
        known, end = read_stream_offset(start), read_stream_offset(json.loads(text))
        if len(self.offsets) == 1:
            self._begin_at(known, begun, before, after)
        self._begin_later(end)
        most = int(self.options["maxOffsetsPerTrigger"])
        count = sum(until - first for first, until in ranges(known, end).values())
        assert not most or count <= most, f"{count} messages of {most}"
        self._may_die()
        if len(self.offsets) > 1:
            cast("Any", reader).commit(json.loads(self.offsets[-2]))
        self._may_die()
        return True

    def _spans(self) -> dict[int, Span]:
        for life in self.world.lives:
            life.seen = 0
        return {each.number: span_of(self.world, each) for each in self.world.lives}

    def _begin_at(
        self, start: StreamOffset, begun: int, before: Mapping[int, Span], after: Mapping[int, Span]
    ) -> None:
        """Note where the stream begins, which must be between what it could see."""
        for life in self.world.lives:
            if life.died is None and life.queue in start.queues and life.born <= begun:
                at = start.queues[life.queue]
                edges = [
                    start_of(self.world, self.options, life.queue, each[life.number])
                    for each in (before, after)
                ]
                if not self.world.has_slaves and not life.ends_lost:
                    assert min(edges) <= at <= max(edges), f"{life} begins at {at}, not in {edges}"
                life.known_from = life.reached = at

    def _begin_later(self, end: StreamOffset) -> None:
        """Note where queues begin that were found later: at their first message."""
        for life in self.world.lives:
            if life.queue[:2] in {queue[:2] for queue in end.firsts}:
                life.noted = max(life.noted, life.seen)
            if life.died is None and life.known_from is None and life.queue in end.begins:
                life.known_from = life.reached = end.begins[life.queue]
                assert life.reached <= life.first, f"{life} begins too late"

    def _run_batch(self, reader: TopicStreamReader) -> None:
        """Run the last batch that was planned."""
        number = len(self.offsets) - 1
        end = json.loads(self.offsets[-1])
        start = json.loads(self.offsets[-2] if number else json.dumps(reader.initialOffset()))
        rows: list[tuple[int, int]] = []
        self._may_die()
        if start != end:
            parts: list[Any] = [each.value for each in reader.partitions(start, end)]
            tasks: list[list[Range]] = [each[0] for each in parts]
            self._check_plan(number, [each for task in tasks for each in task])
            self._may_die()
            self._disturb()
            losses = parts[0][1] if parts else None
            rows = rows_of(self.world, tasks, replace(reader.executing.how, losses=losses))
            self.write(rows)
        self._may_die()
        self._commit(rows)
        self.committed += 1
        self._may_die()

    def write(self, rows: list[tuple[int, int]]) -> None:
        """Do with the rows of a batch what the query is for."""

    def _disturb(self) -> None:
        """Delete a topic that may just be read; it is not made anew before the batch is done."""
        world = self.world
        world.waits()
        broker = world.random.choice([*world.brokers.values()])
        is_master = broker.is_up and broker.lag is None
        if is_master and not world.is_quiet and world.deletes and world.random.random() < 0.1:
            for topic in world.random.sample(sorted(broker.topics), min(1, len(broker.topics))):
                world.delete(broker.name, topic)
                self.ends["deleted"] += 1
            world.announce()

    def _check_plan(self, number: int, parts: Sequence[Range]) -> None:
        """Check that a plan has no gaps, and that no batch gets more than it was."""
        plan: dict[Queue, tuple[int, int]] = {}
        for each in sorted(parts):
            first, end = plan.get(each.queue, (each.first, each.first))
            assert end == each.first, f"{each} does not follow {end}"
            plan[each.queue] = first, each.end
        earlier = self.plans.setdefault(number, plan)
        for queue, ends in plan.items():
            assert earlier.get(queue) == ends, f"{queue}: {ends}, but before {earlier.get(queue)}"

    def _commit(self, rows: Iterable[tuple[int, int]]) -> None:
        """Check what a batch brings."""
        for number, offset in rows:
            life = self.world.lives[number]
            if life.known_from is None:
                life.known_from = life.reached = offset
                assert offset <= life.first, f"{life} begins at {offset}"
            if offset < life.reached:
                self._go_back(life, offset)
            assert offset < self._until.get(number, offset + 1), f"{life}: {offset} is too late"
            self.pass_over(life, offset)
            life.reached = offset + 1

    def _go_back(self, life: Life, offset: int) -> None:
        """Check that a queue is read again: from its beginning, as it lost the end of its log.

        If one lost all, with its first message, its topic seems to be another, with all queues.
        """
        case = f"{offset} of {life} is read twice"
        assert offset <= life.first, case
        topic, broker, _ = life.queue
        of_part = [each for each in self.world.lives if each.queue[:2] == life.queue[:2]]
        said = [f"queue {life.queue}: was read up to"] if life.ends_lost else []
        if any(each.ends_lost for each in of_part) and not self.world.keeps_first:
            said.append(f"topic {topic} of broker {broker} was deleted and recreated")
        assert any(text in each for text in said for each in self.told.texts), case
        life.reached = offset

    def pass_over(self, life: Life, offset: int) -> None:
        """Check that messages of a queue may be left out up to an offset."""
        if offset > life.reached:
            case = f"{life}: {life.reached} to {offset} are not read"
            assert not self.is_strict, case
            hidden = f"data loss: queue {life.queue}: messages from {life.reached} on"
            if offset <= life.first:
                life.skipped += offset - life.reached
            else:
                ended = f"{hidden} were to be read, but it has those"
                fewer = [
                    each
                    for each in self.told.texts
                    if each.endswith("fewer queues now")
                    or (life.ends_lost and each.startswith(ended))
                ]
                assert any(each.startswith(hidden) for each in fewer), case
            life.reached = offset
