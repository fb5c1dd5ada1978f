"""What the simulated disk keeps, loses, tears and refuses."""

from __future__ import annotations

import errno
from collections import Counter
from random import Random

import pytest
from tests.crash.content import BLOCK, SECTOR
from tests.crash.disk import (
    KillAt,
    Killed,
    Moment,
    Operation,
    Partial,
    SimulatedFileSystem,
)

from cometmq.store.disk.filesystem import File

IMAGES = 400


def new_disk() -> SimulatedFileSystem:
    disk = SimulatedFileSystem()
    disk.make_directories("/d")
    disk.sync_directory("/")
    return disk


def new_file(disk: SimulatedFileSystem, content: bytes = b"", path: str = "/d/f") -> File:
    file = disk.open(path, create=True)
    file.write(content, 0)
    file.sync()
    disk.sync_directory("/d")
    return file


def content(disk: SimulatedFileSystem, path: str = "/d/f") -> bytes | None:
    if not disk.exists(path):
        return None
    file = disk.open(path, read_only=True)
    data = file.read(1 << 20, 0)
    file.close()
    return data


def images(disk: SimulatedFileSystem) -> list[SimulatedFileSystem]:
    return [disk.power_cut(Random(seed)) for seed in range(IMAGES)]


def test_what_was_synced_survives_every_power_cut() -> None:
    disk = new_disk()
    new_file(disk, b"a" * 3000).close()
    assert {content(image) for image in images(disk)} == {b"a" * 3000}


def test_an_unsynced_sector_is_kept_lost_or_torn() -> None:
    disk = new_disk()
    file = new_file(disk, b"a" * SECTOR)
    file.write(b"b" * SECTOR, 0)
    found = [content(image) or b"" for image in images(disk)]
    kinds = Counter("".join(sorted(set(data.decode()))) for data in found)
    assert kinds.keys() == {"a", "b", "ab"}
    assert all(data.count(b"ab") + data.count(b"ba") <= 1 for data in found)


def test_an_overwritten_sector_may_be_found_as_it_was_in_between() -> None:
    disk = new_disk()
    file = new_file(disk, b"a" * SECTOR)
    file.write(b"b" * SECTOR, 0)
    file.write(b"c" * SECTOR, 0)
    found = {content(image) for image in images(disk)}
    assert {letter * SECTOR for letter in (b"a", b"b", b"c")} <= found


def test_unsynced_sectors_reach_the_disk_in_any_order_and_at_times_all() -> None:
    disk = new_disk()
    file = new_file(disk, bytes(4 * SECTOR))
    for sector in range(4):
        file.write(b"\xff" * SECTOR, sector * SECTOR)
    shapes = {
        tuple((content(image) or b"")[sector * SECTOR] for sector in range(4))
        for image in images(disk)
    }
    assert {(0, 0, 0, 255), (255, 0, 0, 0), (255,) * 4, (0,) * 4} <= shapes


def test_an_unsynced_length_may_be_the_old_one_the_new_one_or_one_between() -> None:
    disk = new_disk()
    file = new_file(disk, b"a" * 100)
    file.write(b"b" * 9900, 100)
    lengths = {len(content(image) or b"") for image in images(disk)}
    assert {100, 10_000, BLOCK} <= lengths
    assert max(lengths) == 10_000
    assert min(lengths) == 100


def test_a_synced_allocation_keeps_its_length_and_reads_as_zeros() -> None:
    disk = new_disk()
    file = new_file(disk)
    file.allocate(8 * BLOCK)
    assert {len(content(image) or b"") for image in images(disk)} >= {0, 8 * BLOCK}
    again = new_disk()
    file = new_file(again)
    file.allocate(8 * BLOCK)
    file.sync()
    assert {content(image) for image in images(again)} == {bytes(8 * BLOCK)}


def test_an_unsynced_cut_may_not_have_happened() -> None:
    disk = new_disk()
    file = new_file(disk, b"a" * 1000)
    file.resize(10)
    file.resize(1000)
    found = {content(image) for image in images(disk)}
    assert {b"a" * 1000, b"a" * 10 + bytes(990), b"a" * 10} <= found
    again = new_disk()
    file = new_file(again, b"a" * 1000)
    file.resize(10)
    file.resize(1000)
    file.sync()
    assert {content(image) for image in images(again)} == {b"a" * 10 + bytes(990)}


