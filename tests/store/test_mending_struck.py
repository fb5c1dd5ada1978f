"""A repair that a power cut interrupts while it writes is repeated, and loses nothing."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from tests.crash.disk import KillAt, Killed, Moment
from tests.store.damaged_stores import contents, flip, overwrite, verified
from tests.store.held_stores import BATCHES, CONFIG, MESSAGES, ROOT, Held, repair

from cometmq.proto.record import RECORD_CRC_SIZE
from cometmq.store.looking.inspection import inspect
from cometmq.store.looking.log_check import LogCheck

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.crash.disk import Operation, SimulatedFileSystem

    from cometmq.proto.message import StoredMessage

LOG = f"{ROOT}/commitlog"
RUN = 12
"""How many consecutive records are damaged."""


def messages_of(held: Held) -> list[StoredMessage]:
    return list(LogCheck(inspect(held.disk, ROOT, CONFIG)))


def damaged(*, clean: bool) -> Held:
    """A store in which one range is damaged, with records of three queues that take turns."""
    held = Held()
    held.stop(clean=clean)
    first = next(number for number, m in enumerate(messages_of(held)) if m.body == b"T50")
    damage(held, messages_of(held)[first : first + RUN])
    return held


def damage(held: Held, victims: list[StoredMessage]) -> None:
    """Damage consecutive records of one file."""
    start, end = victims[0].physical_offset, victims[-1].physical_offset + victims[-1].size
    segment = start - start % CONFIG.segment_size
    assert end < segment + CONFIG.segment_size
    noise = Random(1).randbytes(end - start)
    overwrite(held.disk, f"{LOG}/{segment:020d}", start - segment, noise)
    held.disk = _synced(held.disk).kill()


def _synced(disk: SimulatedFileSystem) -> SimulatedFileSystem:
    for path in contents(disk):
        disk.open(path).sync()
    return disk


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
def test_the_second_repair_makes_of_the_log_what_the_first_would_have(clean: bool) -> None:
    """If what the first wrote into a range was left, the others would have no room any more."""
    whole = damaged(clean=clean)
    begun = whole.disk.operations
    assert len(repair(whole, cut=False).steps[0].lost) == RUN
    operations = whole.disk.operations - begun
    for number in range(operations - RUN - 1, operations + 1):
        for seed in range(3):
            held = damaged(clean=clean)
            held.disk.hook = KillAt(held.disk.operations + number)
            with suppress(Killed):
                repair(held, cut=False)
            disk, luck = held.disk, Random(number * 10 + seed)
            held.disk = disk.power_cut(luck) if seed else disk.kill()
            repair(held, cut=False)
            assert contents(held.disk, LOG) == contents(whole.disk, LOG)
            held.opened()
            for topic in ("T", "Other", BATCHES):
                assert held.put(b"next", topic) == MESSAGES


@pytest.mark.parametrize("topic", ["T", BATCHES])
def test_a_queue_that_ends_in_a_range_of_several_messages_is_known_by_the_last_of_them(
    topic: str,
) -> None:
    """If the list named where the range begins, the next start would take the queue for damaged."""
    held = Held()
    for each in [topic] * 5 + ["Other", topic]:
        held.put(b"more", each)
    held.stop(clean=True)
    damage(held, messages_of(held)[-6:-2])
    damage(held, messages_of(held)[-1:])
    plan = repair(held, cut=False)
    assert [sum(each.count for each in step.lost) for step in plan.steps] == [4]
    assert [(each.topic, each.next_offset) for each in plan.lost] == [(topic, MESSAGES + 6)]
    held.opened()
    first, *others = held.bodies(topic)[MESSAGES:]
    assert (first, [body.strip(b"\0") for body in others]) == (b"more", [b""] * 4)
    assert held.put(b"next", topic) == MESSAGES + 5


@pytest.mark.parametrize("topic", ["Fresh", BATCHES])
def test_what_stands_for_a_message_tells_of_it(topic: str) -> None:
    """The message was in no queue yet, and its own record is overwritten by then."""
    whole = damaged_in_no_queue(topic)
    repair(whole, cut=False)
    held = damaged_in_no_queue(topic)
    writes = 0

    def kill(operation: Operation) -> None:
        """Kill after the record for the message is written, before the head of the filler is."""
        nonlocal writes
        is_new = operation.moment is Moment.BEFORE and held.disk.exists(f"{ROOT}/cut")
        writes += is_new and operation[1:3] == ("write", last_file(held))
        if writes == 4:
            raise Killed(operation)

    held.disk.hook = kill
    with pytest.raises(Killed):
        repair(held, cut=False)
    held.disk = held.disk.kill()
    (step,) = repair(held, cut=False).steps
    assert [(each.topic, each.count) for each in step.lost] == [(topic, 1)]
    assert contents(held.disk, LOG) == contents(whole.disk, LOG)
    held.opened()
    assert held.bodies(topic)[-2:] == [b"one", b""]


def test_a_missing_checksum_of_a_record_is_noticed_behind_a_killed_repair_too() -> None:
    """The records that a repair puts in have none, but every other one still needs its own."""
    checked = replace(CONFIG, record_crc=True)
    held = Held()
    held.stop(clean=True)
    held.opened(checked)
    for number in range(20):
        held.put(b"checked%d" % number)
    assert held.store.close(held.now_ms)
    victims = [m for m in messages_of(held) if m.body in {b"checked4", b"checked9"}]
    damage(held, victims[:1])
    overwrite_checksum(held, victims[1])
    held.disk.hook = kill_before_the_log_is_written(held)
    with pytest.raises(Killed):
        repair(held, cut=False)
    held.disk = held.disk.kill()
    assert held.disk.exists(f"{ROOT}/abort")  # The mark is there.
    plan = repair(held, cut=False)
    found = [step.damage.start for step in plan.steps]
    assert found == [victim.physical_offset for victim in victims]
    assert verified(held.disk, config=checked).findings == []
    held.opened(checked)
    assert held.put(b"next") == MESSAGES + 20


def overwrite_checksum(held: Held, victim: StoredMessage) -> None:
    """Replace the property that is the checksum of a record by other letters."""
    end = victim.physical_offset + victim.size
    segment = end - end % CONFIG.segment_size
    path = f"{LOG}/{segment:020d}"
    overwrite(held.disk, path, end - segment - RECORD_CRC_SIZE, b"?" * RECORD_CRC_SIZE)
    held.disk = _synced(held.disk).kill()


def kill_before_the_log_is_written(held: Held) -> Callable[[Operation], None]:
    def kill(operation: Operation) -> None:
        if operation.path.startswith(LOG) and operation.verb == "write":
            raise Killed(operation)

    return kill


def last_file(held: Held) -> str:
    """The last file of the log."""
    return list(contents(held.disk, LOG))[-1]


def damaged_in_no_queue(topic: str) -> Held:
    """A store in which the last message of a queue is damaged, and has no entry."""
    held = Held()
    held.stop(clean=True)
    held.opened()
    body = b"two" * 99
    for each in (b"one", body):
        held.put(each, topic)
    held.put(b"behind it", "Other")
    held.disk = held.disk.kill()
    victim = next(m for m in messages_of(held) if m.body == body)
    segment = victim.physical_offset - victim.physical_offset % CONFIG.segment_size
    place = victim.body_start - victim.start + victim.physical_offset - segment
    flip(held.disk, f"{LOG}/{segment:020d}", place)
    held.disk = _synced(held.disk).kill()
    return held
