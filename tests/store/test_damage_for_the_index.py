"""Damage before the part of the log that a start verifies, if it reads more for the index."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.crash.disk import Moment
from tests.store.damaged_stores import contents, files_of, flip, overwrite
from tests.store.held_stores import CONFIG, ROOT, Held
from tests.store.records import HOST
from tests.store.test_foresight import WITH_JOURNAL, Tailed

from cometmq.store.errors import CorruptionError
from cometmq.store.index.index_off import load_off
from cometmq.store.log.log_scan import LogScan
from cometmq.store.log.segments import Segments
from cometmq.store.log.turn import Origin
from cometmq.store.upkeep.checkpoint import load_checkpoint

if TYPE_CHECKING:
    from tests.crash.disk import Operation

SHORT = replace(CONFIG, verify_size=1024, integrity=False)


@pytest.fixture(autouse=True, params=["one by one", "in stretches"])
def _reading(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read records in both ways in which a start may."""
    if request.param == "in stretches":
        monkeypatch.setattr(LogScan, "stretches_after", 0)


class Keyed(Held):
    """A store of which a start verifies only the last records; each has a key."""

    now_ms: int

    def put(self, body: bytes, topic: str = "T") -> int:
        self.now_ms += 1
        origin = Origin(self.now_ms, self.now_ms, HOST)
        put = self.store.put(topic, 0, body, b"KEYS\x01%s\x02" % body, origin)
        self.store.commit()
        self.store.run_jobs()
        self.store.advance()
        return put.queue_offset

    def live(self, *, clean: bool, index: bool = True) -> None:
        """Live as one process for some messages and checkpoints."""
        self.opened(replace(SHORT, index=index))
        for number in range(60):
            self.put(b"more %d" % number)
            self.store.tick(self.now_ms)
            self.store.run_jobs()
        self.stop(clean=clean)

    def damage_behind(self, offset: int) -> str:
        """Damage the size of the third record after an offset; return how its place is named."""
        size = CONFIG.segment_size
        segments = Segments(self.disk, f"{ROOT}/commitlog", size)
        places = [each.physical_offset for each in LogScan(segments, 0)]
        segments.close()
        place = [each for each in places if each >= offset][2]
        claims = load_checkpoint(self.disk, f"{ROOT}/checkpoint").claims
        assert claims is None or place < claims.verify_from
        path = f"{ROOT}/commitlog/{place - place % size:020d}"
        flip(self.disk, path, place % size + 2)
        return f"{path}: at byte {place % size}: no sound record begins here"

    def check_refused(self, problem: str) -> None:
        """Check that a start is refused with the place, and writes nothing, even for a moment."""
        before, operations = contents(self.disk), self.disk.operations
        with pytest.raises(CorruptionError, match=problem):
            self.opened(SHORT)
        assert (contents(self.disk), self.disk.operations) == (before, operations)


@pytest.mark.parametrize("clean", [True, False])
def test_it_is_refused_before_a_byte_is_changed_where_the_index_is_lost(clean: bool) -> None:
    held = Keyed()
    held.stop(clean=True)
    held.live(clean=clean)
    problem = held.damage_behind(1000)
    for path in list(files_of(held.disk, f"{ROOT}/index")):
        held.disk.remove(path)
    held.disk.remove_directory(f"{ROOT}/index")
    held.check_refused(problem)


@pytest.mark.parametrize("clean", [True, False])
def test_it_is_refused_before_a_byte_is_changed_where_the_index_was_off(clean: bool) -> None:
    held = Keyed()
    held.stop(clean=True)
    held.live(clean=True, index=False)
    held.live(clean=clean, index=False)
    off = load_off(held.disk, ROOT)
    assert off is not None
    held.check_refused(held.damage_behind(off))


def test_it_is_refused_before_a_byte_is_changed_where_the_index_of_a_killed_apache_lags() -> None:
    """Apache's brokers sync an index file when it is full."""
    held = Keyed()
    held.stop(clean=True)
    held.live(clean=False)
    checkpoint = f"{ROOT}/checkpoint"
    queues_offset = 4 * CONFIG.segment_size + 1
    overwrite(held.disk, checkpoint, 40, queues_offset.to_bytes(8, "big").ljust(4096 - 40, b"\0"))
    (index,) = files_of(held.disk, f"{ROOT}/index")
    items_at = 40 + CONFIG.index_slots * 4 + 20 * 50
    overwrite(held.disk, index, items_at, bytes(held.disk.open(index).size() - items_at))
    held.check_refused(held.damage_behind(2 * CONFIG.segment_size))


def test_an_entry_journal_stays_until_the_log_was_read_back() -> None:
    """If the disk refuses the log meanwhile, a repair asks the journal what was there."""
    held = Tailed("T", WITH_JOURNAL, synced=True)
    (journal,) = held.disk.list(f"{ROOT}/entryjournal")
    flip(held.disk, f"{ROOT}/entryjournal/{journal.name}", journal.size // 2)

    def fail(operation: Operation) -> None:
        if operation.path.startswith(f"{ROOT}/checkpoint") and operation.moment is Moment.AFTER:
            for path in files_of(held.disk, f"{ROOT}/commitlog"):
                held.disk.make_unreadable(path, 0, CONFIG.segment_size)

    held.disk.hook = fail
    with pytest.raises(OSError, match="commitlog"):
        held.opened(WITH_JOURNAL)
    assert held.disk.list(f"{ROOT}/entryjournal") == [journal]
