"""A queue whose files are lost is noticed, and never gives an offset out twice."""

from __future__ import annotations

import struct
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from tests.crash.disk import Killed, SimulatedFileSystem
from tests.store.damaged_stores import content, contents, files_of, flip, overwrite, verified
from tests.store.held_stores import (
    BATCH_QUEUE,
    BATCHES,
    CONFIG,
    ENTRIES_OF_A_FILE,
    ENTRY_SIZES,
    MESSAGES,
    ROOT,
    SIMPLE_QUEUE,
    Held,
    kill_behind_the_list,
    rebuild,
    remove_all,
    remove_last,
)

from cometmq.store.errors import CorruptionError, LostQueuesError
from cometmq.store.looking.inspection import inspect
from cometmq.store.message_store import MessageStore
from cometmq.store.queues.queue_ends import QueueKey, load_queue_ends
from cometmq.store.starting import lost_queues

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.crash.disk import Operation


def resize_last(size: int) -> Callable[[SimulatedFileSystem, str], None]:
    def damage(disk: SimulatedFileSystem, queue: str) -> None:
        disk.open(list(files_of(disk, queue))[-1]).resize(size)

    return damage


def blank_last(entries: int) -> Callable[[SimulatedFileSystem, str], None]:
    def damage(disk: SimulatedFileSystem, queue: str) -> None:
        path = list(files_of(disk, queue))[-1]
        size = disk.open(path).size()
        first = size * entries // ENTRIES_OF_A_FILE
        overwrite(disk, path, first, bytes(size - first))

    return damage


def grow_last(disk: SimulatedFileSystem, queue: str) -> None:
    path = list(files_of(disk, queue))[-1]
    disk.open(path).resize(100_000)


