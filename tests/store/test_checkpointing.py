"""A checkpoint covers what is synced, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from tests.crash.disk import Moment, SimulatedFileSystem
from tests.crash.subject import Subject
from tests.store.queue_model import files_below
from tests.store.records import refuse

from cometmq.store.config import Flush, StoreConfig
from cometmq.store.message_store import MessageStore
from cometmq.store.upkeep.checkpoint import load_checkpoint
from cometmq.store.upkeep.checkpointing import (
    BORDERS,
    INDEXED_A_TICK_MAX,
    SETTLED_A_TICK,
    SETTLED_A_TICK_MAX,
)
from cometmq.store.upkeep.write_behind import WRITES_A_TICK

if TYPE_CHECKING:
    from pathlib import Path

    from tests.crash.disk import Operation

CONFIG = StoreConfig(segment_size=16_384, index_slots=16, index_items=40)
NOW_MS = 1_700_000_000_000


def test_after_a_failed_sync_no_checkpoint_is_written_any_more() -> None:
    disk = SimulatedFileSystem()
    subject = Subject(disk, CONFIG, NOW_MS)
    subject.put("T", 0, b"body", {}, NOW_MS)
    subject.commit()
    subject.checkpoint(NOW_MS)
    before = load_checkpoint(disk, "/store/checkpoint").claims
    assert before is not None
    assert before.recover_from > 0
    subject.put("U", 0, b"body", {}, NOW_MS)
    subject.commit()
    disk.hook = refuse("sync_directory", times=2)  # The first may belong to an earlier checkpoint.
    for passed in range(3):
        subject.checkpoint(NOW_MS + 100_000 * (1 + passed))
    assert subject.has_failed
    after = load_checkpoint(disk, "/store/checkpoint").claims
    assert after is not None
    assert after.recover_from == before.recover_from
    assert not subject.close(NOW_MS)
    assert disk.exists("/store/abort")


def test_a_checkpoint_that_cannot_be_written_is_told_once_until_one_can_be(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = SimulatedFileSystem()
    subject = Subject(disk, CONFIG, NOW_MS)
    checkpoints = [NOW_MS + 100_000 * passed for passed in range(1, 5)]

    def refuse_checkpoints(operation: Operation) -> None:
        is_new = operation.verb == "create" and operation.path.endswith("checkpoint.new")
        if is_new and operation.moment is Moment.BEFORE:
            raise OSError(28, "No space left on device", operation.path)

    for at in checkpoints[:3]:
        disk.hook = refuse_checkpoints
        subject.put("T", 0, b"body", {}, at)
        subject.commit()
        subject.checkpoint(at)
    (refused,) = caplog.messages
    assert "/store/checkpoint.new: No space left on device; make room" in refused
    disk.hook = None
    subject.checkpoint(checkpoints[3])
    assert caplog.messages[1:] == ["the checkpoint is written again"]
    assert subject.close(NOW_MS)


def test_entries_that_are_old_enough_are_written_however_many_queues_they_are_of() -> None:
    disk = SimulatedFileSystem()
    subject = Subject(disk, CONFIG, NOW_MS)
    count = WRITES_A_TICK * 2 + 1
    for queue_id in range(count):
        subject.put("T", queue_id, b"", {}, NOW_MS)
        subject.commit()
    subject.sync()
    subject.upkeep(NOW_MS)
    for passed in range(3):
        subject.upkeep(NOW_MS + CONFIG.consume_queue_write_interval_ms + passed)
    assert len(disk.list("/store/consumequeue/T")) == count


def test_a_checkpoint_claims_what_waited_in_memory_when_it_was_due() -> None:
    disk = SimulatedFileSystem()
    subject = Subject(disk, replace(CONFIG, checkpoint_bytes=1), NOW_MS)
    subject.put("T", 0, b"body", {}, NOW_MS)
    subject.commit()
    for _ in range(2):
        subject.sync()
        subject.upkeep(NOW_MS)
    subject.sync()
    claims = load_checkpoint(disk, "/store/checkpoint").claims
    assert claims is not None
    assert claims.recover_from == subject.end_offset


def test_a_checkpoint_waits_for_a_slow_sync_of_the_log_and_then_claims_all_of_it() -> None:
    """Otherwise it would claim only what was synced when it was due, until the next interval."""
    disk = SimulatedFileSystem()
    subject = Subject(disk, replace(CONFIG, flush=Flush.ASYNC), NOW_MS)
    subject.put("T", 0, b"first", {}, NOW_MS)
    subject.commit()
    subject.checkpoint(NOW_MS)  # From now on only the log has to be waited for.
    subject.put("T", 0, b"body", {}, NOW_MS)
    subject.commit()
    now_ms = NOW_MS + 9 * CONFIG.checkpoint_interval_ms
    for _ in range(3):
        subject.upkeep(now_ms)
    for _ in range(2):
        subject.sync()
        subject.upkeep(now_ms)
    subject.sync()
    claims = load_checkpoint(disk, "/store/checkpoint").claims
    assert claims is not None
    assert claims.recover_from == subject.end_offset


@pytest.mark.parametrize("seed", range(10))
def test_what_a_checkpoint_covers_of_the_index_is_on_the_disk(seed: int) -> None:
    """A start must find nothing to do; it would take the index for damaged and rebuild it."""
    disk = SimulatedFileSystem()
    subject = Subject(disk, CONFIG, NOW_MS)
    for number in range(6):
        subject.put("T", 0, b"body", {"KEYS": f"k{number}"}, NOW_MS)
        subject.commit()
        subject.checkpoint(NOW_MS + 9 * number * CONFIG.checkpoint_interval_ms)
    claims = load_checkpoint(disk, "/store/checkpoint").claims
    assert claims is not None
    assert claims.recover_from == subject.end_offset
    written = files_below(disk, "/store/index")
    assert len(written) == 1
    assert files_below(disk.power_cut(Random(seed)), "/store/index") == written


@pytest.mark.parametrize("journal_queues_min", [1, 1024])
def test_a_checkpoint_is_taken_while_more_is_put_than_each_tick_indexes(
    journal_queues_min: int,
) -> None:
    """Otherwise a start after a kill would have to read all that was put since the load began."""
    config = replace(
        CONFIG,
        segment_size=1 << 20,
        index_items=1 << 20,
        checkpoint_bytes=300_000,
        consume_queue_journal_queues_min=journal_queues_min,
    )
    disk = SimulatedFileSystem()
    subject = Subject(disk, config, NOW_MS)
    while subject.end_offset < 3_000_000:
        for number in range(INDEXED_A_TICK_MAX + 100):
            subject.put("T", number % 8, b"", {"KEYS": f"k{number}"}, NOW_MS)
        subject.commit()
        subject.sync()
        subject.upkeep(NOW_MS)
        claims = load_checkpoint(disk, "/store/checkpoint").claims
        assert claims is not None
        assert subject.end_offset - claims.complete_to < 1_000_000
    assert subject.close(NOW_MS)


def killed_with(queues: int, config: StoreConfig) -> SimulatedFileSystem:
    """A store of so many queues, killed after a checkpoint and a put to one of them."""
    disk = SimulatedFileSystem()
    subject = Subject(disk, config, NOW_MS)
    for number in range(queues):
        subject.put("T", number, b"", {}, NOW_MS)
    subject.commit()
    while claimed(disk) < subject.end_offset:
        subject.checkpoint(NOW_MS)
    subject.put("T", 0, b"", {}, NOW_MS)
    subject.commit()
    return disk.kill()


def claimed(disk: SimulatedFileSystem) -> int:
    """Return from where the checkpoint has a start after a kill read the log."""
    claims = load_checkpoint(disk, "/store/checkpoint").claims
    assert claims is not None
    return claims.recover_from


def test_behind_a_kill_the_log_without_a_checkpoint_is_bounded_with_many_queues() -> None:
    """None is taken until each queue was looked at, which must not take thousands of slices."""
    config = replace(
        CONFIG, segment_size=1 << 20, consume_queue_file_size=400, checkpoint_bytes=100_000
    )
    disk = killed_with(800, config)
    subject = Subject(disk, config, NOW_MS)
    longest = 0
    while subject.end_offset < 3_000_000:
        for _ in range(16):
            subject.put("T", 0, bytes(1_000), {}, NOW_MS)
        subject.commit()
        subject.sync()
        subject.upkeep(NOW_MS)
        longest = max(longest, subject.end_offset - claimed(disk))
    slices = 800 // SETTLED_A_TICK_MAX
    assert longest < 100_000 + (slices + 20) * 16 * 1_200
    assert subject.close(NOW_MS)


def test_behind_a_kill_no_checkpoint_covers_more_until_each_queue_was_looked_at() -> None:
    """What a queue has after the old one may be torn, and the new one would vouch for it."""
    disk = killed_with(100, replace(CONFIG, consume_queue_file_size=400))
    before = claimed(disk)
    store = MessageStore.open("/store", CONFIG, now_ms=NOW_MS, filesystem=disk, threads=False)
    for passed in range(100 // SETTLED_A_TICK_MAX):
        store.tick(NOW_MS + passed * CONFIG.checkpoint_interval_ms)
        store.run_jobs()
        assert claimed(disk) == before < store.end_offset


def test_behind_a_kill_queues_are_looked_at_without_a_pause() -> None:
    """Otherwise idle queues would wait for minutes, and a kill in these would cost a long start."""
    disk = killed_with(100, replace(CONFIG, consume_queue_file_size=400))
    store = MessageStore.open("/store", CONFIG, now_ms=NOW_MS, filesystem=disk, threads=False)
    slices = 1
    while store.tick(NOW_MS):
        slices += 1
        store.run_jobs()
    assert slices >= 100 // SETTLED_A_TICK
    later_ms = NOW_MS + CONFIG.checkpoint_interval_ms
    for _ in range(3):
        store.tick(later_ms)
        store.run_jobs()
    assert claimed(disk) == store.end_offset
    store.close(later_ms)


LOADING = """
import sys
from threading import get_ident
from cometmq.store.config import Flush, StoreConfig
from cometmq.store.message_store import MessageStore
from cometmq.store.log.turn import Origin

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy":
            print("numpy loaded by the owner:", get_ident() == owner)

