"""What `repair` and `rebuild` know, by the list of the ends, of queues that lost their files."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.crash.disk import KillAt, Killed, SimulatedFileSystem
from tests.store.damaged_stores import (
    BATCHES,
    ROOT,
    SMALL,
    content,
    damage,
    files_of,
    messages,
    open_small_store,
    overwrite,
    repaired,
    small_store,
    verified,
    write_small_store,
)
from tests.store.records import HOST, messages_in

from cometmq.store.disk.filesystem import RealFileSystem
from cometmq.store.errors import LostQueuesError, StoreFormatError
from cometmq.store.log.turn import Origin
from cometmq.store.looking.findings import Kind
from cometmq.store.looking.inspection import inspect
from cometmq.store.mending.rebuilding import Rebuilt, rebuild
from cometmq.store.message_store import MessageStore
from cometmq.store.queues.queue_ends import (
    NO_RECORD,
    QUEUE_ENDS_NAME,
    QueueEnd,
    QueueKey,
    Sizes,
    load_queue_ends,
    save_queue_ends,
)
from cometmq.store.starting.swap import finish_swap

QUEUES = {
    "T": (0, "consumequeue"),
    "SCHEDULE_TOPIC_XXXX": (2, "consumequeue"),
    BATCHES: (0, "batchconsumequeue"),
}


def rebuilt(disk: SimulatedFileSystem, *, accept_gaps: bool = False) -> Rebuilt:
    done = Rebuilt()
    for _ in rebuild(inspect(disk, ROOT, SMALL), done, 1, accept_gaps=accept_gaps):
        pass
    return done


def started(disk: SimulatedFileSystem) -> MessageStore:
    """Open the store, after a rebuild if a start refuses it because of a lost queue."""
    try:
        return open_small_store(disk)
    except LostQueuesError:
        rebuilt(disk)
        return open_small_store(disk)


def lose(disk: SimulatedFileSystem, topic: str) -> None:
    """Remove the folder of a queue."""
    queue_id, folder = QUEUES[topic]
    queue = f"{ROOT}/{folder}/{topic}/{queue_id}"
    for path in list(files_of(disk, queue)):
        disk.remove(path)
    disk.remove_directory(queue)
    disk.sync_directory(queue.rpartition("/")[0])


def all_of(store: MessageStore) -> dict[str, tuple[int, int, list[tuple[int, bytes]]]]:
    """The borders of each queue, and its messages."""
    found: dict[str, tuple[int, int, list[tuple[int, bytes]]]] = {}
    for topic, queue_id in [*((topic, ids[0]) for topic, ids in QUEUES.items()), ("T", 1)]:
        low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        bodies: list[tuple[int, bytes]] = []
        at = low
        while at < high:
            result = store.read(topic, queue_id, at, 32)
            bodies += [(m.queue_offset, m.body) for m in messages_in(result.slices)]
            at = result.next_begin_offset
        found[f"{topic}/{queue_id}"] = low, high, bodies
    return found


@pytest.mark.parametrize("topic", QUEUES)
@pytest.mark.parametrize("cut", [False, True], ids=["step over", "cut"])
def test_a_queue_that_is_lost_when_the_log_is_repaired_is_as_it_would_be(
    cut: bool, topic: str
) -> None:
    count = len(messages(small_store()))
    has_lost = False
    for number in [*range(1, count - 4, 5), *range(count - 4, count)]:
        sound, disk = small_store(), small_store()
        for each in (sound, disk):
            damage(each, messages(small_store())[number])
        lose(disk, topic)
        repaired(sound, cut=cut)
        plan = repaired(disk, cut=cut)
        store = open_small_store(sound)
        wanted = all_of(store)
        assert store.close(1)
        store = started(disk)
        assert all_of(store) == wanted, number
        assert store.close(1)
        assert verified(disk).findings == []
        has_lost |= any(each.topic == topic and not each.has_others for each in plan.lost)
    assert has_lost is cut


def test_a_queue_of_a_topic_that_was_made_again_keeps_the_offset_that_a_repair_promised() -> None:
    disk = small_store()
    store = open_small_store(disk)
    store.delete_topics(["T"])
    origin = Origin(1, 1, HOST)
    for number in range(5):
        store.put("Other", 0, b"%d" % number, b"", origin)
        store.commit()
    puts = [store.put("T", 0, b"again", b"", origin) for _ in range(30)]
    store.commit()
    assert [put.queue_offset for put in puts] == [*range(30)]
    assert store.close(1)
    (victim,) = (m for m in messages(disk) if m.topic == "Other" and m.queue_offset == 2)
    damage(disk, victim)
    plan = repaired(disk, cut=True)
    (lost,) = (each for each in plan.lost if each.topic == "T")
    assert (lost.first_offset, lost.next_offset, lost.has_others) == (0, 30, False)
    for clean in (True, False, True):
        store = open_small_store(disk)
        assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (30, 30)
        if clean:
            assert store.close(1)
        else:
            disk = disk.kill()
    rebuilt(disk)
    store = open_small_store(disk)
    assert store.put("T", 0, b"next", b"", origin).queue_offset == 30
    store.commit()
    assert store.close(1)


def test_a_topic_that_was_given_up_deleted_and_made_again_holds_up_no_start() -> None:
    """A kill before the next whole checkpoint leaves it in the list as given up."""
    disk = SimulatedFileSystem()
    store = open_small_store(disk)
    origin = Origin(1, 1, HOST)
    for topic in ("Other", "T"):
        for _ in range(7):
            store.put(topic, 0, b"x" * 50, b"", origin)
    store.commit()
    assert store.close(1)
    (victim,) = (m for m in messages(disk) if m.topic == "T" and m.queue_offset == 0)
    damage(disk, victim)
    repaired(disk, cut=True)
    store = open_small_store(disk)
    assert store.max_offset("T", 0) == 7
    assert store.close(1)
    store = open_small_store(disk)
    store.delete_topics(["T"])
    assert store.put("T", 0, b"again", b"", origin).queue_offset == 0
    store.commit()
    store.run_jobs()
    store.advance()
    disk = disk.kill()
    store = open_small_store(disk)
    assert all_of(store)["T/0"] == (0, 1, [(0, b"again")])
    assert store.close(1)
    assert open_small_store(disk).max_offset("T", 0) == 1


def with_topics(disk: SimulatedFileSystem, *names: str) -> None:
    """Write a table of these topics, which are ordinary ones."""
    disk.make_directories(f"{ROOT}/config")
    file = disk.open(f"{ROOT}/config/topics.json", create=True)
    table = {name: {"topicName": name} for name in names}
    file.write(json.dumps({"topicConfigTable": table}).encode(), 0)
    file.close()


def test_a_topic_that_an_older_table_does_not_know_is_not_taken_for_a_deleted_one() -> None:
    disk = small_store()
    store = open_small_store(disk)
    wanted = all_of(store)
    assert store.close(1)
    with_topics(disk, "Other")
    for topic, (_, folder) in QUEUES.items():
        lose(disk, topic)
        if topic != "T":
            disk.remove_directory(f"{ROOT}/{folder}/{topic}")
    assert {each.topic for each in verified(disk).findings} == {*QUEUES}
    assert rebuilt(disk).deleted_topics == {}
    store = open_small_store(disk)
    assert all_of(store) == wanted
    assert store.close(1)
    assert verified(disk).findings == []


@pytest.mark.parametrize("has_expired", [False, True], ids=["in the log", "expired"])
def test_the_queue_of_a_batch_topic_that_became_an_ordinary_one_is_made_as_one(
    has_expired: bool,
) -> None:
    disk = small_store()
    lose(disk, BATCHES)
    disk.remove_directory(f"{ROOT}/batchconsumequeue/{BATCHES}")
    with_topics(disk, "T", BATCHES)
    if has_expired:
        for entry in disk.list(f"{ROOT}/commitlog")[:-1]:
            disk.remove(f"{ROOT}/commitlog/{entry.name}")
    for _ in range(2):
        rebuilt(disk, accept_gaps=True)  # An ordinary record is one number, a batch was three.
        assert list(files_of(disk, f"{ROOT}/batchconsumequeue")) == []
        assert disk.exists(f"{ROOT}/consumequeue/{BATCHES}/0")
        store = MessageStore.open(
            ROOT, SMALL, now_ms=1, filesystem=disk, is_batch_topic=lambda _: False, threads=False
        )
        assert store.max_offset(BATCHES, 0) == 16
        assert store.close(1)


def test_a_batch_topic_without_its_folder_and_without_a_table_is_still_one() -> None:
    disk = small_store()
    wanted = content(disk, f"{ROOT}/batchconsumequeue/{BATCHES}/0/{0:020d}")
    lose(disk, BATCHES)
    disk.remove_directory(f"{ROOT}/batchconsumequeue/{BATCHES}")
    rebuilt(disk)
    assert content(disk, f"{ROOT}/batchconsumequeue/{BATCHES}/0/{0:020d}") == wanted
    assert not disk.exists(f"{ROOT}/consumequeue/{BATCHES}")


def test_no_tool_looks_at_a_store_whose_list_is_of_a_newer_version() -> None:
    disk = small_store()
    path = f"{ROOT}/{QUEUE_ENDS_NAME}"
    overwrite(disk, path, len(content(disk, path)) - 2, b"2")
    with pytest.raises(StoreFormatError, match=r"queue_ends.json: version 2.*use a newer one"):
        inspect(disk, ROOT, SMALL)


def with_expired_messages(segments: int) -> tuple[SimulatedFileSystem, dict[str, Any]]:
    """A store whose log has lost all but its last files, and what its queues have."""
    disk = small_store()
    for entry in disk.list(f"{ROOT}/commitlog")[:-segments]:
        disk.remove(f"{ROOT}/commitlog/{entry.name}")
    store = open_small_store(disk)
    wanted = all_of(store)
    assert store.close(1)
    low, high, bodies = wanted[f"{BATCHES}/0"]
    assert high == 16
    assert bool(bodies) is (segments == 2), "with some, their entries are at other places anew"
    assert low > 0
    return disk, {**wanted}


@pytest.mark.parametrize(
    "lost",
    [(), pytest.param(("T",), marks=pytest.mark.slow), tuple(QUEUES)],
    ids=["none lost", "one", "many"],
)
@pytest.mark.parametrize("segments", [1, 2])
@pytest.mark.parametrize("is_power_cut", [False, True], ids=["kill", "power cut"])
def test_a_rebuild_that_is_cut_off_never_lets_an_offset_be_given_out_twice(
    is_power_cut: bool, segments: int, lost: tuple[str, ...]
) -> None:
    before, wanted = with_expired_messages(segments)
    for topic in lost:
        lose(before, topic)
    whole = before.kill()
    rebuilt(whole)
    for number in range(1, whole.operations + 1, 1 if lost else 2):
        disk = before.kill()
        disk.hook = KillAt(number)
        with pytest.raises(Killed):
            rebuilt(disk)
        disk = disk.power_cut(Random(number)) if is_power_cut else disk.kill()
        finish_swap(disk, ROOT)
        store = started(disk) if lost else open_small_store(disk)  # The store is sound either way.
        assert all_of(store) == wanted, number
        assert store.close(1)
        assert verified(disk).findings == [], number


@pytest.mark.parametrize("lost", [(), tuple(QUEUES)], ids=["none lost", "many"])
def test_a_rebuild_lists_every_queue(lost: tuple[str, ...]) -> None:
    disk, wanted = with_expired_messages(1)
    for topic in lost:
        lose(disk, topic)
    if not lost:
        disk.remove(f"{ROOT}/{QUEUE_ENDS_NAME}")
    done = rebuilt(disk)
    assert done.kept_queues == (0 if lost else 2)
    ends = load_queue_ends(disk, ROOT)
    assert ends is not None
    found = {f"{key.topic}/{key.queue_id}": end.next_offset for key, end in ends.items()}
    assert found == {queue: high for queue, (_, high, _) in wanted.items()}


def test_a_rebuild_leaves_queues_out_of_the_list_that_are_gone() -> None:
    disk = small_store()
    ends = load_queue_ends(disk, ROOT)
    assert ends is not None
    gone = QueueKey(is_batch=True, topic="T", queue_id=0)
    save_queue_ends(
        disk, ROOT, {**ends, gone: QueueEnd(20, NO_RECORD, 20)}, Sizes(400, 460, SMALL.index_shape)
    )
    rebuilt(disk)
    assert load_queue_ends(disk, ROOT) == ends


def test_a_finding_of_a_start_is_of_the_file_whatever_its_path_looks_like(tmp_path: Path) -> None:
    root = f"{tmp_path}/a: b"
    write_small_store(RealFileSystem(), root)
    path = f"{root}/consumequeue/T/0/{400:020d}"
    file = RealFileSystem().open(path, create=True)
    file.resize(33)
    file.close()
    found = verified(RealFileSystem(), root).findings
    assert [(each.kind, each.path) for each in found] == [(Kind.QUEUE_FILE, path)]
