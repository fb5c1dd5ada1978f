"""Records that are sound, but have another topic, queue or number than was written.

No checksum of the body covers these; the queue's own entry, or the messages around it, tell. No
tool may put the sound messages of that queue out of reach because of such a record.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from random import Random
from typing import TYPE_CHECKING

import pytest
from tests.crash.disk import KillAt, Killed, Moment, SimulatedFileSystem
from tests.store.damaged_stores import ROOT, SMALL, contents, files_of, flip, overwrite, verified
from tests.store.records import HOST
from tests.store.test_rebuilding import rebuilt

from cometmq.proto.sysflag import TransactionType
from cometmq.store.errors import CorruptionError, StoreFormatError
from cometmq.store.log.fillers import FILLER_TOPIC, is_filler
from cometmq.store.log.turn import Origin
from cometmq.store.looking.findings import Kind
from cometmq.store.looking.inspection import inspect
from cometmq.store.looking.log_check import LogCheck
from cometmq.store.mending.placeholders import Lost
from cometmq.store.mending.repair_plan import Plan, make_plan
from cometmq.store.mending.repairing import carry_out
from cometmq.store.message_store import MessageStore

if TYPE_CHECKING:
    from cometmq.proto.message import StoredMessage

CONFIG = replace(SMALL, integrity=False)
COUNT = 30
NUMBER, QUEUE_ID, SYS_FLAG = 20, 12, 36
"""Where they are in a record."""
LOG = f"{ROOT}/commitlog/{0:020d}"
CHANGES = {
    "a number far ahead": (NUMBER, (1 << 40).to_bytes(8, "big")),
    "a number again": (NUMBER, bytes(7) + b"\x01"),
    "a queue that is not there": (QUEUE_ID, b"\0\0\0\x07"),
    "another queue": (QUEUE_ID, b"\0\0\0\x01"),
    "another topic": (None, b"V"),
}


def opened(disk: SimulatedFileSystem) -> MessageStore:
    return MessageStore.open(ROOT, CONFIG, now_ms=1, filesystem=disk, threads=False)


def two_queues(*, close: bool = True) -> SimulatedFileSystem:
    """A store of one segment, with messages in `T/0` and `T/1` in turn."""
    disk = SimulatedFileSystem()
    store = opened(disk)
    for number in range(COUNT):
        at = 1_700_000_000_000 + 1500 * number
        store.put("T", number % 2, b"body %d" % number, b"", Origin(at, at, HOST))
        store.commit()
        store.run_jobs()
        store.advance()
        store.tick(at)
    if close:
        assert store.close(2)
        return disk
    return disk.kill()


def record(disk: SimulatedFileSystem, number: int) -> StoredMessage:
    return list(LogCheck(inspect(disk, ROOT, CONFIG)))[number]


def change(disk: SimulatedFileSystem, number: int, name: str) -> StoredMessage:
    """Change a record as damage may, and return what it was."""
    before = record(disk, number)
    place, data = CHANGES[name]
    if place is None:
        place = before.size - 3  # After it comes only the length of no properties.
    overwrite(disk, LOG, before.physical_offset + place, data)
    return before


def repaired(disk: SimulatedFileSystem) -> Plan:
    store, plan = inspect(disk, ROOT, CONFIG), Plan()
    for _ in make_plan(store, plan, cut=False):
        pass
    carry_out(store, plan, 1)
    return plan


def check_refused(disk: SimulatedFileSystem) -> None:
    """Check that `verify` finds a wrong record, and `rebuild` names `repair`, changing nothing."""
    before = contents(disk)
    kinds = {each.kind for each in verified(disk, config=CONFIG).findings}
    assert {Kind.RECORD, Kind.LOST_MESSAGE} <= kinds
    with pytest.raises(CorruptionError, match=r"not the message that it says it is.*store repair"):
        rebuilt(disk, config=CONFIG)
    assert contents(disk) == before


def check_refused_by_order(disk: SimulatedFileSystem) -> None:
    """Check the same if no entry leads to the record."""
    assert {each.kind for each in verified(disk, config=CONFIG).findings} == {Kind.RECORD}
    with pytest.raises(CorruptionError, match=r"not the message that it says it is.*store repair"):
        rebuilt(disk, config=CONFIG)


def check_nothing_to_repair(disk: SimulatedFileSystem) -> None:
    """Check that neither `verify` nor `repair` takes a record for wrong."""
    kinds = {each.kind for each in verified(disk, config=CONFIG).findings}
    assert Kind.RECORD not in kinds
    assert repaired(disk).is_empty


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("number", [0, 1, 10, 11, COUNT - 2])
def test_where_the_entry_of_another_message_leads_to_it_a_record_is_written_right(
    name: str, number: int
) -> None:
    disk = two_queues()
    if number % 2 and name == "another queue":
        pytest.skip("it is there already")
    was = change(disk, number, name)
    before = contents(disk)
    check_refused(disk)
    plan = repaired(disk)
    (head,) = plan.heads
    assert head.truth == ("T", number % 2, was.queue_offset)
    assert (plan.steps, plan.cut_at) == ([], None)
    assert record(disk, number).raw == was.raw
    (copy,) = contents(disk, f"{ROOT}/cut").values()
    assert copy == before[LOG][was.physical_offset :][: was.size] != was.raw
    _check_whole(disk)


@pytest.mark.parametrize("name", CHANGES)
def test_a_repair_that_is_ended_anywhere_writes_it_right_the_next_time(name: str) -> None:
    disk = two_queues()
    was, sound = change(disk, 10, name), change(disk, 13, "a number far ahead")
    disk.open(LOG).sync()
    for number, moment in product(range(1, 400), Moment):
        again = disk.kill()
        again.hook = KillAt(again.operations + number, moment)
        try:
            repaired(again)
        except Killed:
            again = again.power_cut(Random(number)) if number % 2 else again.kill()
        else:
            break
        repaired(again)
        assert [record(again, each).raw for each in (10, 13)] == [was.raw, sound.raw]
        _check_whole(again)
    else:
        pytest.fail("it never came to its end")


def test_a_record_is_stepped_over_whose_own_entry_has_other_tags() -> None:
    disk = two_queues()
    change(disk, 10, "a number far ahead")
    flip(disk, f"{ROOT}/consumequeue/T/0/{0:020d}", 5 * 20 + 19)  # In its tags code.
    plan = repaired(disk)
    assert (plan.heads, [step.lost for step in plan.steps]) == ([], [[Lost("T", 0, 5, 1)]])
    _check_whole(disk)


def test_a_record_is_stepped_over_where_the_name_of_its_topic_has_no_room() -> None:
    """By the order, the two damages look like one: the record of T is not seen as one of T."""
    disk = SimulatedFileSystem()
    store = opened(disk)
    for topic in ("T", "Long", "T", "Long", "T", "T", "Long", "T", "T"):
        store.put(topic, 0, b"body", b"", Origin(1000, 1000, HOST))
        store.commit()
        store.run_jobs()
        store.advance()
    for at in range(1000, 9000, 1000):
        store.tick(at)
        store.run_jobs()
    disk = disk.kill()
    change(disk, 5, "another topic")
    change(disk, 5, "a queue that is not there")
    overwrite(disk, LOG, record(disk, 6).physical_offset + NUMBER, (3).to_bytes(8, "big"))
    for topic, number in (("T", 3), ("Long", 2)):
        overwrite(disk, f"{ROOT}/consumequeue/{topic}/0/{0:020d}", number * 20, bytes(100))
    plan = repaired(disk)
    assert plan.heads == []
    assert [step.lost for step in plan.steps] == [[Lost("T", 0, 3, 1)]]


@pytest.mark.parametrize("name", sorted(CHANGES.keys() - {"another queue"}))
def test_without_entries_the_messages_around_it_tell(name: str) -> None:
    """A start that refuses a killed store has erased the entries."""
    disk = two_queues(close=False)
    was = change(disk, 10, name)
    for _ in range(2):
        check_refused_by_order(disk)
        with pytest.raises(CorruptionError, match="store repair"):
            opened(disk)
        disk = disk.kill()
    plan = repaired(disk)
    assert [head.truth for head in plan.heads] == [("T", 0, was.queue_offset)]
    assert plan.steps == []
    assert record(disk, 10).raw == was.raw
    _check_whole(disk)


@pytest.mark.parametrize("name", sorted(CHANGES.keys() - {"another queue"}))
def test_a_repair_by_the_order_that_is_ended_anywhere_writes_it_right_the_next_time(
    name: str,
) -> None:
    disk = two_queues(close=False)
    was = change(disk, 10, name)
    with pytest.raises(CorruptionError, match="store repair"):
        opened(disk)
    for path in list(files_of(disk, ROOT)):  # No power cut takes what the killed process wrote.
        disk.open(path).sync()
        while path != ROOT:
            path = path.rpartition("/")[0]
            disk.sync_directory(path)
    for number, moment in product(range(1, 400), Moment):
        again = disk.kill()
        again.hook = KillAt(again.operations + number, moment)
        try:
            repaired(again)
        except Killed:
            again = again.power_cut(Random(number)) if number % 2 else again.kill()
        else:
            break
        repaired(again)
        assert record(again, 10).raw == was.raw
        _check_whole(again)
    else:
        pytest.fail("it never came to its end")


@pytest.mark.parametrize("number", [10, 11])
def test_of_two_records_that_say_the_same_none_is_stepped_over_without_an_entry(
    number: int,
) -> None:
    disk = two_queues(close=False)
    overwrite(
        disk, LOG, record(disk, number).physical_offset + QUEUE_ID + 3, bytes((1 - number % 2,))
    )
    with pytest.raises((CorruptionError, StoreFormatError)):
        rebuilt(disk, config=CONFIG)
    with pytest.raises(CorruptionError):
        rebuilt(disk, config=CONFIG, accept_restarts=True)
    assert repaired(disk).is_empty


@pytest.mark.parametrize("number", [COUNT - 2, COUNT - 1])
def test_without_entries_the_last_message_of_a_queue_follows_the_one_in_front_of_it(
    number: int,
) -> None:
    """A start refuses the gap in the log between the two, and nothing else shows it."""
    disk = two_queues(close=False)
    was = change(disk, number, "a number far ahead")
    with pytest.raises(CorruptionError, match="store repair"):
        opened(disk)
    check_refused_by_order(disk)
    plan = repaired(disk)
    assert [head.truth for head in plan.heads] == [("T", number % 2, was.queue_offset)]
    assert record(disk, number).raw == was.raw
    _check_whole(disk)


def test_a_last_message_that_another_queue_may_go_on_with_is_left_alone() -> None:
    """Its queue id may be what is wrong; then nobody may give it a number."""
    disk = SimulatedFileSystem()
    store = opened(disk)
    for number, queue_id in enumerate([0, 1, 1, 1, 0, 0, 0, 0, 0]):
        store.put("T", queue_id, b"body %d" % number, b"", Origin(1, 1, HOST))
    store.commit()
    store.run_jobs()
    store.advance()
    for passed in (0, CONFIG.consume_queue_write_interval_ms):
        store.tick(1 + passed)  # Without a file nobody knows the kind of its queues.
    killed = disk.kill()
    assert inspect(killed, ROOT, CONFIG).is_kind_known("T")
    overwrite(
        killed, LOG, record(killed, 8).physical_offset + QUEUE_ID, CHANGES["another queue"][1]
    )
    with pytest.raises(CorruptionError, match="store repair"):
        opened(killed)
    assert "missing from the log: T queue 1 offset 3 to 4" in verified(killed, config=CONFIG).notes
    check_nothing_to_repair(killed)


def test_of_two_records_that_say_the_same_the_entry_tells_which() -> None:
    disk = two_queues()
    overwrite(disk, LOG, record(disk, 11).physical_offset + QUEUE_ID + 3, b"\0")
    assert [head.truth for head in repaired(disk).heads] == [("T", 1, 5)]
    _check_whole(disk)


def _check_whole(disk: SimulatedFileSystem) -> None:
    """Check that both queues have all their messages, also after a rebuild."""
    for _ in range(2):
        store = opened(disk)
        ends = [(store.min_offset("T", each), store.max_offset("T", each)) for each in (0, 1)]
        assert ends == [(0, COUNT // 2)] * 2
        assert store.close(3)
        assert verified(disk, config=CONFIG).findings == []
        rebuilt(disk, config=CONFIG)


def test_an_entry_that_is_wrong_itself_is_no_witness_against_a_record() -> None:
    """It leads to a record of the other queue, which has its own entry."""
    disk = two_queues()
    other = record(disk, 11)
    queue = f"{ROOT}/consumequeue/T/0/{0:020d}"
    overwrite(disk, queue, 5 * 20, other.physical_offset.to_bytes(8, "big"))
    assert [each.kind for each in verified(disk, config=CONFIG).findings] == [Kind.WRONG_ENTRY]
    assert repaired(disk).is_empty
    rebuilt(disk, config=CONFIG)
    _check_whole(disk)


def test_the_files_of_a_queue_under_the_name_of_another_are_no_witness() -> None:
    disk = two_queues()
    disk.rename(f"{ROOT}/consumequeue/T", f"{ROOT}/consumequeue/V")
    check_nothing_to_repair(disk)


def test_messages_in_front_of_a_gap_are_put_out_of_reach_only_when_that_is_asked_for() -> None:
    disk = two_queues(close=False)
    for number in (10, 12):  # Both: nothing tells which messages these were.
        change(disk, number, "a queue that is not there")
    report = verified(disk, config=CONFIG)
    assert "missing from the log: T queue 0 offset 5 to 6" in report.notes
    before = contents(disk)
    with pytest.raises(CorruptionError, match=r"physical offset.*message 7 of T/0.*from 5 to 6"):
        rebuilt(disk, config=CONFIG)
    assert contents(disk) == before
    assert repaired(disk).is_empty
    assert rebuilt(disk, config=CONFIG, accept_gaps=True).gaps == ["T/0"]
    store = opened(disk)
    assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (7, 15)
    assert store.close(3)
    found = verified(disk, config=CONFIG).findings
    assert [(each.kind, each.queue_offset) for each in found] == [
        (Kind.OUT_OF_REACH, number) for number in range(5)
    ]


def test_a_last_message_behind_what_a_repair_filled_is_left_alone() -> None:
    """The message before it may have been there, and be gone for good."""
    disk = two_queues(close=False)
    place = record(disk, COUNT - 4).physical_offset
    overwrite(disk, LOG, place + SYS_FLAG, TransactionType.ROLLED_BACK.to_bytes(4, "big"))
    overwrite(disk, LOG, place + record(disk, COUNT - 4).size - 3, FILLER_TOPIC[:1])
    assert is_filler(record(disk, COUNT - 4))
    assert "missing from the log: T queue 0 offset 13 to 13" in verified(disk, config=CONFIG).notes
    check_nothing_to_repair(disk)


def test_a_last_message_to_which_its_entry_leads_is_the_one_that_it_says() -> None:
    """Its number is damaged but was accepted, so the queue continues after it."""
    disk = two_queues(close=False)
    change(disk, COUNT - 2, "a number far ahead")
    check_refused_by_order(disk)
    assert rebuilt(disk, config=CONFIG, accept_gaps=True).gaps == ["T/0"]
    store = opened(disk)
    assert store.max_offset("T", 0) == (1 << 40) + 1
    assert store.close(3)
    found = verified(disk, config=CONFIG).findings
    assert {each.kind for each in found} == {Kind.OUT_OF_REACH}
    assert repaired(disk).is_empty


def test_a_sound_record_is_none_of_those_that_are_damaged_around_it() -> None:
    """One queue misses a number there that another begins with, so it may look like a wrong one."""
    disk = SimulatedFileSystem()
    store = opened(disk)
    for number, queue_id in enumerate((1, 0, 1, 0, 0)):
        store.put("T", queue_id, b"body %d" % number, b"", Origin(1000, 1000, HOST))
        store.commit()
        store.run_jobs()
        store.advance()
    disk = disk.kill()  # The entries were in memory alone.
    records = list(LogCheck(inspect(disk, ROOT, CONFIG)))
    for number in (0, 3):
        overwrite(disk, LOG, records[number].physical_offset + 88, b"\xff")  # In the body.
    starts = [step.damage.start for step in repaired(disk).steps]
    assert starts == [records[number].physical_offset for number in (0, 3)]


@pytest.mark.parametrize("close", [True, False])
def test_verify_says_so_where_a_start_refuses_what_is_sound_by_itself(*, close: bool) -> None:
    """Two neighbours of a queue say they are of another; no message between them tells."""
    disk = two_queues(close=close)
    before = contents(disk)
    assert verified(disk, config=CONFIG).is_sound
    assert contents(disk) == before
    for number in (10, 12):
        change(disk, number, "a queue that is not there")
    before = contents(disk)
    report = verified(disk, config=CONFIG)
    assert contents(disk) == before
    assert not report.is_sound
    if close:  # Its entries tell, and a start takes them as they are.
        assert Kind.REFUSED not in report.counts
        return
    (finding,) = report.findings
    with pytest.raises(CorruptionError) as refused:
        opened(disk)
    assert (finding.kind, finding.problem) == (Kind.REFUSED, refused.value.problem)
    assert "the log has none from 5 to 6" in finding.problem
