"""A repair of a store that was killed promises nothing that a power cut may still take."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from tests.store.damaged_stores import files_of, flip, overwrite, verified
from tests.store.held_stores import (
    BATCHES,
    CONFIG,
    MESSAGES,
    QUEUES,
    ROOT,
    SIMPLE_QUEUE,
    Held,
    expected,
    rebuild,
    repair,
)
from tests.store.test_offsets_of_expired import RARE_SYNCS, let_all_expire, tear_number_of_last
from tests.store.test_rebuild_of_killed import put_unsynced

from cometmq.store.errors import CorruptionError
from cometmq.store.log.log_scan import LogScan
from cometmq.store.looking.inspection import inspect
from cometmq.store.looking.log_check import LogCheck
from cometmq.store.mending.placeholders import Lost
from cometmq.store.queues.queue_ends import QUEUE_ENDS_NAME
from cometmq.store.upkeep.checkpoint import CheckpointFile, load_checkpoint

if TYPE_CHECKING:
    from cometmq.proto.message import StoredMessage

TAIL = 120


def damaged_with_a_tail(tail: int = TAIL) -> Held:
    """A store that was killed with unsynced messages, and in which a bit flipped."""
    held = Held()
    held.stop(clean=True)
    records = LogScan(inspect(held.disk, ROOT, CONFIG).segments, 0)
    victim = next(each for each in records if each.topic == "Other" and each.queue_offset == 40)
    start = victim.physical_offset // CONFIG.segment_size * CONFIG.segment_size
    path = f"{ROOT}/commitlog/{start:020d}"
    held.opened(RARE_SYNCS)
    for _ in range(tail):
        put_unsynced(held, "T")
    flip(held.disk, path, victim.physical_offset - start + 31)
    held.disk.open(path).sync()
    return held


def test_it_promises_no_more_of_the_tail_than_was_promised_before() -> None:
    held = damaged_with_a_tail()
    held.disk = held.disk.kill()
    claims = load_checkpoint(held.disk, f"{ROOT}/checkpoint").claims
    assert claims is not None
    repair(held, cut=False)
    after = load_checkpoint(held.disk, f"{ROOT}/checkpoint").claims
    assert after is not None
    assert after.synced_offset == claims.synced_offset
    disk = held.disk
    for seed in range(12):
        held.disk = disk.power_cut(Random(seed))
        held.opened()
        assert held.put(b"next") == MESSAGES + TAIL  # It was synced all the same.
        assert held.put(b"next", BATCHES) == MESSAGES
    held.disk = disk.kill()
    held.opened()
    held.disk = held.disk.power_cut(Random(0))  # Its start has synced the tail.
    held.opened()
    assert held.put(b"next") == MESSAGES + TAIL


def test_a_torn_number_in_the_tail_is_for_the_next_start_to_judge() -> None:
    held = damaged_with_a_tail(0)
    tear_number_of_last(held, "T", 1 << 40)
    repair(held, cut=False)
    held.opened()
    assert held.store.kept is not None
    assert held.put(b"next") == MESSAGES


def test_where_nobody_knows_how_far_the_log_was_synced_all_of_it_is_written_once_more() -> None:
    held = damaged_with_a_tail()
    held.disk = held.disk.kill()
    flip(held.disk, f"{ROOT}/checkpoint", 7)  # Apache's first number: its broker wrote since.
    repair(held, cut=False)
    disk = held.disk
    for seed in range(6):
        held.disk = disk.power_cut(Random(seed))
        held.opened()
        assert held.put(b"next") == MESSAGES + TAIL


def test_of_a_torn_tail_behind_damage_no_offset_is_kept() -> None:
    """The entries that lead there were not promised, and may be torn as well."""
    held = damaged_with_a_tail()
    held.store.queues.write_behind(1 << 60, 1 << 20)
    held.disk = held.disk.kill()
    first = next(m.physical_offset for m in messages_of(held) if m.body == b"unsynced")
    start = first // CONFIG.segment_size * CONFIG.segment_size
    overwrite(held.disk, f"{ROOT}/commitlog/{start:020d}", first - start + 4, bytes(4))
    plan = repair(held, cut=False)
    assert (len(plan.steps), plan.lost) == (1, [])
    held.opened()
    assert held.put(b"next") == MESSAGES


def test_of_a_torn_tail_it_is_told_how_many_sound_records_stand_in_it() -> None:
    held = Held()
    held.stop(clean=True)
    held.opened(RARE_SYNCS)
    for _ in range(6):
        put_unsynced(held, "T")
    held.disk = held.disk.kill()
    tail = [m.physical_offset for m in messages_of(held) if m.body == b"unsynced"]
    for torn in (tail[0], tail[3]):
        start = torn // CONFIG.segment_size * CONFIG.segment_size
        overwrite(held.disk, f"{ROOT}/commitlog/{start:020d}", torn - start + 4, bytes(4))
    report = verified(held.disk, config=CONFIG)
    assert report.torn_records == 4
    assert any(
        "with 4 sound records not known to be on the disk: this is no damage" in n
        for n in report.notes
    )
    plan = repair(held, cut=False)
    assert (plan.is_tail_only, plan.records_cut) == (True, 4)
    held.opened()
    assert held.put(b"next") == MESSAGES


def test_the_files_of_a_queue_tell_where_its_first_message_in_the_log_was() -> None:
    held = Held()
    let_all_expire(held)
    held.opened()
    for number in range(3):
        held.put(b"body %d" % number)  # Synced in the log; the entries are only in memory.
    held.disk = held.disk.kill()
    held.disk.remove(f"{ROOT}/queue_ends.json")
    victim = next(m for m in messages_of(held) if m.body == b"body 0")
    start = victim.physical_offset // CONFIG.segment_size * CONFIG.segment_size
    flip(held.disk, f"{ROOT}/commitlog/{start:020d}", victim.physical_offset - start + 91)
    (step,) = repair(held, cut=False).steps
    assert step.lost == [Lost("T", 0, MESSAGES, 1)]
    held.opened()
    assert held.put(b"next") == MESSAGES + 3


def messages_of(held: Held) -> list[StoredMessage]:
    return list(LogCheck(inspect(held.disk, ROOT, CONFIG)))


def test_what_the_log_keeps_of_a_queue_whose_files_are_torn_counts_behind_a_cut() -> None:
    """After a lost checkpoint nobody knows which topics were deleted; here the numbers continue."""
    held = Held()
    held.stop(clean=False)
    victim = next(m for m in messages_of(held) if m.body == b"T80")
    held.disk.remove(f"{ROOT}/{QUEUE_ENDS_NAME}")
    noted = load_checkpoint(held.disk, f"{ROOT}/checkpoint")
    assert noted.claims is not None
    file = CheckpointFile(held.disk, f"{ROOT}/checkpoint")
    end = noted.claims.synced_offset
    file.write(noted.longs, replace(noted.claims, recover_from=0, verify_from=0, ours_from=end))
    file.close()
    for path in list(files_of(held.disk, SIMPLE_QUEUE))[:-1]:
        overwrite(held.disk, path, 0, bytes(CONFIG.consume_queue_file_size))
    start = victim.physical_offset // CONFIG.segment_size * CONFIG.segment_size
    flip(held.disk, f"{ROOT}/commitlog/{start:020d}", victim.physical_offset - start + 4)
    lost = {each.topic: each for each in repair(held, cut=True).lost}
    assert (lost["T"].has_others, lost["T"].first_offset, lost["T"].next_offset) == (True, 80, 110)
    assert verified(held.disk, ROOT, CONFIG).is_sound
    held.opened()
    assert held.bodies() == [b"T%d" % number for number in range(80)]
    assert held.put(b"next") == 80


def test_numbers_that_only_the_log_tells_behind_a_cut_are_not_given_out_again() -> None:
    """The process was killed before it wrote the entries."""
    held = Held()
    held.stop(clean=True)
    held.opened()
    for topic in ("Fresh", BATCHES):
        for _ in range(3):
            held.put(b"body", topic)
    held.disk = held.disk.kill()
    victim = next(m for m in messages_of(held) if m.body == b"body")
    start = victim.physical_offset // CONFIG.segment_size * CONFIG.segment_size
    flip(held.disk, f"{ROOT}/commitlog/{start:020d}", victim.physical_offset - start + 4)
    lost = {each.topic: each for each in repair(held, cut=True).lost}
    assert (lost["Fresh"].has_others, lost["Fresh"].next_offset) == (False, 3)
    assert (lost[BATCHES].has_others, lost[BATCHES].first_offset) == (True, MESSAGES)
    assert lost[BATCHES].next_offset == MESSAGES + 3
    assert verified(held.disk, ROOT, CONFIG).is_sound
    held.opened()
    assert held.put(b"next", "Fresh") == 3
    assert held.put(b"next", BATCHES) == MESSAGES


@pytest.mark.parametrize(("topic", "queue", "entry_size"), QUEUES)
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
def test_a_file_of_a_queue_that_is_lost_does_not_pass_for_expired_behind_a_cut(
    topic: str, queue: str, entry_size: int, clean: bool
) -> None:
    held = Held()
    held.stop(clean=clean)
    victim = next(m for m in messages_of(held) if m.body == b"%c100" % topic[0].encode())
    start = victim.physical_offset // CONFIG.segment_size * CONFIG.segment_size
    flip(held.disk, f"{ROOT}/commitlog/{start:020d}", victim.physical_offset - start + 4)
    held.disk.remove(next(iter(files_of(held.disk, queue))))
    repair(held, cut=True)
    assert not verified(held.disk, ROOT, CONFIG).is_sound
    held.opened()
    with pytest.raises(CorruptionError, match="is missing"):
        held.store.read(topic, 0, 0, 32)
    held.stop(clean=True)
    rebuild(held)
    held.opened()
    assert held.bodies(topic) == expected(topic)[:100]


@pytest.mark.parametrize("topic", ["Fresh", BATCHES])
@pytest.mark.parametrize("is_last", [True, False])
def test_a_damaged_record_that_is_in_no_queue_yet_is_the_message_that_it_says(
    topic: str, is_last: bool
) -> None:
    """Its number was given out, and maybe read; only the record itself still knows it."""
    held = Held()
    held.stop(clean=True)
    held.opened()
    for body in (b"one", b"two"):
        number = held.put(body, topic)
    if not is_last:
        held.put(b"behind it", "Other")
    held.disk = held.disk.kill()
    victim = next(m for m in messages_of(held) if m.body == b"two")
    start = victim.physical_offset // CONFIG.segment_size * CONFIG.segment_size
    place = victim.body_start - victim.start + victim.physical_offset - start
    flip(held.disk, f"{ROOT}/commitlog/{start:020d}", place)
    plan = repair(held, cut=False)
    if is_last:
        (lost,) = plan.lost
        assert (lost.topic, lost.first_offset, lost.next_offset) == (topic, number, number + 1)
        return
    assert [step.lost for step in plan.steps] == [[Lost(topic, 0, number, 1)]]
    held.opened()
    assert [body.strip(b"\0") for body in held.bodies(topic)[-2:]] == [b"one", b""]
    assert held.put(b"next", topic) == number + 1


def test_one_that_does_not_follow_in_its_queue_is_no_witness() -> None:
    held = Held()
    held.stop(clean=True)
    held.opened()
    held.put(b"one")
    held.put(b"behind it", "Other")
    held.disk = held.disk.kill()
    victim = next(m for m in messages_of(held) if m.body == b"one")
    start = victim.physical_offset // CONFIG.segment_size * CONFIG.segment_size
    path, place = f"{ROOT}/commitlog/{start:020d}", victim.physical_offset - start
    overwrite(held.disk, path, place + 20, (7000).to_bytes(8, "big"))
    flip(held.disk, path, place + victim.body_start - victim.start)
    assert [step.lost for step in repair(held, cut=False).steps] == [[]]
