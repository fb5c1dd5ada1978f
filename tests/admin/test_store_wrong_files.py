"""`cometmq store` on files of a wrong size, and on files and folders in each other's place."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from tests.admin.test_store_commands import COMMANDS, SHAPE, run, told
from tests.crash.disk import KillAt, Killed, SimulatedFileSystem
from tests.store.damaged_stores import (
    BATCHES,
    ROOT,
    SMALL,
    content,
    contents,
    flip,
    forget_shape,
    small_store,
    verified,
)

from cometmq.store.errors import StoreFormatError
from cometmq.store.looking.findings import Kind
from cometmq.store.message_store import MessageStore
from cometmq.store.starting.swap import finish_swap

if TYPE_CHECKING:
    from pathlib import Path

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
    """Return a store with one index file of a wrong size."""
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
    first, _, third, *_ = contents(disk, f"{ROOT}/index")
    disk.open(third).resize(7)
    assert verified(disk).counts == {Kind.INDEX_FILE: 2}
    said = run("stat", ROOT, disk=disk).stdout
    assert f"damage      {first} and 1 more: 100 bytes, which is not the size of an index" in said
    assert json.loads(run("stat", "--json", ROOT, disk=disk).stdout)["odd_index_files"] == {
        first: 100,
        third: 7,
    }


@pytest.mark.parametrize(("size", "is_told"), [(100, False), (0, False), (4096, True)])
def test_behind_a_kill_a_short_one_is_half_made_and_a_long_one_is_told(
    size: int, is_told: bool
) -> None:
    disk = small_store(close=False)
    disk.open(list(contents(disk, f"{ROOT}/index"))[-1]).resize(size)
    assert (
        "which is not the size of an index file" in run("stat", ROOT, disk=disk).stdout
    ) == is_told


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
    forget_shape(disk)
    before = contents(disk)
    asked = told(run("rebuild", ROOT, disk=disk), 1)
    assert (
        "its 100 bytes do not tell the shape of the index; give what the broker is set to" in asked
    )
    assert "--index-slots 5000000 --index-items 20000000" in asked
    assert contents(disk) == before
    assert run("rebuild", *SHAPE, ROOT, disk=disk).exit_code == 0
    assert [len(data) for data in contents(disk, f"{ROOT}/index").values()] == [920] * 5
    assert start(disk).close(NOW_MS)


def test_where_no_file_tells_the_shape_the_list_of_where_queues_end_does() -> None:
    disk = with_odd_index(100, others=False)
    assert run("rebuild", ROOT, disk=disk).exit_code == 0
    assert [len(data) for data in contents(disk, f"{ROOT}/index").values()] == [920] * 5
    assert start(disk).close(NOW_MS)


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("said", [{"slots": 30, "items": 50}, {"slots": 30}, {"items": 50}])
def test_a_shape_that_is_said_counts_whatever_the_files_say(
    said: dict[str, int],
    is_killed: bool,  # A parameter of the test.
) -> None:
    disk = small_store(close=not is_killed)
    if is_killed:
        disk = disk.kill()
    options = [f"--index-{name}={count}" for name, count in said.items()]
    slots, items = said.get("slots", 20), said.get("items", 40)
    assert run("rebuild", *options, ROOT, disk=disk).exit_code == 0
    sizes = {len(data) for data in contents(disk, f"{ROOT}/index").values()}
    assert sizes == {40 + 4 * slots + 20 * items}
    assert run("verify", ROOT, disk=disk).exit_code == 0
    shape = json.loads(run("stat", "--json", ROOT, disk=disk).stdout)
    assert (shape["index_slots"], shape["index_items"]) == (slots, items)


def test_a_file_of_another_name_among_those_of_the_index_is_left_where_it_is() -> None:
    disk, path = with_odd_index(100), f"{ROOT}/index/notes.txt"
    disk.open(path, create=True).write(b"hello", 0)
    assert run("rebuild", ROOT, disk=disk).exit_code == 0
    assert content(disk, path) == b"hello"


# Files and folders in each other's place


def put_file(disk: SimulatedFileSystem, name: str) -> None:
    """Put a file in the place of a folder."""
    if disk.exists(f"{ROOT}/{name}"):
        disk.rename(f"{ROOT}/{name}", f"{ROOT}/aside")
    file = disk.open(f"{ROOT}/{name}", create=True)
    file.write(b"hello", 0)
    file.close()


def put_folder(disk: SimulatedFileSystem, name: str) -> None:
    """Put a folder in the place of a file."""
    disk.rename(f"{ROOT}/{name}", f"{ROOT}/aside")
    disk.make_directories(f"{ROOT}/{name}")
    disk.open(f"{ROOT}/{name}/hello", create=True).close()


def put_back(disk: SimulatedFileSystem, name: str) -> None:
    disk.rename(f"{ROOT}/{name}", f"{ROOT}/moved")
    disk.rename(f"{ROOT}/aside", f"{ROOT}/{name}")


QUEUE_FILES = (f"consumequeue/T/0/{0:020d}", f"batchconsumequeue/Batches/0/{0:020d}")
QUEUE_FOLDERS = (
    *("consumequeue/T/0", "consumequeue/T"),
    *("batchconsumequeue/Batches/0", "batchconsumequeue/Batches"),
)


@pytest.mark.parametrize("name", [*QUEUE_FILES, *QUEUE_FOLDERS])
def test_what_lies_in_the_place_of_a_queue_is_a_finding_and_a_rebuild_does_not_touch_it(
    name: str,
) -> None:
    disk = small_store()
    (put_folder if name in QUEUE_FILES else put_file)(disk, name)
    result = run("verify", ROOT, disk=disk)
    assert result.exit_code == 1
    wrong = "folder in place of a file" if name in QUEUE_FILES else "file in place of a folder"
    assert f"misplaced: {ROOT}/{name}: byte 0: a {wrong}: move it elsewhere" in result.stdout
    assert ", 1 misplaced" in result.stdout or ": 1 misplaced, " in result.stdout
    steps = (
        "stop the broker and move elsewhere what is misplaced and run `cometmq store rebuild /s`"
    )
    assert steps in result.stdout
    assert run("dump", ROOT, disk=disk).exit_code == 0
    if name in QUEUE_FILES:
        said = told(run("stat", ROOT, disk=disk), 1)
        assert f"{ROOT}/{name}: a folder in place of a file of a ConsumeQueue; " in said
    else:
        assert "damage" in run("stat", ROOT, disk=disk).stdout
    assert run("repair", "--dry-run", ROOT, disk=disk).exit_code == 0
    before = contents(disk)
    refused = told(run("rebuild", ROOT, disk=disk), 1)
    assert f"{ROOT}/{name}: is where the store needs a file or a folder" in refused
    assert "move it elsewhere, and run this again" in refused
    assert contents(disk) == before
    put_back(disk, name)
    assert verified(disk).is_sound
    assert run("rebuild", ROOT, disk=disk).exit_code == 0
    assert start(disk).close(NOW_MS)


@pytest.mark.parametrize(
    ("name", "is_listed"),
    [
        *((name, True) for name in (*QUEUE_FILES, *QUEUE_FOLDERS)),
        *((name, False) for name in (QUEUE_FILES[0], *QUEUE_FOLDERS[:2])),
    ],
)
def test_a_rebuild_refuses_it_before_it_has_read_the_log(name: str, is_listed: bool) -> None:
    """Reading a large log takes long. Unlisted queues are only found by their first record."""
    disk = small_store()
    (put_folder if name in QUEUE_FILES else put_file)(disk, name)
    if not is_listed:
        disk.remove(f"{ROOT}/queue_ends.json")
    flip(disk, f"{ROOT}/commitlog/00000000000000004096", 100)
    assert f"{ROOT}/{name}: is where the store" in told(run("rebuild", ROOT, disk=disk), 1)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("start_offset", [0, 4096, 8192])
def test_a_folder_in_the_place_of_a_segment_is_refused_by_all(
    start_offset: int, command: tuple[str, ...]
) -> None:
    disk, name = small_store(), f"commitlog/{start_offset:020d}"
    put_folder(disk, name)
    before = contents(disk)
    expected = f"{ROOT}/{name}: a folder in place of a segment; move it elsewhere"
    assert expected in told(run(*command, ROOT, disk=disk), 1)
    with pytest.raises(StoreFormatError, match=expected):
        start(disk)
    assert contents(disk) == before
    put_back(disk, name)
    assert run(*command, ROOT, disk=disk).exit_code == 0


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", [*QUEUE_FILES, "commitlog", "index", "integrity", "config"])
def test_a_pipe_in_the_place_of_a_file_is_named_and_nobody_waits_for_it(
    name: str, command: tuple[str, ...], tmp_path: Path
) -> None:
    disk, root = small_store(), tmp_path / "s"
    disk.make_directories(f"{ROOT}/config")
    disk.open(f"{ROOT}/config/topics.json", create=True).write(b"{}", 0)
    for path, data in contents(disk).items():
        (tmp_path / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path[1:]).write_bytes(data)
    place = root / name if name in QUEUE_FILES else next(iter(sorted((root / name).iterdir())))
    place.unlink()
    os.mkfifo(place)
    result = run(*command, str(root))
    if command == ("verify",) or result.exit_code:
        assert result.exit_code == 1
        said = result.stdout + result.stderr
        is_named = f"{place}: " in said and "a pipe or device " in said
        assert is_named or f"{place}: is where the store needs a file" in said


@pytest.mark.parametrize("at", [0, -1])
def test_a_folder_in_the_place_of_an_index_file_is_a_finding(at: int) -> None:
    disk = small_store()
    name = disk.list(f"{ROOT}/index")[at].name
    put_folder(disk, f"index/{name}")
    text = run("verify", ROOT, disk=disk).stdout
    assert f"misplaced: {ROOT}/index/{name}: byte 0: a folder in place of a file" in text
    assert "stop the broker and move elsewhere what is misplaced" in text
    for command in (("stat",), ("dump",), ("repair", "--dry-run"), ("rebuild",)):
        assert run(*command, ROOT, disk=disk).exit_code == 0
    assert disk.exists(f"{ROOT}/index/{name}/hello")
    disk.rename(f"{ROOT}/index/{name}", f"{ROOT}/moved")
    assert verified(disk).is_sound


FOLDERS = ("commitlog", "consumequeue", "batchconsumequeue", "index", "integrity", "config")
MADE_LATER = ("cut", "entryjournal", "rebuilding")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", [*FOLDERS, *MADE_LATER])
def test_a_file_in_the_place_of_a_whole_folder_is_refused(
    name: str, command: tuple[str, ...]
) -> None:
    disk = small_store()
    put_file(disk, name)
    before = contents(disk)
    refused = told(run(*command, ROOT, disk=disk), 1)
    assert f"{ROOT}/{name}: " in refused
    assert "a file is where a folder has to be: move it elsewhere" in refused
    assert contents(disk) == before


NAME = "a\nError: b\x1b[31m"
SHOWN = r"a\nError: b\x1b[31m"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_name_that_would_end_a_line_or_that_a_terminal_would_obey_does_not(
    command: tuple[str, ...],
) -> None:
    disk = small_store()
    disk.open(f"{ROOT}/commitlog/{NAME}", create=True)
    assert told(run(*command, ROOT, disk=disk), 1).startswith(f"Error: {ROOT}/commitlog/{SHOWN}: ")


def test_so_it_does_not_in_a_finding() -> None:
    disk = small_store()
    disk.open(f"{ROOT}/consumequeue/T/0/{NAME}", create=True)
    said = run("verify", ROOT, disk=disk).stdout.splitlines()[0]
    assert said.startswith(f"misplaced: {ROOT}/consumequeue/T/0/{SHOWN}: byte 0: not a file")
