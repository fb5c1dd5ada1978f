"""Damage in a queue of a topic that was deleted and recreated concerns only that queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.store.damaged_stores import content, files_of, flip, overwrite, verified
from tests.store.held_stores import (
    BATCH_QUEUE,
    BATCHES,
    CONFIG,
    ENTRIES_OF_A_FILE,
    ENTRY_SIZES,
    MESSAGES,
    QUEUES,
    ROOT,
    SIMPLE_QUEUE,
    Held,
    behind_the_end,
    drop_segments,
    hole,
    kill_behind_the_list,
    rebuild,
    repair,
    too_long,
    too_short,
    upkeep,
)
from tests.store.test_offsets_of_expired import RARE_SYNCS, tear_number_of_last

from cometmq.store.errors import CorruptionError, StoreFormatError

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(("topic", "queue", "entry_size"), QUEUES)
@pytest.mark.parametrize(
    ("damage", "clean", "has_list"),
    [
        (too_short, True, True),
        (too_long, True, True),
        (too_long, False, True),
        (hole, True, True),
        (hole, True, False),
        (hole, False, True),
        (behind_the_end, True, True),
        (behind_the_end, True, False),
    ],
)
def test_a_start_serves_all_but_the_queue_with_the_damage(
    damage: Callable[[Held, str, int], None],
    clean: bool,
    has_list: bool,
    topic: str,
    queue: str,
    entry_size: int,
) -> None:
    held = Held()
    held.store.delete_topics([topic])
    bodies = [b"%d" % number for number in range(MESSAGES)]
    for body in bodies:
        held.put(body, topic)
    held.stop(clean=clean)
    damage(held, queue, entry_size)
    if not has_list:
        held.disk.remove(f"{ROOT}/queue_ends.json")
    held.opened()
    (problem,) = held.store.queues.problems
    assert problem.startswith(f"{queue}/")
    for _ in range(2):
        with pytest.raises((CorruptionError, StoreFormatError)):
            held.put(b"next", topic)
        with pytest.raises((CorruptionError, StoreFormatError)):
            held.store.read(topic, 0, 5, 32)
        assert held.put(b"next", "Other") >= MESSAGES
        upkeep(held)
        held.stop(clean=clean)
        held.opened()
    held.stop(clean=clean)
    rebuild(held)
    assert verified(held.disk, ROOT, CONFIG).is_sound
    held.opened()
    assert held.store.queues.problems == []
    assert held.bodies(topic) == bodies
    assert held.put(b"next", topic) == MESSAGES


@pytest.mark.parametrize(("topic", "queue", "entry_size"), QUEUES)
def test_files_of_a_deleted_topic_that_came_back_are_dropped_by_a_rebuild(
    topic: str, queue: str, entry_size: int
) -> None:
    """A power cut brings them back, and a store whose `abort` is lost passes for shut down."""
    held = Held()
    held.stop(clean=True)
    files = {path: content(held.disk, path) for path in files_of(held.disk, queue)}
    held.opened()
    held.store.delete_topics([topic])
    held.stop(clean=True)
    held.disk.make_directories(queue)
    for path, data in files.items():
        held.disk.open(path, create=True).write(data, 0)
    assert verified(held.disk, ROOT, CONFIG).is_sound
    assert rebuild(held).kept_queues == 0
    assert not held.disk.exists(queue)
    assert verified(held.disk, ROOT, CONFIG).is_sound
    held.opened()
    assert held.put(b"first", topic) == 0
    assert held.bodies(topic) == [b"first"]


@pytest.mark.parametrize("expired", [0, 2])
def test_a_torn_number_of_the_first_message_of_a_topic_made_again_is_cut(expired: int) -> None:
    """It begins at 0, though the log has lost its front: nothing since the deletion is gone."""
    held = Held()
    held.stop(clean=True)
    drop_segments(held, expired)
    held.opened(RARE_SYNCS)
    held.store.delete_topics(["T"])
    tear_number_of_last(held, "T", 1 << 39)
    held.opened()
    assert (held.store.min_offset("T", 0), held.store.max_offset("T", 0)) == (0, 0)
    assert held.disk.list(f"{ROOT}/cut")
    assert held.put(b"first", "T") == 0


@pytest.mark.parametrize("topic", ["T", BATCHES])
def test_a_damaged_record_right_behind_the_deletion_is_of_the_topic_that_was_made_again(
    topic: str,
) -> None:
    held = Held()
    held.store.delete_topics([topic])
    at = held.store.end_offset
    for number in range(4):
        held.put(b"again %d" % number, topic)
    held.stop(clean=True)
    start = at // CONFIG.segment_size * CONFIG.segment_size
    path = f"{ROOT}/commitlog/{start:020d}"
    flip(held.disk, path, content(held.disk, path).index(b"again 0"))
    (step,) = repair(held, cut=False).steps
    assert [(each.topic, each.queue_offset, each.count) for each in step.lost] == [(topic, 0, 1)]
    held.opened()
    assert held.bodies(topic)[1:] == [b"again 1", b"again 2", b"again 3"]
    assert len(held.bodies(topic)) == 4


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize("topic", ["T", BATCHES])
def test_a_first_file_of_a_topic_made_again_does_not_pass_for_expired(
    topic: str, is_lost: bool
) -> None:
    """The list names only entries after *recover from*, which are about to be rebuilt."""
    held = Held()
    held.store.delete_topics([topic])
    bodies = [b"%d" % number for number in range(ENTRIES_OF_A_FILE + 2)]
    for body in bodies[:-4]:
        held.put(body, topic)
    held.stop(clean=False)
    held.opened()
    for body in bodies[-4:]:
        held.put(body, topic)
    kill_behind_the_list(held)
    queue = SIMPLE_QUEUE if topic == "T" else BATCH_QUEUE
    first, _ = files_of(held.disk, queue)
    if is_lost:
        held.disk.remove(first)
    else:
        overwrite(held.disk, first, 0, bytes(ENTRIES_OF_A_FILE * ENTRY_SIZES[topic]))
    held.opened()
    assert held.bodies(topic) == bodies
    assert held.put(b"next", topic) == len(bodies)