owner = get_ident()
sys.meta_path.insert(0, Watch())
config = StoreConfig(
    segment_size=1 << 20, index_slots=50, index_items=100, flush=Flush.ASYNC
)
store = MessageStore.open(sys.argv[1], config, now_ms=1)
index = store._parts.index
"""

FIRST_RECORD = """
store.tick(1)
print("opened", "numpy" in sys.modules)
store.put("T", 0, b"body", b"UNIQ_KEY\\x01id\\x02", Origin(1, 1, bytes(8)))
store.commit()
while index.waiting:
    store.tick(1)
print("indexed")
store.close(2)
"""

NO_RECORD = """
store.tick(1)
store.tick(500)
print("starting", "numpy" in sys.modules)
while index.needs_preparation:
    store.tick(501)
print("prepared")
store.close(501)
"""


def said_by(script: str, folder: Path) -> list[str]:
    """Return what a script says in a new process, in which nothing has loaded numpy yet."""
    command = [sys.executable, "-c", LOADING + script, str(folder)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def test_a_start_verifies_little_more_than_it_should_behind_a_clean_stop() -> None:
    disk = SimulatedFileSystem()
    config = replace(CONFIG, verify_size=8192)
    subject = Subject(disk, config, NOW_MS)
    borders: set[int] = set()
    for number in range(100):
        subject.put("T", 0, b"body" * number, {}, NOW_MS)
        subject.commit()
        borders.add(subject.end_offset)
        subject.sync()
        subject.upkeep(NOW_MS)
    assert subject.close(NOW_MS)
    claims = load_checkpoint(disk, "/store/checkpoint").claims
    assert claims is not None
    assert claims.recover_from == max(borders)
    assert claims.verify_from in borders
    verified = claims.recover_from - claims.verify_from
    assert 8192 <= verified < 8192 + 8192 // BORDERS + 1000
    assert len(Subject(disk, config, NOW_MS).read_all("T", 0)) == 100


def test_no_tick_loads_numpy_for_the_first_record(tmp_path: Path) -> None:
    said = said_by(FIRST_RECORD, tmp_path / "store")
    assert said == ["opened False", "numpy loaded by the owner: False", "indexed"]


def test_numpy_is_loaded_once_the_start_is_over(tmp_path: Path) -> None:
    said = said_by(NO_RECORD, tmp_path / "store")
    assert said == ["starting False", "numpy loaded by the owner: False", "prepared"]
