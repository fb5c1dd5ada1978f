"""What a repair notes of deleted topics: in which order, and never past the end of the log."""

from __future__ import annotations

import itertools

import pytest
from tests.crash.disk import KillAt, Killed, SimulatedFileSystem
from tests.store.damaged_stores import content, flip, overwrite, repaired
from tests.store.held_stores import bodies
from tests.store.test_apache_deletions import take_our_notes
from tests.store.test_deleted_long_ago import started
from tests.store.test_deletions import CONFIG, ROOT, opened, put
from tests.store.test_gone_topics import ALL, left

from cometmq.store.deletions import DELETIONS_NAME
from cometmq.store.errors import CorruptionError
from cometmq.store.looking.inspection import inspect
from cometmq.store.looking.log_check import LogCheck
from cometmq.store.starting.found import is_ours, was_left_clean
from cometmq.store.upkeep.checkpoint import load_checkpoint

MARKS = f"{ROOT}/{DELETIONS_NAME}"


def damage(disk: SimulatedFileSystem, body: bytes) -> int:
    """Damage the message with that body; return where it begins."""
    (place,) = [
        each.physical_offset for each in LogCheck(inspect(disk, ROOT, CONFIG)) if each.body == body
    ]
    flip(disk, f"{ROOT}/commitlog/{0:020d}", place + 90)
    return place


def test_a_cut_leaves_no_mark_behind_the_end() -> None:
    """Apache may open the store next, and write messages of that name before such a mark."""
    disk = SimulatedFileSystem()
    store = opened(disk)
    put(store, b"old 0", b"old 1")
    put(store, *ALL, topic="Gone")
    store.delete_topics(["Gone"])
    put(store, b"old 2")
    assert store.close(1)
    cut_at = damage(disk, b"old 1")
    assert repaired(disk, ROOT, CONFIG, cut=True).cut_at == cut_at
    marks = content(disk, MARKS)
    store = opened(disk)
    put(store, b"new 0", b"new 1", topic="Gone")
    end = store.end_offset
    assert store.close(1)
    take_our_notes(disk, end)
    disk.open(MARKS, create=True)
    overwrite(disk, MARKS, 0, marks)
    assert bodies(opened(disk), "Gone") == [b"new 0", b"new 1"]


def test_a_cut_leaves_no_deleted_topic_in_the_list_of_queues() -> None:
    """Its mark ends at the cut, but the list would say that the log was on the disk after it."""
    disk = SimulatedFileSystem()
    store = opened(disk)
    put(store, b"old 0")
    put(store, *ALL, topic="Gone")
    assert store.close(1)
    store = opened(disk)
    store.delete_topics(["Gone"])
    disk = disk.kill()
    damage(disk, ALL[1])
    repaired(disk, ROOT, CONFIG, cut=True)
    store = opened(disk)
    assert (bodies(store), bodies(store, "Gone")) == ([b"old 0"], [])


def of_apache_without_a_checkpoint() -> SimulatedFileSystem:
    """A clean store that had a topic deleted, and has a damaged message."""
    disk = left(is_clean=True)
    disk.remove(f"{ROOT}/checkpoint")
    assert not is_ours(disk, ROOT)
    assert was_left_clean(disk, ROOT, load_checkpoint(disk, f"{ROOT}/checkpoint"))
    damage(disk, b"old 1")
    return disk


@pytest.mark.parametrize("cut", [False, True])
def test_one_that_is_killed_never_makes_a_torn_tail_of_what_is_behind_damage(*, cut: bool) -> None:
    """No start cuts there, and the next repair finishes what this one began."""
    whole = [b"old 0"] if cut else [b"old 0", bytes(5), b"old 2"]
    number = 0
    for number in itertools.count(1):
        disk = of_apache_without_a_checkpoint()
        disk.hook = hook = KillAt(disk.operations + number)
        try:
            repaired(disk, ROOT, CONFIG, cut=cut)
        except Killed:
            pass
        else:
            break
        assert hook.hit is not None
        disk = disk.kill()
        try:
            store = started(disk)
        except CorruptionError:
            disk = disk.kill()
            repaired(disk, ROOT, CONFIG, cut=cut)
            store = started(disk)
        assert (bodies(store), bodies(store, "Gone")) == (whole, []), hook.hit
        assert store.close(1)
    assert number > 25
