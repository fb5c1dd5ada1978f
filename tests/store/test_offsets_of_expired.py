"""A queue whose messages have all expired gives no offset out again, whatever a start goes through.

The log no longer says anything about it; only its files and the list of the queues' ends do.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from struct import Struct
from typing import TYPE_CHECKING

import pytest
from tests.crash.disk import KillAt, Killed, Moment, Operation, SimulatedFileSystem
from tests.store.damaged_stores import contents, files_of, flip, overwrite
from tests.store.held_stores import (
    BATCH_QUEUE,
    CONFIG,
    MESSAGES,
    QUEUES,
    RARE,
    ROOT,
    SIMPLE_QUEUE,
    TAIL,
    Held,
    drop_segments,
    hole,
    killed,
    rebuild,
    remove_all,
    repair,
    upkeep,
)
from tests.store.records import HOST

from cometmq.store.config import Flush
from cometmq.store.errors import CorruptionError
from cometmq.store.log.log_scan import LogScan
from cometmq.store.log.turn import Origin
from cometmq.store.looking.inspection import inspect

if TYPE_CHECKING:
    from collections.abc import Callable

RARE_SYNCS = replace(RARE, flush=Flush.ASYNC)
QUEUE_OFFSET = Struct(">q")


def let_all_expire(held: Held) -> None:
    """Let the messages of all queues but one expire."""
    for _ in range(600):
        held.put(b"x" * 50, "Other")
    upkeep(held)
    held.stop(clean=True)
    drop_segments(held, len(list(files_of(held.disk, f"{ROOT}/commitlog"))) - 3)
    held.disk.sync_directory(f"{ROOT}/commitlog")


def tear_number_of_last(held: Held, topic: str, number: int) -> None:
    """Kill the process after an unsynced record, and tear a sector of this record's head."""
    origin = Origin(held.now_ms, held.now_ms, HOST)
    offset = held.store.put(topic, 0, b"unsynced", b"", origin).physical_offset
    held.store.commit()
    held.disk = held.disk.kill()
    segment = offset // CONFIG.segment_size * CONFIG.segment_size
    path = f"{ROOT}/commitlog/{segment:020d}"
    overwrite(held.disk, path, offset - segment + 20, QUEUE_OFFSET.pack(number))


def copied(disk: SimulatedFileSystem) -> SimulatedFileSystem:
    """A disk with the same files, all of which are synced."""
    copy = SimulatedFileSystem()
    for path, data in contents(disk).items():
        folder = path.rpartition("/")[0]
        copy.make_directories(folder)
        file = copy.open(path, create=True)
        file.write(data, 0)
        file.sync()
        file.close()
        while folder:
            copy.sync_directory(folder)
            folder = folder.rpartition("/")[0]
    return copy


@pytest.mark.parametrize("lacking", [True, False], ids=["lacks entries", "has a hole"])
@pytest.mark.parametrize(("topic", "queue", "entry_size"), QUEUES)
def test_a_start_that_makes_all_entries_anew_keeps_the_offset_of_a_damaged_queue(
    topic: str, queue: str, entry_size: int, lacking: bool
) -> None:
    held, given_out = Held(), MESSAGES
    if lacking:
        held, given_out = killed(topic), MESSAGES + TAIL
        hole(held, queue, entry_size)
        held.opened(CONFIG)
    let_all_expire(held)
    if not lacking:
        hole(held, queue, entry_size)
    held.opened(RARE_SYNCS)
    with pytest.raises(CorruptionError):
        held.put(b"next", topic)
    tear_number_of_last(held, "Other", 0)
    for _ in range(2):
        held.opened(CONFIG)
        if lacking:  # It is rebuilt, like all others.
            given_out += 1
            assert held.put(b"next", topic) == given_out - 1
        else:
            with pytest.raises(CorruptionError, match="not an entry, though 110 were safe"):
                held.put(b"next", topic)
        held.stop(clean=True)


@pytest.mark.parametrize(("moment", "seed"), [(Moment.BEFORE, None), (Moment.AFTER, 1)])
@pytest.mark.parametrize(("topic", "queue", "entry_size"), QUEUES)
def test_killed_while_it_makes_a_queue_again_that_lacks_entries_the_next_start_knows_its_offset(
    topic: str, queue: str, entry_size: int, moment: Moment, seed: int | None
) -> None:
    before = killed(topic)
    hole(before, queue, entry_size)
    before.opened(CONFIG)
    let_all_expire(before)
    for each in ("T", "Other"):
        remove_all(before.disk, f"{ROOT}/consumequeue/{each}/0")
        before.disk.remove_directory(f"{ROOT}/consumequeue/{each}")
    before.disk.remove_directory(f"{ROOT}/consumequeue")
    before.disk.sync_directory(ROOT)
    held = Held()
    operations, was_killed = 0, True
    while was_killed:
        operations += 1
        held.disk = copied(before.disk)
        held.disk.hook = KillAt(held.disk.operations + operations, moment)
        try:
            held.opened()
            was_killed = False
        except Killed:
            held.disk = held.disk.kill() if seed is None else held.disk.power_cut(Random(seed))
            held.opened()
        held.disk.hook = None
        assert held.put(b"next", topic) == MESSAGES + TAIL, operations
    assert operations > 20


