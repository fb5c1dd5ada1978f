"""A repair also knows the entries of queues that only a killed store's entry journal has."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.crash.disk import KillAt, Killed, Moment
from tests.crash.oracle import BATCH_TOPIC
from tests.store.damaged_stores import contents, files_of, overwrite, repaired
from tests.store.test_entry_journal import (
    CONFIG as LONG,
    QUEUES,
    ROOT,
    Life,
    entries_in_files,
    expected,
)
from tests.store.test_rebuilding import rebuilt

from cometmq.store.checking.verify import verify
from cometmq.store.errors import StoreFilesError
from cometmq.store.looking.findings import Kind, Report
from cometmq.store.looking.inspection import inspect
from cometmq.store.looking.log_check import LogCheck
from cometmq.store.mending.placeholders import Lost

if TYPE_CHECKING:
    from tests.crash.disk import SimulatedFileSystem

    from cometmq.proto.message import StoredMessage

CONFIG = replace(LONG, consume_queue_file_size=400, segment_size=16_384)
LOG = f"{ROOT}/commitlog/{0:020d}"
ROUNDS = 3
QUEUE_ID = 12
BODY = 88


def killed() -> SimulatedFileSystem:
    """A store whose queues have four messages each, all promised, and files with one entry."""
    life = Life(config=CONFIG)
    life.put()
    life.checkpoint()
    life.put(rounds=ROUNDS)
    life.checkpoint()
    assert life.claim is not None
    assert entries_in_files(life) == 1
    return life.disk.kill()


def records(disk: SimulatedFileSystem) -> list[StoredMessage]:
    return list(LogCheck(inspect(disk, ROOT, CONFIG)))


def kinds(disk: SimulatedFileSystem) -> set[Kind]:
    report = Report(findings_max=99)
    for _ in verify(inspect(disk, ROOT, CONFIG), report):
        pass
    return {each.kind for each in report.findings}


def damage_last_of_queue_0(disk: SimulatedFileSystem) -> StoredMessage:
    """Damage its record so that it says nothing about itself any more."""
    last = records(disk)[-QUEUES]
    assert (last.queue_id, last.queue_offset) == (0, ROUNDS)
    overwrite(disk, LOG, last.physical_offset, bytes(BODY))
    disk.open(LOG).sync()
    return last


def test_the_last_message_of_a_queue_is_lost_by_name_where_only_the_journal_has_its_entry() -> None:
    disk = killed()
    damage_last_of_queue_0(disk)
    assert Kind.LOST_MESSAGE in kinds(disk)
    (step,) = repaired(disk, ROOT, CONFIG).steps
    assert step.lost == [Lost("T", 0, ROUNDS, 1)]
    life = Life(disk, CONFIG)
    assert life.subject.range_of("T", 0) == (0, ROUNDS + 1)
    assert life.read()[1:] == expected(ROUNDS)[1:]
    assert kinds(life.disk.kill()) == set()


def test_a_repair_that_is_ended_anywhere_knows_that_message_the_next_time() -> None:
    disk = killed()
    damage_last_of_queue_0(disk)
    for number in range(1, 200):
        again = disk.kill()
        again.hook = KillAt(again.operations + number, Moment.AFTER)
        try:
            repaired(again, ROOT, CONFIG)
        except Killed:
            again = again.kill()
        else:
            break
        repaired(again, ROOT, CONFIG)
        assert (0, ROUNDS) in {(each.queue_id, each.queue_offset) for each in records(again)}
    else:
        pytest.fail("it never came to its end")


def test_a_rebuild_behind_a_repair_is_not_measured_by_the_journal_of_before() -> None:
    """The records that replace several others are shorter, and so are at other places."""
    disk = killed()
    first, second = records(disk)[QUEUES : QUEUES + 2]
    overwrite(disk, LOG, first.physical_offset, bytes(first.size + second.size))
    disk.open(LOG).sync()
    (step,) = repaired(disk, ROOT, CONFIG).steps
    assert len(step.lost) == 2
    rebuilt(disk, ROOT, CONFIG)
    assert kinds(disk) == set()


def test_nor_is_one_whose_promised_part_ends_with_the_filler_of_a_file() -> None:
    """The journal has entries for places in that filler, and no record follows it in the file."""
    life = Life(config=CONFIG)
    life.put()
    life.checkpoint()
    life.put(rounds=ROUNDS)
    first = life.subject.end_offset
    for queue_id in range(QUEUES):
        life.subject.put("T", queue_id, bytes(1000), {}, life.now_ms)
    life.subject.commit()
    life.subject.sync()
    life.checkpoint()
    life.subject.put("T", 0, bytes(CONFIG.segment_size - 1000), {}, life.now_ms)
    life.subject.commit()
    disk = life.disk.kill()
    overwrite(disk, LOG, first, bytes(CONFIG.segment_size - first))
    disk.open(LOG).sync()
    (step,) = repaired(disk, ROOT, CONFIG).steps
    assert len(step.lost) == QUEUES
    assert rebuilt(disk, ROOT, CONFIG).left_records == 1
    assert kinds(disk) == set()


def test_a_cut_names_what_only_the_journal_has_of_a_queue() -> None:
    disk = killed()
    last = damage_last_of_queue_0(disk)
    plan = repaired(disk, ROOT, CONFIG, cut=True)
    assert plan.cut_at == last.physical_offset
    lost = [(each.queue_id, each.first_offset, each.next_offset) for each in plan.lost]
    assert lost == [(queue_id, ROUNDS, ROUNDS + 1) for queue_id in range(QUEUES)]
    life = Life(disk, CONFIG)
    assert [life.subject.range_of("T", each) for each in range(QUEUES)] == [(0, ROUNDS)] * QUEUES


def test_a_record_is_written_right_where_the_journal_alone_has_its_entry() -> None:
    disk = killed()
    was = records(disk)[QUEUES * 2]
    before = contents(disk, ROOT)[LOG]
    assert (was.queue_id, was.queue_offset) == (0, 2)
    overwrite(disk, LOG, was.physical_offset + QUEUE_ID + 3, b"\x05")
    assert Kind.RECORD in kinds(disk)
    (head,) = repaired(disk, ROOT, CONFIG).heads
    assert head.truth == ("T", 0, 2)
    assert contents(disk, ROOT)[LOG] == before
    assert Life(disk, CONFIG).read() == expected(ROUNDS)


def test_a_rebuild_that_cannot_read_the_log_leaves_nothing_behind() -> None:
    """This fails already when it checks whether the journal belongs to this log."""
    disk = killed()
    before = set(files_of(disk, ROOT))
    disk.make_unreadable(LOG, 0, CONFIG.segment_size)
    with pytest.raises(OSError, match="rror"):
        rebuilt(disk, ROOT, CONFIG)
    assert not disk.exists(f"{ROOT}/rebuilding")
    assert set(files_of(disk, ROOT)) == before


def test_a_journal_that_cannot_be_read_is_no_witness_and_keeps_nobody_from_mending() -> None:
    disk = killed()
    damage_last_of_queue_0(disk)
    (journal,) = (each for each in contents(disk, ROOT) if "/entryjournal/" in each)
    disk.make_unreadable(journal, 0, 60)
    (step,) = repaired(disk, ROOT, CONFIG).steps
    assert step.lost == []


def test_a_damaged_journal_is_no_witness() -> None:
    disk = killed()
    damage_last_of_queue_0(disk)
    (journal,) = (each for each in contents(disk, ROOT) if "/entryjournal/" in each)
    overwrite(disk, journal, 60, b"\xff")
    (step,) = repaired(disk, ROOT, CONFIG).steps
    assert step.lost == []


def test_batches_of_a_topic_of_which_only_the_journal_tells_are_left_to_the_next_start() -> None:
    life = Life(config=CONFIG)
    life.put()
    life.checkpoint()
    for number in range(2 * QUEUES):
        life.subject.put(BATCH_TOPIC, number % QUEUES, b"abc", {"INNER_NUM": "3"}, life.now_ms)
        life.subject.commit()
    life.subject.sync()
    life.checkpoint()
    assert life.claim is not None
    disk = life.disk.kill()
    report = Report(findings_max=99)
    for _ in verify(inspect(disk, ROOT, CONFIG), report):
        pass
    assert (report.findings, report.unsettled_entries) == ([], 2 * QUEUES)
    assert repaired(disk, ROOT, CONFIG).is_empty


def test_a_torn_tail_ends_the_log_though_the_journal_is_damaged_too() -> None:
    """What it has is read back from the log then, and checksums are not checked a second time."""
    life = Life(killed(), CONFIG)
    end = life.subject.end_offset
    for body in (b"torn", b"behind"):
        life.subject.put("T", 0, body, {}, life.now_ms)
        life.subject.commit()
    disk = life.disk.kill()
    overwrite(disk, LOG, end + BODY, b"?")
    (journal,) = (each for each in contents(disk, ROOT) if "/entryjournal/" in each)
    overwrite(disk, journal, 0, bytes(60))
    life = Life(disk, CONFIG)
    assert (life.subject.end_offset, life.read()) == (end, expected(ROUNDS))


def killed_with_index() -> tuple[SimulatedFileSystem, str]:
    """A store whose index was synced with the journal, up to the last message; and its file."""
    life = Life(config=CONFIG)
    life.put(keyed=True)
    life.checkpoint()
    life.put(rounds=ROUNDS, keyed=True)
    life.checkpoint()
    assert life.claim is not None
    assert life.claim.end == life.subject.end_offset
    disk = life.disk.kill()
    (path,) = (each for each in contents(disk, ROOT) if "/index/" in each)
    return disk, path


def test_the_index_of_a_killed_store_is_checked_as_far_as_the_journal_reaches() -> None:
    disk, path = killed_with_index()
    report = Report(findings_max=99)
    for _ in verify(inspect(disk, ROOT, CONFIG), report):
        pass
    assert (report.findings, report.items) == ([], QUEUES * (1 + ROUNDS))
    assert report.unsettled_items == 0
    shape = CONFIG.index_shape
    last = 40 + shape.slots * 4 + QUEUES * (1 + ROUNDS) * 20
    overwrite(disk, path, last, bytes(20))
    assert kinds(disk) & {Kind.WRONG_ITEM, Kind.MISSING_ITEM}


def test_an_index_that_a_killed_store_lost_is_missed_though_only_the_journal_reaches_it() -> None:
    disk, path = killed_with_index()
    disk.remove(path)
    assert Kind.INDEX_FILE in kinds(disk)


def test_the_index_behind_a_damaged_journal_is_left_to_the_next_start() -> None:
    disk, path = killed_with_index()
    (journal,) = (each for each in contents(disk, ROOT) if "/entryjournal/" in each)
    overwrite(disk, journal, 60, b"\xff")
    last = 40 + CONFIG.index_shape.slots * 4 + QUEUES * (1 + ROUNDS) * 20
    overwrite(disk, path, last, bytes(20))
    assert kinds(disk) == set()
    life = Life(disk, CONFIG)
    assert life.subject.close(life.now_ms)
    assert kinds(disk) == set()


def test_a_folder_in_the_place_of_a_journal_is_told_by_verify_and_refused_by_a_start() -> None:
    disk = killed()
    (journal,) = (each for each in contents(disk, ROOT) if "/entryjournal/" in each)
    disk.remove(journal)
    disk.make_directories(journal)
    assert kinds(disk) == {Kind.MISPLACED}
    with pytest.raises(StoreFilesError, match=f"{journal}: a folder in place of a file"):
        Life(disk, CONFIG)