def test_a_name_is_sure_only_when_its_folder_was_synced() -> None:
    disk = new_disk()
    file = disk.open("/d/f", create=True)
    file.write(b"x", 0)
    file.sync()
    assert {content(image) for image in images(disk)} == {None, b"x"}
    again = new_disk()
    new_file(again, b"x").close()
    again.remove("/d/f")
    assert {content(image) for image in images(again)} == {None, b"x"}
    final = new_disk()
    new_file(final, b"x").close()
    final.remove("/d/f")
    final.sync_directory("/d")
    assert {content(image) for image in images(final)} == {None}


def test_a_rename_happens_whole_or_not_at_all() -> None:
    disk = new_disk()
    new_file(disk, b"old").close()
    new_file(disk, b"new", "/d/t").close()
    disk.rename("/d/t", "/d/f")
    assert {(content(image), content(image, "/d/t")) for image in images(disk)} == {
        (b"old", b"new"),
        (b"new", None),
    }


def test_a_rename_of_what_was_not_synced_may_leave_an_empty_file() -> None:
    disk = new_disk()
    new_file(disk, b"old").close()
    file = disk.open("/d/t", create=True)
    file.write(b"new", 0)
    disk.rename("/d/t", "/d/f")
    disk.sync_directory("/d")
    assert {b"", b"new"} <= {content(image) for image in images(disk)}


def test_nothing_is_found_in_a_folder_that_was_lost_and_a_synced_one_exists() -> None:
    disk = new_disk()
    disk.make_directories("/d/e")
    disk.open("/d/e/f", create=True).close()
    for image in images(disk):
        assert image.exists("/d/e") or not image.exists("/d/e/f")
    again = new_disk()
    again.make_directories("/d/e")
    again.open("/d/e/f", create=True).close()
    again.sync_directory("/d/e")
    assert all(image.exists("/d/e/f") for image in images(again))


def test_two_independent_names_survive_in_either_order() -> None:
    disk = new_disk()
    disk.open("/d/1", create=True).close()
    disk.open("/d/2", create=True).close()
    found = {(image.exists("/d/1"), image.exists("/d/2")) for image in images(disk)}
    assert found == {(False, False), (True, False), (False, True), (True, True)}


def test_a_killed_process_leaves_the_cache_and_a_later_power_cut_may_still_lose_it() -> None:
    disk = new_disk()
    file = new_file(disk, b"a")
    file.write(b"b", 0)
    disk.open("/d/g", create=True).close()
    after = disk.kill()
    assert content(after) == b"b"
    assert after.exists("/d/g")
    assert {content(image) for image in images(after)} == {b"a", b"b"}
    assert {image.exists("/d/g") for image in images(after)} == {False, True}
    with pytest.raises(Killed):
        file.write(b"c", 0)
    with pytest.raises(Killed):
        disk.list("/d")


def test_the_lock_of_a_dead_process_is_free() -> None:
    disk = new_disk()
    assert disk.lock("/d/lock") is not None
    assert disk.other_process().lock("/d/lock") is None
    assert disk.kill().lock("/d/lock") is not None


def test_a_sync_that_failed_drops_its_pages_and_the_next_one_proves_nothing() -> None:
    disk = new_disk()
    file = new_file(disk, b"a" * 2 * SECTOR)
    file.write(b"b" * SECTOR, 0)

    def fail(operation: Operation) -> None:
        if operation.verb == "sync":
            raise OSError(errno.EIO, "injected")

    disk.hook = fail
    with pytest.raises(OSError, match="injected"):
        file.sync()
    disk.hook = None
    file.write(b"c" * SECTOR, SECTOR)
    file.sync()
    assert file.read(1, 0) == b"b"
    found = [content(image) or b"" for image in images(disk)]
    assert {data[0] for data in found} == {ord("a"), ord("b")}
    assert {data[SECTOR:] for data in found} == {b"c" * SECTOR}


