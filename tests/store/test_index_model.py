"""The index compared with one made item by item, through kills, power cuts and a failing disk."""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.crash.disk import Moment, Operation, Partial, SimulatedFileSystem
from tests.store.index_model import Indexed, plain_index
from tests.store.queue_model import files_below

from cometmq.store.config import StoreConfig
from cometmq.store.index.index import Index
from cometmq.store.index.index_format import HEADER_SIZE, IndexHeader

words = st.sampled_from(["a", "b", "key", "kex", "标签", "\U0001f600", "polygenelubricants"])


class IndexAgainstALog(RuleBasedStateMachine):
    """What a store does with its index, in any order."""

    @initialize(slots=st.sampled_from([1, 7, 3000]), items=st.sampled_from([2, 9, 150]))
    def start(self, slots: int, items: int) -> None:
        self.config = StoreConfig(index_slots=slots, index_items=items)
        self.disk = SimulatedFileSystem()
        self.index = Index(self.disk, "/store", self.config, clean=True)
        self.log: list[Indexed] = []
        self.now_ms = 1_700_000_000_000
        self.checkpoint = 0

    @property
    def end(self) -> int:
        return self.log[-1].offset + 100 if self.log else 0

    @rule(
        records=st.lists(
            st.tuples(words, st.lists(words, max_size=3), st.sampled_from(["", "t", "u"])),
            max_size=40,
        ),
        later_ms=st.integers(0, 5000),
    )
    def add(self, records: list[tuple[str, list[str], str]], later_ms: int) -> None:
        for unique_id, keys, tags in records:
            self.now_ms += later_ms
            record = Indexed(self.end, self.now_ms, "topic", unique_id, tuple(keys), tags)
            self.log.append(record)
            self._add(record)

    def _add(self, record: Indexed) -> None:
        if record.offset >= self.index.resume_offset:
            self.index.add(record.topic.encode(), record.properties, record.offset, record.time)

    @rule(count=st.integers(0, 50))
    def build(self, count: int) -> None:
        if self.index.build(count, self.now_ms):
            assert self.index.settled_offset is None

    @rule(count=st.integers(0, 60), skipped=st.integers(0, 3))
    def build_on_a_failing_disk(self, count: int, skipped: int) -> None:
        left = skipped

        def refuse(operation: Operation) -> None:
            nonlocal left
            if operation.verb == "write" and operation.moment is Moment.BEFORE:
                left -= 1
                if left < 0:
                    raise Partial(count, OSError(errno.ENOSPC, "refused"))

        self.disk.hook = refuse
        done = self.index.build(1000, self.now_ms)
        self.disk.hook = None
        assert done or self.index.write_error is not None or self.index.settled_offset is not None

    @rule()
    def sync(self) -> None:
        claim = self.index.settled_offset
        self.index.take_unsynced().sync()
        self.checkpoint = self.end if claim is None else claim

    @rule()
    def reopen_after_a_clean_stop(self) -> None:
        assert self.index.finish(self.now_ms)
        self._compare()
        self.sync()
        self.index.close()
        self.index = Index(self.disk, "/store", self.config, clean=True)

    @rule(synced=st.booleans(), part=st.floats(0, 1))
    def start_again_after_a_kill(self, synced: bool, part: float) -> None:
        """If not synced, the start is where the queues alone put it, which may be anywhere."""
        start = self.checkpoint if synced else int(self.end * part)
        self._restart(self.disk.kill(), start, synced=synced)

    @rule(seed=st.integers(0, 1 << 32), lost=st.integers(0, 20), synced=st.booleans())
    def start_again_after_a_power_cut(self, seed: int, lost: int, synced: bool) -> None:
        kept = sum(record.offset < self.checkpoint for record in self.log)
        self.log = self.log[: max(kept, len(self.log) - lost)]
        self._restart(self.disk.power_cut(Random(seed)), self.checkpoint, synced=synced)

    def _restart(self, disk: SimulatedFileSystem, start: int, *, synced: bool) -> None:
        self.disk = disk
        self.index = Index(self.disk, "/store", self.config, clean=False)
        resume = self.index.recover(start, synced=synced)
        assert resume <= start
        for record in self.log:
            self._add(record)
        self.checkpoint = min(self.checkpoint, resume)

    @precondition(lambda self: self.log)
    @rule(data=st.data())
    def query(self, data: st.DataObject) -> None:
        self.index.build(1 << 30, self.now_ms)
        record = data.draw(st.sampled_from(self.log))
        begin, end = record.time - data.draw(st.integers(0, 3)), record.time
        for word, kind in [(record.unique_id, ""), *((w, "") for w in record.words)]:
            found = self.index.search(
                "topic", word, 1000, begin_ms=begin, end_ms=end, kind=kind, accept=self._has(word)
            ).run()
            wanted = [r.offset for r in self.log if f"topic#{word}" in r.keys]
            assert record.offset in found
            assert found == [offset for offset in reversed(wanted) if offset in found]
            assert self.index.search("topic", word, 1000).run() == list(reversed(wanted))
            assert self.index.search("topic", word, 2).run() == list(reversed(wanted))[:2]

    def _has(self, word: str) -> Callable[[int], bool]:
        offsets = {record.offset for record in self.log if f"topic#{word}" in record.keys}
        return offsets.__contains__

    def _compare(self) -> None:
        """Check that the files equal the plain ones; recovery may have guessed a header's times."""
        expected = plain_index(self.log, self.config)
        found = [content for _, content in sorted(files_below(self.disk, "/store").items())]
        assert [content[HEADER_SIZE:] for content in found] == [e[HEADER_SIZE:] for e in expected]
        for ours, plain in zip(found, expected, strict=True):
            header, wanted = IndexHeader.unpack(ours), IndexHeader.unpack(plain)
            assert wanted.end_time <= header.end_time < wanted.end_time + 1000
            assert wanted.begin_time <= header.begin_time < wanted.begin_time + 1000
            header.end_time, header.begin_time = wanted.end_time, wanted.begin_time
            assert header == wanted

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.reopen_after_a_clean_stop()


TestIndexAgainstALog = IndexAgainstALog.TestCase
TestIndexAgainstALog.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, print_blob=True
)
