"""Group commit, its thread, and why a failed sync is the last one."""

from __future__ import annotations

from threading import Event, get_ident
from typing import TYPE_CHECKING

import pytest
from tests.crash.disk import SimulatedFileSystem
from tests.store.records import refuse

from cometmq.store.disk.filesystem import RealFileSystem
from cometmq.store.disk.sync import BackgroundThread, Jobs, Syncer
from cometmq.store.disk.unsynced import Unsynced

if TYPE_CHECKING:
    from pathlib import Path


class Watched:
    """A syncer over two files, with what it reported."""

    def __init__(self) -> None:
        self.disk = SimulatedFileSystem()
        self.first = self.disk.open("/0", create=True)
        self.second = self.disk.open("/1", create=True)
        self.notes: list[int] = []
        self.changes = 0
        self.syncer = Syncer(0, note=self.notes.append, on_change=self._change)
        self.syncer.add(self.first, 100)

    def _change(self) -> None:
        self.changes += 1

    def syncs(self) -> int:
        before = self.disk.operations
        self.syncer.step()
        return self.disk.operations - before


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_all_that_was_requested_shares_one_sync(watched: Watched) -> None:
    watched.syncer.request(10)
    watched.syncer.request(20)
    assert watched.syncs() == 1
    assert (watched.syncer.synced_offset, watched.notes, watched.changes) == (20, [20], 1)
    assert watched.syncs() == 0
    assert watched.changes == 1


def test_a_file_is_synced_until_the_log_is_synced_beyond_it(watched: Watched) -> None:
    watched.syncer.add(watched.second, 200)
    watched.syncer.add(watched.second, 200)
    watched.syncer.request(150)
    assert watched.syncs() == 2
    watched.syncer.request(160)
    assert watched.syncs() == 1


def test_a_failed_sync_is_final_and_moves_nothing(watched: Watched) -> None:
    watched.disk.hook = refuse("sync")
    watched.syncer.request(10)
    watched.syncer.step()
    assert watched.syncer.failure is not None
    watched.syncer.request(20)
    assert watched.syncs() == 0
    assert (watched.syncer.synced_offset, watched.notes, watched.changes) == (0, [], 1)


def test_a_sync_that_failed_elsewhere_is_final_too(watched: Watched) -> None:
    watched.syncer.fail(OSError("elsewhere"))
    watched.syncer.request(20)
    assert watched.syncs() == 0
    assert watched.changes == 1


def test_the_thread_syncs_what_is_requested_and_calls_back() -> None:
    disk = SimulatedFileSystem()
    told = Event()
    threads: list[int] = []

    def note(offset: int) -> None:
        threads.append(get_ident())

    syncer = Syncer(0, note=note, on_change=told.set)
    syncer.add(disk.open("/0", create=True), 100)
    syncer.thread.start()
    try:
        for offset in (10, 20):
            syncer.request(offset)
            assert told.wait(10)
            told.clear()
            assert syncer.synced_offset == offset
    finally:
        syncer.thread.stop()
    assert threads
    assert get_ident() not in threads
    syncer.request(30)
    assert syncer.synced_offset == 20


def test_wake_ups_while_a_step_runs_lead_to_one_more_step() -> None:
    running, go_on, done = Event(), Event(), Event()
    steps: list[int] = []

    def step() -> None:
        steps.append(len(steps))
        running.set()
        assert go_on.wait(10)
        if len(steps) == 2:
            done.set()

    thread = BackgroundThread("test", step)
    thread.start()
    thread.wake()
    assert running.wait(10)
    for _ in range(5):
        thread.wake()
    go_on.set()
    assert done.wait(10)
    thread.stop()
    assert steps == [0, 1]


def test_jobs_are_done_in_order_and_without_a_thread_when_asked() -> None:
    jobs = Jobs()
    done: list[int] = []
    jobs.submit(lambda: done.append(1))
    jobs.submit(lambda: done.append(2))
    assert done == []
    jobs.step()
    assert done == [1, 2]


class Racing(RealFileSystem):
    """A disk on which another thread removes each folder right before its sync."""

    def sync_directory(self, path: str) -> None:
        """Sync what is left."""
        self.remove_directory(path)
        super().sync_directory(path)


def test_a_folder_that_is_removed_meanwhile_fails_no_sync(tmp_path: Path) -> None:
    """Its topic was deleted; the folder that it was in is still to be synced."""
    folders = {f"{tmp_path}/{name}" for name in "ab"}
    for folder in folders:
        RealFileSystem().make_directories(folder)
    Unsynced(Racing(), set(), folders).sync()
    assert not list(tmp_path.iterdir())