DAMAGES = {
    "the folder is gone": remove_all,
    "the last file is gone": remove_last,
    "the last file is empty": resize_last(0),
    "the last file is cut to 7 bytes": resize_last(7),
    "the last file is cut in the middle of its entries": resize_last(5 * 46),
    "the last file is too long": grow_last,
    "the last file is all zeros": blank_last(0),
    "its last entries are zeros": blank_last(20),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize(("topic", "queue"), [("T", SIMPLE_QUEUE), (BATCHES, BATCH_QUEUE)])
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
def test_a_queue_that_lost_entries_is_refused_and_made_again_by_a_rebuild(
    clean: bool, topic: str, queue: str, damage: Callable[[SimulatedFileSystem, str], None]
) -> None:
    held = Held()
    held.stop(clean=clean)
    before = entries(held.disk)
    damage(held.disk, queue)
    damaged = contents(held.disk)
    for _ in range(2):
        with pytest.raises(
            LostQueuesError, match=f"of {topic}/0 .110 messages.* are lost; nothing was ch"
        ) as refusal:
            held.opened()
        assert contents(held.disk) == damaged
        assert wrong_sizes(held.disk, queue) in str(refusal.value)
    rebuild(held)
    held.opened()
    for each in ("T", "Other", BATCHES):
        assert held.bodies(each) == [b"%c%d" % (each[0].encode(), n) for n in range(MESSAGES)]
    held.stop(clean=True)
    assert entries(held.disk) == before
    held.opened()
    assert held.put(b"next", topic) == MESSAGES


def wrong_sizes(disk: SimulatedFileSystem, queue: str) -> str:
    """Return what a refusal says about the sizes of a queue's files."""
    right = ENTRIES_OF_A_FILE * ENTRY_SIZES[queue.rsplit("/", 2)[1]]
    for entry in disk.list(queue) if disk.exists(queue) else ():
        if entry.size != right:
            return f"; {entry.name} has {entry.size} bytes, where files of queues have {right})"
    return " messages) are lost; nothing"


def entries(disk: SimulatedFileSystem) -> dict[str, bytes]:
    return {path: data for path, data in contents(disk).items() if "consumequeue" in path}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize(("topic", "queue"), [("T", SIMPLE_QUEUE), (BATCHES, BATCH_QUEUE)])
def test_where_all_of_the_log_is_read_for_all_queues_lost_ones_are_made_again(
    topic: str, queue: str, damage: Callable[[SimulatedFileSystem, str], None]
) -> None:
    held = Held()
    held.stop(clean=True)
    before = entries(held.disk)
    damage(held.disk, queue)
    held.disk.remove(f"{ROOT}/checkpoint")  # No clean stop of ours leaves it without one.
    held.opened()
    assert held.bodies(topic) == [b"%c%d" % (topic[0].encode(), n) for n in range(MESSAGES)]
    held.stop(clean=True)
    assert entries(held.disk) == before


def test_an_index_that_is_missing_as_well_hides_nothing() -> None:
    held = Held()
    held.stop(clean=True)
    remove_all(held.disk, SIMPLE_QUEUE)
    remove_all(held.disk, f"{ROOT}/index")
    with pytest.raises(LostQueuesError, match="of T/0"):
        held.opened()


@pytest.mark.parametrize("looked_at_in_a_row", [lost_queues.LOOK_QUEUES, 5])
def test_many_lost_queues_are_counted(
    looked_at_in_a_row: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lost_queues, "LOOK_QUEUES", looked_at_in_a_row)
    held = Held()
    for number in range(20):
        held.put(b"", f"N{number:02d}")
    held.stop(clean=True)
    for number in range(20):
        remove_all(held.disk, f"{ROOT}/consumequeue/N{number:02d}/0")
    with pytest.raises(
        LostQueuesError, match=r"N07/0 \(1 messages\) and 12 more are lost; nothing"
    ):
        held.opened()


def test_a_batch_topic_that_lost_its_folder_gets_batch_queues_again() -> None:
    held = Held()
    held.stop(clean=True)
    remove_all(held.disk, BATCH_QUEUE)
    held.disk.remove_directory(f"{ROOT}/batchconsumequeue/{BATCHES}")
    remove_all(held.disk, SIMPLE_QUEUE)
    remove_all(held.disk, f"{ROOT}/consumequeue/Other/0")
    for folder in ("T", "Other", ""):
        held.disk.remove_directory(f"{ROOT}/consumequeue/{folder}".rstrip("/"))
    store = MessageStore.open(ROOT, CONFIG, now_ms=1, filesystem=held.disk, threads=False)
    assert store.queues.batch.topics() == [BATCHES]
    assert store.max_offset(BATCHES, 0) == MESSAGES


@pytest.mark.parametrize("damage", ["missing", "damaged"])
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
def test_a_store_without_a_good_list_gets_a_whole_one(clean: bool, damage: str) -> None:
    held = Held()
    held.stop(clean=True)
    whole = load_queue_ends(held.disk, ROOT)
    if damage == "missing":
        held.disk.remove(f"{ROOT}/queue_ends.json")
    else:
        flip(held.disk, f"{ROOT}/queue_ends.json", 40)
    held.opened()
    held.put(b"", "Fresh")
    held.stop(clean=clean)
    ends = load_queue_ends(held.disk, ROOT)
    fresh = QueueKey(is_batch=False, topic="Fresh", queue_id=0)
    assert ends is not None
    assert ends.pop(fresh).next_offset == 1
    assert ends == whole


def test_a_list_is_saved_only_once_every_queue_is_in_it() -> None:
    held = Held()
    for number in range(100):
        held.put(b"", f"N{number}")
    held.stop(clean=True)
    held.disk.remove(f"{ROOT}/queue_ends.json")
    held.opened()
    held.put(b"", "Fresh")
    seen: list[int] = []
    for _ in range(60):
        held.now_ms += 1000
        held.put(b"", "Fresh")
        held.store.tick(held.now_ms)
        held.store.run_jobs()
        seen.append(len(load_queue_ends(held.disk, ROOT) or ()))
    assert set(seen) == {0, 104}


@pytest.mark.parametrize("messages", [MESSAGES, 2 * ENTRIES_OF_A_FILE])
@pytest.mark.parametrize("topic", ["T", BATCHES])
@pytest.mark.parametrize("by", ["a rebuild", "a start that reads all of the log"])
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
def test_a_lost_queue_without_a_message_in_the_log_goes_on_where_it_was(
    clean: bool, by: str, topic: str, messages: int
) -> None:
    held = Held()
    for number in range(messages):
        held.put(b"%d" % number, "Old" if topic == "T" else "OldBatches")
    topic, folder = ("Old", "consumequeue") if topic == "T" else (BATCHES, "batchconsumequeue")
    expected = messages if topic == "Old" else MESSAGES
    for number in range(2 * MESSAGES):
        held.put(b"%d" % number)
    held.stop(clean=True)
    _expire(held)
    held.opened()
    held.put(b"one more")
    held.stop(clean=clean)
    remove_all(held.disk, f"{ROOT}/{folder}/{topic}/0")
    if by == "a rebuild":
        with pytest.raises(LostQueuesError, match=f"{topic}/0"):
            held.opened()
        rebuild(held)
    else:
        held.disk.remove(f"{ROOT}/checkpoint")
        held.disk.open(f"{ROOT}/abort", create=True).close()
    for stop in (clean, False, True):
        store = held.opened()
        assert (store.min_offset(topic, 0), store.max_offset(topic, 0)) == (expected, expected)
        assert held.bodies(topic) == []
        held.stop(clean=stop)
    held.opened()
    assert held.put(b"next", topic) == expected
    assert held.bodies(topic) == [b"next"]


def _expire(held: Held) -> None:
    """Let the log begin at the segment in which it ends."""
    last = held.store.end_offset // CONFIG.segment_size * CONFIG.segment_size
    for path in files_of(held.disk, f"{ROOT}/commitlog"):
        if int(path.rpartition("/")[2]) < last:
            held.disk.remove(path)


def test_a_queue_of_a_deleted_topic_is_not_missed() -> None:
    held = Held()
    held.stop(clean=False)
    held.opened()
    held.store.delete_topics(["T"])
    held.disk = held.disk.kill()
    store = held.opened()
    assert store.max_offset("T", 0) == 0
    assert held.put(b"again") == 0
    held.stop(clean=True)
    held.opened()
    assert held.bodies() == [b"again"]


def test_the_list_says_nothing_any_more_once_another_program_wrote() -> None:
    held = Held()
    held.stop(clean=True)
    overwrite(held.disk, f"{ROOT}/checkpoint", 40, (1).to_bytes(8, "big"))
    remove_all(held.disk, SIMPLE_QUEUE)
    held.opened()
    assert load_queue_ends(held.disk, ROOT) is None


def test_a_new_store_lists_its_queues_at_each_whole_checkpoint() -> None:
    held = Held()
    held.stop(clean=False)
    ends = load_queue_ends(held.disk, ROOT)
    assert ends is not None
    assert {(key.topic, key.is_batch): end.next_offset for key, end in ends.items()} == {
        ("T", False): MESSAGES,
        ("Other", False): MESSAGES,
        (BATCHES, True): MESSAGES,
    }


@pytest.mark.parametrize("queue", [SIMPLE_QUEUE, BATCH_QUEUE])
def test_a_new_store_misses_a_queue_from_its_first_checkpoint_on(queue: str) -> None:
    held = Held()
    for number in range(100):  # Not all of so many are walked when it is taken.
        held.put(b"", f"N{number}")
    while not inspect(held.disk.other_process(), ROOT, CONFIG).start.replay_from:
        held.now_ms += 1000
        held.store.tick(held.now_ms)
        held.store.run_jobs()
    held.disk = held.disk.kill()
    remove_all(held.disk, queue)
    with pytest.raises(LostQueuesError, match=rf"{queue.removeprefix(ROOT).split('/')[2]}/0 \("):
        held.opened()


def test_the_size_of_the_files_that_is_set_does_not_matter_to_a_store_that_has_some() -> None:
    held = Held()
    held.stop(clean=True)
    held.opened(replace(CONFIG, consume_queue_file_size=4000))


def killed_behind_the_list(topic: str, count: int = 5) -> Held:
    """A store whose list of the queues' ends has more than the checkpoint says."""
    held = Held()
    held.stop(clean=False)
    held.opened()
    for _ in range(count):
        held.put(b"behind", topic)
    kill_behind_the_list(held)
    return held


@pytest.mark.parametrize(("topic", "queue"), [("T", SIMPLE_QUEUE), (BATCHES, BATCH_QUEUE)])
def test_what_was_listed_in_front_of_the_checkpoint_is_missed_behind_killed_starts(
    topic: str, queue: str
) -> None:
    """A start takes off the list what it rebuilds, but not what is before that."""
    held = killed_behind_the_list(topic)
    rare = replace(CONFIG, checkpoint_interval_ms=100_000)
    for _ in range(2):
        held.opened(rare)
        assert held.store.max_offset(topic, 0) == MESSAGES + 5
        held.disk = held.disk.kill()
    remove_all(held.disk, queue)
    with pytest.raises(LostQueuesError, match=f"of {topic}/0 .110 messages."):
        held.opened(rare)
    rebuild(held)
    held.opened()
    assert held.put(b"next", topic) == MESSAGES + 5


@pytest.mark.parametrize(("topic", "queue"), [("T", SIMPLE_QUEUE), (BATCHES, BATCH_QUEUE)])
@pytest.mark.parametrize("kept", [0, 33])
def test_verify_finds_a_lost_end_behind_the_checkpoint_as_a_start_does(
    topic: str, queue: str, kept: int
) -> None:
    held = killed_behind_the_list(topic)
    assert verified(held.disk, ROOT, CONFIG).is_sound
    blank_last(kept)(held.disk, queue)
    with pytest.raises(LostQueuesError, match=f"of {topic}/0 .115 messages."):
        held.opened()
    assert not verified(held.disk, ROOT, CONFIG).is_sound


@pytest.mark.parametrize("size", [None, 5 * 46, 0])
@pytest.mark.parametrize(("topic", "queue"), [("T", SIMPLE_QUEUE), (BATCHES, BATCH_QUEUE)])
def test_a_damaged_file_in_front_of_what_is_cut_keeps_no_start_from_going_on(
    topic: str, queue: str, size: int | None
) -> None:
    held = killed_behind_the_list(topic, 11)  # The last one is in its own file.
    path = list(files_of(held.disk, queue))[2]
    if size is None:
        held.disk.remove(path)
    else:
        held.disk.open(path).resize(size)
    held.opened()
    assert held.put(b"next", "Other") == MESSAGES
    assert held.put(b"next", topic) == MESSAGES + 11


@pytest.mark.parametrize(("topic", "queue"), [("T", SIMPLE_QUEUE), (BATCHES, BATCH_QUEUE)])
def test_a_hole_is_missed_where_the_log_is_read_for_the_index_alone(topic: str, queue: str) -> None:
    held = Held()
    held.stop(clean=True)
    held.opened(replace(CONFIG, checkpoint_interval_ms=100_000))
    held.put(b"behind", "Other")
    held.disk = held.disk.kill()
    size = ENTRY_SIZES[topic]
    overwrite(held.disk, list(files_of(held.disk, queue))[-1], 20 * size, bytes(3 * size))
    remove_all(held.disk, f"{ROOT}/index")
    held.opened()
    with pytest.raises(CorruptionError, match="not an entry, though 110 were safe"):
        held.put(b"next", topic)


ALL_TOPICS = ("T", "Other", BATCHES)


def put_some(held: Held, random: Random, least: int, most: int) -> None:
    for _ in range(random.randint(least, most)):
        held.put(b"z" * random.choice((1, 40)), random.choice(ALL_TOPICS))


@pytest.mark.parametrize("seed", range(40))
def test_a_power_cut_between_the_list_and_the_checkpoint_keeps_no_sound_queue_out(
    seed: int,
) -> None:
    """Entries written meanwhile, after the list's mark, may be torn."""
    random, held = Random(seed), Held()
    held.stop(clean=True)
    held.opened()
    put_some(held, random, 20, 60)

    def strike(operation: Operation) -> None:
        if operation.path.endswith("/checkpoint.new"):
            held.disk.hook = None
            put_some(held, random, 10, 100)
            held.store.queues.write_behind(1 << 60, 1 << 20)
            held.disk = held.disk.power_cut(random)
            raise Killed(operation)

    held.disk.hook = strike
    with pytest.raises(Killed):
        held.stop(clean=False)
    held.opened()
    for topic in ALL_TOPICS:
        assert held.put(b"next", topic) == len(held.bodies(topic)) - 1
    assert held.store.queues.problems == []


def test_where_the_log_is_read_for_the_index_the_list_names_all_of_a_queue() -> None:
    held, off = Held(), replace(CONFIG, index=False)
    held.stop(clean=True)
    held.opened(off)
    for _ in range(20):
        held.put(b"T")
    held.stop(clean=False)
    held.opened()
    held.put(b"next", "Other")
    for _ in range(20):
        held.now_ms += 1000
        held.store.tick(held.now_ms)
        held.store.run_jobs()
    ends = load_queue_ends(held.disk, ROOT)
    assert ends is not None
    assert ends[QueueKey(is_batch=False, topic="T", queue_id=0)].entries == MESSAGES + 20
    held.stop(clean=True)
    held.opened()
    assert held.put(b"next") == MESSAGES + 20


def blank_in_the_middle(disk: SimulatedFileSystem, queue: str) -> None:
    path = list(files_of(disk, queue))[-1]
    size = disk.open(path).size() // ENTRIES_OF_A_FILE
    overwrite(disk, path, 5 * size, bytes(3 * size))


def blank_at_the_end(disk: SimulatedFileSystem, queue: str) -> None:
    path = list(files_of(disk, queue))[-1]
    overwrite(disk, path, 0, bytes(disk.open(path).size()))


MORE = 8


def shut_down_by_another() -> Held:
    """A store whose last clean stop was another program's, which wrote its own checkpoint."""
    held = Held()
    for topic in ("T", "Other", BATCHES) * MORE:  # In the segment that a start reads.
        held.put(b"more", topic)
    held.stop(clean=True)
    overwrite(held.disk, f"{ROOT}/checkpoint", 6, b"\x55")
    return held


@pytest.mark.parametrize("damage", [remove_last, blank_in_the_middle, blank_at_the_end])
@pytest.mark.parametrize("queue", [SIMPLE_QUEUE, BATCH_QUEUE])
def test_what_another_program_shut_down_is_refused_where_a_queue_ends_too_early(
    queue: str, damage: Callable[[SimulatedFileSystem, str], None]
) -> None:
    """It leaves no list, but the records that are read anyway have numbers after the end."""
    held = shut_down_by_another()
    damage(held.disk, queue)
    before = contents(held.disk)
    name = queue.split("/", 3)[3]
    with pytest.raises(
        LostQueuesError, match=rf"the last entries of {name} \(\d+ messages.*\) are lost"
    ):
        held.opened()
    assert contents(held.disk) == before
    rebuild(held)
    held.opened()
    assert held.put(b"next", name.split("/")[0]) == MESSAGES + MORE


@pytest.mark.parametrize("into", [0, 7], ids=["a record", "the middle of one"])
@pytest.mark.parametrize("queue", [SIMPLE_QUEUE, BATCH_QUEUE])
def test_what_another_program_shut_down_is_refused_where_a_queue_goes_on_behind_its_records(
    queue: str, into: int
) -> None:
    """Its queue files still have entries of what it cut from the log, which has grown since."""
    held, name = Held(), queue.split("/", 3)[3]
    for topic in ("T", BATCHES, "Other") * MORE:
        held.put(b"more", topic)
    place, size = held.store.queues.simple.get("Other", 0).head(MESSAGES + MORE - 1)
    held.stop(clean=True)
    overwrite(held.disk, f"{ROOT}/checkpoint", 6, b"\x55")
    entry_size, path = ENTRY_SIZES[name.split("/")[0]], list(files_of(held.disk, queue))[-1]
    at = (MESSAGES + MORE) % ENTRIES_OF_A_FILE * entry_size
    entry = bytearray(content(held.disk, path)[at - entry_size : at])
    entry[:12] = struct.pack(">qi", place + into, size - into)
    if queue == BATCH_QUEUE:
        entry[28:36] = (MESSAGES + MORE).to_bytes(8, "big")
    overwrite(held.disk, path, at, bytes(entry))
    before = contents(held.disk)
    with pytest.raises(
        CorruptionError, match=f"{path}: at byte {at}: not .* message 118 of {name}:"
    ):
        held.opened()
    assert contents(held.disk) == before
    rebuild(held)
    held.opened()
    assert held.put(b"next", name.split("/")[0]) == MESSAGES + MORE


@pytest.mark.parametrize("damage", [None, remove_all])
def test_what_another_program_shut_down_is_taken_where_queues_are_whole_or_deleted(
    damage: Callable[[SimulatedFileSystem, str], None] | None,
) -> None:
    """Such a program does not note deleted topics: a queue without files may belong to one."""
    held = shut_down_by_another()
    if damage is not None:
        damage(held.disk, SIMPLE_QUEUE)
    held.opened()
    assert held.put(b"next", "Other") == MESSAGES + MORE
    assert held.put(b"next") == (MESSAGES + MORE if damage is None else 0)
