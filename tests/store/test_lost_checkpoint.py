"""A killed store that lost its checkpoint: the list of the queues' ends knows what is safe.

Otherwise a damaged log would pass for a torn tail, and synced records after the damage be cut. The
list also knows it if `abort` is lost as well, which is then no clean stop of ours.
"""

from __future__ import annotations

from errno import EIO
from random import Random
from typing import TYPE_CHECKING

import pytest
from tests.crash.disk import Operation, SimulatedFileSystem
from tests.store.damaged_stores import (
    BATCHES,
    ROOT,
    SMALL,
    contents,
    damage,
    files_of,
    flip,
    messages,
    open_small_store,
    overwrite,
    planned,
    repaired,
    verified,
    write_small_store,
)
from tests.store.records import HOST

from cometmq.store.errors import CorruptionError
from cometmq.store.log.turn import Origin
from cometmq.store.looking.findings import Kind
from cometmq.store.looking.inspection import inspect
from cometmq.store.mending.rebuilding import Rebuilt, rebuild
from cometmq.store.queues.queue_ends import QUEUE_ENDS_NAME, listed_to, load_queue_ends
from cometmq.store.upkeep.integrity import Integrity
from cometmq.store.upkeep.sealing import INTEGRITY_FOLDER

if TYPE_CHECKING:
    from cometmq.proto.message import StoredMessage

CHECKPOINT = f"{ROOT}/checkpoint"
LIST = f"{ROOT}/{QUEUE_ENDS_NAME}"
LATER = 7
"""Messages after the last checkpoint, which no list names."""


def killed_store(*, is_synced: bool = True) -> SimulatedFileSystem:
    """The small store, reopened and killed with some messages after the list."""
    disk = SimulatedFileSystem()
    write_small_store(disk, ROOT)
    store = open_small_store(disk)
    for number in range(LATER):
        store.put("T", 0, b"later %d" % number, b"", Origin(2000, 2000, HOST))
        store.commit()
        if is_synced:
            store.run_jobs()
            store.advance()
    return disk


def without_checkpoint(disk: SimulatedFileSystem) -> SimulatedFileSystem:
    disk = disk.kill()
    disk.remove(CHECKPOINT)
    disk.sync_directory(ROOT)
    return disk


def listed(disk: SimulatedFileSystem) -> int:
    ends = load_queue_ends(disk, ROOT)
    assert ends is not None
    return listed_to(ends)


def split(disk: SimulatedFileSystem) -> tuple[list[StoredMessage], list[StoredMessage]]:
    """Return the messages that the list vouches for, and those after them."""
    log, end = messages(disk), listed(disk)
    return [m for m in log if m.physical_offset < end], [m for m in log if m.physical_offset >= end]


def test_damage_in_front_of_what_the_list_names_is_refused_and_can_be_stepped_over() -> None:
    safe, behind = split(killed_store())
    assert len(behind) == LATER
    for victim in safe[::5]:
        disk = killed_store()
        damage(disk, victim)
        disk = without_checkpoint(disk)
        before = contents(disk)
        with pytest.raises(CorruptionError, match=f"safe on the disk up to offset {listed(disk)}"):
            open_small_store(disk)
        disk = disk.kill()
        assert contents(disk) == before
        assert verified(disk).counts[Kind.RECORD] == 1
        (step,) = planned(disk).steps
        assert step.damage.start == victim.physical_offset
        repaired(disk)
        # What the list does not name is on the disk.
        store = open_small_store(disk.power_cut(Random(1)))
        assert store.max_offset("T", 0) == 20 + LATER
        assert store.close(1)


def test_a_log_that_is_zeros_in_front_of_that_is_refused() -> None:
    """Nothing but zeros follows the bad place, so it looks like the log's end."""
    disk = killed_store()
    safe, _ = split(disk)
    disk = without_checkpoint(disk)
    last = safe[-1]
    start = last.physical_offset // SMALL.segment_size * SMALL.segment_size
    position = last.physical_offset - start
    overwrite(
        disk, f"{ROOT}/commitlog/{start:020d}", position, bytes(SMALL.segment_size - position)
    )
    with pytest.raises(CorruptionError, match=f"at byte {position}"):
        open_small_store(disk)


def test_a_lost_file_of_the_log_is_missed() -> None:
    disk = without_checkpoint(killed_store())
    while len(names := sorted(contents(disk, f"{ROOT}/commitlog"))) > 1:
        disk.remove(names[-1])
    with pytest.raises(CorruptionError, match=f"it was on the disk up to {listed(disk)}"):
        open_small_store(disk)


def test_what_the_list_does_not_name_is_cut_as_a_torn_tail() -> None:
    disk = killed_store()
    _, behind = split(disk)
    damage(disk, behind[1])
    store = open_small_store(without_checkpoint(disk))
    assert store.end_offset == behind[1].physical_offset
    assert store.max_offset("T", 0) == 20 + 1


@pytest.mark.parametrize("seed", range(20))
def test_a_rebuild_lists_nothing_that_a_power_cut_may_take(seed: int) -> None:
    disk = without_checkpoint(killed_store(is_synced=False))
    done = Rebuilt()
    for _ in rebuild(inspect(disk, ROOT, SMALL, is_locked=True), done, 1):
        pass
    assert done.left_records == LATER
    store = open_small_store(disk.power_cut(Random(seed)))
    assert 20 <= store.max_offset("T", 0) <= 20 + LATER
    assert store.close(1)


