"""Entries of many queues wait in one journal; none is lost, and readers find them there."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.crash.disk import Moment, SimulatedFileSystem
from tests.crash.oracle import BATCH_TOPIC
from tests.crash.subject import Subject
from tests.store.records import messages_in, refuse

from cometmq.store.checking.verify import verify
from cometmq.store.config import StoreConfig
from cometmq.store.looking.findings import Report
from cometmq.store.looking.inspection import inspect
from cometmq.store.looking.store_reader import StoreReader
from cometmq.store.messages.reading import ReadStatus
from cometmq.store.queues.entry_journal import JOURNAL_FOLDER, JournalClaim, journals_in
from cometmq.store.queues.journal_reading import (
    Journal,
    claimed_journal,
    journals_of_others,
    load_journal,
)
from cometmq.store.queues.queue_ends import QUEUE_ENDS_NAME
from cometmq.store.starting.swap import remove_tree
from cometmq.store.upkeep.checkpoint import load_checkpoint

if TYPE_CHECKING:
    from tests.crash.disk import Operation

ROOT = "/store"
NOW_MS = 1_700_000_000_000
CONFIG = StoreConfig(
    segment_size=65_536, index_slots=16, index_items=400, consume_queue_journal_queues_min=4
)
QUEUES = 8
FILE_OF_0 = f"{ROOT}/consumequeue/T/0/{0:020d}"


class Life:
    """A store whose checkpoints are all taken when the test says so."""

    def __init__(
        self, disk: SimulatedFileSystem | None = None, config: StoreConfig = CONFIG
    ) -> None:
        self.disk = SimulatedFileSystem() if disk is None else disk
        self.now_ms = NOW_MS
        self.subject = Subject(self.disk, config, NOW_MS)
        self.subject.upkeep(NOW_MS)

    def put(self, rounds: int = 1, queues: int = QUEUES, *, keyed: bool = False) -> None:
        for number in range(rounds * queues):
            properties = {"KEYS": f"k{number}"} if keyed else {}
            self.subject.put("T", number % queues, b"%d" % number, properties, self.now_ms)
            self.subject.commit()
        self.subject.sync()

    def checkpoint(self) -> None:
        self.now_ms += CONFIG.checkpoint_interval_ms
        for _ in range(4):
            self.subject.upkeep(self.now_ms)
            self.subject.sync()

    @property
    def claim(self) -> JournalClaim | None:
        claims = load_checkpoint(self.disk, f"{ROOT}/checkpoint").claims
        assert claims is not None
        return claims.journal

    @property
    def recover_from(self) -> int:
        claims = load_checkpoint(self.disk, f"{ROOT}/checkpoint").claims
        assert claims is not None
        return claims.recover_from

    def killed(self) -> Life:
        self.disk = self.disk.kill()
        return Life(self.disk)

    def read(self) -> list[list[bytes]]:
        return [self.subject.read_all("T", queue_id) for queue_id in range(QUEUES)]


def journalled() -> tuple[Life, int]:
    """A store whose journal has what was put after the first checkpoint, and the offset of that."""
    life = Life()
    life.put()
    life.checkpoint()
    whole_to = life.recover_from
    life.put(rounds=3)
    life.checkpoint()
    return life, whole_to


def expected(rounds: int) -> list[list[bytes]]:
    found: list[list[bytes]] = [[] for _ in range(QUEUES)]
    for number in range(QUEUES):
        found[number].append(b"%d" % number)
    for number in range(rounds * QUEUES):
        found[number % QUEUES].append(b"%d" % number)
    return found


def entries_in_files(life: Life) -> int:
    file = life.disk.open(FILE_OF_0, read_only=True)
    data = file.read(20 * 50, 0)
    file.close()
    return sum(any(data[at : at + 20]) for at in range(0, len(data), 20))


def damage(life: Life, claim: JournalClaim) -> None:
    file = life.disk.open(f"{ROOT}/{JOURNAL_FOLDER}/{claim.start:020d}")
    file.write(b"\xff", claim.size // 2)
    file.close()


def test_a_checkpoint_passes_entries_that_are_in_the_journal_only() -> None:
    life, whole_to = journalled()
    assert life.claim is not None
    assert life.claim.end == life.subject.end_offset
    assert life.recover_from == whole_to
    assert entries_in_files(life) == 1


def test_apache_is_told_only_of_what_is_in_the_files_of_queues() -> None:
    life, whole_to = journalled()
    longs = load_checkpoint(life.disk, f"{ROOT}/checkpoint").longs
    assert longs.queues_offset <= whole_to


def test_a_start_takes_the_entries_from_the_journal_and_again_when_it_is_killed() -> None:
    life, _ = journalled()
    claim = life.claim
    for _ in range(2):
        life = life.killed()
        assert life.claim == claim
        assert life.read() == expected(3)
    assert life.subject.close(life.now_ms)


def test_a_journal_that_is_damaged_is_left_alone_and_the_log_read_instead() -> None:
    life, _ = journalled()
    assert life.claim is not None
    damage(life, life.claim)
    life = life.killed()
    assert life.claim is None
    assert life.read() == expected(3)
    assert life.subject.close(life.now_ms)


@pytest.mark.parametrize("has_list", [True, False])
def test_a_journal_does_not_stand_in_for_entries_from_before_it(has_list: bool) -> None:
    life, _ = journalled()
    remove_tree(life.disk, f"{ROOT}/consumequeue")
    if not has_list:
        life.disk.remove(f"{ROOT}/{QUEUE_ENDS_NAME}")
    assert life.killed().read() == expected(rounds=3)


def test_a_start_gives_back_the_room_of_a_journal_that_it_does_not_name() -> None:
    life, _ = journalled()
    assert life.claim is not None
    damage(life, life.claim)
    assert journals_in(life.killed().disk, ROOT) == []


@pytest.mark.parametrize("refused", ["checkpoint.new", JOURNAL_FOLDER])
def test_when_the_disk_refused_a_checkpoint_the_next_one_makes_up_for_it(refused: str) -> None:
    """No checkpoint names a journal that no start could use."""
    life, _ = journalled()

    def refuse_it(operation: Operation) -> None:
        if refused in operation.path and operation.moment is Moment.BEFORE:
            raise OSError(28, "No space left on device", operation.path)

    life.put()
    life.disk.hook = refuse_it
    life.now_ms += 10 * CONFIG.checkpoint_interval_ms
    life.checkpoint()
    life.disk.hook = None
    life.put()
    life.checkpoint()
    assert life.claim is None
    assert life.recover_from == life.subject.end_offset
    assert life.killed().read()[0] == [*expected(3)[0], b"0", b"0"]


def test_a_clean_stop_leaves_no_journal_and_every_entry_in_its_file() -> None:
    life, _ = journalled()
    assert life.subject.close(life.now_ms)
    assert journals_in(life.disk, ROOT) == []
    assert life.claim is None
    assert entries_in_files(life) == 4


def test_a_whole_checkpoint_lets_go_of_the_journal_before_it() -> None:
    life, _ = journalled()
    before = life.claim
    assert before is not None
    life.now_ms += 10 * CONFIG.checkpoint_interval_ms
    life.put()
    life.checkpoint()
    assert life.claim is None
    assert before.start not in journals_in(life.disk, ROOT)
    assert life.recover_from == life.subject.end_offset
    assert entries_in_files(life) == 5


def test_a_whole_checkpoint_comes_by_how_much_was_put_as_well() -> None:
    config = replace(CONFIG, checkpoint_bytes=512)
    life = Life(config=config)
    life.put()
    life.checkpoint()
    whole_to = life.recover_from
    life.put()
    life.checkpoint()
    assert life.claim is not None
    assert life.recover_from == whole_to
    life.put(rounds=8)
    assert life.subject.end_offset - whole_to > 8 * config.checkpoint_bytes
    life.checkpoint()
    assert life.recover_from == life.subject.end_offset
    assert life.now_ms - NOW_MS < 4 * CONFIG.checkpoint_interval_ms  # Else its age was the reason.


def test_segments_that_should_go_wait_for_no_more_than_a_checkpoint() -> None:
    life = Life(config=replace(CONFIG, retention_size_max=1))
    life.put()
    life.checkpoint()
    life.put(rounds=200)
    life.checkpoint()
    whole_to = life.recover_from
    assert life.claim is not None
    assert life.subject.end_offset - whole_to > 2 * CONFIG.segment_size
    for _ in range(40):
        life.now_ms += 1_000
        life.subject.upkeep(life.now_ms)
        life.subject.sync()
    assert life.subject.first_offset == 2 * CONFIG.segment_size
    assert life.now_ms - NOW_MS < 4 * CONFIG.checkpoint_interval_ms  # Else its age was the reason.


def test_when_the_disk_refuses_the_journal_entries_go_to_their_files() -> None:
    life, _ = journalled()
    life.put()
    life.disk.hook = refuse("write", times=1)
    life.now_ms += CONFIG.consume_queue_write_interval_ms
    life.subject.upkeep(life.now_ms)
    life.disk.hook = None
    for _ in range(3):
        life.now_ms += CONFIG.consume_queue_write_interval_ms
        life.subject.upkeep(life.now_ms)
    assert entries_in_files(life) == 5
    life = life.killed()
    assert life.read()[0] == [*expected(3)[0], b"0"]


def test_few_queues_write_no_journal() -> None:
    life = Life()
    for _ in range(3):
        life.put(queues=3)
        life.checkpoint()
    assert journals_in(life.disk, ROOT) == []
    assert life.recover_from == life.subject.end_offset


def test_a_deleted_topic_does_not_come_back_out_of_the_journal() -> None:
    life, _ = journalled()
    life.subject.delete("T")
    life.subject.put("T", 0, b"anew", {}, life.now_ms)
    life.subject.commit()
    life.checkpoint()
    life = life.killed()
    assert life.read() == [[b"anew"], *([] for _ in range(QUEUES - 1))]


def somebody(_: str) -> int:
    """The process that has any file locked."""
    return 4711


@pytest.mark.parametrize("is_killed", [True, False])
def test_who_only_reads_finds_the_entries_in_the_journal(
    monkeypatch: pytest.MonkeyPatch, *, is_killed: bool
) -> None:
    life, _ = journalled()
    disk = life.disk
    if is_killed:
        disk = disk.kill()
    else:
        monkeypatch.setattr(disk, "lock_owner", somebody)
    reader = StoreReader(ROOT, CONFIG, filesystem=disk)
    assert [reader.max_offset("T", queue_id) for queue_id in range(QUEUES)] == [4] * QUEUES
    assert len(reader.read("T", 5, 0, 9).slices) > 0
    reader.close()
    report = Report(findings_max=5)
    for _ in verify(inspect(disk, ROOT, CONFIG), report):
        pass
    assert report.is_sound, report.findings
    # If a process has the store open, its journal may go on while this runs.
    assert report.unsettled_entries == (0 if is_killed else 3 * QUEUES)


def test_who_only_reads_takes_nothing_of_a_journal_behind_entries_that_are_nowhere_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A journal has begun, while earlier entries wait in memory for their files."""
    life = Life()

    def put(body: bytes) -> None:
        for topic, properties in (("T", {}), (BATCH_TOPIC, {"INNER_NUM": "3"})):
            for queue_id in range(QUEUES):
                life.subject.put(topic, queue_id, body, properties, life.now_ms)
        life.subject.commit()
        life.subject.sync()

    def upkeep() -> None:
        life.now_ms += CONFIG.checkpoint_interval_ms
        life.subject.upkeep(life.now_ms)

    put(b"first")
    upkeep()
    put(b"second")

    def refuse_entries(operation: Operation) -> None:
        if operation.verb == "write" and "consumequeue/" in operation.path:
            raise OSError(errno.ENOSPC, "full", operation.path)

    life.disk.hook = refuse_entries
    upkeep()
    life.disk.hook = None
    journals = journals_of_others(life.disk, ROOT)
    assert [len(journal.queues(0, 1 << 30)) for journal in journals] == [2 * QUEUES]
    monkeypatch.setattr(life.disk, "lock_owner", somebody)
    reader = StoreReader(ROOT, CONFIG, filesystem=life.disk)
    assert [reader.max_offset(topic, 0) for topic in ("T", BATCH_TOPIC)] == [0, 0]
    assert reader.read(BATCH_TOPIC, 0, 0, 9).status is not ReadStatus.FOUND
    upkeep()
    assert [reader.max_offset(topic, 0) for topic in ("T", BATCH_TOPIC)] == [0, 0]
    reader.refresh()
    assert [reader.max_offset(topic, 0) for topic in ("T", BATCH_TOPIC)] == [2, 6]
    assert len([*messages_in(reader.read(BATCH_TOPIC, 0, 0, 9).slices)]) == 2
    reader.close()


