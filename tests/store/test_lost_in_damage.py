"""What a repair says was in damaged ranges, if there are several; and that its records stay."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest
from tests.crash.disk import KillAt, Killed, Moment, Operation, Partial, SimulatedFileSystem
from tests.store.damaged_stores import (
    BATCHES,
    ROOT,
    contents,
    damage,
    messages,
    open_small_store,
    planned,
    repaired,
    small_store,
    verified,
    write_small_store,
)
from tests.store.records import HOST

from cometmq.proto.message import StoredMessage
from cometmq.proto.sysflag import SysFlag
from cometmq.store.log.turn import Origin
from cometmq.store.mending.placeholders import Lost
from cometmq.store.queues.queue_ends import QUEUE_ENDS_NAME


def of_queue(log: list[StoredMessage], queue_id: int) -> list[StoredMessage]:
    return [m for m in log if m.topic == "T" and m.queue_id == queue_id and not m.sys_flag]


def test_a_message_was_in_the_range_that_its_entry_leads_to() -> None:
    """The gap in the numbers of the second queue surrounds both ranges."""
    disk = small_store()
    log = messages(disk)
    first, second = of_queue(log, 0)[4], of_queue(log, 1)[4]
    assert of_queue(log, 1)[3].physical_offset < first.physical_offset < second.physical_offset
    damage(disk, first)
    damage(disk, second)
    lost = [
        [Lost("T", 0, first.queue_offset, 1)],
        [Lost("T", 1, second.queue_offset, 1)],
    ]
    assert [step.lost for step in planned(disk).steps] == lost


@pytest.mark.parametrize("has_list", [True, False])
def test_without_entries_the_gaps_tell(has_list: bool) -> None:
    disk = small_store()
    log = messages(disk)
    victims = [of_queue(log, queue_id)[4] for queue_id in (0, 1)]
    for victim in victims:
        damage(disk, victim)
    for folder in ("consumequeue", "batchconsumequeue"):
        for path in list(contents(disk, f"{ROOT}/{folder}")):
            disk.remove(path)
    if not has_list:
        disk.remove(f"{ROOT}/{QUEUE_ENDS_NAME}")
    lost = {each for step in planned(disk).steps for each in step.lost}
    assert lost == {Lost("T", each.queue_id, each.queue_offset, 1) for each in victims}
    repaired(disk)
    assert {m.queue_offset for m in messages(disk) if m.topic == "T" and m.queue_id == 1} == {
        *range(20)
    }


def test_the_first_message_of_a_queue_whose_others_in_front_have_expired() -> None:
    disk = small_store()
    disk.remove(f"{ROOT}/commitlog/{0:020d}")
    victim = next(m for m in messages(disk) if m.topic == "T" and m.queue_id == 0)
    damage(disk, victim)
    (step,) = planned(disk).steps
    assert step.lost == [Lost("T", 0, victim.queue_offset, 1)]


def test_the_last_message_of_a_queue_without_files_whose_others_have_expired() -> None:
    disk = SimulatedFileSystem()
    for count in (2, 1):
        store = open_small_store(disk)
        for _ in range(count):
            store.put("Q", 0, b"of a queue", b"", Origin(1000, 1000, HOST))
            store.put("T", 0, b"of another", b"", Origin(1000, 1000, HOST))
        store.commit()
        assert store.close(1000)
        if count == 2:
            write_small_store(disk, ROOT)
    disk.remove(f"{ROOT}/commitlog/{0:020d}")
    disk.remove(f"{ROOT}/consumequeue/Q/0/{0:020d}")
    (victim,) = (m for m in messages(disk) if m.topic == "Q")
    damage(disk, victim)
    (step,) = planned(disk).steps
    assert step.lost == [Lost("Q", 0, 2, 1)]


def test_a_batch_counts_by_the_flag_that_says_it_is_one() -> None:
    """Records of other programs may not have the flag that says it has to be unwrapped."""
    disk = small_store(close=False).kill()
    store = open_small_store(disk)
    flags = int(SysFlag.INNER_BATCH)
    for _ in range(3):
        store.put(BATCHES, 1, b"abc", b"INNER_NUM\x013\x02", Origin(9000, 9000, HOST, flags))
        store.put("T", 0, b"long enough for a message in it" * 4, b"", Origin(9000, 9000, HOST))
        store.commit()
    assert store.close(9000)
    victim = [m for m in messages(disk) if m.topic == "T"][-2]
    damage(disk, victim)
    (step,) = planned(disk).steps
    assert step.lost == [Lost("T", 0, victim.queue_offset, 1)]


class KillBeforeLastSync:
    """Ends the process before it syncs the records that it has put in place."""

    def __init__(self) -> None:
        self.syncs = 0

    def __call__(self, operation: Operation) -> None:
        is_log = "/commitlog/" in operation.path and operation.verb == "sync"
        self.syncs += is_log and operation.moment is Moment.BEFORE
        if self.syncs == 2:
            raise Killed(operation)


@pytest.mark.parametrize("by", ["a repair", "a start"])
@pytest.mark.parametrize("clean", [True, False])
def test_what_a_killed_repair_did_not_sync_is_synced_by_who_finds_it_sound(
    clean: bool, by: str
) -> None:
    disk = small_store()
    if not clean:
        open_small_store(disk)  # And killed below.
    damage(disk, messages(disk)[5])
    disk.open(f"{ROOT}/commitlog/{0:020d}").sync()
    disk = disk.kill()
    disk.hook = KillBeforeLastSync()
    with pytest.raises(Killed):
        repaired(disk)
    disk = disk.kill()
    assert planned(disk).is_empty
    if by == "a repair":
        repaired(disk)
    else:
        open_small_store(disk)
    for seed in range(10):
        image = disk.power_cut(Random(seed))
        assert planned(image).is_empty, seed
        assert open_small_store(image).close(1)
        assert verified(image).findings == []


@pytest.mark.parametrize("topic", ["T", BATCHES])
def test_a_record_that_it_had_half_put_in_place_is_none(topic: str) -> None:
    """If a record has no body, nothing tells whether its properties are whole."""
    whole = small_store()
    victim = [m for m in messages(whole) if m.topic == topic and m.body][3]
    damage(whole, victim)
    whole = whole.kill()
    mended = whole.kill()
    (step,) = planned(mended).steps
    repaired(mended)
    expected = [(m.physical_offset, m.raw) for m in messages(mended)]
    size = next(m.size for m in messages(mended) if m.physical_offset == victim.physical_offset)
    for written in range(0, size + 1, 3):
        for which in (1, 2, 3, 4):
            disk = whole.kill()
            disk.hook = TornWrite(which, written)
            with suppress(Killed):
                repaired(disk)
            disk = disk.kill()
            for again in planned(disk).steps:
                assert again.lost == step.lost, (written, which)
            repaired(disk)
            assert [(m.physical_offset, m.raw) for m in messages(disk)] == expected
            assert open_small_store(disk).close(1)


class TornWrite:
    """Ends the process in the middle of one of its writes to the log."""

    def __init__(self, which: int, size: int) -> None:
        self.which, self.size = which, size

    def __call__(self, operation: Operation) -> None:
        is_log = "/commitlog/" in operation.path and operation.verb == "write"
        self.which -= is_log and operation.moment is Moment.BEFORE
        if self.which == 0:
            self.which = -1
            raise Partial(self.size, Killed(operation))


@pytest.mark.parametrize("close", [True, False])
def test_ended_anywhere_and_repaired_again_it_stays_so_behind_a_power_cut(close: bool) -> None:
    whole = small_store(close=close).kill()
    for victim in messages(whole)[5:20:7]:
        damage(whole, victim)
    for path in contents(whole, f"{ROOT}/commitlog"):
        whole.open(path).sync()
    number, is_done = 0, False
    while not is_done:
        disk, number = whole.kill(), number + 1
        disk.hook = KillAt(disk.operations + number)
        try:
            repaired(disk)
            is_done = True
        except Killed:
            disk = disk.kill()
            disk.hook = None
            repaired(disk)
        image = disk.power_cut(Random(number))
        assert verified(image).findings == [], number
        assert open_small_store(image).close(1), number
    assert number > 20