@pytest.mark.parametrize("is_sealed", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_a_rebuild_without_a_list_makes_none_of_what_nobody_knows_to_be_synced(
    seed: int,
    is_sealed: bool,  # A parameter of the test.
) -> None:
    disk = without_checkpoint(killed_store(is_synced=False))
    disk.remove(LIST)
    disk.sync_directory(ROOT)
    if not is_sealed:
        for path in list(files_of(disk, f"{ROOT}/{INTEGRITY_FOLDER}")):
            disk.remove(path)
    inspected = inspect(disk, ROOT, SMALL, is_locked=True)
    sealed_end = inspected.start.synced_offset or 0
    assert (sealed_end > 0) is is_sealed
    for _ in rebuild(inspected, Rebuilt(), 1):
        pass
    assert listed_to(load_queue_ends(disk, ROOT) or {}) <= sealed_end
    disk = disk.kill()
    store = open_small_store(disk)
    end = store.end_offset
    assert store.close(1)
    assert open_small_store(disk.power_cut(Random(seed))).end_offset == end


@pytest.mark.parametrize("lost", [(), (LIST,)])
def test_what_is_sealed_was_synced_though_the_checkpoint_is_lost(lost: tuple[str, ...]) -> None:
    disk = killed_store().kill()
    sealed_end = Integrity(disk, f"{ROOT}/{INTEGRITY_FOLDER}", SMALL.segment_size).sealed_end()
    victim = messages(disk)[9]
    assert victim.physical_offset + victim.size < sealed_end
    for path in (CHECKPOINT, *lost):
        disk.remove(path)
    damage(disk, victim)
    before = contents(disk)
    with pytest.raises(CorruptionError, match="the log was safe on the disk up to"):
        open_small_store(disk)
    assert contents(disk) == before
    assert Kind.RECORD in verified(disk).counts


@pytest.mark.parametrize("lost", ["checkpoint", "list", "both"])
@pytest.mark.parametrize("sizes", [[138], [138, 138], [138, SMALL.batch_consume_queue_file_size]])
def test_the_size_of_queue_files_is_not_taken_from_torn_ones(sizes: list[int], lost: str) -> None:
    disk = killed_store().kill()
    for path in [CHECKPOINT] * (lost != "list") + [LIST] * (lost != "checkpoint"):
        disk.remove(path)
    for number, size in enumerate(sizes):
        folder = f"{ROOT}/batchconsumequeue/{BATCHES}/{number}"
        disk.make_directories(folder)
        file = disk.open(f"{folder}/{0:020d}", create=True)
        file.resize(size)
        file.close()
    is_told = sizes != [138, 138] or lost != "both"  # Nobody would think so of two that agree.
    expected = SMALL.batch_consume_queue_file_size if is_told else 138
    assert inspect(disk, ROOT, SMALL).config.batch_consume_queue_file_size == expected
    assert open_small_store(disk).queues.batch.file_size == expected


@pytest.mark.parametrize("is_damaged", [False, True])
@pytest.mark.parametrize(("topic", "queue_id"), [("Fresh", 0), (BATCHES, 1)])
def test_a_killed_store_without_its_mark_does_not_pass_for_one_of_apache(
    topic: str,
    queue_id: int,
    is_damaged: bool,  # A parameter of the test.
) -> None:
    """Otherwise a queue whose entries were not on the disk would give their numbers out again."""
    disk = SimulatedFileSystem()
    write_small_store(disk, ROOT)
    store = open_small_store(disk)
    for name, number in [(topic, queue_id)] * 2 + [("T", 0)]:  # All is there behind its entry.
        store.put(name, number, b"later", b"", Origin(2000, 2000, HOST))
        store.commit()
        store.run_jobs()
        store.advance()
    store.tick(5000)
    assert store.queues.write_behind(store.end_offset, 100)
    disk = disk.kill()
    folder = "batchconsumequeue" if topic == BATCHES else "consumequeue"
    (lost,) = files_of(disk, f"{ROOT}/{folder}/{topic}/{queue_id}")
    for path in [lost, f"{ROOT}/abort"] + [CHECKPOINT] * (not is_damaged):
        disk.remove(path)
    if is_damaged:
        flip(disk, CHECKPOINT, 60)
    assert not inspect(disk, ROOT, SMALL).is_clean
    store = open_small_store(disk)
    assert store.max_offset(topic, queue_id) == 2
    assert store.put(topic, queue_id, b"next", b"", Origin(6000, 6000, HOST)).queue_offset == 2


@pytest.mark.parametrize("behind", ["the checkpoint's name", "the checkpoint"])
def test_a_start_that_fails_behind_its_first_checkpoint_leaves_abort_there(behind: str) -> None:
    """Otherwise what it had begun to rebuild would pass for whole, as `abort` was not there."""
    disk = SimulatedFileSystem()
    write_small_store(disk, ROOT)
    disk = without_checkpoint(disk)
    assert not disk.exists(f"{ROOT}/abort")

    def refuse(operation: Operation) -> None:
        is_next = operation.path == f"{LIST}.new"
        if behind == "the checkpoint's name":
            is_next = operation.path == ROOT and disk.exists(CHECKPOINT)
        if is_next:
            raise OSError(EIO, "refused", operation.path)

    disk.hook = refuse
    with pytest.raises(OSError, match="refused"):
        open_small_store(disk)
    assert disk.exists(CHECKPOINT)
    disk.hook = None
    disk = disk.power_cut(Random(1))
    assert disk.exists(f"{ROOT}/abort")
    assert verified(disk).is_sound
    store = open_small_store(disk)
    assert store.max_offset("T", 0) == 20
    assert store.close(1)
    assert verified(disk).is_sound
