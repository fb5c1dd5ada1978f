from __future__ import annotations

import errno
from collections.abc import Sequence
from itertools import pairwise
from random import Random

import pytest
from tests.crash.disk import Operation, SimulatedFileSystem
from tests.store.queue_model import files_below
from tests.store.records import refuse

from cometmq.store.config import StoreConfig
from cometmq.store.errors import StoreFormatError
from cometmq.store.index.index import WAITING_MAX, Index
from cometmq.store.index.index_format import (
    HEADER_SIZE,
    ITEM,
    ITEM_SIZE,
    SLOT,
    IndexHeader,
    IndexShape,
    begun_before,
    positive_hash,
)

NOW_MS = 1_795_254_456_123
CONFIG = StoreConfig(index_slots=50, index_items=10)
FILE_SIZE = IndexShape(50, 10).file_size


def opened(disk: SimulatedFileSystem, *, clean: bool = True) -> Index:
    return Index(disk, "/store", CONFIG, clean=clean)


def filled(disk: SimulatedFileSystem, count: int, *, start: int = 0) -> Index:
    index = opened(disk)
    for n in range(start, start + count):
        index.add(b"t", b"UNIQ_KEY\x01id%d\x02KEYS\x01all\x02" % n, n * 100, NOW_MS + n)
    return index


def test_the_smallest_number_has_no_absolute_value_so_it_hashes_to_zero() -> None:
    assert [positive_hash(value) for value in (-(1 << 31), -5, 0, 7)] == [0, 5, 0, 7]


def test_an_index_has_no_file_before_its_first_key() -> None:
    disk = SimulatedFileSystem()
    index = opened(disk)
    index.add(b"t", b"WAIT\x01true\x02", 0, 1)
    assert index.finish(NOW_MS)
    assert files_below(disk, "/store") == {}
    assert index.search("t", "id0", 9).run() == []


def test_a_header_that_was_never_written_is_that_of_an_empty_file() -> None:
    assert IndexHeader.unpack(b"") == IndexHeader()
    assert IndexHeader.unpack(bytes(HEADER_SIZE)).next_item == 1


def test_files_are_named_by_time_and_always_in_order() -> None:
    disk = SimulatedFileSystem()
    assert filled(disk, 12).finish(NOW_MS)
    names = [path.rpartition("/")[2] for path in sorted(files_below(disk, "/store"))]
    assert len(names) == 3
    assert all(len(name) == 17 and name.endswith(f"{123 + n}") for n, name in enumerate(names))
    assert {disk.open(f"/store/index/{name}").size() for name in names} == {FILE_SIZE}


def test_a_query_returns_the_newest_records_first() -> None:
    index = filled(SimulatedFileSystem(), 12)
    index.build(100, NOW_MS)
    assert index.search("t", "all", 3).run() == [1100, 1000, 900]
    assert index.search("t", "id4", 3).run() == [400]
    assert index.search("other", "id4", 3).run() == []


def test_a_query_can_be_bounded_by_time() -> None:
    index = opened(SimulatedFileSystem())
    for n in range(12):
        index.add(b"t", b"KEYS\x01all\x02", n * 100, NOW_MS + n * 10_000)
    index.build(100, NOW_MS)
    assert index.search("t", "all", 99, end_ms=NOW_MS + 25_000).run() == [200, 100, 0]
    assert index.search("t", "all", 99, begin_ms=NOW_MS + 95_000).run() == [1100, 1000]
    assert index.search("t", "all", 99, begin_ms=NOW_MS + 10_000, end_ms=NOW_MS + 10_000).run() == [
        100
    ]


def test_a_time_that_several_files_share_bounds_none_of_them() -> None:
    index = opened(SimulatedFileSystem())
    for n in range(24):
        index.add(b"t", b"KEYS\x01all\x02", n * 100, NOW_MS)
    index.build(100, NOW_MS)
    found = index.search("t", "all", 99, begin_ms=NOW_MS, end_ms=NOW_MS).run()
    assert found == [n * 100 for n in reversed(range(24))]


