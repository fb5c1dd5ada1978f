"""The row of CommitLog files: what is taken, what is refused, and what a failing disk leaves."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterable
from contextlib import suppress

import pytest
from tests.crash.disk import KillAt, Killed, SimulatedFileSystem
from tests.store.records import refuse

from cometmq.store.errors import StoreFormatError
from cometmq.store.log.segments import Segments

SIZE = 8192
LOG = "/store/commitlog"


@pytest.fixture
def disk() -> SimulatedFileSystem:
    disk = SimulatedFileSystem()
    disk.make_directories(LOG)
    return disk


def make_file(disk: SimulatedFileSystem, name: str, size: int) -> None:
    file = disk.open(f"{LOG}/{name}", create=True)
    file.resize(size)
    file.close()


def names(disk: SimulatedFileSystem) -> list[str]:
    return [entry.name for entry in disk.list(LOG)]


def test_a_new_row_has_the_configured_size_and_grows_by_whole_files(
    disk: SimulatedFileSystem,
) -> None:
    segments = Segments(disk, LOG, SIZE)
    assert (segments.size, len(segments), segments.first_offset, segments.end_offset) == (
        SIZE,
        0,
        0,
        0,
    )
    segments.prepare(0)
    segments.obtain(0)
    segments.obtain(SIZE)
    assert names(disk) == [f"{0:020d}", f"{SIZE:020d}"]
    assert [entry.size for entry in disk.list(LOG)] == [SIZE, SIZE]
    assert segments.end_offset == 2 * SIZE
    at = segments.at(SIZE + 5)
    assert at is not None
    assert at.start == SIZE
    assert segments.at(2 * SIZE) is None


def test_the_size_is_read_from_the_files_that_are_there(disk: SimulatedFileSystem) -> None:
    make_file(disk, f"{0:020d}", 4096)
    assert Segments(disk, LOG, SIZE).size == 4096
    make_file(disk, f"{4096:020d}", 4096)
    assert Segments(disk, LOG, SIZE).size == 4096


def test_a_size_that_is_no_multiple_of_a_page_is_one_if_it_is_asked_for_or_several_have_it(
    disk: SimulatedFileSystem,
) -> None:
    make_file(disk, f"{0:020d}", 5000)
    assert Segments(disk, LOG, 5000).size == 5000
    make_file(disk, f"{5000:020d}", 5000)
    assert Segments(disk, LOG, SIZE).size == 5000


def test_a_file_without_a_length_is_not_counted_and_its_name_is_taken_over(
    disk: SimulatedFileSystem,
) -> None:
    make_file(disk, f"{0:020d}", SIZE)
    make_file(disk, f"{SIZE:020d}", 0)
    segments = Segments(disk, LOG, SIZE)
    assert len(segments) == 1
    segments.obtain(SIZE)
    assert [entry.size for entry in disk.list(LOG)] == [SIZE, SIZE]


@pytest.mark.parametrize(
    ("files", "names_it"),
    [
        ({"notes.txt": 10}, "notes.txt"),
        ({f"{0:020d}": 5000}, "5000 bytes are not the size of a whole file"),
        ({f"{0:020d}": SIZE, f"{SIZE:020d}": SIZE - 1}, f"{SIZE:020d}: {SIZE - 1} bytes"),
        (
            {f"{0:020d}": 505, f"{SIZE:020d}": SIZE},
            rf"{0:020d}: 505 bytes, but .* {SIZE};.* fill it up with zeros \(`truncate -s {SIZE}`",
        ),
        (
            {f"{0:020d}": SIZE, f"{SIZE:020d}": 2 * SIZE, f"{2 * SIZE:020d}": SIZE},
            rf"{SIZE:020d}: {2 * SIZE} bytes, .* cut it off \(`truncate -s {SIZE}`\)",
        ),
        ({f"{0:020d}": SIZE, f"{SIZE:020d}": 0, f"{2 * SIZE:020d}": SIZE}, f"{SIZE:020d}: 0 bytes"),
        ({f"{5:020d}": SIZE}, f"no segment of {SIZE} bytes begins at this offset"),
        (
            {f"{0:020d}": SIZE, f"{2 * SIZE:020d}": SIZE},
            f"{SIZE:020d}: missing",
        ),
    ],
)
def test_a_file_that_does_not_belong_is_refused_by_name_and_nothing_is_changed(
    disk: SimulatedFileSystem, files: dict[str, int], names_it: str
) -> None:
    for name, size in files.items():
        make_file(disk, name, size)
    before = disk.operations
    with pytest.raises(StoreFormatError, match=names_it):
        Segments(disk, LOG, SIZE)
    assert disk.operations == before


def test_a_file_that_begins_where_no_segment_does_is_not_to_be_filled_up(
    disk: SimulatedFileSystem,
) -> None:
    for start, size in ((0, SIZE), (17, SIZE // 2), (SIZE, SIZE)):
        make_file(disk, f"{start:020d}", size)
    with pytest.raises(
        StoreFormatError,
        match=f"{17:020d}: no segment of {SIZE} bytes begins at this offset; move it",
    ):
        Segments(disk, LOG, SIZE, known_size=SIZE)


def test_a_last_file_that_was_cut_short_is_left_to_recovery_if_the_store_may_end_so(
    disk: SimulatedFileSystem,
) -> None:
    make_file(disk, f"{0:020d}", SIZE)
    make_file(disk, f"{SIZE:020d}", 100)
    with pytest.raises(StoreFormatError, match=rf"100 bytes, but .* have {SIZE};"):
        Segments(disk, LOG, 1, known_size=SIZE, may_end_short=False)
    segments = Segments(disk, LOG, 1, known_size=SIZE)
    last = list(segments)[-1]
    assert last.length == 100
    segments.complete(last)
    assert last.length == disk.list(LOG)[-1].size == SIZE
    make_file(disk, f"{0:020d}", 50)
    with pytest.raises(
        StoreFormatError, match=rf"50 bytes.*zeros \(`truncate -s {SIZE}`\), and run"
    ):
        Segments(disk, LOG, 1, known_size=SIZE)


def test_a_full_disk_leaves_no_half_made_segment_and_room_is_enough_to_go_on(
    disk: SimulatedFileSystem,
) -> None:
    segments = Segments(disk, LOG, SIZE)
    segments.obtain(0)
    total = disk.total
    disk.total = total - disk.space("/").free + 4096
    with pytest.raises(OSError, match="No space left") as refusal:
        segments.obtain(SIZE)
    assert refusal.value.errno == errno.ENOSPC
    assert names(disk) == [f"{0:020d}"]
    assert not disk.exists(f"{LOG}.new")
    disk.total = total
    segments.obtain(SIZE)
    assert len(segments) == 2


class DiskOfItsOwn(SimulatedFileSystem):
    """A disk on which the log's folder is a mount point, or a link to another one."""

    def immovable(self, folders: Iterable[str]) -> str | None:
        return LOG if LOG in folders else None

    def rename(self, source: str, target: str) -> None:
        if not source.startswith(f"{LOG}/") and target.startswith(f"{LOG}/"):
            raise OSError(errno.EXDEV, "Invalid cross-device link", source, None, target)
        super().rename(source, target)


