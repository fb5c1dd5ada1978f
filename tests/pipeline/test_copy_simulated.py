"""Streams from topic to topic, while both clusters, Spark's driver and tasks do what they may do.

Whatever happens, a message of the source that a batch read is in the target once, also if the
driver was killed before that was noted, the batch is repeated, and its tasks are cut otherwise.
What was written before it was lost in the source may be there, too, once. Nothing else is.

`SIMULATED_SEEDS=1000..9000 pytest tests/pipeline/test_copy_simulated.py` plays these.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final, cast

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

import pyarrow as pa
from tests.client.simulated_run import seeds_of
from tests.pipeline import remembering_broker
from tests.pipeline.remembering_broker import FRAME, TOPIC
from tests.pipeline.simulated import World, of_all
from tests.pipeline.simulated_query import KilledError, Query, Told, simulate
from tests.pipeline.test_sink_simulated import COORDINATES, STRETCH, TAILS
from tests.pipeline.test_stream_simulated import play

from cometmq.broker import idempotence
from cometmq.pipeline import identities, lanes, sending, stored, wire
from cometmq.pipeline.errors import ConnectionLostError, PipelineError
from cometmq.pipeline.lanes import Sending
from cometmq.pipeline.messages import Forming
from cometmq.pipeline.rows import RowForm
from cometmq.pipeline.sending import Sender
from cometmq.pipeline.targets import Target, Targets
from cometmq.pipeline.wire import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.pipeline.simulated import Peer

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]

SEEDS: Final = 40
Rows = list[tuple[int, int]]


def test_each_message_that_was_read_is_in_the_target_once() -> None:
    seeds = seeds_of(SEEDS)
    ends = of_all(seeds, copied)
    assert ends.keys() >= {"KilledError", "repeated", "ConnectionLostError", "task killed"}, ends
    assert ends["copied"] > 5 * len(seeds), ends
    assert ends["written again"] > len(seeds), ends


def copied(seed: int, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Copy as a seed has it; return how the runs of the query ended."""
    random.seed(seed)
    world = World(seed)
    query = Copy(world, simulate(world, monkeypatch), monkeypatch)
    ends = play(query, monkeypatch)
    query.check()
    ends["copied"] = len(query.done)
    ends["written again"] = query.again
    return ends


class Copy(Query):
    """A stream whose batches are written to other brokers."""

    def __init__(self, world: World, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(world, told)
        choose = world.random
        self._killing = choose.choice((0.0, 0.02, 0.1))
        self._targets = {
            f"127.0.0.1:{port}": remembering_broker.Broker(choose, self._killing, "once")
            for port in range(1, choose.randrange(2, 4))
        }
        self._queues = tuple(Target(each, each, at) for each in self._targets for at in range(2))
        self._how = Sending(
            Settings(),
            batch_bytes=choose.randrange(1, 4000),
            max_in_flight=choose.choice((0, 1, 7)),
            in_order=self.options["inOrder"] == "true",
            retries=choose.randrange(2, 5),
        )
        self.tried: set[tuple[int, int]] = set()
        """What tasks were to write, by life and offset."""
        self.done: set[tuple[int, int]] = set()
        """The rows of batches that were committed."""
        self.again = 0
        """How many rows were written before by an attempt or a batch that did not end."""
        monkeypatch.setattr(wire, "connect", self._connect)
        monkeypatch.setattr(identities, "STRETCH", STRETCH)
        monkeypatch.setattr(stored, "_ASKED_OF", 8)
        monkeypatch.setattr(idempotence, "TAIL_SIZE", TAILS["once"])
        monkeypatch.setattr(lanes, "_WRITE_SIZE", choose.randrange(1, 5) * FRAME.size)
        monkeypatch.setattr(sending, "_HELD_MAX", choose.randrange(1, 20_000))
        monkeypatch.setattr(sending, "secrets", SimpleNamespace(randbelow=choose.randrange))

    def _connect(self, address: str, settings: object) -> Peer | remembering_broker.Peer:
        if (broker := self._targets.get(address)) is None:
            return self.world.connect(address, settings)
        if broker.happens():
            raise ConnectionLostError("away")
        return remembering_broker.Peer(broker, address)

    def write(self, rows: Rows) -> None:
        """Write a batch in tasks, each in several attempts."""
        choose = self.world.random
        for broker in self._targets.values():
            broker.trouble = 0.0 if self.world.is_quiet else self._killing
            if choose.random() < 0.2:
                broker.restart()
            if choose.random() < 0.2:
                broker.forget()
        cuts = sorted(choose.choices(range(len(rows) + 1), k=choose.randrange(3)))
        tasks = [rows[a:b] for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
        for task in choose.sample(tasks, len(tasks)):
            for attempt in range(3):
                try:
                    self._attempt(task)
                except (KilledError, PipelineError):
                    if attempt == 2:
                        raise
                    self.ends["task killed"] += 1
                else:
                    break
            self._may_die()
        self._may_die()
        self.done.update(rows)

    def _attempt(self, task: Rows) -> None:
        choose = self.world.random
        names = tuple(self._record_batch([]).schema.names)
        form = replace(RowForm(names, TOPIC.decode(), "", (), ""), coordinates=COORDINATES)
        forming = Forming(form, "sink")
        of = {TOPIC.decode(): self._queues}.__getitem__
        sender = Sender(cast("Targets", SimpleNamespace(of=of)), self._how)
        try:
            while task:
                middle = choose.randrange(1, 30)
                rows, task = task[:middle], task[middle:]
                self.again += len(self.tried.intersection(rows))
                self.tried.update(rows)
                sender.send(forming.messages(self._record_batch(rows)))
                if not self.world.is_quiet and choose.random() < self._killing:
                    raise KilledError
            sender.finish()
        finally:
            sender.close()

    def _record_batch(self, rows: Sequence[tuple[int, int]]) -> pa.RecordBatch:
        lives = [self.world.lives[number] for number, _ in rows]
        offsets = [offset for _, offset in rows]
        times = [life.stored[at] * 1000 for life, at in zip(lives, offsets, strict=True)]
        arrays = {
            "body": pa.array([b"%d/%d" % row for row in rows], pa.binary()),
            "source_topic": pa.array([life.queue.topic for life in lives], pa.string()),
            "source_broker": pa.array([life.queue.broker for life in lives], pa.string()),
            "source_queue_id": pa.array([life.queue.id for life in lives], pa.int32()),
            "source_offset": pa.array(offsets, pa.int64()),
            "store_time": pa.array(times, pa.timestamp("us", "UTC")),
        }
        return pa.record_batch(list(arrays.values()), names=list(arrays))

    def check(self) -> None:
        """Compare what is in the target with what was read."""
        there = Counter(each.body for each in self._stored())
        done = {b"%d/%d" % row for row in self.done}
        tried = {b"%d/%d" % row for row in self.tried}
        assert done <= there.keys(), f"without {sorted(done - there.keys())}"
        assert there.keys() <= tried, f"from nowhere: {sorted(there.keys() - tried)}"
        twice = sorted(body for body, count in there.items() if count > 1)
        assert not twice, f"twice {twice}"

    def _stored(self) -> list[remembering_broker.Record]:
        return [each for broker in self._targets.values() for each in broker.stored()]
