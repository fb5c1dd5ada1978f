"""A checkpoint is taken of what is synced, and of nothing else."""

from __future__ import annotations

from dataclasses import replace

from tests.crash.disk import SimulatedFileSystem
from tests.crash.subject import Subject
from tests.store.records import refuse

from cometmq.store.checkpoint import load_checkpoint
from cometmq.store.checkpointing import QUEUE_WRITES_A_TICK
from cometmq.store.config import StoreConfig

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
    disk.hook = refuse("sync_directory", times=2)  # The first may be of a checkpoint before.
    for passed in range(3):
        subject.checkpoint(NOW_MS + 100_000 * (1 + passed))
    assert subject.has_failed
    after = load_checkpoint(disk, "/store/checkpoint").claims
    assert after is not None
    assert after.recover_from == before.recover_from
    assert not subject.close(NOW_MS)
    assert disk.exists("/store/abort")


def test_entries_that_are_old_enough_are_written_however_many_queues_they_are_of() -> None:
    disk = SimulatedFileSystem()
    subject = Subject(disk, CONFIG, NOW_MS)
    count = QUEUE_WRITES_A_TICK * 2 + 1
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
