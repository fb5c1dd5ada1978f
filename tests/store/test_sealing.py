"""Sealed data of a store: checked where a start reads, dropped where the log is cut, in slices."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from tests.crash.disk import Moment, SimulatedFileSystem
from tests.store.damaged_stores import verified
from tests.store.records import HOST

from cometmq.store.config import StoreConfig
from cometmq.store.errors import CorruptionError
from cometmq.store.log.turn import Origin
from cometmq.store.looking.findings import Kind
from cometmq.store.message_store import MessageStore
from cometmq.store.upkeep.checkpoint import load_checkpoint
from cometmq.store.upkeep.integrity import BLOCK_SIZE, Integrity

if TYPE_CHECKING:
    from tests.crash.disk import Operation

ROOT = "/s"
SEGMENT = 4 * BLOCK_SIZE
CONFIG = StoreConfig(
    segment_size=SEGMENT, consume_queue_file_size=2000, index_slots=8, index_items=64
)
LOG = f"{ROOT}/commitlog/{0:020d}"
FLAG_AT = 16
"""The place of a number in a record that no checksum of the body covers."""


def open_store(disk: SimulatedFileSystem, config: StoreConfig = CONFIG) -> MessageStore:
    return MessageStore.open(ROOT, config, now_ms=1, filesystem=disk, threads=False)


def fill(store: MessageStore, size: int) -> None:
    """Put messages until the log has grown by `size`, synced and sealed."""
    end = store.end_offset + size
    while store.end_offset < end:
        store.put("T", 0, bytes(range(256)) * 16, b"K\x01v\x02", Origin(1, 1, HOST))
        store.commit()
    store.run_jobs()
    while store.tick(1):
        store.run_jobs()


def flip(disk: SimulatedFileSystem, path: str, position: int) -> None:
    file = disk.open(path)
    (byte,) = file.read(1, position)
    file.write(bytes([byte ^ 1]), position)
    file.sync()
    file.close()


def sealed_end(disk: SimulatedFileSystem) -> int:
    return Integrity(disk, f"{ROOT}/integrity", SEGMENT).sealed_end()


def record_behind(store: MessageStore, offset: int) -> int:
    while store.find_record(offset) is None:
        offset += 1
    return offset


def test_what_is_synced_gets_sealed_and_what_is_not_does_not() -> None:
    disk = SimulatedFileSystem()
    store = open_store(disk)
    fill(store, 3 * BLOCK_SIZE)
    assert sealed_end(disk) == 3 * BLOCK_SIZE
    while store.end_offset < 4 * BLOCK_SIZE - 9000:
        store.put("T", 0, bytes(4096), b"", Origin(1, 1, HOST))
        store.commit()
    store.tick(1)
    assert sealed_end(disk) == 3 * BLOCK_SIZE
    assert store.close(1)


@pytest.mark.parametrize("clean", [True, False])
def test_a_flipped_byte_that_no_record_covers_stops_the_start(clean: bool) -> None:
    disk = SimulatedFileSystem()
    store = open_store(disk)
    fill(store, 2 * BLOCK_SIZE)
    place = record_behind(store, BLOCK_SIZE + 5)
    disk = close(store, disk, clean=clean)
    flip(disk, LOG, place + FLAG_AT)
    before = {path: disk.open(path, read_only=True).read(99, 0) for path in (LOG,)}
    with pytest.raises(CorruptionError, match="not what was sealed") as caught:
        open_store(disk)
    assert f"{BLOCK_SIZE}" in str(caught.value)
    assert {path: disk.open(path, read_only=True).read(99, 0) for path in before} == before
    assert open_store(disk, replace(CONFIG, integrity=False)).end_offset > 2 * BLOCK_SIZE


def close(store: MessageStore, disk: SimulatedFileSystem, *, clean: bool) -> SimulatedFileSystem:
    if clean:
        assert store.close(1)
        return disk
    return disk.kill()


def test_what_is_sealed_is_a_promise_even_if_the_note_of_it_was_lost() -> None:
    disk = SimulatedFileSystem()
    store = open_store(disk)
    fill(store, 3 * BLOCK_SIZE)
    place = record_behind(store, 2 * BLOCK_SIZE)
    disk = disk.kill()
    file = disk.open(f"{ROOT}/checkpoint")
    file.write(bytes(16), 512)  # The note of how far the log is synced.
    flip(disk, LOG, place + 200)
    with pytest.raises(CorruptionError, match="was safe on the disk"):
        open_store(disk)


def test_sealing_goes_on_where_it_stood_and_checks_again_nothing_into_being_sound() -> None:
    disk = SimulatedFileSystem()
    store = open_store(disk)
    fill(store, 2 * BLOCK_SIZE)
    disk = disk.kill()
    writes: list[str] = []

    def note(operation: Operation) -> None:
        if operation.verb == "write" and operation.moment is Moment.AFTER:
            writes.append(operation.path)

    disk.hook = note
    store = open_store(disk)
    fill(store, BLOCK_SIZE)
    disk.hook = None
    assert sum("integrity" in path for path in writes) == 1
    assert sealed_end(disk) == 3 * BLOCK_SIZE
    assert store.close(1)
    assert open_store(disk).close(1)


def test_what_a_start_verified_is_sealed_and_nothing_else() -> None:
    """Otherwise damage would be vouched for, and the sound bytes of a copy called damaged."""
    disk = SimulatedFileSystem()
    config = replace(CONFIG, segment_size=16 * BLOCK_SIZE, verify_size=BLOCK_SIZE)
    store = open_store(disk, replace(config, integrity=False))
    for _ in range(16):
        fill(store, BLOCK_SIZE // 4)
    assert store.close(1)
    claims = load_checkpoint(disk, f"{ROOT}/checkpoint").claims
    assert claims is not None
    border = -(-claims.verify_from // BLOCK_SIZE) * BLOCK_SIZE
    unseen = record_behind(store, border - BLOCK_SIZE)
    assert unseen < claims.verify_from < border
    flip(disk, LOG, unseen + FLAG_AT)
    store = open_store(disk, config)
    fill(store, BLOCK_SIZE)
    assert store.close(1)
    flip(disk, LOG, unseen + FLAG_AT)  # It is restored from a copy.
    assert verified(disk, config=config).is_sound
    flip(disk, LOG, record_behind(store, border) + FLAG_AT)
    assert verified(disk, config=config).counts == {Kind.BLOCK: 1}


def test_what_another_program_cut_and_wrote_anew_is_not_called_damaged() -> None:
    disk = SimulatedFileSystem()
    config = replace(CONFIG, segment_size=128 * BLOCK_SIZE)
    store = open_store(disk, config)
    fill(store, 20 * BLOCK_SIZE)
    place = record_behind(store, 17 * BLOCK_SIZE)
    assert store.close(1)
    other = store_without_claims(disk, config, place)
    store = open_store(disk, config)
    assert store.end_offset == other
    integrity = Integrity(disk, f"{ROOT}/integrity", config.segment_size)
    assert integrity.sealed_end() == 17 * BLOCK_SIZE
    fill(store, BLOCK_SIZE)
    assert store.close(1)
    assert integrity.sealed_end() == store.end_offset // BLOCK_SIZE * BLOCK_SIZE
    assert open_store(disk, config).close(1)


def store_without_claims(disk: SimulatedFileSystem, config: StoreConfig, cut: int) -> int:
    """Cut the log, and append and write the checkpoint as another program would."""
    file = disk.open(LOG)
    file.write(bytes(file.size() - cut), cut)
    file.sync()
    file.close()
    checkpoint = disk.open(f"{ROOT}/checkpoint")
    longs = b"".join(value.to_bytes(8, "big") for value in (5, 5, 5, 0, 1, 1))
    checkpoint.write(longs, 0)
    checkpoint.sync()
    checkpoint.close()
    disk.open(f"{ROOT}/abort", create=True).close()
    store = open_store(disk, replace(config, integrity=False))
    store.put("T", 0, b"from another program", b"", Origin(2, 2, HOST))
    end = store.commit()
    store.run_jobs()
    assert store.close(2)
    return end


def test_a_cut_of_the_tail_forgets_the_blocks_behind_it_at_every_power_cut() -> None:
    for seed in range(40):
        disk = SimulatedFileSystem()
        store = open_store(disk)
        fill(store, 2 * BLOCK_SIZE)
        while store.end_offset < 3 * BLOCK_SIZE + 100:
            store.put("T", 0, bytes(3000), b"", Origin(1, 1, HOST))
            store.commit()
        disk = disk.power_cut(Random(seed))
        store = open_store(disk)
        fill(store, 2 * BLOCK_SIZE)
        disk = disk.power_cut(Random(seed))
        assert open_store(disk).close(1)


def test_a_sidecar_that_cannot_be_written_stops_no_put_is_told_and_made_up_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = SimulatedFileSystem()
    store = open_store(disk)

    def refuse_sidecars(operation: Operation) -> None:
        if "integrity" in operation.path and operation.moment is Moment.BEFORE:
            raise OSError(28, "No space left on device", operation.path)

    disk.hook = refuse_sidecars
    fill(store, 2 * BLOCK_SIZE)
    assert sealed_end(disk) == 0
    disk.hook = None
    fill(store, 100)
    assert sealed_end(disk) == 2 * BLOCK_SIZE
    refused, taken = caplog.messages
    assert "checksums" in refused
    assert "/integrity" in refused
    assert "again" in taken
    assert store.close(1)


def test_checksums_that_are_written_and_not_synced_are_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = SimulatedFileSystem()
    store = open_store(disk, replace(CONFIG, verify_size=2 * BLOCK_SIZE))

    def refuse_syncs(operation: Operation) -> None:
        is_sync = operation.verb == "sync" and operation.moment is Moment.BEFORE
        if is_sync and "integrity" in operation.path:
            raise OSError(5, "Input/output error", operation.path)

    disk.hook = refuse_syncs
    fill(store, 2 * BLOCK_SIZE)
    store.run_jobs()
    assert sealed_end(disk) == 2 * BLOCK_SIZE
    (told,) = caplog.messages
    assert "checksums of sealed data may not be on the disk" in told
    assert "/integrity" in told
    disk.hook = None
    assert store.close(1)


def test_blocks_that_are_not_in_memory_are_read_in_a_thread() -> None:
    disk = SimulatedFileSystem()
    store = open_store(disk, replace(CONFIG, hot_size=4096))
    disk.is_cold = True
    fill(store, 2 * BLOCK_SIZE)
    assert sealed_end(disk) == 0
    disk.is_cold = False
    fill(store, 100)
    assert sealed_end(disk) == 2 * BLOCK_SIZE
    assert store.close(1)


def test_with_integrity_off_nothing_is_sealed() -> None:
    disk = SimulatedFileSystem()
    store = open_store(disk, replace(CONFIG, integrity=False))
    fill(store, 2 * BLOCK_SIZE)
    assert store.close(1)
    assert not disk.exists(f"{ROOT}/integrity")