def test_a_newer_journal_is_not_taken_for_ours() -> None:
    life, _ = journalled()
    assert life.claim is not None
    path = f"{ROOT}/{JOURNAL_FOLDER}/{life.claim.start:020d}"
    file = life.disk.open(path)
    file.write(b"\0\0\0\x02", 4)
    file.close()
    life = life.killed()
    assert life.claim is None
    assert life.read() == expected(3)


def test_a_checkpoint_keeps_what_it_says_of_a_journal() -> None:
    life, _ = journalled()
    claims = load_checkpoint(life.disk, f"{ROOT}/checkpoint").claims
    assert claims is not None
    assert claims.journal is not None
    assert replace(claims, journal=None).complete_to == claims.recover_from
    assert claims.complete_to == claims.journal.end


def whole_journal(life: Life) -> Journal:
    assert life.claim is not None
    journal = load_journal(life.disk, ROOT, life.claim.start, life.claim.size)
    assert journal is not None
    return journal


def test_a_journal_gives_the_entries_from_a_record_on_up_to_another() -> None:
    life, _ = journalled()
    journal = whole_journal(life)
    every = [
        (each.queue_id, int.from_bytes(each.data[at : at + 8], "big"))
        for each in journal.queues(0, 1 << 62)
        for at in range(0, len(each.data), 20)
    ]
    assert len(every) == 3 * QUEUES
    offsets = sorted(offset for _, offset in every)
    for low, high in ((offsets[0], offsets[-1]), (offsets[3], offsets[9]), (offsets[5] + 1, 1)):
        found = [
            (each.queue_id, int.from_bytes(each.data[at : at + 8], "big"))
            for each in journal.queues(low, high)
            for at in range(0, len(each.data), 20)
        ]
        assert sorted(found) == sorted(one for one in every if low <= one[1] < high)


