"""A deleted topic stays deleted, however the process ends, and may be recreated."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from tests.crash.disk import KillAt, Killed, Moment, SimulatedFileSystem
from tests.store.held_stores import bodies
from tests.store.records import HOST, refuse

from cometmq.store.config import Flush, StoreConfig
from cometmq.store.deletions import Deletions
from cometmq.store.errors import StoreFormatError
from cometmq.store.log.log_scan import LogScan
from cometmq.store.log.turn import Origin
from cometmq.store.looking.inspection import looking_at
from cometmq.store.message_store import MessageStore
from cometmq.store.queues.consume_queues import BATCH_FOLDER, SIMPLE_FOLDER
from cometmq.store.queues.topic_folders import has_queue_files

if TYPE_CHECKING:
    from pathlib import Path

ROOT = "/s"
CONFIG = StoreConfig(
    segment_size=16384, consume_queue_file_size=200, index_slots=16, index_items=64
)


def opened(disk: SimulatedFileSystem, config: StoreConfig = CONFIG) -> MessageStore:
    return MessageStore.open(
        ROOT,
        config,
        now_ms=1,
        filesystem=disk,
        is_batch_topic=lambda topic: topic == "Batches",
        threads=False,
    )


def put(store: MessageStore, *bodies: bytes, topic: str = "T", sync: bool = True) -> None:
    for body in bodies:
        store.put(topic, 0, body, b"", Origin(1, 1, HOST))
    store.commit()
    if sync:
        store.run_jobs()
        store.advance()


@pytest.mark.parametrize("topic", ["T", "Batches"])
@pytest.mark.parametrize("seed", range(8))
def test_a_topic_deleted_and_made_again_does_not_get_its_messages_back(
    topic: str, seed: int
) -> None:
    disk = SimulatedFileSystem()
    store = opened(disk)
    put(store, b"old 0", b"old 1", b"old 2", topic=topic)
    put(store, b"other", topic="Other")
    store.delete_topics([topic])
    assert (store.min_offset(topic, 0), store.max_offset(topic, 0)) == (0, 0)
    put(store, b"new 0", topic=topic)
    for again in (opened(disk.kill()), opened(disk.power_cut(Random(seed)))):
        assert bodies(again, topic) == [b"new 0"]
        assert bodies(again, "Other") == [b"other"]
        put(again, b"new 1", topic=topic)
        assert bodies(again, topic) == [b"new 0", b"new 1"]


@pytest.mark.parametrize("topic", ["T", "Batches"])
def test_a_topic_that_is_deleted_a_second_time_gets_nothing_of_both_lives_back(topic: str) -> None:
    disk = SimulatedFileSystem()
    store = opened(disk)
    for body in (b"first", b"second"):
        put(store, body, topic=topic)
        store.delete_topics([topic])
    put(store, b"third", topic=topic)
    for after in (disk.kill(), *(disk.power_cut(Random(seed)) for seed in range(4))):
        assert bodies(opened(after), topic) == [b"third"]


@pytest.mark.parametrize("moment", list(Moment))
@pytest.mark.parametrize("number", range(1, 14))
def test_a_deletion_that_is_cut_off_is_done_or_was_not_begun(number: int, moment: Moment) -> None:
    disk = SimulatedFileSystem()
    store = opened(disk)
    put(store, b"old 0", b"old 1")
    assert store.close(1)
    store = opened(disk)
    disk.hook = KillAt(disk.operations + number, moment)
    try:
        store.delete_topics(["T"])
    except Killed:
        pass
    else:
        assert number > 8
    for after in (disk.kill(), *(disk.power_cut(Random(seed)) for seed in range(5))):
        again = opened(after)
        left = bodies(again)
        assert left in ([b"old 0", b"old 1"], [])
        put(again, b"new 0")
        assert bodies(again) == [*left, b"new 0"]
        assert again.close(1)
        assert bodies(opened(after)) == [*left, b"new 0"]


@pytest.mark.parametrize("topic", ["T", "Batches"])
@pytest.mark.parametrize("moment", list(Moment))
@pytest.mark.parametrize("number", range(1, 14))
def test_a_deletion_that_a_kill_cut_off_is_not_undone_after_a_clean_stop(
    number: int, moment: Moment, topic: str
) -> None:
    """Nobody syncs what the killed process removed without syncing, unless it is done here."""
    disk = SimulatedFileSystem()
    store = opened(disk)
    put(store, b"old 0", b"old 1", topic=topic)
    assert store.close(1)
    store = opened(disk)
    disk.hook = KillAt(disk.operations + number, moment)
    with suppress(Killed):
        store.delete_topics([topic])
    disk = disk.kill()
    store = opened(disk)
    left = bodies(store, topic)
    assert store.close(1)
    for seed in range(12):
        cut = disk.power_cut(Random(seed))
        folders = (f"{ROOT}/{folder}/{topic}" for folder in (SIMPLE_FOLDER, BATCH_FOLDER))
        assert any(has_queue_files(cut, folder) for folder in folders) == bool(left)
        assert bodies(opened(cut), topic) == left


@pytest.mark.parametrize("name", ["x" * 300, "../commitlog", "a/b", ""])
def test_a_topic_that_cannot_be_is_deleted_and_hinders_no_start(tmp_path: Path, name: str) -> None:
    def start() -> MessageStore:
        return MessageStore.open(str(tmp_path), CONFIG, now_ms=1, threads=False)

    for _ in range(2):
        store = start()
        put(store, b"body")
        store.delete_topics([name])
        assert store.close(1)
    assert start().max_offset("T", 0) == 2


def test_what_takes_the_place_of_a_lost_tail_is_not_taken_for_the_deleted_topic() -> None:
    """The mark of a log not synced first must not cover messages that are put after a cut."""
    disk = SimulatedFileSystem()
    config = StoreConfig(
        segment_size=16384,
        consume_queue_file_size=200,
        index_slots=16,
        index_items=64,
        flush=Flush.ASYNC,
    )
    ends: set[int] = set()
    for seed in range(30):
        disk = SimulatedFileSystem()
        store = opened(disk, config)
        put(store, b"kept", topic="Other")
        put(store, *(b"old %d" % number for number in range(20)), sync=False)
        Deletions(disk, ROOT).add(["T"], store.end_offset, 0)
        disk = disk.power_cut(Random(seed))
        again = opened(disk, config)
        ends.add(again.end_offset)
        put(again, b"new 0", b"new 1")
        after = opened(disk.kill(), config)
        assert bodies(after) == [b"new 0", b"new 1"]
    assert len(ends) > 2, "some lost their tail, and some did not"


def test_messages_that_wait_for_their_sync_are_deleted_too() -> None:
    disk = SimulatedFileSystem()
    store = opened(disk)
    put(store, b"waits", sync=False)
    store.delete_topics(["T"])
    store.run_jobs()
    store.advance()
    assert store.max_offset("T", 0) == 0
    assert bodies(opened(disk.kill())) == []


def test_a_topic_is_not_deleted_in_the_middle_of_a_turn() -> None:
    store = opened(SimulatedFileSystem())
    store.put("T", 0, b"pending", b"", Origin(1, 1, HOST))
    with pytest.raises(AssertionError, match="committed before"):
        store.delete_topics(["T"])


def test_a_deletion_that_the_disk_refuses_leaves_the_topic_and_can_be_tried_again() -> None:
    disk = SimulatedFileSystem()
    store = opened(disk)
    put(store, b"old")
    disk.hook = refuse("write")
    with pytest.raises(OSError, match="refused"):
        store.delete_topics(["T"])
    assert bodies(store) == [b"old"]
    store.delete_topics(["T"])
    assert bodies(store) == []


def test_marks_go_when_the_log_begins_behind_them() -> None:
    disk = SimulatedFileSystem()
    disk.make_directories(ROOT)
    marks = Deletions(disk, ROOT)
    marks.add(["A"], 100, 0)
    marks.add(["B"], 300, 0)
    before = disk.operations
    marks.settle(100, 1000)
    assert disk.operations == before, "nothing has changed"
    marks.settle(101, 1000)
    assert Deletions(disk, ROOT).offsets == {b"B": 300}
    marks.settle(101, 200)
    assert Deletions(disk, ROOT).offsets == {b"B": 200}
    marks.add(["C"], 400, 250)
    assert Deletions(disk, ROOT).offsets == {b"C": 400}


def test_a_mark_stays_until_its_segment_is_gone_from_the_disk() -> None:
    """Retention takes a segment out of the log before a thread has removed its file."""
    disk, now_ms = SimulatedFileSystem(), 1_700_000_000_000
    config = replace(
        CONFIG,
        segment_size=4096,
        retention_size_max=12_000,
        retention_interval_ms=1,
        disk_check_interval_ms=1,
        disk_used_percent_force=100,
        disk_used_percent_max=100,
        checkpoint_interval_ms=1,
    )
    store = opened(disk, config)
    put(store, *[bytes(300)] * 8)
    store.delete_topics(["T"])
    for body in [b"again", *[bytes(300)] * 30]:
        put(store, body, topic="T" if body == b"again" else "Other")
    while store.first_offset == 0:
        now_ms += 1000
        store.tick(now_ms)
        if store.first_offset == 0:
            store.run_jobs()
    assert disk.exists(f"{ROOT}/commitlog/{0:020d}"), "nothing is left to remove"
    store.delete_topics(["Other"])
    store = opened(disk.kill(), config)
    assert store.first_offset == 0
    assert bodies(store) == [b"again"]


def test_every_flipped_byte_of_the_marks_is_refused_by_name() -> None:
    disk = SimulatedFileSystem()
    disk.make_directories(ROOT)
    Deletions(disk, ROOT).add(["Orders"], 123456, 0)
    file = disk.open(f"{ROOT}/deleted_topics.json")
    sound = file.read(1000, 0)
    for position in range(len(sound)):
        for bit in range(8):
            file.write(bytes([sound[position] ^ 1 << bit]), position)
            with pytest.raises(StoreFormatError, match=r"deleted_topics\.json: "):
                Deletions(disk, ROOT)
        file.write(sound[position : position + 1], position)
    assert Deletions(disk, ROOT).offsets == {b"Orders": 123456}


def test_marks_of_a_newer_version_are_refused() -> None:
    disk = SimulatedFileSystem()
    disk.make_directories(ROOT)
    file = disk.open(f"{ROOT}/deleted_topics.json", create=True)
    file.write(b'{"version":2,"marks":[]}', 0)
    with pytest.raises(StoreFormatError, match=r"version 2.*use a newer one"):
        Deletions(disk, ROOT)


@pytest.mark.parametrize("seed", range(8))
def test_no_mark_reaches_behind_what_a_power_cut_leaves_of_the_log(seed: int) -> None:
    """Apache's broker may start first, and write new messages before such a mark."""
    disk = SimulatedFileSystem()
    store = opened(disk, replace(CONFIG, flush=Flush.ASYNC))
    put(store, *[b"old %d" % number for number in range(50)], sync=False)
    store.delete_topics(["T"])
    mark = store.end_offset
    disk = disk.power_cut(Random(seed))
    assert Deletions(disk, ROOT).offsets == {b"T": mark}
    with looking_at(disk, ROOT, CONFIG) as left:
        scan = LogScan(left.segments, 0)
        assert len(list(scan)) == 50
        assert scan.end_offset == mark


def test_a_topic_stays_where_the_log_cannot_be_synced() -> None:
    disk = SimulatedFileSystem()
    store = opened(disk, replace(CONFIG, flush=Flush.ASYNC))
    put(store, b"old", sync=False)
    disk.hook = refuse("sync")
    with pytest.raises(OSError, match=r"commitlog"):
        store.delete_topics(["T"])
    assert store.failure is not None
    assert not Deletions(disk, ROOT).offsets