def test_a_record_that_has_a_key_several_times_is_found_once() -> None:
    index = opened(SimulatedFileSystem())
    index.add(b"t", b"UNIQ_KEY\x01a\x02KEYS\x01a b a\x02", 0, NOW_MS)
    index.add(b"t", b"KEYS\x01a a\x02", 100, NOW_MS)
    index.build(100, NOW_MS)
    assert index.search("t", "a", 99).run() == [100, 0]


def test_who_reads_what_another_process_writes_finds_the_same_by_time() -> None:
    disk = SimulatedFileSystem()
    index = opened(disk)
    for n in range(24):
        index.add(b"t", b"KEYS\x01all\x02", n * 100, NOW_MS + n * 10_000)
    index.build(100, NOW_MS)
    reader = Index(disk, "/store", CONFIG, clean=False, read_only=True)
    for n in range(24):  # The first item of each file has its time from the file, not from itself.
        at = NOW_MS + n * 10_000
        assert reader.search("t", "all", 1, end_ms=at).run() == [n * 100]


def test_the_caller_says_which_records_count() -> None:
    index = filled(SimulatedFileSystem(), 12)
    index.build(100, NOW_MS)
    assert index.search("t", "all", 2, accept=lambda offset: offset % 300 == 0).run() == [900, 600]


def test_files_whose_records_are_gone_are_given_up_but_for_the_newest() -> None:
    disk = SimulatedFileSystem()
    index = filled(disk, 12)
    index.finish(NOW_MS)
    assert index.expire(400) == []  # The first file has a key of the record there.
    for path in (expired := index.expire(401)):
        disk.remove(path)
    assert len(expired) == 1
    assert index.search("t", "all", 99).run() == [1100, 1000, 900, 800, 700, 600, 500, 400]
    for path in (expired := index.expire(1 << 60)):
        disk.remove(path)
    assert len(expired) == 1
    assert index.expire(1 << 60) == []
    assert len(files_below(disk, "/store")) == 1
    index.take_unsynced().sync()


def test_a_file_is_final_once_its_last_record_counts_as_safe() -> None:
    index = filled(SimulatedFileSystem(), 12)
    index.finish(NOW_MS)
    assert index.sealed_below(400) == (0, 0)
    assert index.sealed_below(401) == (NOW_MS + 4, 400)


def test_a_full_file_holds_the_settled_offset_back_until_its_slots_are_written() -> None:
    disk = SimulatedFileSystem()
    config = StoreConfig(index_slots=200_000, index_items=150)
    index = Index(disk, "/store", config, clean=True)
    for n in range(200):
        index.add(b"t", b"UNIQ_KEY\x01%032d\x02" % (n * 7919**5), n * 100, NOW_MS)
    assert not index.build(200, NOW_MS)
    assert index.settled_offset == 148 * 100
    while not index.build(0, NOW_MS):
        pass
    assert index.settled_offset is None


def test_a_full_file_whose_slots_were_not_written_gets_them_after_a_kill() -> None:
    disk = SimulatedFileSystem()
    config = StoreConfig(index_slots=200_000, index_items=150)
    index = Index(disk, "/store", config, clean=True)
    for n in range(200):
        index.add(b"t", b"UNIQ_KEY\x01%032d\x02" % (n * 7919**5), n * 100, NOW_MS)
    assert not index.build(200, NOW_MS)
    again = Index(disk.kill(), "/store", config, clean=False)
    assert again.recover(20_000, synced=False) == 19_900
    for n in range(199):
        assert again.search("t", f"{n * 7919**5:032d}", 9).run() == [n * 100]


def test_the_newest_file_of_the_checkpoint_is_doubted_though_it_is_full_and_another_follows() -> (
    None
):
    disk = SimulatedFileSystem()
    config = StoreConfig(index_slots=200_000, index_items=150)
    index = Index(disk, "/store", config, clean=True)
    for n in range(149):
        index.add(b"t", b"UNIQ_KEY\x01%032d\x02" % (n * 7919**5), n * 100, NOW_MS)
    assert index.build(149, NOW_MS)
    assert index.settled_offset is None  # So a checkpoint may cover all of them.
    index.add(b"t", b"UNIQ_KEY\x01%032d\x02" % 1, 20_000, NOW_MS)
    assert not index.build(1, NOW_MS)
    again = Index(disk.kill(), "/store", config, clean=False)
    assert again.recover(15_000, synced=True) == 15_000
    for n in range(149):
        assert again.search("t", f"{n * 7919**5:032d}", 9).run() == [n * 100]


