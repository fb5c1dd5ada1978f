"""`cometmq store` on files of a wrong size, and on files and folders in each other's place."""

from __future__ import annotations

import pytest
from tests.admin.test_store_commands import SHAPE, run, told
from tests.crash.disk import KillAt, Killed, SimulatedFileSystem
from tests.store.damaged_stores import (
    BATCHES,
    ROOT,
    SMALL,
    content,
    contents,
    small_store,
    verified,
)

from cometmq.store.findings import Kind
from cometmq.store.message_store import MessageStore
from cometmq.store.swap import finish_swap

NOW_MS = 1_700_000_200_000


def start(disk: SimulatedFileSystem) -> MessageStore:
    return MessageStore.open(
        ROOT,
        SMALL,
        now_ms=NOW_MS,
        filesystem=disk,
        is_batch_topic=lambda topic: topic == BATCHES,
        threads=False,
    )


# Index files of a wrong size


def with_odd_index(size: int, *, others: bool = True) -> SimulatedFileSystem:
    """A store one of whose index files has a wrong size."""
    disk = small_store()
    first, *rest = contents(disk, f"{ROOT}/index")
    disk.open(first).resize(size)
    for path in () if others else rest:
        disk.remove(path)
    return disk


@pytest.mark.parametrize("size", [1, 39, 100, 919, 921, 4096])
def test_an_index_file_of_a_wrong_size_is_named_by_verify_and_replaced_by_rebuild(
    size: int,
) -> None:
    disk = with_odd_index(size)
    whole = small_store()
    result = run("verify", ROOT, disk=disk)
    assert (
        f"has {size} bytes, but 20 slots and 40 items make 920" in told(result, 1) + result.stdout
    )
    assert "next     stop the broker and run `cometmq store rebuild /s`" in result.stdout
    assert run("rebuild", ROOT, disk=disk).exit_code == 0
    assert list(contents(disk, f"{ROOT}/index").values()) == list(
        contents(whole, f"{ROOT}/index").values()
    )
    assert run("verify", ROOT, disk=disk).exit_code == 0
    assert start(disk).close(NOW_MS)


def test_all_index_files_of_a_wrong_size_are_findings() -> None:
    disk = with_odd_index(100)
    disk.open(list(contents(disk, f"{ROOT}/index"))[2]).resize(7)
    assert verified(disk).counts == {Kind.INDEX_FILE: 2}


def test_a_rebuild_that_replaces_one_is_killed_at_any_moment_and_can_be_run_again() -> None:
    whole = with_odd_index(100)
    first = whole.operations
    assert run("rebuild", ROOT, disk=whole).exit_code == 0
    for number in range(whole.operations - first, 0, -3):
        disk = with_odd_index(100)
        disk.hook = KillAt(disk.operations + number)
        with pytest.raises(Killed):
            run("rebuild", ROOT, disk=disk)
        after = disk.kill()
        finish_swap(after, ROOT)
        odd = [path for path, data in contents(after, f"{ROOT}/index").items() if len(data) != 920]
        assert len(odd) == (1 if verified(after).counts == {Kind.INDEX_FILE: 1} else 0)
        assert run("rebuild", ROOT, disk=after).exit_code == 0
        assert verified(after).is_sound


def test_where_no_file_tells_the_shape_it_is_asked_for() -> None:
    disk = with_odd_index(100, others=False)
    before = contents(disk)
    asked = told(run("rebuild", ROOT, disk=disk), 1)
    assert "its 100 bytes do not tell how many slots and items" in asked
    assert "--index-slots 5000000 --index-items 20000000 unless otherwise" in asked
    assert contents(disk) == before
    assert run("rebuild", *SHAPE, ROOT, disk=disk).exit_code == 0
    assert [len(data) for data in contents(disk, f"{ROOT}/index").values()] == [920] * 5
    assert start(disk).close(NOW_MS)


def test_a_shape_that_is_said_counts_whatever_the_files_say() -> None:
    disk = small_store()
    options = ("--index-slots", "30", "--index-items", "50")
    assert run("rebuild", *options, ROOT, disk=disk).exit_code == 0
    assert {len(data) for data in contents(disk, f"{ROOT}/index").values()} == {40 + 120 + 1000}
    assert run("verify", ROOT, disk=disk).exit_code == 0


def test_a_file_of_another_name_among_those_of_the_index_is_left_where_it_is() -> None:
    disk, path = with_odd_index(100), f"{ROOT}/index/notes.txt"
    disk.open(path, create=True).write(b"hello", 0)
    assert run("rebuild", ROOT, disk=disk).exit_code == 0
    assert content(disk, path) == b"hello"