@pytest.mark.parametrize(
    ("topic", "number"),
    [(topic, number) for topic in ("T", "Batches") for number in (0, 7, 1 << 40)],
)
def test_a_torn_number_does_not_count_for_a_queue_without_a_message_in_the_log(
    topic: str, number: int
) -> None:
    held = Held()
    let_all_expire(held)
    held.opened(RARE_SYNCS)
    tear_number_of_last(held, topic, number)
    held.opened()
    assert held.put(b"next", topic) == MESSAGES


@pytest.mark.parametrize(("topic", "queue", "entry_size"), QUEUES)
def test_nor_for_a_damaged_queue_that_a_rebuild_makes_again(
    topic: str, queue: str, entry_size: int
) -> None:
    held = Held()
    held.stop(clean=True)
    held.opened(RARE_SYNCS)
    tear_number_of_last(held, topic, 1 << 40)
    hole(held, queue, entry_size)
    held.opened()
    assert held.store.kept is not None
    held.stop(clean=True)
    rebuild(held)
    held.opened()
    assert held.put(b"next", topic) == MESSAGES


def given_up(topic: str) -> Held:
    """A store whose log begins at 0, and in which a repair gave up all messages of a queue."""
    held = Held()
    held.stop(clean=True)
    records = LogScan(inspect(held.disk, ROOT, CONFIG).segments, 0)
    first = next(each.physical_offset for each in records if each.topic == topic)
    flip(held.disk, f"{ROOT}/commitlog/{0:020d}", first + 3, 0x55)
    repair(held, cut=True)
    return held


@pytest.mark.parametrize("topic", ["T", "Batches"])
def test_a_sound_tail_of_a_queue_that_was_given_up_stays_behind_a_kill(topic: str) -> None:
    held = given_up(topic)
    held.opened(RARE_SYNCS)
    assert held.store.max_offset(topic, 0) == MESSAGES
    for number in range(2):
        origin = Origin(held.now_ms, held.now_ms, HOST)
        offset = held.store.put(topic, 0, b"unsynced", b"", origin).queue_offset
        assert offset == MESSAGES + number
    held.store.commit()
    end = held.store.end_offset
    held.disk = held.disk.kill()
    held.opened()
    assert held.store.end_offset == end
    assert held.bodies(topic) == [b"unsynced"] * 2


def kill_at(held: Held, name: str, moment: Moment, act: Callable[[], object]) -> None:
    """Have the process end at the renaming of a new file."""

    def kill(operation: Operation) -> None:
        is_renamed = operation.verb == "rename" and operation.moment is moment
        if is_renamed and operation.path.endswith(name):
            raise Killed(operation)

    held.disk.hook = kill
    with pytest.raises(Killed):
        act()
    held.disk.hook = None


@pytest.mark.parametrize("topic", ["T", "Batches"])
def test_two_kills_keep_what_was_synced_of_a_queue_that_was_given_up(topic: str) -> None:
    """The first comes between the list and the checkpoint, the second after the shorter list."""
    held = given_up(topic)
    held.opened()
    for number in range(2):
        assert held.put(b"synced", topic) == MESSAGES + number
    end = held.store.end_offset
    kill_at(held, "/checkpoint.new", Moment.BEFORE, lambda: upkeep(held))
    held.disk = held.disk.power_cut(Random(2))  # It loses the note of the synced offset.
    kill_at(held, "/queue_ends.json.new", Moment.AFTER, held.opened)
    held.disk = held.disk.kill()
    held.opened()
    assert held.store.end_offset == end
    assert held.put(b"next", topic) == MESSAGES + 2


@pytest.mark.parametrize("has_apache", [False, True], ids=["no list", "apache"])
@pytest.mark.parametrize(("topic", "queue"), [("T", SIMPLE_QUEUE), ("Batches", BATCH_QUEUE)])
def test_an_offset_that_is_all_a_queue_keeps_stays_behind_a_kill_without_a_list(
    topic: str, queue: str, has_apache: bool
) -> None:
    """The list is lost, or says nothing any more because Apache's broker had the store open."""
    held = Held()
    let_all_expire(held)
    remove_all(held.disk, queue)
    rebuild(held)
    held.opened()
    held.put(b"more", "Other")
    upkeep(held)
    held.disk = held.disk.kill()
    if has_apache:
        flip(held.disk, f"{ROOT}/checkpoint", 7, 1)  # Apache's first number.
    else:
        held.disk.remove(f"{ROOT}/queue_ends.json")
    for _ in range(2):
        held.opened()
        assert held.store.max_offset(topic, 0) == MESSAGES
        upkeep(held)
        held.disk = held.disk.kill()
    held.opened()
    assert held.put(b"next", topic) == MESSAGES
