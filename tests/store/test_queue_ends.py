"""The list of the queues' ends: its file, and what is in it at a checkpoint."""

from __future__ import annotations

from contextlib import suppress

import pytest
from tests.crash.disk import SimulatedFileSystem
from tests.store.damaged_stores import content, flip, overwrite

from cometmq.store.config import StoreConfig
from cometmq.store.errors import StoreFormatError
from cometmq.store.index.index_format import IndexShape
from cometmq.store.queues.consume_queues import ConsumeQueues
from cometmq.store.queues.queue_ends import (
    QUEUE_ENDS_NAME,
    UNKNOWN,
    QueueEnd,
    QueueKey,
    Sizes,
    listed_sizes,
    load_queue_ends,
    save_queue_ends,
)

ROOT = "/s"
PATH = f"{ROOT}/{QUEUE_ENDS_NAME}"
T0 = QueueKey(is_batch=False, topic="T", queue_id=0)
B1 = QueueKey(is_batch=True, topic="B", queue_id=1)
SIZES = Sizes(800, 1840, IndexShape(20, 40))
ENDS = {T0: QueueEnd(2, 116, 2, 0), B1: QueueEnd(7, 900, 21, 5)}


def disk_with(ends: dict[QueueKey, QueueEnd]) -> SimulatedFileSystem:
    disk = SimulatedFileSystem()
    disk.make_directories(ROOT)
    save_queue_ends(disk, ROOT, ends, SIZES)
    return disk


def test_the_list_is_json_on_one_line_and_is_read_as_it_was_written() -> None:
    disk = disk_with(ENDS)
    text = (
        b'"queues":{"simple":{"T":{"0":[2,116,2,0]}},"batch":{"B":{"1":[7,900,21,5]}},'
        b'"file_sizes":[800,1840],"index_shape":[20,40]},"version":1}'
    )
    assert content(disk, PATH).endswith(text)
    assert load_queue_ends(disk, ROOT) == ENDS
    assert listed_sizes(disk, ROOT) == SIZES


def test_a_list_of_an_earlier_version_is_read() -> None:
    disk = SimulatedFileSystem()
    disk.make_directories(ROOT)
    queues = b'{"simple":{"T":{"0":[2,116,2]}},"batch":{}}'
    disk.open(PATH, create=True).write(b'{"crc32":2871852009,"queues":%s,"version":1}' % queues, 0)
    assert load_queue_ends(disk, ROOT) == {T0: QueueEnd(2, 116, 2, UNKNOWN)}
    assert listed_sizes(disk, ROOT) is None


def test_without_a_file_nobody_knows() -> None:
    assert load_queue_ends(SimulatedFileSystem(), ROOT) is None
    assert listed_sizes(SimulatedFileSystem(), ROOT) is None


def test_a_flipped_bit_anywhere_is_noticed() -> None:
    for position in range(len(content(disk_with(ENDS), PATH))):
        disk = disk_with(ENDS)
        flip(disk, PATH, position)
        with suppress(StoreFormatError):  # Of a newer version, it seems.
            assert load_queue_ends(disk, ROOT) is None, position


def test_a_list_of_a_newer_version_is_refused() -> None:
    disk = disk_with(ENDS)
    size = len(content(disk, PATH))
    overwrite(disk, PATH, size - 2, b"2")
    with pytest.raises(StoreFormatError, match=r"queue_ends.json: version 2.*use a newer one"):
        load_queue_ends(disk, ROOT)


def queues_on(disk: SimulatedFileSystem) -> ConsumeQueues:
    queues = ConsumeQueues(disk, ROOT, StoreConfig(consume_queue_file_size=400), clean=True)
    queues.ends.is_whole = True
    return queues


def test_entries_of_records_behind_the_mark_wait_for_the_next_list() -> None:
    disk = disk_with({})
    queues = queues_on(disk)
    queue, other = queues.simple.get("T", 0), queues.simple.get("T", 1)
    for number in range(10):
        queue.append(number * 100, 100, 0)
    other.append(2000, 100, 0)
    queues.ends.begin(700)
    queues.write_behind(1 << 62, 100)
    save = queues.take_ends()
    queues.take_unsynced().sync()
    save()
    assert load_queue_ends(disk, ROOT) == {T0: QueueEnd(7, 600, 7, 0)}
    queues.take_ends()()
    assert load_queue_ends(disk, ROOT) == {
        T0: QueueEnd(10, 900, 10, 0),
        T0._replace(queue_id=1): QueueEnd(1, 2000, 1, 0),
    }


def test_nothing_is_written_when_nothing_changed() -> None:
    disk = disk_with({})
    queues = queues_on(disk)
    queues.simple.get("T", 0).append(0, 100, 0)
    queues.write_behind(1 << 62, 100)
    queues.take_ends()()
    before = disk.operations
    queues.take_ends()()
    assert disk.operations == before


def test_a_removed_queue_leaves_the_list() -> None:
    disk = disk_with({})
    queues = queues_on(disk)
    for topic in ("T", "U"):
        queues.simple.get(topic, 0).append(0, 100, 0)
    queues.write_behind(1 << 62, 100)
    queues.take_ends()()
    queues.destroy("U")
    queues.take_ends()()
    assert load_queue_ends(disk, ROOT) == {T0: QueueEnd(1, 0, 1, 0)}


def test_a_queue_that_nobody_listed_is_listed_once_it_was_loaded() -> None:
    disk = disk_with({})
    queues = queues_on(disk)
    queues.simple.get("T", 0).append(0, 100, 0)
    queues.write_behind(1 << 62, 100)
    queues.take_unsynced().sync()
    queues.close()
    again = queues_on(disk)
    again.simple.get("T", 0)
    again.take_ends()()
    assert load_queue_ends(disk, ROOT) == {T0: QueueEnd(1, 0, 1, 0)}