def test_a_journal_has_nothing_of_a_topic_in_front_of_its_deletion() -> None:
    life, _ = journalled()
    journal = whole_journal(life)
    first = min(each.offset for each in journal.queues(0, 1 << 62))
    last = max(each.offset for each in journal.queues(0, 1 << 62))
    assert journal.queues(0, 1 << 62, {b"T": 1 << 62}) == []
    assert journal.queues(0, 1 << 62, {b"other": 1 << 62}) == journal.queues(0, 1 << 62)
    behind = journal.queues(0, 1 << 62, {b"T": first + 1})
    assert sum(len(each.data) for each in behind) == (3 * QUEUES - 1) * 20
    assert max(each.offset for each in behind) >= last


def test_a_journal_of_another_log_is_not_believed() -> None:
    """For example, a log was restored from a copy, but the journal was not."""
    life, _ = journalled()
    journal, claim = whole_journal(life), life.claim
    assert claim is not None
    mine = inspect(life.disk, ROOT, CONFIG).segments
    assert all(journal.samples(mine, 0, 1 << 62))
    other = Life()
    other.subject.put("Another", 0, b"of another size", {}, other.now_ms)
    other.put()
    other.checkpoint()
    other.put(rounds=3)
    theirs = inspect(other.disk, ROOT, CONFIG).segments
    assert not all(journal.samples(theirs, 0, 1 << 62))
    end = theirs.end_offset
    low = claim.start
    assert claimed_journal(life.disk, ROOT, mine, claim, low, end) is not None
    assert claimed_journal(life.disk, ROOT, theirs, claim, low, end) is None