def test_a_full_disk_refuses_behind_what_still_fitted_and_works_again_with_room() -> None:
    disk = new_disk()
    disk.total = 3 * BLOCK
    file = new_file(disk, b"a" * BLOCK)
    with pytest.raises(OSError, match="No space left") as caught:
        file.write(b"b" * 4 * BLOCK, BLOCK // 2)
    assert caught.value.errno == errno.ENOSPC
    assert file.read(1 << 20, 0) == b"a" * (BLOCK // 2) + b"b" * (BLOCK * 5 // 2)
    assert disk.space("/d").free == 0
    file.write(b"c" * BLOCK, 0)
    other = disk.open("/d/g", create=True)
    with pytest.raises(OSError, match="No space left"):
        other.allocate(BLOCK)
    file.resize(2 * BLOCK)
    with pytest.raises(OSError, match="No space left"):
        other.allocate(2 * BLOCK)
    assert other.size() == BLOCK
    disk.total = 4 * BLOCK
    other.allocate(2 * BLOCK)
    assert disk.space("/d").free == 0


def test_the_room_of_a_removed_file_is_free_when_the_last_reader_lets_go() -> None:
    disk = new_disk()
    before = disk.space("/d").free
    file = new_file(disk, b"a" * BLOCK)
    mapping = file.map()
    file.close()
    disk.remove("/d/f")
    assert disk.space("/d").free == before - BLOCK
    assert mapping.close()
    assert disk.space("/d").free == before


def test_a_write_can_be_made_to_fail_behind_its_first_bytes() -> None:
    disk = new_disk()
    file = new_file(disk, b"aaaa")

    def short(operation: Operation) -> None:
        if operation.verb == "write":
            raise Partial(2, OSError(errno.EIO, "injected"))

    disk.hook = short
    with pytest.raises(OSError, match="injected"):
        file.write(b"bbbb", 0)
    assert file.read(4, 0) == b"bbaa"


def test_reads_of_a_bad_range_fail_and_others_do_not() -> None:
    disk = new_disk()
    file = new_file(disk, b"a" * 1000)
    disk.make_unreadable("/d/f", 500, 600)
    assert file.read(500, 0) == b"a" * 500
    with pytest.raises(OSError, match="Input/output error"):
        file.read(2, 499)


def test_a_read_only_disk_refuses_every_change() -> None:
    disk = new_disk()
    new_file(disk, b"a").close()
    disk.read_only = True
    for change in (
        lambda: disk.open("/d/g", create=True),
        lambda: disk.open("/d/f"),
        lambda: disk.remove("/d/f"),
        lambda: disk.rename("/d/f", "/d/g"),
        lambda: disk.make_directories("/d/e"),
        lambda: disk.sync_directory("/d"),
    ):
        with pytest.raises(OSError, match="Read-only file system"):
            change()
    assert content(disk) == b"a"


def create_write_and_sync(disk: SimulatedFileSystem) -> None:
    file = disk.open("/d/f", create=True)
    file.write(b"x", 0)
    file.sync()


def test_a_kill_before_or_after_an_operation_leaves_the_disk_without_or_with_it() -> None:
    outcomes: dict[tuple[int, Moment], bytes | None] = {}
    for number in (1, 2, 3):
        for moment in Moment:
            disk = new_disk()
            start = disk.operations
            disk.hook = KillAt(start + number, moment)
            with pytest.raises(Killed):
                create_write_and_sync(disk)
            outcomes[number, moment] = content(disk.kill())
    assert outcomes == {
        (1, Moment.BEFORE): None,
        (1, Moment.AFTER): b"",
        (2, Moment.BEFORE): b"",
        (2, Moment.AFTER): b"x",
        (3, Moment.BEFORE): b"x",
        (3, Moment.AFTER): b"x",
    }


def test_one_seed_gives_one_image() -> None:
    disk = new_disk()
    file = new_file(disk, b"a" * 5000)
    file.write(b"b" * 5000, 2000)
    assert content(disk.power_cut(Random(7))) == content(disk.power_cut(Random(7)))


@pytest.mark.parametrize("seed", range(20))
def test_what_a_synced_partition_holds_survives_a_power_cut(seed: int) -> None:
    disk = SimulatedFileSystem()
    disk.make_directories("/a/b")
    for name in ("/a/one", "/a/b/two"):
        disk.open(name, create=True).write(b"data" * 1000, 0)
    disk.partition("/a").sync()
    disk.remove("/a/one")
    after = disk.power_cut(Random(seed))
    assert after.open("/a/b/two").read(9000, 0) == b"data" * 1000


def test_after_a_failed_sync_of_a_partition_the_next_proves_nothing() -> None:
    def refuse(operation: Operation) -> None:
        if operation.verb == "sync_partition" and operation.moment is Moment.BEFORE:
            raise OSError(errno.EIO, "refused")

    found: set[bytes] = set()
    for seed in range(20):
        disk = SimulatedFileSystem()
        disk.make_directories("/a")
        disk.open("/a/one", create=True).write(b"data", 0)
        disk.hook = refuse
        with pytest.raises(OSError, match="refused"):
            disk.partition("/a").sync()
        disk.hook = None
        disk.partition("/a").sync()
        found.add(disk.power_cut(Random(seed)).open("/a/one").read(9, 0))
    assert found > {b"data"}
