"""A store has one process, and a second one is told which process that is."""

from __future__ import annotations

import os
import subprocess
import sys
from random import Random
from typing import TYPE_CHECKING

import pytest
from tests.crash.disk import SimulatedFileSystem
from tests.store.records import refuse

from cometmq.store.disk.filesystem import RealFileSystem
from cometmq.store.disk.lock import (
    acquire_lock,
    give_up_lock,
    mark_running,
    mark_shut_down,
    sign_lock,
    was_shut_down,
)
from cometmq.store.errors import StoreLockedError

if TYPE_CHECKING:
    from pathlib import Path

HOLD = """
import sys
from cometmq.store.disk.filesystem import RealFileSystem
from cometmq.store.disk.lock import acquire_lock
lock = acquire_lock(RealFileSystem(), sys.argv[1])
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def disk() -> SimulatedFileSystem:
    disk = SimulatedFileSystem()
    disk.make_directories("/s")
    disk.sync_directory("/")
    return disk


def test_the_second_process_is_refused_with_the_pid_of_the_first(disk: SimulatedFileSystem) -> None:
    lock = acquire_lock(disk, "/s")
    mark_running(disk, "/s", 4711)
    other = disk.other_process()
    before = disk.operations
    with pytest.raises(StoreLockedError, match=r"/s: .*another process \(pid 1\)"):
        acquire_lock(other, "/s")
    assert disk.operations == before
    lock.close()
    acquire_lock(other, "/s")


def test_the_pid_is_that_of_who_has_the_lock_and_not_of_who_died_before(
    disk: SimulatedFileSystem,
) -> None:
    mark_running(disk, "/s", 424242)
    starting = disk.kill()
    acquire_lock(starting, "/s")
    with pytest.raises(StoreLockedError, match=r"\(pid 1\)"):
        acquire_lock(starting.other_process(), "/s")


def test_the_pid_is_known_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "abort").write_text("424242")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(StoreLockedError, match=rf"\(pid {holder.pid}\)"):
            acquire_lock(RealFileSystem(), str(tmp_path))
        holder.communicate()
    acquire_lock(RealFileSystem(), str(tmp_path)).close()


def test_who_waited_for_a_lock_that_was_removed_locks_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the opening of the file and its locking, its owner gives it up."""
    path, open_, opened = str(tmp_path / "lock"), os.open, list[int]()

    def slow_open(name: str, flags: int, mode: int = 0o777) -> int:
        descriptor = open_(name, flags, mode)
        if name == path:
            opened.append(descriptor)
            if len(opened) == 1:
                (tmp_path / "lock").unlink()
        return descriptor

    monkeypatch.setattr(os, "open", slow_open)
    lock = acquire_lock(RealFileSystem(), str(tmp_path))
    assert len(opened) == 2
    assert (tmp_path / "lock").exists()
    give_up_lock(RealFileSystem(), str(tmp_path), lock, is_made=True)
    assert not (tmp_path / "lock").exists()


def test_a_mark_that_the_disk_refuses_is_as_it_was_before(disk: SimulatedFileSystem) -> None:
    for before in (None, b"424242"):
        for verb in ("write", "sync"):
            if before is not None:
                mark_running(disk, "/s", int(before))
            disk.hook = refuse(verb)
            with pytest.raises(OSError, match="refused"):
                mark_running(disk, "/s", 7)
            disk.hook = None
            assert was_shut_down(disk, "/s") == (before is None)
            if before is not None:
                assert disk.open("/s/abort").read(9, 0) == before


def test_the_files_are_as_apache_writes_them(disk: SimulatedFileSystem) -> None:
    sign_lock(acquire_lock(disk, "/s"))
    mark_running(disk, "/s", 12345)
    mark_running(disk, "/s", 7)
    assert disk.open("/s/lock").read(10, 0) == b"lock"
    assert disk.open("/s/abort").read(10, 0) == b"7"


def test_the_mark_says_whether_the_shutdown_was_clean(disk: SimulatedFileSystem) -> None:
    assert was_shut_down(disk, "/s")
    mark_running(disk, "/s", 1)
    disk = disk.kill()
    assert not was_shut_down(disk, "/s")
    mark_shut_down(disk, "/s")
    assert was_shut_down(disk.kill(), "/s")


@pytest.mark.parametrize("seed", range(10))
def test_a_power_cut_behind_a_clean_shutdown_brings_no_mark_back(
    disk: SimulatedFileSystem, seed: int
) -> None:
    mark_running(disk, "/s", 1)
    mark_shut_down(disk, "/s")
    assert was_shut_down(disk.power_cut(Random(seed)), "/s")


def test_this_process_is_kept_out_as_well_and_a_look_does_not_unlock(tmp_path: Path) -> None:
    files, root = RealFileSystem(), str(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    lock = acquire_lock(files, root)
    for path in (root, f"{root}/link"):
        with pytest.raises(StoreLockedError, match="is open in this process already"):
            acquire_lock(files, path)
    assert files.lock_owner(f"{root}/lock") == os.getpid()
    other = subprocess.run(
        [sys.executable, "-c", HOLD, root], input="", capture_output=True, text=True, check=False
    )
    assert f"another process (pid {os.getpid()})" in other.stderr
    lock.close()
    assert files.lock_owner(f"{root}/lock") is None
    acquire_lock(files, root).close()
