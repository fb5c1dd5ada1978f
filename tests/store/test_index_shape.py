"""The number of slots and items of index files is found from the files themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.crash.disk import SimulatedFileSystem
from tests.store.apache_stores import unpack
from tests.store.damaged_stores import ROOT, content, contents, flip, overwrite, small_store
from tests.store.records import HOST

from cometmq.store.config import StoreConfig
from cometmq.store.disk.data_end import data_end_of
from cometmq.store.disk.filesystem import RealFileSystem
from cometmq.store.index.index_format import IndexShape
from cometmq.store.index.index_shape import find_shape
from cometmq.store.log.turn import Origin
from cometmq.store.looking.inspection import inspect
from cometmq.store.message_store import MessageStore
from cometmq.store.queues.queue_ends import QUEUE_ENDS_NAME


@pytest.mark.parametrize("name", ["clean", "killed", "ext"])
def test_the_shape_of_apaches_files_is_found(name: str, tmp_path: Path) -> None:
    folder = f"{unpack(name, tmp_path)}/index"
    assert find_shape(RealFileSystem(), folder, StoreConfig(), clean=True) == (200, 400)


def test_each_file_alone_tells_its_shape_full_or_not() -> None:
    names = list(contents(small_store(), f"{ROOT}/index"))
    assert len(names) == 5
    for kept in names:
        disk = small_store()
        for path in names:
            if path != kept:
                disk.remove(path)
        assert find_shape(disk, f"{ROOT}/index", StoreConfig(), clean=True) == (20, 40)


def test_a_damaged_file_is_outvoted_and_alone_tells_nothing() -> None:
    disk = small_store()
    names = list(contents(disk, f"{ROOT}/index"))
    flip(disk, names[-1], 39, 2)
    assert find_shape(disk, f"{ROOT}/index", StoreConfig(), clean=True) == (20, 40)
    for path in names[:-1]:
        disk.remove(path)
    assert find_shape(disk, f"{ROOT}/index", StoreConfig(), clean=True) is None
    overwrite(disk, names[-1], 0, bytes(len(content(disk, names[-1]))))
    assert find_shape(disk, f"{ROOT}/index", StoreConfig(), clean=True) is None


def test_a_file_that_was_cut_behind_its_items_is_outvoted_by_a_whole_one() -> None:
    disk = small_store()
    names = list(contents(disk, f"{ROOT}/index"))
    for path in names[:-2]:
        disk.remove(path)
    disk.open(names[-1]).resize(len(content(disk, names[-1])) - 20)
    assert find_shape(disk, f"{ROOT}/index", StoreConfig(), clean=True) == (20, 40)
    disk.remove(names[-2])
    assert find_shape(disk, f"{ROOT}/index", StoreConfig(), clean=True) == (20, 39)


def test_a_half_made_file_of_a_killed_process_is_of_the_settings_shape() -> None:
    """This holds if its items are where the settings put them: a shorter shape would fit, too."""
    disk = small_store()
    names = list(contents(disk, f"{ROOT}/index"))
    for path in names[1:]:
        disk.remove(path)
    settings = StoreConfig(index_slots=20, index_items=100)
    assert find_shape(disk, f"{ROOT}/index", settings, clean=False) == (20, 100)
    assert find_shape(disk, f"{ROOT}/index", settings, clean=True) == (20, 40)


@pytest.mark.parametrize("clean", [True, False])
def test_a_file_that_lost_its_last_items_is_of_the_settings_shape(clean: bool) -> None:
    """A record's keys have items with the same offset, so a shape of five fewer slots fits, too."""
    disk = small_store()
    names = list(contents(disk, f"{ROOT}/index"))
    for path in names[1:]:
        disk.remove(path)
    settings = StoreConfig(index_slots=20, index_items=40)
    whole = content(disk, names[0])
    overwrite(disk, names[0], len(whole) - 20, bytes(20))
    assert find_shape(disk, f"{ROOT}/index", settings, clean=clean) == (20, 40)


@pytest.mark.parametrize("settings", [(10, 42), (10, 100)], ids=["as long", "longer"])
def test_slots_without_an_item_are_no_item_of_the_first_record(settings: tuple[int, int]) -> None:
    """If the settings have fewer slots than the files, items are looked for among the slots."""
    disk = SimulatedFileSystem()
    config = StoreConfig(segment_size=8192, index_slots=20, index_items=40)
    store = MessageStore.open(ROOT, config, now_ms=1, filesystem=disk, threads=False)
    for number in range(12):
        store.put("T", 0, b"", b"KEYS\x01K\x02", Origin(number, number, HOST))
    store.commit()
    assert store.close(100)
    slots, items = settings
    asked = StoreConfig(index_slots=slots, index_items=items)
    assert find_shape(disk, f"{ROOT}/index", asked, clean=False) == (20, 40)


def test_what_is_noted_counts_as_one_of_the_files() -> None:
    disk = small_store()
    names = list(contents(disk, f"{ROOT}/index"))
    noted = IndexShape(20, 100)

    def found(*, clean: bool = True) -> IndexShape | None:
        return find_shape(disk, f"{ROOT}/index", StoreConfig(), clean=clean, noted=noted)

    for path in names[:-2]:
        disk.remove(path)
    assert found() == (20, 40)  # Two whole files know better.
    assert found(clean=False) == noted  # They may be torn.
    disk.remove(names[-2])
    assert found() == noted
    overwrite(disk, names[-1], 0, bytes(len(content(disk, names[-1]))))
    assert found() == noted
    disk.remove(names[-1])
    assert found() == noted


def test_a_young_store_that_was_killed_knows_the_shape_by_its_first_checkpoint() -> None:
    disk = small_store(close=False).kill()
    assert not disk.exists(f"{ROOT}/{QUEUE_ENDS_NAME}")
    for path, data in contents(disk, f"{ROOT}/index").items():
        overwrite(disk, path, 40, bytes(len(data) - 40))
    assert inspect(disk, ROOT, StoreConfig()).config.index_shape == (20, 40)


def test_holes_of_a_sparse_file_are_not_read(tmp_path: Path) -> None:
    path = str(tmp_path / "f")
    file = RealFileSystem().open(path, create=True)
    file.resize(1 << 40)  # What nobody could read.
    assert data_end_of(file, file.size()) == 0
    file.write(b"\1", 70_000_000)
    file.write(bytes(100), 1 << 39)
    assert data_end_of(file, file.size()) == 70_000_001
    assert data_end_of(file, 60_000_000) == 0
    file.close()
