"""One process per store, and a second one is told whose it is."""

from __future__ import annotations

import pytest
from tests.crash.disk import SimulatedFileSystem

from cometmq.store.errors import StoreLockedError
from cometmq.store.lock import (
    acquire_lock,
    mark_running,
    mark_shut_down,
    sign_lock,
    was_shut_down,
)


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
    with pytest.raises(StoreLockedError, match=r"/s: .*another process \(pid 4711\)"):
        acquire_lock(other, "/s")
    assert disk.operations == before
    lock.close()
    acquire_lock(other, "/s")


def test_whose_a_lock_is_need_not_be_known(disk: SimulatedFileSystem) -> None:
    acquire_lock(disk, "/s")
    with pytest.raises(StoreLockedError, match="another process; stop it"):
        acquire_lock(disk.other_process(), "/s")


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
