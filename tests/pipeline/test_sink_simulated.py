"""Writing rows, while tasks, drivers, brokers and the network do what they may do.

Whatever happens, each row is stored once if it says where it is from, and at least once if not. The
broker's memory of what it was sent is the real one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import chain
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final, TypeAlias, cast

import pytest

pytest.importorskip("pyarrow", reason="the extra cometmq[spark] is not installed")

import numpy as np
import pyarrow as pa
from tests.pipeline.remembering_broker import FRAME, TOPIC, Broker, Peer

from cometmq.broker import idempotence
from cometmq.pipeline import identities, lanes, retrying, sending, stored, wire
from cometmq.pipeline.errors import ConnectionLostError, PipelineError
from cometmq.pipeline.lanes import Sending
from cometmq.pipeline.messages import Forming
from cometmq.pipeline.rows import RowForm
from cometmq.pipeline.sending import Sender
from cometmq.pipeline.stored import Stored
from cometmq.pipeline.targets import Target, Targets
from cometmq.pipeline.wire import Settings

if TYPE_CHECKING:
    from cometmq.pipeline.records.layout import Bytes, Truths

pytestmark = pytest.mark.spark

SEEDS: Final = 200
Task: TypeAlias = "list[tuple[int, int]]"
"""Rows: the queue and the offset from which each is."""
COORDINATES: Final = ("source_topic", "source_broker", "source_queue_id", "source_offset")
ONCE: Final = ("once", "once", "delayed", "shuffled", "dedupKey", "half remembered")
"""The first of these is stored once whatever a broker remembers."""
KINDS: Final = (*ONCE, "no identity", "Apache's")
STRETCH: Final = 64
TAILS: Final = {"once": 200, "half remembered": 60}
"""How many messages of its log a broker looks at when it starts; of other kinds, all."""


class Query:
    """A stream whose batches are written, and what Spark does around it."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        trouble = random.choice((0.0, 0.02, 0.08))
        self.kind = random.choice(KINDS)
        self.is_in_order = random.random() < 0.3
        self.has_times = random.random() < 0.5
        self.brokers = {
            f"127.0.0.1:{port}": Broker(random, trouble, self.kind)
            for port in range(1, random.randrange(2, 4))
        }
        self.targets = tuple(
            Target(address, address, queue_id) for address in self.brokers for queue_id in range(2)
        )
        self.how = Sending(
            Settings(),
            batch_bytes=random.randrange(1, 4000),
            max_in_flight=random.choice((0, 1, 7)),
            in_order=self.is_in_order,
            retries=random.randrange(2, 5),
        )
        self._killing = trouble
        """How likely a task is killed after some rows."""
        self.wanted: Counter[bytes] = Counter()
        self.ends: Counter[str] = Counter()

    def run(self) -> None:
        """Write all batches."""
        at = [self.random.randrange(200) for _ in range(self.random.randrange(1, 4))]
        for _ in range(self.random.randrange(1, 4)):
            tasks: list[Task] = []
            for queue, first in enumerate(at):
                at[queue] += self.random.randrange(150)
                tasks += self._cut([(queue, offset) for offset in range(first, at[queue])])
            self.random.shuffle(tasks)
            joined = self.random.randrange(len(tasks) + 1)
            self._write_batch([[*chain(*tasks[:joined])], *tasks[joined:]])

    def _cut(self, rows: Task) -> list[Task]:
        middle = 0 if self.is_in_order else self.random.randrange(len(rows) + 1)
        return [rows[:middle], rows[middle:]]

    def _write_batch(self, tasks: list[Task]) -> None:
        choose = self.random.random
        is_done = False
        while not is_done:
            if self.kind in ("shuffled", "half remembered"):
                tasks = self._shuffled(tasks)
            is_done = all(any(self._attempt(task) for _ in range(3)) for task in tasks)
            is_done = is_done and choose() < 0.7  # Otherwise the driver dies before it notes that.
            for broker in self.brokers.values():
                if choose() < 0.2:
                    broker.restart()
                if choose() < 0.3 and self.kind == "once":
                    broker.forget()
                if not is_done:
                    broker.trouble /= 2
        self.wanted.update(b"%d/%d" % row for row in chain(*tasks))
        if choose() < 0.1:
            for broker in self.brokers.values():
                broker.recreate()
            self.wanted.clear()

    def _attempt(self, task: Task) -> bool:
        """Run a task; return whether that went well."""
        form = RowForm(tuple(self._record_batch([]).schema.names), TOPIC.decode(), "", (), "")
        if self.kind == "dedupKey":
            form = replace(form, dedup_key="body")
        elif self.kind != "no identity":
            form = replace(form, coordinates=COORDINATES)
        forming = Forming(form, "sink")
        targets = SimpleNamespace(of={TOPIC.decode(): self.targets}.__getitem__)
        sender = Sender(cast("Targets", targets), self.how)
        end = "done"
        try:
            while task:
                middle = self.random.randrange(1, 100)
                rows, task = task[:middle], task[middle:]
                sender.send(forming.messages(self._record_batch(rows)))
                if self.random.random() < self._killing:
                    end = "killed"
                    return False
            sender.finish()
        except PipelineError as error:
            end = type(error).__name__
        finally:
            self.ends[end] += 1
            sender.close()
        return end == "done"

    def _shuffled(self, tasks: list[Task]) -> list[Task]:
        """Divide rows among tasks otherwise, in any order."""
        rows = [*chain(*tasks)]
        self.random.shuffle(rows)
        return [rows[first::3] for first in range(3)]

    def _record_batch(self, rows: Task) -> pa.RecordBatch:
        count = len(rows)
        offsets = [offset for _, offset in rows]
        arrays = {
            "body": pa.array([b"%d/%d" % row for row in rows], pa.binary()),
            "source_topic": pa.array(["S"] * count, pa.string()),
            "source_broker": pa.array(["b"] * count, pa.string()),
            "source_queue_id": pa.array([queue for queue, _ in rows], pa.int32()),
            "source_offset": pa.array(offsets, pa.int64()),
        }
        if self.has_times:
            times = [(1 << 40) + 1000 * (each // 3) for each in offsets]
            arrays["store_time"] = pa.array(times, pa.timestamp("us", "UTC"))
        if self.kind == "delayed":
            levels = [each // 10 % 2 for each in offsets]
            arrays["delay_level"] = pa.array(levels, pa.int32())
        return pa.record_batch(list(arrays.values()), names=list(arrays))

    def check(self) -> None:
        """Compare what is stored with what was written."""
        there = [each for broker in self.brokers.values() for each in broker.stored()]
        got = Counter(each.body for each in there)
        missing, more = self.wanted - got, got - self.wanted
        assert not missing, f"without {sorted(missing)}"
        if self.kind != "once":
            for broker in self.brokers.values():
                more = Counter({body: more[body] for body in more.keys() - broker.forgotten})
        if self.kind in ONCE:
            assert not more, f"twice {sorted(more)}"
        if self.kind == "once" and self.is_in_order:
            for queue in range(3):
                mark = b"%d/" % queue
                offsets = [int(each.body[2:]) for each in there if each.body.startswith(mark)]
                assert offsets == sorted(offsets), f"queue {queue} is not in order"


@pytest.fixture(autouse=True)
def _small_and_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: object) -> None:
        pass

    monkeypatch.setattr(identities, "STRETCH", STRETCH)
    monkeypatch.setattr(stored, "_ASKED_OF", 8)
    monkeypatch.setattr(wire, "keep", nothing)
    # Only there: other threads of the process may sleep, too.
    monkeypatch.setattr(retrying, "time", SimpleNamespace(sleep=nothing))


def test_each_row_is_stored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: Counter[str] = Counter()
    untold = 0
    for seed in range(SEEDS):
        query = Query(seed)
        with monkeypatch.context() as patch:
            simulate(query, patch)
            try:
                query.run()
                query.check()
            except Exception as error:
                error.add_note(f"seed {seed}: {query.kind}, {query.how}")
                raise
        ends += query.ends
        untold += sum(each.untold for each in query.brokers.values())
    assert ends.keys() >= {"done", "killed", "RefusedError", "ConnectionLostError", "BusyError"}
    assert ends["done"] > 1_000, ends
    assert untold > 20


def simulate(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the query's brokers be written to."""
    choose = query.random.randrange

    def nothing_found(
        _stored: Stored, _topic: str, _target: Target, ids: Bytes, _: object
    ) -> Truths:
        return np.zeros(len(ids), np.bool_)

    def connect(address: str, _settings: Settings) -> Peer:
        broker = query.brokers[address]
        if broker.happens():
            raise ConnectionLostError("away")
        return Peer(broker, address)

    monkeypatch.setattr(idempotence, "TAIL_SIZE", TAILS.get(query.kind, 10_000))
    if query.kind == "half remembered":  # Another attempt sent them when this one had looked.
        monkeypatch.setattr(Stored, "look", nothing_found)
    monkeypatch.setattr(wire, "connect", connect)
    monkeypatch.setattr(lanes, "_WRITE_SIZE", choose(1, 5) * FRAME.size)
    monkeypatch.setattr(sending, "_HELD_MAX", choose(1, 20_000))
    monkeypatch.setattr(sending, "secrets", SimpleNamespace(randbelow=choose))
