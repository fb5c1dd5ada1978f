"""A search for a key runs in steps, asks for cold data, and finds the same in every way."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings, strategies as st
from tests.crash.disk import SimulatedFile, SimulatedFileSystem

from cometmq.store.config import StoreConfig
from cometmq.store.disk.cold import Cold, fetch
from cometmq.store.index import key_search
from cometmq.store.index.index import Index

NOW_MS = 1_795_254_456_123
CONFIG = StoreConfig(index_slots=7, index_items=40)


class Record(NamedTuple):
    """A record with one key; offsets count up by hundreds."""

    word: str
    time: int


def index_of(
    records: list[Record], config: StoreConfig = CONFIG, disk: SimulatedFileSystem | None = None
) -> Index:
    index = Index(disk or SimulatedFileSystem(), "/store", config, clean=True)
    add(index, records)
    return index


def add(index: Index, records: list[Record], start: int = 0) -> None:
    for number, (word, time) in enumerate(records, start):
        index.add(b"t", b"KEYS\x01%s\x02" % word.encode(), number * 100, time)
    index.build(len(records), NOW_MS)


def hot(count: int) -> list[Record]:
    """Many records of one key, two a second."""
    return [Record("hot", NOW_MS + 500 * number) for number in range(count)]


records = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from([0, 1, 900, 5_000])), min_size=1, max_size=120
)


@given(
    steps=records,
    near=st.integers(1, 5),
    block=st.integers(1, 9),
    count=st.sampled_from([1, 3, 1_000]),
    window=st.tuples(st.integers(0, 1 << 30), st.integers(0, 1 << 30)),
    slots=st.sampled_from([1, 2, 50]),
)
@settings(deadline=None)
def test_blocks_of_items_give_what_following_one_by_one_gives(
    steps: list[tuple[str, int]],
    near: int,
    block: int,
    count: int,
    window: tuple[int, int],
    slots: int,
) -> None:
    log: list[Record] = []
    for word, passed in steps:
        log.append(Record(word, (log[-1].time if log else NOW_MS) + passed))
    index = index_of(log, StoreConfig(index_slots=slots, index_items=40))
    first, last = log[0].time - 2_000, log[-1].time + 2_000
    begin, end = sorted(first + each % (last - first) for each in window)
    everything = (0, 1 << 60)
    for low, high in (everything, (begin, everything[1]), (0, end), (begin, end)):
        one_by_one = index.search("t", "a", count, begin_ms=low, end_ms=high).run()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(key_search, "NEAR_ITEMS", near)
            patched.setattr(key_search, "BLOCK_ITEMS", block)
            by_blocks = index.search("t", "a", count, begin_ms=low, end_ms=high).run()
        assert by_blocks == one_by_one
        of_word = [number for number, record in enumerate(log) if record.word == "a"]
        if (low, high) == everything:
            assert one_by_one == [number * 100 for number in of_word[::-1]][:count]
        elif count == 1_000:
            sure = {number * 100 for number in of_word if low <= log[number].time <= high}
            near_by = {
                number * 100 for number in of_word if low - 1_000 <= log[number].time <= high + 999
            }
            assert sure <= set(one_by_one) <= near_by


def test_an_old_record_of_a_key_that_very_many_have_is_found_in_short_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker's loop runs between the steps; item by item, a million would take seconds."""
    monkeypatch.setattr(key_search, "BLOCK_ITEMS", 512)
    sizes: list[int] = []
    read = SimulatedFile.read

    def note(self: SimulatedFile, count: int, position: int) -> bytes:
        sizes.append(count)
        return read(self, count, position)

    index = index_of(hot(20_000), StoreConfig(index_slots=100, index_items=30_000))
    monkeypatch.setattr(SimulatedFile, "read", note)
    search = index.search("t", "hot", 3, end_ms=NOW_MS + 2_000)
    steps: list[int] = []
    for needs in search:
        assert needs is None
        steps.append(len(sizes))
        sizes.clear()
    assert search.found == [500, 400, 300]  # By the second.
    assert len(steps) >= 20_000 // 512
    assert max(steps) <= key_search.NEAR_ITEMS
    assert sum(steps) < 20_000 // 512 + key_search.NEAR_ITEMS + 5


@pytest.mark.parametrize("is_fetched", [True, False])
def test_what_is_cold_is_asked_for_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch, *, is_fetched: bool
) -> None:
    disk = SimulatedFileSystem()
    log = [Record(f"k{number % 50}", NOW_MS + number) for number in range(300)]
    index = index_of(log, StoreConfig(index_slots=20, index_items=100), disk)
    assert index.finish(NOW_MS)
    disk.is_cold = True
    asked: set[tuple[str, int, int]] = set()
    read = SimulatedFile.read

    def check(self: SimulatedFile, count: int, position: int) -> bytes:
        assert (self.path, position, count) in asked, "it waits for the disk"
        return read(self, count, position)

    monkeypatch.setattr(SimulatedFile, "read", check)
    search = index.search("t", "k7", 1_000)
    for needs in search:
        if needs is not None:
            asked.add((needs.path, needs.position, needs.size))
            assert needs.physical_offset < 0
            if is_fetched:
                assert len(fetch(disk, needs)) == needs.size
    assert search.found == [number * 100 for number in range(299, -1, -1) if number % 50 == 7]
    assert len(asked) > 6


def test_a_search_goes_on_while_the_index_grows() -> None:
    disk = SimulatedFileSystem()
    index = index_of(hot(50), disk=disk)
    disk.is_cold = True
    search = index.search("t", "hot", 1_000)
    assert next(iter(search)) is not None
    disk.is_cold = False
    add(index, hot(200)[50:], 50)
    assert search.run() == [number * 100 for number in reversed(range(50))]


def test_it_finds_all_where_the_file_grew_while_its_slot_was_fetched() -> None:
    disk = SimulatedFileSystem()
    assert index_of(hot(5), disk=disk).finish(NOW_MS)
    index = Index(disk, "/store", CONFIG, clean=True)
    disk.is_cold = True
    search = index.search("t", "hot", 1_000)
    assert next(iter(search)) is not None
    disk.is_cold = False
    add(index, hot(9)[5:], 5)
    assert index.finish(NOW_MS)
    assert search.run() == [number * 100 for number in reversed(range(9))]


@pytest.mark.parametrize("is_removed", [True, False])
def test_a_search_ends_where_files_expire_meanwhile(*, is_removed: bool) -> None:
    disk = SimulatedFileSystem()
    index = index_of(hot(150), disk=disk)
    disk.is_cold = True
    search = index.search("t", "hot", 1_000)
    for needs in search:
        if isinstance(needs, Cold) and len(search.found) > 50:
            break  # In the third file of four.
    found = list(search.found)
    for path in index.expire(1 << 60):
        if is_removed:
            disk.remove(path)
    assert search.run() == found
    assert index.search("t", "hot", 1_000).run() == [n * 100 for n in range(149, 116, -1)]
