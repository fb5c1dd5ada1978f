"""Files that others put among the queues and the index are left alone, and hinder nothing."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest
from tests.crash.disk import SimulatedFileSystem
from tests.store.damaged_stores import (
    BATCHES,
    ROOT,
    SMALL,
    contents,
    open_small_store,
    small_store,
)
from tests.store.records import HOST

from cometmq.store.errors import StoreNotWriteableError
from cometmq.store.log.turn import Origin
from cometmq.store.message_store import MessageStore

NOW_MS = 1_700_000_200_000
SPACE = f"{SMALL.consume_queue_file_size:020d}"
FILES = (
    *("consumequeue/notes.txt", "consumequeue/T/notes.txt", "consumequeue/T/7"),
    *("consumequeue/T/0/foreign.txt", "consumequeue/T/0/123", "consumequeue/T/0/old/" + SPACE),
    *("consumequeue/T/zero/" + SPACE, "consumequeue/T/007/" + SPACE, "consumequeue/lost+found/x"),
    *("consumequeue/T/99999999999/" + SPACE, "batchconsumequeue/Batches/0/foreign.txt"),
    *("index/foreign.txt", "index/123", "index/copy/20240101000000000", "index/123456789012345678"),
    # More than any offset can be.
    *("integrity/" + "9" * 20, "consumequeue/T/0/" + "9" * 17 + "600", "entryjournal/" + "9" * 20),
    *("entryjournal/7", "entryjournal/notes.txt"),
)
SIZES = (0, 5, SMALL.consume_queue_file_size)


def make(disk: SimulatedFileSystem, name: str, size: int = 5) -> None:
    disk.make_directories(f"{ROOT}/{name}".rpartition("/")[0])
    file = disk.open(f"{ROOT}/{name}", create=True)
    file.write(b"x" * size, 0)
    file.close()


def opened(disk: SimulatedFileSystem) -> MessageStore:
    config = replace(SMALL, consume_queue_write_interval_ms=1)
    return open_small_store(disk, config, now_ms=NOW_MS)


def put(store: MessageStore, topic: str, queue_id: int, now_ms: int = NOW_MS) -> int:
    """Put a message and have it written to its files; return its queue offset."""
    put = store.put(topic, queue_id, b"x", b"KEYS\x01new\x02", Origin(now_ms, now_ms, HOST))
    store.commit()
    for passed in range(5):
        store.run_jobs()
        store.advance()
        store.tick(now_ms + passed)
    return put.queue_offset


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("name", FILES)
def test_a_foreign_file_is_left_alone_and_hinders_nothing(
    name: str, clean: bool, size: int
) -> None:
    disk = small_store(close=clean)
    if not clean:
        disk = disk.kill()
    make(disk, name, size)
    foreign = contents(disk)[f"{ROOT}/{name}"]
    store = opened(disk)
    end = store.max_offset("T", 0)
    assert end == 20
    assert store.queues.topics() == {"T", "SCHEDULE_TOPIC_XXXX", BATCHES} | (
        {"lost+found"} if "lost+found" in name else set()
    )
    assert store.queues.simple.queues("T") == [0, 1]
    assert put(store, "T", 0) == end
    assert put(store, "T", 2) == 0
    assert len(store.query("T", "new", 9, begin_ms=0, end_ms=1 << 60, now_ms=NOW_MS)) == 2
    assert store.close(NOW_MS)
    assert contents(disk)[f"{ROOT}/{name}"] == foreign


@pytest.mark.parametrize("name", FILES)
def test_a_topic_can_be_deleted_whatever_others_keep_in_its_folder(name: str) -> None:
    disk = small_store()
    make(disk, name)
    store = opened(disk)
    store.delete_topics(["T", BATCHES])
    assert store.close(NOW_MS)
    assert f"{ROOT}/{name}" in contents(disk)
    store = opened(disk)
    assert (store.max_offset("T", 0), store.max_offset(BATCHES, 0)) == (0, 0)
    assert put(store, "T", 0) == 0
    assert store.close(NOW_MS)


@pytest.mark.parametrize(
    ("name", "topic", "queue_id"), [("consumequeue/New", "New", 0), ("consumequeue/T/7", "T", 7)]
)
def test_a_file_in_the_place_of_a_queues_folder_is_named_until_it_is_moved(
    name: str, topic: str, queue_id: int
) -> None:
    disk = small_store()
    make(disk, name)
    store = opened(disk)
    put(store, topic, queue_id)
    with pytest.raises(StoreNotWriteableError, match=rf"/s/{name}\S*: .*: move it elsewhere$"):
        put(store, "T", 0)
    disk.remove(f"{ROOT}/{name}")
    for passed in range(3):
        store.tick(NOW_MS + 1000 * passed)
    put(store, "T", 0)
    assert store.close(NOW_MS)
    assert opened(disk).max_offset(topic, queue_id) == 1


def test_a_topic_whose_folder_a_file_has_the_place_of_is_refused_before_a_byte_is_changed() -> None:
    disk = small_store()
    disk.rename(f"{ROOT}/consumequeue/T", f"{ROOT}/elsewhere")
    make(disk, "consumequeue/T")
    before = contents(disk)
    with pytest.raises(NotADirectoryError) as refused:
        opened(disk)
    assert refused.value.errno == errno.ENOTDIR
    assert refused.value.filename.startswith(f"{ROOT}/consumequeue/T/")
    assert contents(disk) == before


@pytest.mark.parametrize("size", [200, 460])
def test_foreign_files_do_not_tell_the_size_of_queue_files(size: int) -> None:
    """This is about stores of Apache's, which note that size nowhere."""
    disk = small_store()
    for name in ("checkpoint", "queue_ends.json"):
        disk.remove(f"{ROOT}/{name}")
    for number in range(9):
        make(disk, f"consumequeue/SCHEDULE_TOPIC_XXXX/2/copy{number}", size)
    store = MessageStore.open(
        ROOT, replace(SMALL, consume_queue_file_size=2000), now_ms=1, filesystem=disk, threads=False
    )
    assert store.queues.simple.file_size == SMALL.consume_queue_file_size