def test_a_torn_header_does_not_hide_the_newest_file_of_the_checkpoint() -> None:
    """The torn one was never synced; with a begin of 0 it looks like the last before the offset."""
    whole = IndexHeader(1, 2, 1000, 1900, 3, 20)
    newest = IndexHeader(2, 3, 2000, 2900, 3, 20)
    behind = IndexHeader(3, 4, 3000, 3900, 3, 20)
    torn = IndexHeader(0, 0, 0, 0, 0, 20)
    assert begun_before([whole, newest, behind], 3000) == [0, 1]
    assert begun_before([whole, newest, torn, behind], 3000)[-1:] == [1]
    assert begun_before([whole, newest, behind, torn], 3000)[-1:] == [1]
    assert begun_before([whole, newest, IndexHeader()], 3000)[-1:] == [1]
    first = IndexHeader(1, 1, 0, 0, 1, 20)
    assert begun_before([first, behind, torn], 3000) == [0]
    assert begun_before([behind, torn], 3000) == []
    assert begun_before([behind], 3000) == []
    assert begun_before([], 3000) == []


def test_a_file_whose_header_a_power_cut_has_torn_goes_and_its_keys_come_back() -> None:
    disk = SimulatedFileSystem()
    assert filled(disk, 24).finish(NOW_MS)  # Two items each: five files of nine and fewer.
    paths = sorted(files_below(disk, "/store"))
    torn = disk.open(paths[2])
    torn.write(bytes(32), 0)  # The times and offsets, but not that it is full.
    torn.close()
    again = opened(disk, clean=False)
    start = again.recover(900, synced=True)
    for n in range(start // 100, 24):
        again.add(b"t", b"UNIQ_KEY\x01id%d\x02KEYS\x01all\x02" % n, n * 100, NOW_MS + n)
    assert again.finish(NOW_MS)
    assert again.search("t", "all", 99).run() == [n * 100 for n in reversed(range(24))]
    assert len(files_below(disk, "/store")) == len(paths)


@pytest.mark.parametrize("seed", range(20))
def test_what_was_built_is_on_the_disk_once_it_is_synced(seed: int) -> None:
    disk = SimulatedFileSystem()
    index = filled(disk, 1)
    index.build(100, NOW_MS)
    index.take_unsynced().sync()  # With the names.
    for n in range(1, 12):
        index.add(b"t", b"KEYS\x01all\x02", n * 100, NOW_MS)
    index.build(1 + seed % 11, NOW_MS)
    index.take_unsynced().sync()
    written = files_below(disk, "/store/index")
    assert files_below(disk.power_cut(Random(seed)), "/store/index") == written


def test_what_is_waiting_bounds_the_settled_offset() -> None:
    index = filled(SimulatedFileSystem(), 3, start=5)
    assert index.settled_offset == 500
    assert index.waiting == 3
    index.build(1, NOW_MS)
    assert index.settled_offset == 600


def test_no_query_has_to_build_more_than_a_few_thousand_records_first() -> None:
    disk = SimulatedFileSystem()
    index = Index(disk, "/store", StoreConfig(index_slots=50, index_items=20_000), clean=True)
    index.prepare()
    for first in range(0, 9000, 3000):
        index.add_many(
            [(n, b"t", b"UNIQ_KEY\x01id%d\x02" % n, NOW_MS) for n in range(first, first + 3000)],
            3000,
        )
        assert index.waiting <= WAITING_MAX
    assert index.settled_offset == 9000 - WAITING_MAX
    assert index.finish(NOW_MS)
    assert [index.search("t", f"id{n}", 9).run() for n in (0, 4903, 8999)] == [[0], [4903], [8999]]


def test_beyond_what_may_wait_many_records_are_built_at_once_however_few_come() -> None:
    disk = SimulatedFileSystem()
    index = Index(disk, "/store", StoreConfig(index_slots=50, index_items=20_000), clean=True)
    index.prepare()
    waiting: list[int] = []
    for number in range(2 * WAITING_MAX):
        index.add_many([(number, b"t", b"UNIQ_KEY\x01id%d\x02" % number, NOW_MS)], 1)
        waiting.append(index.waiting)
    assert max(waiting) == WAITING_MAX
    builds = sum(after < before for before, after in pairwise(waiting))
    assert builds == 4  # A quarter each.


def test_what_takes_long_is_prepared_for_the_first_record() -> None:
    disk = SimulatedFileSystem()
    assert filled(disk, 5).finish(NOW_MS)
    index = opened(disk)
    assert index.needs_preparation
    index.prepare()
    assert not index.needs_preparation
    index.add(b"t", b"UNIQ_KEY\x01id5\x02", 500, NOW_MS)
    assert index.needs_preparation  # For the file's slots.
    index.prepare()
    assert not index.needs_preparation
    assert index.build(1, NOW_MS)
    assert index.search("t", "id5", 9).run() == [500]


def test_without_files_an_index_that_was_synced_resumes_where_the_store_does() -> None:
    assert opened(SimulatedFileSystem(), clean=False).recover(700, synced=True) == 700
    assert opened(SimulatedFileSystem(), clean=False).recover(700, synced=False) == 0


def test_after_a_clean_stop_only_later_records_are_missing() -> None:
    disk = SimulatedFileSystem()
    filled(disk, 3).finish(NOW_MS)
    assert opened(disk).resume_offset == 201
    assert opened(SimulatedFileSystem()).resume_offset == 0


@pytest.mark.parametrize("size", [0, FILE_SIZE - 1, FILE_SIZE + 1])
def test_a_file_of_another_size_is_named_and_left_alone(size: int) -> None:
    disk = SimulatedFileSystem()
    disk.make_directories("/store/index")
    disk.open("/store/index/20261121094736365", create=True).resize(size)
    disk.open("/store/index/notes.txt", create=True)
    with pytest.raises(StoreFormatError, match=rf"365: {size} bytes.*{FILE_SIZE}"):
        opened(disk)


@pytest.mark.parametrize("torn", range(0, FILE_SIZE, 37))
def test_an_index_torn_anywhere_is_as_it_was_after_recovery(torn: int) -> None:
    disk = SimulatedFileSystem()
    filled(disk, 12).finish(NOW_MS)
    before = files_below(disk, "/store")
    last = max(before)
    disk.open(last).write(bytes(min(512, FILE_SIZE - torn)), torn)
    index = opened(disk, clean=False)
    start = index.recover(1200, synced=False)
    for n in range(start // 100, 12):
        index.add(b"t", b"UNIQ_KEY\x01id%d\x02KEYS\x01all\x02" % n, n * 100, NOW_MS + n)
    assert index.finish(NOW_MS + 2)
    assert list(files_below(disk, "/store").values()) == list(before.values())


@pytest.mark.parametrize("number", range(3))
def test_an_index_file_that_is_gone_is_made_again(number: int) -> None:
    disk = SimulatedFileSystem()
    filled(disk, 12).finish(NOW_MS)
    before = files_below(disk, "/store")
    disk.remove(sorted(before)[number])
    index = opened(disk, clean=False)
    start = index.recover(1200, synced=False)
    for n in range(start // 100, 12):
        index.add(b"t", b"UNIQ_KEY\x01id%d\x02KEYS\x01all\x02" % n, n * 100, NOW_MS + n)
    assert index.finish(NOW_MS + 10)
    if number == 2:
        assert list(files_below(disk, "/store").values()) == list(before.values())
    else:  # One in the middle is not missed: the files after it are whole.
        assert index.search("t", "id11", 9).run() == [1100]


@pytest.mark.parametrize("kept", range(13))
@pytest.mark.parametrize("synced", [False, True])
def test_cutting_an_index_leaves_no_trace_of_what_was_cut(kept: int, synced: bool) -> None:
    disk, plain = SimulatedFileSystem(), SimulatedFileSystem()
    filled(disk, 12).finish(NOW_MS)
    index = opened(disk, clean=False)
    start = index.recover(kept * 100, synced=synced)
    assert start == (kept if synced else max(0, kept - 1)) * 100
    assert index.finish(NOW_MS)
    filled(plain, start // 100).finish(NOW_MS)
    found, expected = files_below(disk, "/store"), files_below(plain, "/store")
    assert list(found) == list(expected)
    for ours, theirs in zip(found.values(), expected.values(), strict=True):
        assert ours[HEADER_SIZE:] == theirs[HEADER_SIZE:]
        header, wanted = IndexHeader.unpack(ours), IndexHeader.unpack(theirs)
        assert wanted.end_time <= header.end_time < wanted.end_time + 1000
        header.end_time = wanted.end_time
        assert header == wanted


def test_a_file_that_is_cut_to_its_first_item_ends_when_that_was_stored() -> None:
    """The item's own time counts from the begin of the file before."""
    disk = SimulatedFileSystem()
    index = opened(disk)
    for n in range(12):
        index.add(b"t", b"KEYS\x01all\x02", n * 100, NOW_MS + n * 7000)
    index.finish(NOW_MS)
    index = opened(disk, clean=False)
    index.recover(1000, synced=True)
    _, last = map(IndexHeader.unpack, files_below(disk, "/store").values())
    stored = NOW_MS + 9 * 7000
    assert (last.next_item, last.begin_offset, last.end_offset) == (2, 900, 900)
    assert last.begin_time == stored <= last.end_time < stored + 1000


def test_an_item_of_an_older_record_is_where_an_index_ends() -> None:
    disk = SimulatedFileSystem()
    filled(disk, 4).finish(NOW_MS)
    (path,) = files_below(disk, "/store")
    torn = IndexShape(50, 10).items_at + 5 * ITEM_SIZE
    disk.open(path).write(ITEM.pack(77, 50, 0, 0), torn)
    index = opened(disk, clean=False)
    index.recover(400, synced=True)
    assert index.search("t", "all", 9).run() == [100, 0]


def test_a_torn_item_that_names_no_record_is_where_an_index_ends() -> None:
    """With half of its offset in a lost sector, it may look older than the checkpoint."""
    disk = SimulatedFileSystem()
    index = filled(disk, 3)
    assert index.finish(NOW_MS)
    index.close()
    (path,) = files_below(disk, "/store/index")
    file = disk.open(path)
    header = IndexHeader.unpack(file.read(HEADER_SIZE, 0))
    whole = header.pack()
    file.write(ITEM.pack(7, 256, 0, 0), IndexShape(50, 10).items_at + header.next_item * ITEM_SIZE)
    header.next_item, header.end_offset = header.next_item + 1, 256
    file.write(header.pack(), 0)
    again = opened(disk, clean=False)

    def count_sound(physical_offset: int, hashes: Sequence[int]) -> int:
        return len(hashes) if physical_offset in {0, 100, 200} else 0

    assert again.recover(300, synced=True, count_sound=count_sound) == 300
    recovered = IndexHeader.unpack(file.read(HEADER_SIZE, 0))
    assert (recovered.next_item, recovered.end_offset) == (7, 200)
    assert recovered.next_item == IndexHeader.unpack(whole).next_item


def test_a_torn_item_that_names_the_record_before_is_where_an_index_ends() -> None:
    """Nothing of its offset was written, so it seems to belong to the log's first record."""
    disk = SimulatedFileSystem()
    index = filled(disk, 1)
    assert index.finish(NOW_MS)
    index.close()
    (path,) = files_below(disk, "/store/index")
    file = disk.open(path)
    whole = file.read(FILE_SIZE, 0)
    header = IndexHeader.unpack(whole[:HEADER_SIZE])
    file.write(ITEM.pack(7, 0, 0, 0), IndexShape(50, 10).items_at + header.next_item * ITEM_SIZE)
    header.next_item += 1
    file.write(header.pack(), 0)
    again = opened(disk, clean=False)
    assert again.recover(100, synced=True, count_sound=lambda _, hashes: min(2, len(hashes))) == 100
    assert again.finish(NOW_MS)
    assert again.search("t", "all", 9).run() == [0]
    assert file.read(FILE_SIZE, 0)[32:] == whole[32:]


def test_a_slot_that_leads_nowhere_is_taken_for_an_empty_one() -> None:
    disk = SimulatedFileSystem()
    filled(disk, 1).finish(NOW_MS)
    (path,) = files_below(disk, "/store")
    disk.open(path).write(SLOT.pack(9) * 25 + SLOT.pack(-9) * 25, HEADER_SIZE)
    index = filled(disk, 2, start=1)
    index.build(9, NOW_MS)
    assert index.search("t", "all", 9).run() == [200, 100]
    content = files_below(disk, "/store")[path]
    items = [
        ITEM.unpack_from(content, IndexShape(50, 10).items_at + n * ITEM_SIZE) for n in range(3, 7)
    ]
    assert all(previous < number for number, (_, _, _, previous) in enumerate(items, 3))
    assert all(previous >= 0 for _, _, _, previous in items)


@pytest.mark.parametrize("seed", range(8))
def test_files_of_which_nothing_is_known_are_synced_after_a_start(seed: int) -> None:
    """The previous process may have been killed with all of them only in the page cache."""
    disk = SimulatedFileSystem()
    filled(disk, 40).finish(NOW_MS)
    disk = disk.kill()
    again = opened(disk, clean=False)
    assert again.recover(4000, synced=False) == 3900
    again.take_unsynced().sync()
    after = opened(disk.power_cut(Random(seed)), clean=False)
    after.recover(3900, synced=True)
    assert after.search("t", "all", 99).run() == [n * 100 for n in reversed(range(39))]


@pytest.mark.parametrize("verb", ["create", "resize"])
def test_a_file_that_could_not_be_made_leaves_nothing_in_front_of_the_next(verb: str) -> None:
    disk = SimulatedFileSystem()
    index = filled(disk, 2)
    disk.hook = refuse(verb)
    assert not index.build(100, NOW_MS)
    assert index.write_error is not None
    assert index.build(100, NOW_MS + 5000)
    assert len(files_below(disk, "/store")) == 1
    again = opened(disk.kill(), clean=False)
    assert again.recover(200, synced=True) == 200
    assert again.search("t", "all", 9).run() == [100, 0]


def test_an_empty_file_in_front_of_others_costs_none_of_their_keys() -> None:
    """A disk that refuses to make a file may also refuse to remove what was made of it."""
    disk, _ = with_half_made_file()
    again = opened(disk.kill(), clean=False)
    assert again.recover(200, synced=True) == 200
    assert again.search("t", "all", 9).run() == [100, 0]


def test_a_clean_stop_leaves_no_empty_file() -> None:
    """The next start would take it for a file that lost its bytes."""
    disk, index = with_half_made_file()
    disk.hook = refuse("remove")
    assert not index.finish(NOW_MS + 6000)
    disk.hook = None
    assert index.finish(NOW_MS + 6000)
    index.take_unsynced().sync()
    assert len(files_below(disk, "/store")) == 1
    again = opened(disk.power_cut(Random(0)))
    assert again.search("t", "all", 9).run() == [100, 0]


def with_half_made_file() -> tuple[SimulatedFileSystem, Index]:
    disk = SimulatedFileSystem()
    index = filled(disk, 2)

    def refuse_both(operation: Operation) -> None:
        if operation.verb in ("resize", "remove"):
            raise OSError(errno.EIO, "refused by the test")

    disk.hook = refuse_both
    assert not index.build(100, NOW_MS)
    disk.hook = None
    assert index.build(100, NOW_MS + 5000)
    assert len(files_below(disk, "/store")) == 2
    return disk, index
