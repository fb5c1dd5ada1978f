"""A damaged queue keeps no start from reading the log back, and never passes for whole later."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.crash.disk import KillAt, Killed, Moment
from tests.store.damaged_stores import contents, overwrite, verified
from tests.store.held_stores import (
    BATCHES,
    CONFIG,
    MESSAGES,
    QUEUES,
    ROOT,
    SIMPLE_QUEUE,
    TAIL,
    Held,
    hole,
    killed,
    rebuild,
    remove_all,
    too_long,
    upkeep,
)

from cometmq.store.errors import CorruptionError, LostQueuesError, StoreFormatError
from cometmq.store.queues.queue_ends import QueueKey, load_queue_ends
from cometmq.store.upkeep.checkpoint import load_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable


def check_out(held: Held, topic: str) -> None:
    """Check that this queue is refused and named, and that the others are served."""
    (problem,) = held.store.queues.problems
    assert f"/{topic}/0/" in problem
    with pytest.raises((CorruptionError, StoreFormatError)):
        held.put(b"next", topic)
    with pytest.raises((CorruptionError, StoreFormatError)):
        held.store.read(topic, 0, 5, 32)
    assert b"last" in held.bodies("Other")
    held.put(b"next", "Other")


def check_rebuilt(held: Held, topic: str, tail: int = TAIL) -> None:
    rebuild(held)
    assert verified(held.disk, ROOT, CONFIG).is_sound
    held.opened()
    assert held.store.queues.problems == []
    count = MESSAGES + tail
    assert held.bodies(topic) == [b"%c%d" % (topic[0].encode(), n) for n in range(count)]
    assert held.put(b"next", topic) == count


@pytest.mark.parametrize("tail", [1, TAIL])
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize(
    ("damage", "listed"),
    [(hole, True), (too_long, True), (too_long, False)],
    ids=["hole", "too long", "too long, no list"],
)
@pytest.mark.parametrize(("topic", "queue", "entry_size"), QUEUES)
def test_all_but_the_damaged_queue_are_served_at_this_start_and_at_later_ones(
    topic: str,
    queue: str,
    entry_size: int,
    damage: Callable[[Held, str, int], None],
    clean: bool,
    listed: bool,
    tail: int,
) -> None:
    held = killed(topic, tail)
    damage(held, queue, entry_size)
    if not listed:
        held.disk.remove(f"{ROOT}/queue_ends.json")
    for _ in range(3):
        held.opened()
        check_out(held, topic)
        upkeep(held)
        held.stop(clean=clean)
    assert not verified(held.disk, ROOT, CONFIG).is_sound
    check_rebuilt(held, topic, tail)


@pytest.mark.parametrize("tail", [1, TAIL])
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize(("topic", "queue", "entry_size"), QUEUES)
def test_one_with_a_hole_of_which_no_list_says_where_it_ended_is_made_again(
    topic: str, queue: str, entry_size: int, clean: bool, tail: int
) -> None:
    """Its next record shows the gap, and then all of the log is read."""
    held = killed(topic, tail)
    hole(held, queue, entry_size)
    held.disk.remove(f"{ROOT}/queue_ends.json")
    count = MESSAGES + tail
    for _ in range(3):
        held.opened()
        assert held.store.queues.problems == []
        assert held.bodies(topic) == [b"%c%d" % (topic[0].encode(), n) for n in range(count)]
        upkeep(held)
        held.stop(clean=clean)
        assert verified(held.disk, ROOT, CONFIG).is_sound
        ends = load_queue_ends(held.disk, ROOT)
        assert ends is not None
        assert ends[QueueKey(topic == BATCHES, topic, 0)].next_offset == count
    held.opened()
    assert held.put(b"next", topic) == count


@pytest.mark.parametrize("damage", [hole, too_long])
@pytest.mark.parametrize(("topic", "queue", "entry_size"), QUEUES)
def test_files_from_a_copy_do_not_make_it_whole_once_the_log_is_not_read_for_it(
    topic: str, queue: str, entry_size: int, damage: Callable[[Held, str, int], None]
) -> None:
    held = killed(topic)
    copy = {path: data for path, data in contents(held.disk).items() if path.startswith(queue)}
    damage(held, queue, entry_size)
    held.opened()
    upkeep(held)
    held.stop(clean=True)
    for path, data in copy.items():
        held.disk.open(path).resize(len(data))
        overwrite(held.disk, path, 0, data)
    assert not verified(held.disk, ROOT, CONFIG).is_sound
    held.opened()
    with pytest.raises(CorruptionError, match=r"the entry of the record at \d+ is missing"):
        held.put(b"next", topic)
    held.stop(clean=True)
    check_rebuilt(held, topic)


@pytest.mark.parametrize("moment", Moment)
def test_a_start_that_is_killed_forgets_nothing(moment: Moment) -> None:
    operations, was_killed = 0, True
    while was_killed:
        operations += 3
        held = killed("T")
        hole(held, SIMPLE_QUEUE, 20)
        held.disk.hook = KillAt(held.disk.operations + operations, moment)
        was_killed = False
        try:
            held.opened()
            upkeep(held, 3)
        except Killed:
            was_killed = True
        held.disk.hook = None
        held.disk = held.disk.kill()
        held.opened()
        check_out(held, "T")
        held.disk = held.disk.kill()
        check_rebuilt(held, "T")
    assert operations > 30


def test_the_list_says_that_it_lacks_entries() -> None:
    held = killed("T")
    hole(held, SIMPLE_QUEUE, 20)
    held.opened()
    upkeep(held)
    ends = load_queue_ends(held.disk, ROOT)
    assert ends is not None
    (end,) = [end for key, end in ends.items() if key.topic == "T"]
    assert end.lacks_from is not None
    assert end.next_offset == MESSAGES + TAIL


def test_it_is_missed_when_its_files_are_lost_as_well() -> None:
    held = killed("T")
    hole(held, SIMPLE_QUEUE, 20)
    held.opened()
    upkeep(held)
    held.stop(clean=True)
    remove_all(held.disk, SIMPLE_QUEUE)
    with pytest.raises(LostQueuesError, match="of T/0"):
        held.opened()
    check_rebuilt(held, "T")


@pytest.mark.parametrize("damage", [hole, too_long])
@pytest.mark.parametrize(("topic", "queue", "entry_size"), QUEUES)
def test_nor_does_a_journal_that_has_its_entries(
    topic: str, queue: str, entry_size: int, damage: Callable[[Held, str, int], None]
) -> None:
    held = Held()
    held.stop(clean=False)
    held.opened(replace(CONFIG, checkpoint_interval_ms=1000, consume_queue_journal_queues_min=1))
    upkeep(held, 3)
    for number in range(TAIL):
        if number >= TAIL - 2:
            held.put(b"%c%d" % (topic[0].encode(), MESSAGES + number - TAIL + 2), topic)
        held.put(b"last", "Other")
        upkeep(held, 1)
    claims = load_checkpoint(held.disk, f"{ROOT}/checkpoint").claims
    assert claims is not None
    assert claims.journal is not None
    held.disk = held.disk.kill()
    damage(held, queue, entry_size)
    for _ in range(2):
        held.opened()
        check_out(held, topic)
        upkeep(held)
        held.stop(clean=False)
    check_rebuilt(held, topic, 2)
