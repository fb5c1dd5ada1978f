"""A rebuild of a store that was killed promises nothing that a power cut may still take."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
from tests.crash.disk import KillAt, Killed, Moment
from tests.store.damaged_stores import files_of, verified
from tests.store.held_stores import (
    BATCH_QUEUE,
    BATCHES,
    CONFIG,
    ENTRIES_OF_A_FILE,
    MESSAGES,
    ROOT,
    SIMPLE_QUEUE,
    Held,
    rebuild,
    remove_all,
    upkeep,
)
from tests.store.records import HOST
from tests.store.test_offsets_of_expired import (
    RARE_SYNCS,
    given_up,
    kill_at,
    let_all_expire,
    tear_number_of_last,
)

from cometmq.store.log.turn import Origin
from cometmq.store.queues.batch_consume_queue import BATCH_ENTRY, BatchEntry
from cometmq.store.queues.consume_queue import ENTRY
from cometmq.store.queues.entry_search import PRE_BLANK_SIZE
from cometmq.store.queues.queue_ends import load_queue_ends
from cometmq.store.upkeep.checkpoint import load_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator


def put_unsynced(held: Held, topic: str) -> None:
    held.now_ms += 1
    held.store.put(topic, 0, b"unsynced", b"", Origin(held.now_ms, held.now_ms, HOST))
    held.store.commit()


def add_file(held: Held, folder: str, entry: bytes, start: int = 0) -> None:
    """Give a queue a file that begins with an entry."""
    held.disk.make_directories(folder)
    file = held.disk.open(f"{folder}/{start:020d}", create=True)
    file.resize(ENTRIES_OF_A_FILE * len(entry))
    file.write(entry, 0)
    file.close()


@pytest.mark.parametrize("topic", ["T", BATCHES, "New"])
def test_a_power_cut_behind_it_takes_the_tail_and_no_offset(topic: str) -> None:
    held = Held()
    let_all_expire(held)
    held.opened(RARE_SYNCS)
    upkeep(held)
    synced = held.store.end_offset
    put_unsynced(held, topic)
    held.disk = held.disk.kill()
    done = rebuild(held)
    assert done.left_records == 1
    claims = load_checkpoint(held.disk, f"{ROOT}/checkpoint").claims
    assert claims is not None
    assert claims.recover_from == synced
    ends = load_queue_ends(held.disk, ROOT)
    assert ends is not None
    assert max(end.physical_offset for end in ends.values()) < synced
    assert verified(held.disk, ROOT, CONFIG).is_sound
    disk, following = held.disk, 0 if topic == "New" else MESSAGES
    found: set[int] = set()
    for seed in range(12):
        held.disk = disk.power_cut(Random(seed))
        held.opened()
        kept = held.store.end_offset > synced
        assert held.put(b"next", topic) == following + kept
        found.add(kept)
    assert found == {0, 1}
    held.disk = disk.kill()
    held.opened()
    assert held.bodies(topic) == [b"unsynced"]
    assert held.put(b"next", topic) == following + 1


def test_the_end_of_a_file_that_no_sync_came_to_is_not_promised_by_a_second_one() -> None:
    """The first record that is left comes after it, at the beginning of the next file."""
    held, size = Held(), CONFIG.segment_size
    held.stop(clean=True)
    held.opened(RARE_SYNCS)
    begun = held.store.end_offset
    put_unsynced(held, "T")
    record = held.store.end_offset - begun
    while size - held.store.end_offset % size >= record + 8:  # 8 for a blank record.
        put_unsynced(held, "T")
    upkeep(held)
    synced = held.store.end_offset
    put_unsynced(held, "T")
    held.disk = held.disk.kill()
    assert rebuild(held).left_records == rebuild(held).left_records == 1
    claims = load_checkpoint(held.disk, f"{ROOT}/checkpoint").claims
    assert claims is not None
    assert (claims.recover_from, claims.synced_offset) == (synced, synced)
    disk = held.disk
    for seed in range(12):
        held.disk = disk.power_cut(Random(seed))
        held.opened()


@pytest.mark.parametrize("number", [0, 5, MESSAGES + 1, 1 << 40])
def test_a_torn_number_in_the_tail_is_for_the_next_start_to_judge(number: int) -> None:
    held = Held()
    held.stop(clean=True)
    held.opened(RARE_SYNCS)
    tear_number_of_last(held, "Other", number)
    remove_all(held.disk, SIMPLE_QUEUE)
    assert rebuild(held).left_records == 1
    held.opened()
    assert held.store.kept is not None
    for topic in ("T", "Other", BATCHES):
        assert len(held.bodies(topic)) == MESSAGES
        assert held.put(b"next", topic) == MESSAGES


@pytest.mark.parametrize("topic", ["New", BATCHES])
def test_a_queue_that_has_nothing_but_the_tail_is_left_to_the_next_start(topic: str) -> None:
    for seed in range(10):
        held = Held()
        held.stop(clean=True)
        held.opened(RARE_SYNCS)
        for _ in range(60):
            put_unsynced(held, topic)
        held.store.run_jobs()
        held.store.queues.write_behind(1 << 60, 1 << 20)  # May be torn now.
        held.disk = held.disk.power_cut(Random(seed))
        rebuild(held)
        ends = load_queue_ends(held.disk, ROOT)
        assert ends is not None
        assert all(key.topic != "New" for key in ends)
        held.opened()
        count = len(held.bodies(topic))
        assert held.put(b"next", topic) == count, seed


@pytest.mark.parametrize("topic", ["T", BATCHES])
def test_a_torn_entry_behind_a_hole_does_not_move_the_offset_of_an_expired_queue(
    topic: str,
) -> None:
    held = Held()
    let_all_expire(held)
    held.opened(RARE_SYNCS)
    upkeep(held)
    behind = held.store.end_offset + 1000
    put_unsynced(held, "Other")
    held.disk = held.disk.kill()
    held.disk.remove(f"{ROOT}/queue_ends.json")
    folder, torn = SIMPLE_QUEUE, ENTRY.pack(behind, 100, 0)
    if topic == BATCHES:
        folder, torn = BATCH_QUEUE, BATCH_ENTRY.pack(*BatchEntry(behind, 100, 0, 0, 999, 1))
    last = int(max(files_of(held.disk, folder))[-20:])  # It ends with zeros.
    add_file(held, folder, torn, last + ENTRIES_OF_A_FILE * len(torn))
    rebuild(held)
    held.opened()
    assert held.put(b"next", topic) == MESSAGES


def test_a_torn_entry_that_leads_into_the_log_is_of_no_expired_message() -> None:
    """The log has no record of that queue there."""
    held = Held()
    held.stop(clean=True)
    held.opened(RARE_SYNCS)
    put_unsynced(held, "Other")
    held.disk = held.disk.kill()
    held.disk.remove(f"{ROOT}/queue_ends.json")
    folder = f"{ROOT}/batchconsumequeue/{BATCHES}/1"
    add_file(held, folder, BATCH_ENTRY.pack(*BatchEntry(0, 100, 0, 0, 0, 3)))
    rebuild(held)
    assert not held.disk.exists(folder)
    assert held.opened().max_offset(BATCHES, 1) == 0


@pytest.mark.parametrize("topic", ["T", BATCHES])
def test_a_queue_that_only_keeps_its_offset_does_so_without_a_list(topic: str) -> None:
    held = Held()
    let_all_expire(held)
    folder = "batchconsumequeue" if topic == BATCHES else "consumequeue"
    remove_all(held.disk, f"{ROOT}/{folder}/{topic}/0")
    rebuild(held)  # It continues after blank entries, by the list.
    held.opened(RARE_SYNCS)
    put_unsynced(held, "Other")
    held.disk = held.disk.kill()
    for _ in range(2):
        held.disk.remove(f"{ROOT}/queue_ends.json")
        rebuild(held)
    held.opened()
    assert held.put(b"next", topic) == MESSAGES


def test_a_queue_that_would_go_on_at_0_is_not_kept() -> None:
    """It may be left over from a deleted topic, for example."""
    held = Held()
    held.stop(clean=True)
    folder = f"{ROOT}/batchconsumequeue/{BATCHES}/1"
    add_file(held, folder, BATCH_ENTRY.pack(*BatchEntry(0, PRE_BLANK_SIZE, 0, 0, 0, 0)))
    rebuild(held)
    assert not held.disk.exists(folder)
    assert all(key.queue_id == 0 for key in load_queue_ends(held.disk, ROOT) or {})
    assert verified(held.disk, ROOT, CONFIG).is_sound


def struck_rebuilds(held: Held) -> Iterator[None]:
    """End the process after each operation of a rebuild that changes what is in place."""
    disk, number = held.disk, 0
    while True:
        held.disk, number = disk.kill(), number + 1
        held.disk.hook = at = KillAt(held.disk.operations + number, Moment.AFTER)
        try:
            rebuild(held)
        except Killed:
            held.disk = held.disk.kill()
            if at.hit is None or "rebuilding/" not in at.hit.path:
                yield
        else:
            return


def test_struck_anywhere_it_leaves_queues_their_offsets_that_keep_nothing_else() -> None:
    """This holds although entries of batches, the first of which have expired, get other places."""
    held = Held()
    let_all_expire(held)
    remove_all(held.disk, f"{ROOT}/consumequeue/T/0")
    rebuild(held)
    held.opened(RARE_SYNCS)
    held.put(b"more", BATCHES)
    upkeep(held)
    held.disk = held.disk.kill()
    for _ in struck_rebuilds(held):
        held.opened()
        assert held.put(b"next", "T") == MESSAGES
        assert held.put(b"next", BATCHES) == MESSAGES + 1


def test_struck_anywhere_it_leaves_what_was_synced_of_a_queue_that_was_given_up() -> None:
    """The first kill comes between the list and the checkpoint."""
    held = given_up(BATCHES)
    held.opened()
    for number in range(2):
        assert held.put(b"synced", BATCHES) == MESSAGES + number
    kill_at(held, "/checkpoint.new", Moment.BEFORE, lambda: upkeep(held))
    held.disk = held.disk.power_cut(Random(2))  # It loses the note of the synced offset.
    for _ in struck_rebuilds(held):
        held.opened()
        assert held.store.kept is None
        assert held.put(b"next", BATCHES) == MESSAGES + 2
