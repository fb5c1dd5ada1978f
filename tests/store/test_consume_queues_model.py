"""ConsumeQueues against a plain list, through kills, power cuts, a full disk and a moving log."""

from __future__ import annotations

import errno
from random import Random

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.crash.disk import Moment, Operation, Partial, SimulatedFileSystem
from tests.store.queue_model import (
    EVERYTHING,
    ROOT,
    Log,
    all_entries,
    at_once,
    files_below,
    open_queues,
    small_config,
)

from cometmq.store.queues.consume_queue import ConsumeQueue

TOPIC = "topic"
QUEUE_IDS = range(3)


class QueuesAgainstALog(RuleBasedStateMachine):
    """What a store does with its queues, in any order."""

    @initialize(file_entries=st.sampled_from([2, 7, 64, 150]), open_files=st.integers(1, 4))
    def start(self, file_entries: int, open_files: int) -> None:
        self.config = small_config(file_entries, open_files)
        self.disk = SimulatedFileSystem()
        self.queues = open_queues(self.disk, self.config)
        self.log = Log()
        self.checkpoint = 0
        self.min_physical_offset = 0

    @rule(queue_id=st.sampled_from(QUEUE_IDS), count=st.integers(1, 90), size=st.integers(91, 400))
    def append(self, queue_id: int, count: int, size: int) -> None:
        queue = self.queues.simple.get(TOPIC, queue_id)
        for _ in range(count):
            record = self.log.add(queue_id, queue.next_offset, size, count - 45)
            queue.next_offset += 1
            queue.append(*record.entry)

    @rule(budget=st.integers(0, 3), part=st.floats(0, 1))
    def write_behind(self, budget: int, part: float) -> None:
        up_to = int(self.log.end * part)
        if self.queues.write_behind(up_to, budget):
            waiting = (each for each in self.queues.simple.loaded() if each.written < each.end)
            assert all(queue.first_unwritten() >= up_to for queue in waiting)

    @rule(count=st.integers(0, 40), full=st.booleans())
    def write_on_a_failing_disk(self, count: int, full: bool) -> None:
        def refuse(operation: Operation) -> None:
            if operation.verb == "write" and operation.moment is Moment.BEFORE:
                raise Partial(count, OSError(errno.ENOSPC if full else errno.EIO, "refused"))

        waiting = any(queue.written < queue.end for queue in self.queues.simple.loaded())
        before = self.queues.settled_offset
        self.disk.hook = refuse
        done = self.queues.write_behind(EVERYTHING, 100)
        self.disk.hook = None
        assert done is not waiting
        assert self.queues.settled_offset == before
        if not done:
            assert self.queues.write_error is not None

    @rule()
    def sync(self) -> None:
        claim = self.queues.settled_offset
        self.queues.take_unsynced().sync()
        self.checkpoint = self.log.end if claim is None else claim

    @rule()
    def reopen_after_a_clean_stop(self) -> None:
        assert self.queues.write_behind(EVERYTHING, EVERYTHING)
        for _ in self.queues.settle():
            pass
        self.sync()
        self.queues.close()
        self._open(self.disk, clean=True)

    @rule(seed=st.integers(0, 1 << 32), lost=st.floats(0, 1), settle=st.integers(0, 9))
    def start_again_after_a_power_cut(self, seed: int, lost: float, settle: int) -> None:
        self._open(self.disk.power_cut(Random(seed)), clean=False)
        end = self.checkpoint + int((self.log.end - self.checkpoint) * lost)
        survivors = [r.physical_offset for r in self.log.records if r.physical_offset < end]
        self.log.cut(max(self.checkpoint, survivors[-1]) if survivors else self.checkpoint)
        self._recover(settle)

    @rule(settle=st.integers(0, 9))
    def start_again_after_a_kill(self, settle: int) -> None:
        self._open(self.disk.kill(), clean=False)
        self._recover(settle)

    @rule(part=st.floats(0, 1))
    def lose_the_front_of_the_log(self, part: float) -> None:
        gone = [r for r in self.log.records if r.physical_offset < self.checkpoint * part]
        if gone:
            self.min_physical_offset = max(self.min_physical_offset, gone[-1].physical_offset)
        self.queues.correct_min(self.min_physical_offset)
        for _ in self.queues.expire(self.checkpoint, at_once):
            pass

    @rule(part=st.floats(0, 1))
    def lose_the_end_of_the_log(self, part: float) -> None:
        """As a replica that followed the wrong master."""
        cut = [r.physical_offset for r in self.log.records if r.physical_offset >= self.checkpoint]
        if cut:
            self.log.cut(cut[int((len(cut) - 1) * part)])
            self.queues.truncate(self.log.end)
            for queue in self.queues.simple.loaded():
                queue.next_offset = queue.max_offset

    def _open(self, disk: SimulatedFileSystem, *, clean: bool) -> None:
        self.disk = disk
        self.queues = open_queues(self.disk, self.config, clean=clean)
        self.queues.correct_min(self.min_physical_offset)

    def _recover(self, settle: int) -> None:
        self.queues.truncate(self.checkpoint)
        for record in self.log.records:
            if record.physical_offset >= self.checkpoint:
                queue = self.queues.simple.get(TOPIC, record.queue_id)
                queue.place(record.queue_offset, *record.entry)
        for step, _ in enumerate(self.queues.settle()):
            if step >= settle:
                break

    @invariant()
    def queues_in_memory_hold_the_records_of_the_log(self) -> None:
        """Queues not touched since the start stay untouched: they are cut later."""
        for queue in self.queues.simple.loaded():
            self._check(queue)

    @rule(queue_id=st.sampled_from(QUEUE_IDS))
    def look(self, queue_id: int) -> None:
        self._check(self.queues.simple.get(TOPIC, queue_id))

    def _check(self, queue: ConsumeQueue) -> None:
        records = self.log.of(queue.queue_id)
        kept = [r for r in records if r.physical_offset >= self.min_physical_offset]
        assert all_entries(queue) == [record.entry for record in kept]
        if kept:
            assert queue.min_offset == kept[0].queue_offset
            assert queue.max_offset == kept[-1].queue_offset + 1
        else:
            assert queue.min_offset == queue.max_offset
        assert queue.next_offset == queue.max_offset
        assert queue.read(queue.max_offset, 1) == queue.read(queue.min_offset - 1, 1) == b""

    def teardown(self) -> None:
        """Check that the files equal those built from the log in one go, except front files."""
        if not hasattr(self, "log"):
            return
        self.reopen_after_a_clean_stop()
        rebuilt = open_queues(self.disk, self.config, "/rebuilt")
        for record in self.log.records:
            queue = rebuilt.simple.get(TOPIC, record.queue_id)
            queue.place(record.queue_offset, *record.entry)
        assert rebuilt.write_behind(EVERYTHING, EVERYTHING)
        expected = files_below(self.disk, "/rebuilt/consumequeue")
        for path, content in files_below(self.disk, f"{ROOT}/consumequeue").items():
            name = path.replace(ROOT, "/rebuilt")
            assert content == expected.get(name, bytes(len(content))), path


TestQueuesAgainstALog = QueuesAgainstALog.TestCase
TestQueuesAgainstALog.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, print_blob=True
)
