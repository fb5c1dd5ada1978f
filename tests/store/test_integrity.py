"""The sidecar of sealed blocks: what it covers, what it reports, and what it never does."""

from __future__ import annotations

import struct
from random import Random

import pytest
from crc32c import crc32c
from tests.crash.disk import SimulatedFileSystem

from cometmq.store.upkeep.integrity import BLOCK_SIZE, Integrity

SEGMENT = 5 * BLOCK_SIZE + 1000
FOLDER = "/store/integrity"


class Log:
    """Some bytes that take the place of the log."""

    def __init__(self, size: int, seed: int = 1) -> None:
        self.data = bytearray(Random(seed).randbytes(size))
        self.reads = 0

    def read(self, offset: int, size: int) -> bytes:
        self.reads += 1
        assert offset // SEGMENT == (offset + size - 1) // SEGMENT
        assert offset + size <= len(self.data)
        return bytes(self.data[offset : offset + size])

    def cut_and_write(self, offset: int, size: int) -> None:
        """Do as another program does: from a cut on, everything is new up to the new end."""
        end = offset + size
        self.data.extend(bytes(max(0, end - len(self.data))))
        self.data[offset:end] = Random(99).randbytes(size)
        rest = end - end % SEGMENT + SEGMENT  # Segments after the one of the end were removed.
        if len(self.data) > rest:
            del self.data[rest:]


def sealed(
    log: Log, synced: int, disk: SimulatedFileSystem | None = None, *, blocks_max: int = 3
) -> Integrity:
    integrity = Integrity(disk or SimulatedFileSystem(), FOLDER, SEGMENT)
    while integrity.advance(synced, log.read, blocks_max):
        pass
    integrity.prepare_sync()()
    return integrity


def states(integrity: Integrity, log: Log, start: int = 0, end: int | None = None) -> str:
    """Return one letter a block: sound, damaged, or `?` for not covered."""
    blocks = list(integrity.blocks(start, len(log.data) if end is None else end, log.read))
    position = start
    for block in blocks:
        assert block.physical_offset == position
        position += block.size
    return "".join({True: "s", False: "D", None: "?"}[block.is_sound] for block in blocks)


@pytest.mark.parametrize("blocks_max", [1, 2, 100])
def test_whole_synced_blocks_are_sealed_and_the_rest_is_not(blocks_max: int) -> None:
    log = Log(2 * SEGMENT)
    synced = SEGMENT + 2 * BLOCK_SIZE + BLOCK_SIZE // 2
    integrity = sealed(log, synced, blocks_max=blocks_max)
    assert states(integrity, log) == "ssssss" + "ss????"
    assert integrity.next_offset == SEGMENT + 2 * BLOCK_SIZE
    assert not integrity.advance(synced, log.read)
    assert integrity.advance(2 * SEGMENT, log.read, 1)
    assert not integrity.advance(2 * SEGMENT, log.read)
    assert states(integrity, log) == "ssssss" + "ssssss"


def test_a_sidecar_is_laid_out_as_version_1_is() -> None:
    """It is on the disks of users: changing it requires raising the version."""
    size, start = 3 * 65536 + 1000, 3 * 65536 + 1000
    data, disk = Random(1).randbytes(2 * size), SimulatedFileSystem()
    integrity = Integrity(disk, FOLDER, size)
    integrity.begin(start)
    while integrity.advance(2 * size, lambda offset, count: data[offset : offset + count]):
        pass
    header = b"CMQBLOCK" + struct.pack(">iiqq", 1, 65536, start, size)
    expected = header + struct.pack(">I28x", crc32c(header))
    for at in range(start, 2 * size, 65536):
        crc = crc32c(data[at : min(at + 65536, 2 * size)])
        expected += struct.pack(">II", crc, crc32c(struct.pack(">qI", at, crc)))
    file = disk.open(f"{FOLDER}/{start:020d}")
    assert file.read(1000, 0) == expected


