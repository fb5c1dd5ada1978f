"""A topic that Apache's broker deleted, recreated right before a kill or a power cut.

A rebuild leaves the new messages to the next start, and takes the old ones only if nothing tells.
"""

from __future__ import annotations

from random import Random

import pytest
from tests.crash.disk import SimulatedFileSystem
from tests.store.damaged_stores import overwrite, verified
from tests.store.held_stores import bodies, remove_all
from tests.store.test_apache_deletions import take_our_notes
from tests.store.test_deleted_long_ago import started, write_table
from tests.store.test_deletions import CONFIG, ROOT, opened, put
from tests.store.test_rebuilding import rebuilt

from cometmq.store.deletions import Deletions
from cometmq.store.message_store import MessageStore

SYNCED_NOTE = 512
"""Where the checkpoint notes how far the log is synced; a power cut may take this note."""
OLD = [b"old 0", b"old 1", b"old 2"]


def taken_over(*, is_deleted: bool) -> tuple[SimulatedFileSystem, MessageStore]:
    """Return a store that was Apache's, with a topic that may have been deleted there."""
    disk = SimulatedFileSystem()
    store = opened(disk)
    put(store, *OLD, topic="Made")
    if is_deleted:
        store.delete_topics(["Made"])
    put(store, b"T 0", b"T 1", b"T 2")
    end = store.end_offset
    assert store.close(1)
    take_our_notes(disk, end - 1)
    disk.remove(f"{ROOT}/abort")
    write_table(disk, "T", "Made")
    return disk, started(disk)


def made_again(new: int) -> tuple[SimulatedFileSystem, MessageStore]:
    """Return a store of ours with a topic that Apache deleted, and some new messages of it.

    No start read the old ones back, so no mark names the topic.
    """
    disk, store = taken_over(is_deleted=True)
    put(store, *(b"new %d" % number for number in range(new)), topic="Made")
    put(store, b"T 3")
    return disk, store


def left(disk: SimulatedFileSystem, seed: int | None) -> SimulatedFileSystem:
    """Return what a kill leaves, or a power cut; nothing says how far the log is synced."""
    disk = disk.kill() if seed is None else disk.power_cut(Random(seed))
    overwrite(disk, f"{ROOT}/checkpoint", SYNCED_NOTE, bytes(16))
    return disk


@pytest.mark.parametrize("seed", [None, *range(6)])
@pytest.mark.parametrize("new", [1, 2, 3, 5])
def test_a_rebuild_takes_no_old_messages_for_those_that_are_left_to_the_start(
    new: int, seed: int | None
) -> None:
    disk, _ = made_again(new)
    disk = left(disk, seed)
    done = rebuilt(disk, ROOT, CONFIG)
    assert (done.left_records, done.entries) == (new + 1, 3)
    assert done.deleted_topics == {"Made": len(OLD)}
    assert Deletions(disk, ROOT).deleted_to("Made")
    for _ in range(2):
        store = started(disk)
        assert store.kept is None
        assert bodies(store, "Made") == [b"new %d" % number for number in range(new)]
        assert bodies(store) == [b"T 0", b"T 1", b"T 2", b"T 3"]
        disk = disk.kill()
    assert started(disk).close(1)
    assert verified(disk, ROOT, CONFIG).is_sound


@pytest.mark.parametrize("seed", range(6))
def test_nor_does_it_believe_a_torn_record_of_a_topic_that_was_not_deleted(seed: int) -> None:
    """The record says it is message 0 of a queue that Apache wrote, and whose files are there."""
    disk, store = made_again(0)
    place = store.end_offset
    put(store, b"T 4")
    disk = left(disk, seed)
    overwrite(disk, f"{ROOT}/commitlog/{0:020d}", place + 20, bytes(8))
    done = rebuilt(disk, ROOT, CONFIG)
    assert (done.left_records, done.entries) == (2, 6)
    again = started(disk)
    assert bodies(again) == [b"T 0", b"T 1", b"T 2", b"T 3"]


@pytest.mark.parametrize("is_torn", [False, True])
def test_nor_does_it_take_one_for_made_again_that_lost_its_files(*, is_torn: bool) -> None:
    """The record that is left continues after the old ones, or the list names the queue."""
    disk, store = taken_over(is_deleted=False)
    if is_torn:
        assert store.close(1)
        store = started(disk)
    place = store.end_offset
    put(store, b"new", topic="Made")
    disk = left(disk, None)
    remove_all(disk, f"{ROOT}/consumequeue/Made/0")
    if is_torn:
        overwrite(disk, f"{ROOT}/commitlog/{0:020d}", place + 20, bytes(8))
    done = rebuilt(disk, ROOT, CONFIG)
    assert (done.left_records, done.entries) == (1, 6)
    assert bodies(started(disk), "Made") == (OLD if is_torn else [*OLD, b"new"])