def test_a_log_on_a_disk_of_its_own_gets_its_segments_there() -> None:
    disk = DiskOfItsOwn()
    disk.make_directories(LOG)
    segments = Segments(disk, LOG, SIZE)
    segments.obtain(0)
    disk.hook = refuse("rename")
    with pytest.raises(OSError, match="refused"):
        segments.obtain(SIZE)
    segments.obtain(SIZE)
    made = [f"{0:020d}", f"{SIZE:020d}"]
    assert names(disk) == made
    disk.make_directories(f"{LOG}/.new")  # As a kill leaves it.
    make_file(disk, ".new/segment", SIZE // 2)
    again = Segments(disk, LOG, SIZE)
    again.remove_spare()
    again.obtain(2 * SIZE)
    assert names(disk) == [*made, f"{2 * SIZE:020d}"]


@pytest.mark.parametrize("verb", ["create", "allocate", "sync", "rename", "sync_directory"])
def test_whatever_fails_while_a_segment_is_made_it_can_be_made_later(
    disk: SimulatedFileSystem, verb: str
) -> None:
    segments = Segments(disk, LOG, SIZE)
    disk.hook = refuse(verb)
    with pytest.raises(OSError, match="refused"):
        segments.obtain(0)
    assert len(segments) == 0
    segments.obtain(0)
    assert names(disk) == [f"{0:020d}"]


@pytest.mark.parametrize("number", range(1, 9))
def test_a_power_cut_while_a_segment_is_made_leaves_a_whole_one_or_none(number: int) -> None:
    rng = random.Random(number)
    for _ in range(20):
        disk = SimulatedFileSystem()
        disk.make_directories(LOG)
        disk.sync_directory("/")
        disk.sync_directory("/store")
        disk.hook = KillAt(disk.operations + number)
        made = False
        try:
            Segments(disk, LOG, SIZE).obtain(0)
            made = True
        except Killed:
            pass
        left = disk.power_cut(rng)
        allowed = [[SIZE]] if made else [[SIZE], []]
        assert [entry.size for entry in left.list(LOG)] in allowed
        segments = Segments(left, LOG, SIZE)
        segments.remove_spare()
        segments.obtain(0)


def test_segments_beyond_the_limit_are_closed_but_never_one_that_is_not_synced(
    disk: SimulatedFileSystem,
) -> None:
    segments = Segments(disk, LOG, SIZE, maps_max=2)
    row = [segments.obtain(start) for start in range(0, 6 * SIZE, SIZE)]
    for segment in row:
        segments.view(segment)
    assert [segment.mapping is None for segment in row] == [False] * 6
    segments.synced_offset = 3 * SIZE
    segments.release_unused()
    assert [segment.mapping is None for segment in row] == [True] * 3 + [False] * 3
    segments.synced_offset = 6 * SIZE
    segments.view(row[1])
    assert [segment.mapping is None for segment in row] == [True, False] + [True] * 3 + [False]


def test_a_map_that_is_still_read_from_is_pinned_until_its_slices_are_gone(
    disk: SimulatedFileSystem,
) -> None:
    segments = Segments(disk, LOG, SIZE)
    file = segments.file(segments.obtain(0))
    file.write(b"old", 0)
    segments.obtain(SIZE)
    piece = segments.view(segments.obtain(0))[:3]
    mapping = segments.detach_first().release()
    assert mapping is not None
    segments.pin(mapping)
    assert (segments.pinned_count, segments.first_offset) == (1, SIZE)
    assert bytes(piece) == b"old"
    piece.release()
    assert segments.pinned_count == 0


def test_a_map_that_is_closed_for_others_counts_only_once_its_segment_is_removed(
    disk: SimulatedFileSystem,
) -> None:
    segments = Segments(disk, LOG, SIZE, maps_max=1)
    row = [segments.obtain(start) for start in (0, SIZE, 2 * SIZE)]
    segments.synced_offset = 3 * SIZE
    piece = segments.view(row[0])[:3]
    segments.view(row[1])
    assert row[0].mapping is None
    assert segments.pinned_count == 0, "the file keeps its room anyway"
    assert segments.detach_first().release() is None
    assert segments.pinned_count == 1
    piece.release()
    assert segments.pinned_count == 0


def row_of(disk: SimulatedFileSystem, count: int) -> Segments:
    segments = Segments(disk, LOG, SIZE)
    for start in range(0, count * SIZE, SIZE):
        segments.obtain(start)
    return segments


def test_segments_are_removed_from_the_end_so_that_no_gap_can_appear(
    disk: SimulatedFileSystem,
) -> None:
    segments = row_of(disk, 4)
    disk.hook = refuse("remove", times=9)
    with pytest.raises(OSError, match="refused"):
        segments.remove_from(SIZE)
    assert len(names(disk)) == 4
    disk.hook = KillAt(disk.operations + 4)
    with pytest.raises(Killed):
        segments.remove_from(SIZE)
    left = disk.kill()
    assert len(Segments(left, LOG, SIZE)) == 3


@pytest.mark.parametrize("first", range(1, 9))
@pytest.mark.parametrize("second", range(1, 9))
def test_a_power_cut_after_two_removals_that_were_cut_off_leaves_no_gap(
    disk: SimulatedFileSystem, first: int, second: int
) -> None:
    """A start that cuts the log is killed, so is the next, and then the machine loses its power.

    The first one's unsynced removals must be on the disk before the second removes more.
    """
    row_of(disk, 5)
    for number in (first, second):
        disk.hook = KillAt(disk.operations + number)
        with suppress(Killed):
            Segments(disk, LOG, SIZE).remove_from(SIZE)
        disk = disk.kill()
    for seed in range(12):
        assert len(Segments(disk.power_cut(random.Random(seed)), LOG, SIZE)) >= 1


def test_a_segment_prepared_twice_or_already_there_is_made_once(
    disk: SimulatedFileSystem,
) -> None:
    segments = Segments(disk, LOG, SIZE)
    segments.prepare(0)
    before = disk.operations
    segments.prepare(0)
    segments.obtain(0)
    segments.prepare(0)
    assert disk.operations == before
    assert 0 in segments