def test_every_changed_byte_is_found_in_its_block() -> None:
    log = Log(SEGMENT)
    integrity = sealed(log, SEGMENT)
    for position in [
        0,
        BLOCK_SIZE - 1,
        BLOCK_SIZE,
        SEGMENT - 1,
        *Random(1).sample(range(SEGMENT), 40),
    ]:
        log.data[position] ^= 1 << position % 8
        expected = ["s"] * 6
        expected[position // BLOCK_SIZE] = "D"
        assert states(integrity, log) == "".join(expected)
        log.data[position] ^= 1 << position % 8


def test_a_block_that_the_log_ends_or_begins_inside_is_not_covered() -> None:
    log = Log(SEGMENT)
    integrity = sealed(log, SEGMENT)
    assert states(integrity, log, 10, SEGMENT) == "?sssss"
    assert states(integrity, log, 0, 3 * BLOCK_SIZE + 1) == "sss?"
    assert states(integrity, log, BLOCK_SIZE + 5, BLOCK_SIZE + 6) == "?"


def test_building_goes_on_where_it_is_told_to() -> None:
    log = Log(2 * SEGMENT)
    disk = SimulatedFileSystem()
    sealed(log, 2 * BLOCK_SIZE, disk).close()
    again = Integrity(disk, FOLDER, SEGMENT)
    again.begin(3 * BLOCK_SIZE + 1)
    assert again.next_offset == 4 * BLOCK_SIZE
    assert not again.advance(2 * SEGMENT, log.read, 100) or again.next_offset == SEGMENT
    again.advance(2 * SEGMENT, log.read, 100)
    assert states(again, log) == "ss??ss" + "ssssss"
    again.begin(SEGMENT - 1)
    assert again.next_offset == SEGMENT


def test_a_sidecar_damaged_or_cut_anywhere_never_makes_sound_data_look_damaged() -> None:
    log = Log(SEGMENT)
    disk = SimulatedFileSystem()
    integrity = sealed(log, SEGMENT, disk)
    integrity.close()
    file = disk.open(f"{FOLDER}/{0:020d}")
    whole = file.read(1000, 0)
    assert len(whole) == 64 + 6 * 8
    for position in range(len(whole)):
        file.write(bytes([whole[position] ^ 0x10]), position)
        damaged = states(integrity, log)
        assert "D" not in damaged
        assert damaged.count("?") == (6 if position < 64 else 1)
        file.write(whole[position : position + 1], position)
    for length in range(len(whole), -1, -1):
        file.resize(length)
        assert states(integrity, log) == ("s" * max(0, (length - 64) // 8)).ljust(6, "?")


def test_after_a_power_cut_no_sound_block_looks_damaged_and_what_is_lost_is_sealed_again() -> None:
    log = Log(2 * SEGMENT)
    disk = SimulatedFileSystem()
    disk.make_directories(FOLDER)
    disk.sync_directory(FOLDER)
    integrity = Integrity(disk, FOLDER, SEGMENT)
    while integrity.advance(2 * SEGMENT, log.read, 1):
        if integrity.next_offset == 2 * BLOCK_SIZE:
            integrity.prepare_sync()()
    seen: set[str] = set()
    for seed in range(300):
        image = disk.power_cut(Random(seed))
        after = Integrity(image, FOLDER, SEGMENT)
        seen.add(states(after, log))
        while after.advance(2 * SEGMENT, log.read):
            pass
        assert states(after, log) == "s" * 12
    assert all(state.startswith("ss") and "D" not in state for state in seen)
    assert len(seen) > 2


def test_a_sidecar_of_another_version_or_size_is_made_anew() -> None:
    log = Log(SEGMENT)
    disk = SimulatedFileSystem()
    sealed(log, SEGMENT, disk).close()
    file = disk.open(f"{FOLDER}/{0:020d}")
    file.write(b"\0\0\0\2", 8)
    other = Integrity(disk, FOLDER, SEGMENT)
    assert states(other, log) == "??????"
    other.advance(BLOCK_SIZE, log.read)
    assert states(other, log) == "s?????"
    assert {
        block.is_sound for block in Integrity(disk, FOLDER, 8192).blocks(0, 8192, log.read)
    } == {None}


def test_what_is_dropped_before_a_cut_stays_dropped_through_a_power_cut() -> None:
    log = Log(3 * SEGMENT)
    disk = SimulatedFileSystem()
    integrity = sealed(log, 3 * SEGMENT, disk)
    cut = SEGMENT + 2 * BLOCK_SIZE + 17
    integrity.drop(cut)
    assert integrity.next_offset == SEGMENT + 2 * BLOCK_SIZE
    log.cut_and_write(cut, SEGMENT)
    for seed in range(40):
        image = Integrity(disk.power_cut(Random(seed)), FOLDER, SEGMENT)
        assert states(image, log) == "ssssss" + "ss????" + "??????"
    again = sealed(log, 3 * SEGMENT)
    again.drop(0)
    assert states(again, log) == "?" * 18
    again.drop(0)


def test_the_sidecars_of_removed_segments_go() -> None:
    log = Log(3 * SEGMENT)
    disk = SimulatedFileSystem()
    integrity = sealed(log, 3 * SEGMENT, disk)
    disk.open(f"{FOLDER}/note.txt", create=True).close()
    integrity.expire(2 * SEGMENT - 1)
    assert [entry.name for entry in disk.list(FOLDER)] == [
        f"{SEGMENT:020d}",
        f"{2 * SEGMENT:020d}",
        "note.txt",
    ]
    integrity.expire(3 * SEGMENT)
    assert len(disk.list(FOLDER)) == 2  # The one that is being built stays.
    integrity.close()
    integrity.expire(3 * SEGMENT)
    assert [entry.name for entry in disk.list(FOLDER)] == ["note.txt"]


def test_what_another_program_appended_changes_nothing_that_is_sealed() -> None:
    log = Log(3 * SEGMENT)
    integrity = sealed(log, 2 * SEGMENT + BLOCK_SIZE + 5)
    log.cut_and_write(2 * SEGMENT + BLOCK_SIZE + 5, 3 * BLOCK_SIZE)
    assert (
        integrity.last_untouched(0, len(log.data), log.read, rest_size_max=1000)
        == 2 * SEGMENT + BLOCK_SIZE
    )
    assert "D" not in states(integrity, log)


def test_damage_before_what_another_program_appended_is_still_found() -> None:
    log = Log(3 * SEGMENT)
    integrity = sealed(log, 3 * SEGMENT)
    log.data[SEGMENT + BLOCK_SIZE] ^= 1
    untouched = integrity.last_untouched(0, len(log.data), log.read, rest_size_max=1000)
    integrity.drop(untouched)
    assert states(integrity, log) == "ssssss" + "sDssss" + "sssss?"


@pytest.mark.parametrize("new_size", [100, BLOCK_SIZE, 2 * SEGMENT, 9 * SEGMENT])
@pytest.mark.parametrize("block", [0, 1, 4, 7, 12, 29])
def test_blocks_behind_another_programs_cut_are_dropped_and_not_reported(
    block: int, new_size: int
) -> None:
    log = Log(5 * SEGMENT)
    integrity = sealed(log, 5 * SEGMENT)
    cut = block // 6 * SEGMENT + block % 6 * BLOCK_SIZE + 700
    log.cut_and_write(cut, new_size)
    log.reads = 0
    untouched = integrity.last_untouched(0, cut + new_size, log.read, rest_size_max=1000)
    assert log.reads <= 8
    assert untouched <= cut
    assert cut - untouched < 2 * BLOCK_SIZE + 1000
    integrity.drop(untouched)
    assert "D" not in states(integrity, log, end=cut + new_size)


def test_what_is_left_over_at_the_end_of_a_segment_does_not_vouch_for_what_is_before_it() -> None:
    log = Log(2 * SEGMENT)
    integrity = sealed(log, 2 * SEGMENT)
    # Cut in block 1; the new records end in block 3 with a blank; blocks 4 and 5 keep old bytes.
    log.data[BLOCK_SIZE + 9 : 3 * BLOCK_SIZE + 9] = Random(7).randbytes(2 * BLOCK_SIZE)
    log.data[SEGMENT:] = Random(8).randbytes(SEGMENT)
    rest = 3 * BLOCK_SIZE
    untouched = integrity.last_untouched(0, 2 * SEGMENT, log.read, rest_size_max=rest)
    assert untouched == BLOCK_SIZE
    integrity.drop(untouched)
    assert states(integrity, log) == "s?????" + "??????"


def test_an_error_of_the_disk_advances_nothing_and_the_next_try_does() -> None:
    log = Log(SEGMENT)
    disk = SimulatedFileSystem(total=0)
    integrity = Integrity(disk, FOLDER, SEGMENT)
    with pytest.raises(OSError, match="No space left"):
        integrity.advance(SEGMENT, log.read)
    assert integrity.next_offset == 0
    disk.total = 1 << 20
    integrity.advance(SEGMENT, log.read)
    assert states(integrity, log) == "ssssss"
