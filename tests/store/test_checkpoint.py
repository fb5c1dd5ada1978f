"""The checkpoint never claims more than was written into it, whatever happens to its file."""

from __future__ import annotations

import errno
import random
import struct
from dataclasses import replace
from zlib import crc32

import pytest
from tests.crash.disk import KillAt, Killed, SimulatedFileSystem
from tests.store.records import refuse

from cometmq.store.disk.sync import Syncer
from cometmq.store.errors import StoreFormatError
from cometmq.store.index.index_format import IndexShape
from cometmq.store.upkeep.checkpoint import (
    FILE_SIZE,
    VERSION,
    Checkpoint,
    CheckpointFile,
    Claims,
    Longs,
    load_checkpoint,
)

PATH = "/s/checkpoint"
LONGS = Longs(
    log_timestamp=1795254703933,
    queues_timestamp=1795254703932,
    index_timestamp=1795254703898,
    master_flushed_offset=7,
    confirm_offset=489236,
    queues_offset=505478,
)
CLAIMS = Claims(
    recover_from=505478,
    verify_from=400000,
    synced_offset=505832,
    segment_size=65536,
    queue_file_size=6_000_000,
    batch_queue_file_size=13_800_000,
    index_shape=IndexShape(5_000_000, 20_000_000),
)


def contents(disk: SimulatedFileSystem) -> bytes:
    file = disk.open(PATH, read_only=True)
    try:
        return file.read(FILE_SIZE + 1, 0)
    finally:
        file.close()


def overwrite(disk: SimulatedFileSystem, position: int, data: bytes) -> None:
    file = disk.open(PATH, create=True)
    file.write(data, position)
    file.close()


@pytest.fixture
def disk() -> SimulatedFileSystem:
    disk = SimulatedFileSystem()
    disk.make_directories("/s")
    disk.sync_directory("/")
    return disk


@pytest.fixture
def written(disk: SimulatedFileSystem) -> CheckpointFile:
    file = CheckpointFile(disk, PATH)
    file.write(LONGS, CLAIMS)
    return file


def test_what_is_written_is_read_back(disk: SimulatedFileSystem, written: CheckpointFile) -> None:
    assert load_checkpoint(disk, PATH) == Checkpoint(LONGS, CLAIMS, CLAIMS)
    assert len(contents(disk)) == FILE_SIZE


def test_apaches_numbers_stand_where_apache_puts_them(
    disk: SimulatedFileSystem, written: CheckpointFile
) -> None:
    assert struct.unpack(">6q", contents(disk)[:48]) == (
        1795254703933,
        1795254703932,
        1795254703898,
        7,
        489236,
        505478,
    )


def test_a_checkpoint_of_apache_is_taken_for_what_it_says(disk: SimulatedFileSystem) -> None:
    overwrite(disk, 0, struct.pack(">6q", 1, 2, 3, 0, 4, 5).ljust(FILE_SIZE, b"\0"))
    checkpoint = load_checkpoint(disk, PATH)
    assert checkpoint.claims is None
    assert checkpoint.longs.queues_offset == 5


def test_without_a_file_or_with_an_empty_one_nothing_is_known(disk: SimulatedFileSystem) -> None:
    assert load_checkpoint(disk, PATH) == Checkpoint(Longs())
    disk.open(PATH, create=True).close()
    assert load_checkpoint(disk, PATH) == Checkpoint(Longs())


def test_when_another_program_wrote_since_our_claims_are_only_what_was_true_then(
    disk: SimulatedFileSystem, written: CheckpointFile
) -> None:
    written.note_synced(CLAIMS.synced_offset + 1000)
    overwrite(disk, 0, struct.pack(">q", LONGS.log_timestamp + 1))
    checkpoint = load_checkpoint(disk, PATH)
    assert checkpoint.claims is None
    assert checkpoint.last_claims == CLAIMS
    assert checkpoint.longs == replace(LONGS, log_timestamp=LONGS.log_timestamp + 1)


def test_a_note_raises_the_synced_offset_and_the_next_checkpoint_voids_it(
    disk: SimulatedFileSystem, written: CheckpointFile
) -> None:
    written.note_synced(600_000)
    claims = load_checkpoint(disk, PATH).claims
    assert claims == replace(CLAIMS, synced_offset=600_000)
    note = contents(disk)[512:528]
    written.write(LONGS, replace(CLAIMS, synced_offset=500_000))
    assert load_checkpoint(disk, PATH).claims == replace(CLAIMS, synced_offset=500_000)
    overwrite(disk, 512, note)
    assert load_checkpoint(disk, PATH).claims == replace(CLAIMS, synced_offset=500_000)
    written.close()
    written.note_synced(700_000)


def test_a_note_that_a_full_disk_does_not_take_is_not_missed(
    disk: SimulatedFileSystem, written: CheckpointFile
) -> None:
    """On btrfs and ZFS each write needs room; a refused one must not pass for a failed sync."""
    syncer = Syncer(CLAIMS.synced_offset, note=written.note_synced, on_change=lambda: None)
    disk.hook = refuse("write", code=errno.ENOSPC)
    syncer.request(600_000)
    syncer.step()
    assert syncer.failure is None
    assert syncer.synced_offset == 600_000
    assert load_checkpoint(disk, PATH).claims == CLAIMS
    written.note_synced(700_000)
    assert load_checkpoint(disk, PATH).claims == replace(CLAIMS, synced_offset=700_000)


def test_any_flipped_bit_lowers_what_is_claimed_or_changes_nothing(
    disk: SimulatedFileSystem, written: CheckpointFile
) -> None:
    written.note_synced(CLAIMS.synced_offset + 5)
    sound = contents(disk)
    for position in range(FILE_SIZE):
        overwrite(disk, position, bytes((sound[position] ^ 1 << position % 8,)))
        checkpoint = load_checkpoint(disk, PATH)
        if checkpoint.claims is not None:
            assert checkpoint.claims.recover_from == CLAIMS.recover_from
            assert checkpoint.claims.synced_offset <= CLAIMS.synced_offset + 5
        elif checkpoint.last_claims is not None:
            assert position < 48
        else:
            assert checkpoint == Checkpoint(Longs())
        overwrite(disk, position, sound[position : position + 1])


def test_a_newer_version_is_refused(disk: SimulatedFileSystem, written: CheckpointFile) -> None:
    overwrite(disk, 52, struct.pack(">i", VERSION + 1))
    overwrite(disk, 168, struct.pack(">I", crc32(contents(disk)[48:168])))
    with pytest.raises(StoreFormatError, match="version 2, but this program knows up to 1"):
        load_checkpoint(disk, PATH)


@pytest.mark.parametrize("seed", range(60))
def test_a_power_cut_leaves_the_old_checkpoint_or_the_new_one(
    disk: SimulatedFileSystem, seed: int
) -> None:
    rng = random.Random(seed)
    file = CheckpointFile(disk, PATH)
    file.write(LONGS, CLAIMS)
    file.note_synced(510_000)
    disk.hook = KillAt(disk.operations + rng.randrange(1, 8))
    later = replace(CLAIMS, recover_from=520_000, synced_offset=520_000)
    finished = False
    try:
        file.write(LONGS, later)
        finished = True
        file.note_synced(530_000)
    except Killed:
        pass
    claims = load_checkpoint(disk.power_cut(rng), PATH).claims
    assert claims is not None
    if claims.recover_from == CLAIMS.recover_from:
        assert not finished
        assert claims.synced_offset in (CLAIMS.synced_offset, 510_000)
    else:
        assert claims in (later, replace(later, synced_offset=530_000))
