"""An unpromised tail ends at a record with a torn head, which has another number or queue."""

from __future__ import annotations

import struct

import pytest
from tests.crash.disk import SimulatedFileSystem
from tests.store.held_stores import bodies
from tests.store.records import HOST
from tests.store.test_apache_deletions import cut_off_starts
from tests.store.test_deletions import opened, put

from cometmq.proto.sysflag import SysFlag
from cometmq.store.disk.filesystem import File
from cometmq.store.errors import CorruptionError
from cometmq.store.log.log_scan import LogScan
from cometmq.store.log.turn import Origin
from cometmq.store.queues.consume_queue import ENTRY

LOG = "/s/commitlog/00000000000000000000"
QUEUE_ID_AT, QUEUE_OFFSET_AT = 12, 20
"""Fields of a record that no checksum of its body covers."""


@pytest.fixture(autouse=True, params=["one by one", "in stretches"])
def _reading(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read records in both ways in which a start may."""
    if request.param == "in stretches":
        monkeypatch.setattr(LogScan, "stretches_after", 0)


def with_unsynced(*later: bytes) -> tuple[SimulatedFileSystem, File, list[int]]:
    """Three promised messages, then others that were not promised; and where the latter begin."""
    disk = SimulatedFileSystem()
    store = opened(disk)
    put(store, b"promised 0", b"promised 1", b"promised 2")
    starts: list[int] = []
    for body in later:
        starts.append(store.end_offset)
        put(store, body, sync=False)
    return disk.kill(), disk.kill().open(LOG), starts


def damaged(position: int, field: bytes, number: int, count: int = 4) -> SimulatedFileSystem:
    disk, _, starts = with_unsynced(*(b"late %d" % n for n in range(count)))
    disk.open(LOG).write(field, starts[number] + position)
    return disk


@pytest.mark.parametrize("queue_offset", [0, 1, 3, 5, 6, 1 << 40])
def test_a_record_with_another_number_is_cut_with_all_behind_it_and_kept(
    queue_offset: int,
) -> None:
    disk = damaged(QUEUE_OFFSET_AT, struct.pack(">q", queue_offset), 1)
    store = opened(disk)
    assert bodies(store) == [b"promised 0", b"promised 1", b"promised 2", b"late 0"]
    assert store.kept is not None
    assert b"late 3" in disk.open(store.kept).read(10_000, 0)
    put(store, b"new")
    assert bodies(opened(disk.kill()))[3:] == [b"late 0", b"new"]


def without_checkpoint() -> tuple[SimulatedFileSystem, list[bytes]]:
    """A killed store that lost it, with a torn unpromised number; and the messages before that."""
    disk = SimulatedFileSystem()
    store = opened(disk)
    put(store, b"promised 0", b"promised 1")
    assert store.close(1)
    store = opened(disk)
    put(store, b"late 0")
    torn = store.end_offset
    put(store, b"late 1", b"late 2", b"late 3")
    disk = disk.kill()
    disk.remove("/s/checkpoint")
    disk.open(LOG).write(struct.pack(">q", 40), torn + QUEUE_OFFSET_AT)
    disk.open(LOG).sync()
    disk.sync_directory("/s")
    return disk, [b"promised 0", b"promised 1", b"late 0"]


def test_it_is_cut_as_well_where_the_first_start_behind_a_lost_checkpoint_is_cut_off() -> None:
    """That start's checkpoint says no more about the tail than the list of the queues did."""
    torn, left = without_checkpoint()
    number = 0
    for number, disk in cut_off_starts(torn, opened):
        assert bodies(opened(disk)) == left, number
    assert number > 10


def test_what_is_put_in_the_place_of_such_a_tail_is_none_of_another_program() -> None:
    disk, left = without_checkpoint()
    store = opened(disk)
    put(store, b"new 0")
    torn = store.end_offset
    put(store, b"new 1", sync=False)
    disk = disk.kill()
    disk.open(LOG).write(struct.pack(">q", 40), torn + QUEUE_OFFSET_AT)
    assert bodies(opened(disk)) == [*left, b"new 0"]


def test_a_record_that_went_to_another_queue_is_cut() -> None:
    disk = damaged(QUEUE_ID_AT, struct.pack(">i", 1), 0)
    store = opened(disk)
    assert bodies(store) == [b"promised 0", b"promised 1", b"promised 2"]
    assert store.max_offset("T", 1) == 0


@pytest.mark.parametrize("properties", [b"", b"INNER_NUM\x013\x02"])
def test_a_batch_with_another_number_in_its_head_is_cut(properties: bytes) -> None:
    disk = SimulatedFileSystem()
    store = opened(disk)
    flag = SysFlag.INNER_BATCH if properties else 0
    put(store, b"promised", topic="Batches")
    start = store.end_offset
    store.put("Batches", 0, b"late", properties, Origin(1, 1, HOST, int(flag)))
    store.commit()
    assert bodies(opened(disk.kill()), "Batches") == [b"promised", b"late"]
    disk = disk.kill()
    disk.open(LOG).write(struct.pack(">q", 1 << 40), start + QUEUE_OFFSET_AT)
    assert bodies(opened(disk), "Batches") == [b"promised"]


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_a_batch_whose_number_was_torn_in_its_properties_takes_no_batch_in_front_out_of_reach(
    *, has_checkpoint: bool
) -> None:
    disk = SimulatedFileSystem()
    store = opened(disk)
    batch, properties = Origin(1, 1, HOST, int(SysFlag.INNER_BATCH)), b"INNER_NUM\x013\x02"
    for body in (b"one", b"two"):
        store.put("Batches", 0, body, properties, batch)
    put(store, b"promised")
    store.put("Batches", 0, b"late", properties, batch)
    store.commit()
    disk = disk.kill()
    disk.open(LOG).write(b"\0", store.end_offset - 1)  # After INNER_BASE.
    if not has_checkpoint:
        disk.remove("/s/checkpoint")
        disk.sync_directory("/s")
    # Without a checkpoint nobody knows whether another program wrote it, which says it once.
    left = [b"one", b"two"] if has_checkpoint else [b"one", b"two", b"late"]
    store = opened(disk)
    assert bodies(store, "Batches") == left
    assert store.max_offset("Batches", 0) == 3 * len(left)


def test_a_record_whose_topic_is_no_text_is_cut_or_named() -> None:
    topic_at = 84 + len(b"late 0") + 5
    disk = damaged(topic_at, b"\xff", 1)
    assert disk.open(LOG).read(1, with_unsynced(b"late 0")[2][0] + topic_at) == b"T"
    assert bodies(opened(disk))[3:] == [b"late 0"]
    disk, _, starts = with_unsynced(b"late")
    place = starts[0] // 3
    disk.open(LOG).write(b"\xff", place + 84 + len(b"promised 1") + 5)
    with pytest.raises(CorruptionError, match=rf"{LOG}: at byte {place}: .*topic b'\\xff'"):
        opened(disk)


def test_a_promised_record_with_another_number_is_corruption_that_is_named() -> None:
    disk, _, starts = with_unsynced(b"late")
    disk.open(LOG).write(struct.pack(">q", 7), starts[0] // 3 * 2 + QUEUE_OFFSET_AT)
    with pytest.raises(
        CorruptionError, match=rf"{LOG}: at byte {starts[0] // 3 * 2}: .*message 7 of T/0.*2 to 6"
    ):
        opened(disk)


def test_an_undamaged_tail_stays_whole() -> None:
    disk, _, _ = with_unsynced(b"late 0", b"late 1")
    store = opened(disk)
    assert bodies(store)[3:] == [b"late 0", b"late 1"]
    assert store.kept is None


def test_an_undamaged_tail_of_batches_stays_whole() -> None:
    """The number of the next batch comes after all messages of the one before it."""
    disk = SimulatedFileSystem()
    store = opened(disk)
    put(store, b"promised", topic="Batches")
    batch = Origin(1, 1, HOST, int(SysFlag.INNER_BATCH))
    for body in (b"late 0", b"late 1"):
        store.put("Batches", 0, body, b"INNER_NUM\x013\x02", batch)
    store.commit()
    store = opened(disk.kill())
    assert bodies(store, "Batches") == [b"promised", b"late 0", b"late 1"]
    assert store.max_offset("Batches", 0) == 7
    assert store.kept is None


def test_a_torn_entry_of_a_queue_ends_no_sound_tail() -> None:
    """It may look as if it were below any cut, and as if its queue continued after it."""
    disk, _, _ = with_unsynced(b"late 0", b"late 1")
    for topic, index in (("T", 3), ("Lost", 0)):
        path = f"/s/consumequeue/{topic}/0/{0:020d}"
        disk.make_directories(path.rpartition("/")[0])
        file = disk.open(path, create=True)
        file.resize(200)
        for number in range(index):
            file.write(ENTRY.pack(97 * number, 97, 0), number * 20)
        file.write(ENTRY.pack(19, 97, 0), index * 20)
    store = opened(disk)
    assert bodies(store)[3:] == [b"late 0", b"late 1"]
    assert store.kept is None
    assert store.max_offset("Lost", 0) == 0


def test_entries_that_a_queue_lost_end_no_sound_tail_either() -> None:
    """For the number of the next message, the log counts, not the queue."""
    disk = SimulatedFileSystem()
    store = opened(disk)
    put(store, b"old 0", b"old 1", b"old 2")
    assert store.close(1)
    store = opened(disk)
    put(store, b"late 0", sync=False)
    disk = disk.kill()
    disk.remove("/s/queue_ends.json")  # With it, the start would be refused.
    path = f"/s/consumequeue/T/0/{0:020d}"
    disk.open(path).write(bytes(20), 40)  # The last entry, which was synced.
    store = opened(disk)
    assert bodies(store) == [b"old 0", b"old 1", b"old 2", b"late 0"]
    assert store.kept is None
