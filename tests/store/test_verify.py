"""Verifying: a sound store is sound, and each damage is found and named, or of a listed kind."""

from __future__ import annotations

import os
import random
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import pytest
from crc32c import crc32c
from tests.crash.disk import SimulatedFileSystem
from tests.store.apache_stores import unpack
from tests.store.damaged_stores import (
    BATCHES,
    ROOT,
    SMALL,
    content,
    contents,
    flip,
    messages,
    open_small_store,
    overwrite,
    repaired,
    small_store,
    verified,
    write_small_store,
)
from tests.store.records import HOST

from cometmq.proto.message import StoredMessage
from cometmq.store.checking import gone_meanwhile, index_structure, queue_check
from cometmq.store.checking.gone_meanwhile import GoneMeanwhile
from cometmq.store.checking.verify import verify
from cometmq.store.config import StoreConfig
from cometmq.store.deletions import Deletions
from cometmq.store.disk.filesystem import FileSystem, RealFileSystem
from cometmq.store.errors import StoreFilesError
from cometmq.store.index.index_format import HEADER_SIZE, ITEM_SIZE, SLOT_SIZE, IndexHeader
from cometmq.store.log.turn import Origin
from cometmq.store.looking.findings import Finding, Kind, Report
from cometmq.store.looking.inspection import inspect
from cometmq.store.looking.log_check import LogCheck
from cometmq.store.message_store import MessageStore
from cometmq.store.tables import CONSUMER_OFFSETS, DELAY_OFFSETS, SUBSCRIPTION_GROUPS, TOPICS

UNSEALED = replace(SMALL, integrity=False)
"""Without checksums of blocks, which would cover nearly all."""

UNCOVERED_FIELDS = {
    "flag",
    "sys flag",  # Bits that change neither lengths nor what the queues and the index get.
    "born timestamp",
    "born host",
    "store timestamp",  # To the second where the record has a key, not at all elsewhere.
    "store host",
    "reconsume times",
    "prepared transaction offset",
    "properties",  # Except those that make tags codes, keys, due times and batch sizes.
    "queue of a half or a batch",  # Which no entry, or one that says so itself, leads to.
    "behind a blank record",
}
"""The fields of the log that no checksum covers if neither block nor record has one."""

SHARES = os.cpu_count() or 1


def field_of(messages: list[StoredMessage], physical_offset: int, end: int) -> str:
    """The name of the field that holds a byte of the log."""
    for message in messages:
        start = message.physical_offset
        if not start <= physical_offset < start + message.size:
            continue
        at = physical_offset - start
        if 12 <= at < 28 and at not in range(16, 20) and message.sys_flag & 0x8C:
            return "queue of a half or a batch"
        for first, name in (
            (message.topic_end - message.start + 2, "properties"),
            (message.body_end - message.start, "topic"),
            (message.body_start - message.start, "body"),
            (84, "body size"),
            (76, "prepared transaction offset"),
            (72, "reconsume times"),
            (64, "store host"),
            (56, "store timestamp"),
            (48, "born host"),
            (40, "born timestamp"),
            (36, "sys flag"),
            (28, "physical offset"),
            (20, "queue offset"),
            (16, "flag"),
            (12, "queue id"),
            (8, "body checksum"),
            (4, "magic"),
            (0, "size"),
        ):
            if at >= first:
                return name
    if physical_offset >= end:
        return "behind the end"
    ends = [m.physical_offset + m.size for m in messages if m.physical_offset <= physical_offset]
    return "blank record" if physical_offset < max(ends) + 8 else "behind a blank record"


def unseen_flips(
    disk: SimulatedFileSystem, positions: list[tuple[str, int]]
) -> list[tuple[str, int]]:
    """Flip one bit of one byte at a time; return where verifying saw nothing."""
    unseen: list[tuple[str, int]] = []
    for path, position in positions:
        mask = 1 << (position * 5 + position // 8) % 8
        flip(disk, path, position, mask)
        try:
            report = verified(disk)
            if report.is_sound and not report.torn_bytes:
                unseen.append((path, position))
        except StoreFilesError as error:
            unseen += [] if path in str(error) else [(path, position)]
        flip(disk, path, position, mask)
    return unseen


def all_bytes(
    disk: SimulatedFileSystem, folder: str, step: int = 1, first: int = 0
) -> list[tuple[str, int]]:
    """Every n-th byte of the files in a folder."""
    places = [
        (path, position)
        for path, data in contents(disk, f"{ROOT}/{folder}").items()
        for position in range(len(data))
    ]
    return places[first::step]


def unseen_fields(disk: SimulatedFileSystem, step: int, first: int = 0) -> set[str]:
    log = LogCheck(inspect(disk, ROOT, SMALL))
    messages = list(log)
    return {
        field_of(messages, int(path.rpartition("/")[2]) + position, log.end_offset)
        for path, position in unseen_flips(disk, all_bytes(disk, "commitlog", step, first))
    }


def message_of(disk: SimulatedFileSystem, queue_id: int, queue_offset: int) -> StoredMessage:
    """A message of topic T, as the log has it."""
    return next(
        message
        for message in LogCheck(inspect(disk, ROOT, SMALL))
        if (message.topic, message.queue_id, message.queue_offset) == ("T", queue_id, queue_offset)
    )


@pytest.mark.parametrize("name", ["clean", "killed", "ext"])
def test_a_store_that_apache_wrote_is_sound(name: str, tmp_path: Path) -> None:
    root = str(unpack(name, tmp_path))
    report = verified(RealFileSystem(), root, StoreConfig())
    assert report.findings == []
    assert report.records > 50
    assert report.items > 3 * report.records - 50
    assert report.records_of_deleted_topics == (0 if name == "ext" else 10)
    assert report.unsettled_entries == report.unsettled_items == 0


def test_light_queues_of_apache_are_left_out_with_a_note(tmp_path: Path) -> None:
    """Their entries lead to records of other topics (`INNER_MULTI_DISPATCH`)."""
    root = unpack("clean", tmp_path)
    queue = root / "consumequeue" / "%LMQ%light" / "0"
    queue.mkdir(parents=True)
    name = f"{0:020d}"
    (queue / name).write_bytes((root / "consumequeue" / "S_mix" / "0" / name).read_bytes())
    report = verified(RealFileSystem(), str(root))
    assert report.is_sound, report.findings
    (note,) = report.notes
    assert note.startswith("Apache's light queues (%LMQ%), 1 here, are not checked")


def test_a_store_that_we_wrote_is_sound() -> None:
    report = verified(small_store())
    assert report.findings == []
    assert (report.records, report.items) == (58, 165)
    assert report.notes == []


def test_a_store_that_was_killed_is_sound_and_what_was_not_written_is_left_out() -> None:
    report = verified(small_store(close=False).kill())
    assert report.findings == []
    assert report.records == 58
    assert report.unsettled_entries + report.unsettled_items > 0
    assert "not shut down cleanly" in report.notes[0]


def test_a_store_that_another_process_has_open_is_sound_as_far_as_it_is_written() -> None:
    report = verified(small_store(close=False).other_process())
    assert report.findings == []
    assert report.notes == [
        "the store is open in process 1: what it has not written to the disk yet is left out"
    ]


def test_a_flipped_byte_of_the_log_is_found_or_of_a_listed_field() -> None:
    assert unseen_fields(small_store(UNSEALED), 61) <= UNCOVERED_FIELDS


@pytest.mark.slow
@pytest.mark.long
def test_every_flipped_byte_of_the_log_is_found_or_of_a_listed_field() -> None:
    """It uses all cores: it is the longest of all tests, and would keep the others waiting."""
    with ProcessPoolExecutor(SHARES, get_context("spawn")) as shares:
        found = list(shares.map(unseen_fields_of_share, range(SHARES)))
    assert set[str]().union(*found) == UNCOVERED_FIELDS


def unseen_fields_of_share(share: int) -> set[str]:
    return unseen_fields(small_store(UNSEALED), SHARES, share)


def test_with_a_checksum_in_each_record_nothing_of_a_record_is_uncovered() -> None:
    disk = small_store(replace(UNSEALED, record_crc=True))
    assert unseen_fields(disk, 59) <= {"behind a blank record"}


def test_with_sealed_blocks_nothing_in_them_is_uncovered() -> None:
    disk = small_store()
    report = verified(disk)
    assert (report.findings, report.blocks) == ([], 2)
    sealed = [(p, n) for p, n in all_bytes(disk, "commitlog", 79) if not p.endswith("8192")]
    assert len(sealed) > 90
    assert unseen_flips(disk, sealed) == []
    flip(disk, *sealed[50])
    (block,) = [f for f in verified(disk).findings if f.kind is Kind.BLOCK]
    assert block.path == sealed[50][0]


def test_checksums_of_another_format_cover_nothing_and_that_is_said() -> None:
    disk, path = small_store(), f"{ROOT}/integrity/{0:020d}"
    header = content(disk, path)[:64]
    for at, number, said in (
        (12, 4096, "has blocks of 4096 bytes, but this program uses 65536"),
        (8, 2, "has version 2, but this program uses 1"),
    ):
        changed = header[:at] + number.to_bytes(4, "big") + header[at + 4 : 32]
        overwrite(disk, path, 0, changed + crc32c(changed).to_bytes(4, "big"))
        report = verified(disk)
        assert (report.findings, report.blocks) == ([], 1)
        assert report.notes == [f"{path} {said}: its checksums cover nothing"]
    flip(disk, path, 9)
    damaged = f"{path} has a damaged header: its checksums cover nothing"
    assert verified(disk).notes == [damaged]
    disk = small_store()
    flip(disk, path, 35)
    assert verified(disk).notes == [damaged]
    disk = small_store()
    overwrite(disk, path, 0, content(disk, f"{ROOT}/integrity/{4096:020d}")[:64])
    other = f"{path} is of another segment, or of segments of another size"
    assert verified(disk).notes == [f"{other}: its checksums cover nothing"]
    disk.open(path).resize(63)
    assert verified(disk).notes == [damaged]


@pytest.mark.parametrize("folder", ["consumequeue", "batchconsumequeue", "index"])
def test_a_flipped_byte_of_queues_and_index_is_found_in_its_file(folder: str) -> None:
    disk = small_store()
    step = {"consumequeue": 13, "batchconsumequeue": 3, "index": 23}[folder]
    unseen = unseen_flips(disk, all_bytes(disk, folder, step))
    assert [(p, n) for p, n in unseen if not is_uncovered(folder, n)] == []
    for path, position in random.Random(7).sample(all_bytes(disk, folder), 20):
        flip(disk, path, position)
        findings = verified(disk).findings
        flip(disk, path, position)
        named = any(finding.path == path for finding in findings)
        assert named or is_uncovered(folder, position)


def is_uncovered(folder: str, position: int) -> bool:
    """Whether a byte is in an index file's last time, below a second, or its first item's seconds.

    A recovered file knows its last time only to the second. The first item's seconds count from a
    file that may have expired, and nobody reads them.
    """
    return folder == "index" and (14 <= position < 16 or 152 <= position < 156)


def test_a_damaged_record_is_named_with_the_message_that_is_lost() -> None:
    disk = small_store(UNSEALED)
    message = message_of(disk, 1, 1)
    path = f"{ROOT}/commitlog/{message.physical_offset // 4096 * 4096:020d}"
    position = message.physical_offset % 4096
    flip(disk, path, position + 90)
    record, lost = verified(disk).findings
    assert (record.kind, record.path, record.position) == (Kind.RECORD, path, position)
    assert record.physical_offset == message.physical_offset
    assert str(record) == (
        f"record: {path}: byte {position} (physical offset {message.physical_offset}): no sound"
        f" record begins here: the checksum of its body is wrong; {message.size} bytes are lost"
    )
    assert (lost.kind, lost.topic, lost.queue_id, lost.queue_offset) == (
        Kind.LOST_MESSAGE,
        "T",
        1,
        1,
    )


def test_items_of_many_damaged_records_are_not_taken_for_wrong_ones() -> None:
    """The records after the damage have their items, however many items lead into it."""
    disk = small_store(UNSEALED)
    overwrite(disk, f"{ROOT}/commitlog/{0:020d}", 735, b"\xaa" * 1165)
    report = verified(disk)
    assert {each.kind for each in report.findings} == {Kind.RECORD, Kind.LOST_MESSAGE}
    (note,) = [each for each in report.notes if "index" in each]
    count = int(note.split()[0])
    assert note == f"{count} items of the index lead to damaged records"
    assert report.items + count == 165
    assert count > 8


def test_a_damaged_record_says_nothing_of_the_header_of_its_index_file() -> None:
    sound = small_store(UNSEALED)
    records = list(LogCheck(inspect(sound, ROOT, UNSEALED)))
    for record in records:
        disk = sound.kill()
        segment = record.physical_offset - record.physical_offset % SMALL.segment_size
        overwrite(
            disk, f"{ROOT}/commitlog/{segment:020d}", record.physical_offset - segment, bytes(8)
        )
        kinds = verified(disk, config=UNSEALED).counts.keys()
        assert Kind.RECORD in kinds
        assert not kinds & {Kind.INDEX_HEADER, Kind.WRONG_ITEM, Kind.MISSING_ITEM}


def test_an_item_that_leads_elsewhere_says_nothing_of_the_header_of_its_file() -> None:
    sound = small_store()
    for path, data in contents(sound, f"{ROOT}/index").items():
        for number in range(1, IndexHeader.unpack(data).next_item):
            disk = sound.kill()
            flip(disk, path, SMALL.index_shape.items_at + number * ITEM_SIZE + 11, 1)
            report = verified(disk)
            assert report.counts.keys() == {Kind.WRONG_ITEM}
            assert report.counts[Kind.WRONG_ITEM] == 1


def test_a_key_that_a_damaged_name_of_a_property_hides_is_missed() -> None:
    """No checksum covers the name, but the key's item is there, and lookups find nothing by it."""
    disk = small_store(UNSEALED)
    message = message_of(disk, 1, 1)
    path = f"{ROOT}/commitlog/{message.physical_offset // 4096 * 4096:020d}"
    position = message.physical_offset % 4096
    record = content(disk, path)[position : position + message.size]
    flip(disk, path, position + record.index(b"KEYS"))
    findings = verified(disk).findings
    assert {each.kind for each in findings} == {Kind.EXTRA_ITEM}
    assert {each.physical_offset for each in findings} == {message.physical_offset}
    assert len(findings) == 2  # It has two keys.


def test_what_an_entry_is_and_what_it_should_be_is_said() -> None:
    disk = small_store()
    path = f"{ROOT}/consumequeue/T/0/00000000000000000000"
    flip(disk, path, 11, 0x40)
    (finding,) = verified(disk).findings
    assert finding.kind is Kind.WRONG_ENTRY
    assert finding.problem == f"size is {content(disk, path)[11]}"
    assert finding.expected.startswith("physical offset 0, size ")
    overwrite(disk, path, 40, bytes(20))
    kinds = {f.queue_offset: f.kind for f in verified(disk).findings}
    assert kinds == {0: Kind.WRONG_ENTRY, 2: Kind.MISSING_ENTRY}


def test_an_entry_without_a_record_and_a_foreign_file_are_found() -> None:
    disk = small_store()
    folder = f"{ROOT}/consumequeue/T/1"
    overwrite(disk, f"{folder}/00000000000000000000", 390, b"\x07")
    disk.open(f"{folder}/notes.txt", create=True).close()
    short = disk.open(f"{ROOT}/consumequeue/T/0/{400:020d}", create=True)
    short.resize(33)
    short.close()
    report = verified(disk)
    odd = {(f.path.rpartition("/")[2], f.kind) for f in report.findings}
    assert odd >= {("notes.txt", Kind.MISPLACED), (f"{400:020d}", Kind.QUEUE_FILE)}


def test_a_batch_whose_number_was_torn_in_its_properties_is_told() -> None:
    """Its entry follows from its head, and a store of Apache's has no checksum of either."""
    disk = small_store()
    batches = [each for each in messages(disk) if each.properties_raw.find(b"INNER_BASE") >= 0]
    assert not any("INNER_BASE" in note for note in verified(disk).notes)
    for entry in disk.list(f"{ROOT}/integrity"):
        disk.remove(f"{ROOT}/integrity/{entry.name}")
    for batch in batches[:2]:
        start = batch.physical_offset // SMALL.segment_size * SMALL.segment_size
        path = f"{ROOT}/commitlog/{start:020d}"
        flip(disk, path, content(disk, path).find(b"INNER_BASE", batch.physical_offset - start))
    (note,) = [note for note in verified(disk).notes if "INNER_BASE" in note]
    place = batches[0].physical_offset % SMALL.segment_size
    assert note.startswith(f"the batch at byte {place} of {ROOT}/commitlog/{0:020d} and 1 more: ")


def test_a_file_of_a_queue_that_a_kill_left_half_made_is_no_finding() -> None:
    disk = small_store(close=False)
    short = disk.open(f"{ROOT}/consumequeue/T/0/{400:020d}", create=True)
    short.resize(33)
    short.close()
    assert verified(disk).is_sound


def test_removed_queues_and_index_files_are_missed() -> None:
    disk = small_store()
    disk.remove(f"{ROOT}/consumequeue/T/1/00000000000000000000")
    removed = disk.list(f"{ROOT}/index")[1].name
    disk.remove(f"{ROOT}/index/{removed}")
    report = verified(disk)
    # The seconds of the first item after the gap count from the file that is gone.
    assert report.counts == {Kind.MISSING_ENTRY: 20, Kind.MISSING_ITEM: 39, Kind.WRONG_ITEM: 1}


def test_a_removed_first_index_file_is_missed_where_we_wrote_all_of_the_log() -> None:
    disk = small_store()
    disk.remove(f"{ROOT}/index/{disk.list(f'{ROOT}/index')[0].name}")
    counts = verified(disk).counts
    assert counts == {Kind.MISSING_ITEM: 39}
    disk.remove(f"{ROOT}/checkpoint")  # Then nobody knows whose log it is, and since when.
    assert Kind.MISSING_ITEM not in verified(disk).counts


def test_an_index_file_that_lost_all_bytes_is_named_as_a_start_does() -> None:
    disk = small_store()
    path = f"{ROOT}/index/{disk.list(f'{ROOT}/index')[0].name}"
    disk.open(path).resize(0)
    (finding,) = verified(disk).findings
    assert (finding.kind, finding.path) == (Kind.INDEX_FILE, path)


def test_a_removed_only_index_file_is_missed() -> None:
    config = replace(SMALL, index_items=4000)
    disk = small_store(config)
    assert verified(disk, config=config).is_sound
    (name,) = (entry.name for entry in disk.list(f"{ROOT}/index"))
    disk.remove(f"{ROOT}/index/{name}")
    (finding,) = verified(disk, config=config).findings
    assert (finding.kind, finding.path) == (Kind.INDEX_FILE, f"{ROOT}/index")
    disk.remove_directory(f"{ROOT}/index")
    assert verified(disk, config=config).is_sound  # The next start makes it from the whole log.


def test_a_topic_that_was_deleted_and_made_again_is_sound() -> None:
    disk = SimulatedFileSystem()
    store = write_small_store(disk, ROOT, close=False)
    store.delete_topics(["T"])
    assert store.close(1)
    report = verified(disk)
    assert (report.findings, report.records_of_deleted_topics) == ([], 45)
    again = open_small_store(disk)
    for number in range(5):
        again.put("T", 0, b"new", b"", Origin(number, number, HOST))
    again.commit()
    again.run_jobs()
    again.advance()
    assert again.close(2)
    report = verified(disk)
    assert [f for f in report.findings if f.queue_id == 0] == []


def test_without_a_mark_the_table_of_topics_tells_which_are_gone() -> None:
    disk = SimulatedFileSystem()
    store = write_small_store(disk, ROOT, close=False)
    store.delete_topics(["T"])
    assert store.close(1)
    disk.remove(f"{ROOT}/deleted_topics.json")  # Apache leaves none.
    assert verified(disk).counts == {Kind.MISSING_ENTRY: 40}
    disk.make_directories(f"{ROOT}/config")
    table = disk.open(f"{ROOT}/config/topics.json", create=True)
    table.write(b'{"topicConfigTable":{"other":{"topicName":"other"}}}', 0)
    table.close()
    report = verified(disk)
    assert (report.findings, report.records_of_deleted_topics) == ([], 40)


def test_a_torn_tail_is_no_damage_but_said() -> None:
    disk = small_store(close=False).kill()
    end = verified(disk).end_offset
    path = f"{ROOT}/commitlog/{end // 4096 * 4096:020d}"
    overwrite(disk, path, end % 4096, b"\0\0\1\0\xda\xa3\x20\xa7torn")
    report = verified(disk)
    assert report.findings == []
    assert report.torn_bytes == 12
    assert "a torn tail of 12 bytes" in report.notes[1]
    beside_a_broker = Report(9)
    list(verify(replace(inspect(disk, ROOT, SMALL), opened_by=4711), beside_a_broker))
    assert not [note for note in beside_a_broker.notes if "torn tail" in note]
    assert beside_a_broker.torn_bytes == 0


def test_damage_behind_what_was_synced_is_damage_also_after_a_kill() -> None:
    disk = small_store(close=False).kill()
    flip(
        disk, f"{ROOT}/commitlog/00000000000000000000", message_of(disk, 1, 1).physical_offset + 90
    )
    assert verified(disk).counts[Kind.RECORD] == 1


def test_findings_beyond_the_limit_are_counted() -> None:
    disk = small_store()
    for path in list(contents(disk, f"{ROOT}/consumequeue")):
        disk.remove(path)
    report = Report(3)
    for _ in verify(inspect(disk, ROOT, SMALL), report):
        pass
    assert len(report.findings) == 3
    assert report.found == 45
    assert not report.is_sound


def test_missing_entries_beyond_those_that_are_remembered_are_counted_in_a_note(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_check, "MISSED_MAX", 7)
    disk = small_store()
    assert "more entries" not in str(verified(disk).notes)
    overwrite(disk, f"{ROOT}/consumequeue/T/0/{0:020d}", 0, bytes(400))
    report = verified(disk)
    assert report.counts[Kind.MISSING_ENTRY] == 7
    assert (
        "T queue 0 has 13 more entries that are missing or wrong, behind the first 7: these alone"
        " are counted as such"
    ) in report.notes


def test_slots_and_items_beyond_those_that_are_named_are_counted_in_a_note(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = small_store()
    path, *_ = sorted(contents(disk, f"{ROOT}/index"))
    items_at = HEADER_SIZE + SMALL.index_slots * SLOT_SIZE
    for item in range(1, 6):
        overwrite(disk, path, items_at + item * ITEM_SIZE + 16, b"\0\0\0\x7f")
    overwrite(disk, path, HEADER_SIZE, b"\0\0\0\x7f" * SMALL.index_slots)
    assert "more" not in str(verified(disk).notes)
    monkeypatch.setattr(index_structure, "FINDINGS_MAX", 3)
    report = verified(disk)
    assert report.counts[Kind.INDEX_CHAIN] == 6
    assert [note for note in report.notes if "more" in note] == [
        f"{path} has {more} more {what}, behind the first 3: these alone are counted as findings"
        for more, what in (
            (2, "items that lead on to wrong ones"),
            (SMALL.index_slots - 3, "slots that lead to wrong items"),
        )
    ]


def test_of_a_topic_that_apache_made_again_no_missing_entry_is_told_however_many_there_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_check, "MISSED_MAX", 7)
    disk = SimulatedFileSystem()
    store = write_small_store(disk, ROOT, close=False)
    store.delete_topics(["T"])
    assert store.close(1)
    again = open_small_store(disk)
    again.put("T", 0, b"new", b"", Origin(1, 1, HOST))
    again.put("T", 1, b"new", b"", Origin(1, 1, HOST))
    again.commit()
    again.run_jobs()
    again.advance()
    assert again.close(2)
    for name in ("deleted_topics.json", "queue_ends.json"):
        disk.remove(f"{ROOT}/{name}")  # Apache leaves none.
    overwrite(disk, f"{ROOT}/checkpoint", 0, (1).to_bytes(8, "big") + bytes(4088))
    report = verified(disk)
    assert (report.findings, str(report.notes).count("more entries")) == ([], 0)


def test_expired_records_leave_nothing_to_find() -> None:
    disk = small_store()
    disk.remove(f"{ROOT}/commitlog/00000000000000000000")
    report = verified(disk)
    assert report.findings == []
    assert report.first_offset == 4096
    assert report.records < 58


def test_each_stage_is_told_when_it_begins_and_goes_up_to_its_total() -> None:
    """What comes first may take long: a hole in the log, or thousands of queues."""
    steps = list(verify(inspect(small_store(), ROOT, SMALL), Report(0)))
    last = {step.stage: step for step in steps}
    begun = [step.stage for step in steps if step.done == 0]
    assert begun == ["log", "blocks", "queues", "index", "ends of queues", "start"]
    stages = {"queues": (4, 4), "index": (5, 5), "ends of queues": (8, 8)}
    assert {stage: (last[stage].done, last[stage].total) for stage in stages} == stages


def test_what_a_broker_deletes_meanwhile_is_no_damage() -> None:
    disk = SimulatedFileSystem()
    store = write_small_store(disk, ROOT, close=False)
    assert store.close(1)
    store = MessageStore.open(
        ROOT, SMALL, now_ms=1, filesystem=disk, is_batch_topic=lambda t: t == BATCHES, threads=False
    )
    report = Report(100)
    other = disk.other_process()
    steps = verify(inspect(other, ROOT, SMALL), report)
    assert next(step.stage for step in steps if step.stage != "log") == "blocks"
    store.delete_topics(["T"])
    for _ in steps:
        pass
    assert report.findings == []
    assert "deleted while this ran, and not checked: T" in report.notes


def test_marks_of_deleted_topics_are_read_again_only_where_they_have_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There may be many marks, and many findings."""
    disk = SimulatedFileSystem()
    write_small_store(disk, ROOT, close=False)
    other = disk.other_process()
    store, times = inspect(other, ROOT, SMALL), list[int]()

    def counted(filesystem: FileSystem, root: str) -> Deletions:
        times.append(1)
        return Deletions(filesystem, root)

    monkeypatch.setattr(gone_meanwhile, "Deletions", counted)
    gone = GoneMeanwhile(store)
    finding = Finding(kind=Kind.MISSING_ENTRY, path="", position=0, problem="", topic="T")
    assert [gone.explains(finding) for _ in range(3)] == [False] * 3
    Deletions(disk, ROOT).add(["V"], 4096, 0)
    assert [gone.explains(finding) for _ in range(3)] == [False] * 3
    assert times == [1]
    Deletions(disk, ROOT).add(["T"], 4096, 0)
    assert [gone.explains(finding) for _ in range(3)] == [True] * 3
    assert times == [1, 1]


def test_a_segment_that_a_broker_removes_meanwhile_ends_it_with_a_note() -> None:
    disk = small_store()
    store = inspect(disk, ROOT, SMALL)
    disk.remove(f"{ROOT}/commitlog/{8192:020d}")
    with pytest.raises(FileNotFoundError):
        list(verify(store, Report(9)))
    report = Report(9)
    list(verify(replace(store, opened_by=4711), report))
    assert not report.is_complete
    (note,) = [note for note in report.notes if "was removed while this ran" in note]
    assert note.startswith(f"{ROOT}/commitlog/{8192:020d} was removed while this ran")


@pytest.mark.parametrize("first_time", [0, -1, -(1 << 40)])
def test_an_index_file_that_begins_without_a_store_time_is_as_it_should_be(
    first_time: int,
) -> None:
    disk = SimulatedFileSystem()
    store = MessageStore.open(ROOT, SMALL, now_ms=1, filesystem=disk, threads=False)
    for number in range(60):
        time = first_time if number % 20 == 0 else 1_700_000_000_000 + number * 9000
        store.put("T", 0, b"x", b"UNIQ_KEY\x01%d\x02" % number, Origin(time, time, HOST))
        store.commit()
    assert store.close(1)
    assert verified(disk).findings == []


def test_an_expired_index_file_that_came_back_says_nothing_of_the_next() -> None:
    """A power cut may undo the removal of the older of two files, but keep that of the other."""
    disk = SimulatedFileSystem()
    store = MessageStore.open(ROOT, SMALL, now_ms=1, filesystem=disk, threads=False)
    for number in range(150):
        now_ms = 1_700_000_000_000 + number * 9000
        key = b"UNIQ_KEY\x01%d\x02" % number
        store.put("T", 0, bytes(200), key, Origin(now_ms, now_ms, HOST))
        store.commit()
    assert store.close(1)
    paths = sorted(contents(disk, f"{ROOT}/index"))
    headers = [IndexHeader.unpack(content(disk, path)[:HEADER_SIZE]) for path in paths]
    assert headers[2].begin_offset % SMALL.segment_size == 0
    for path in sorted(contents(disk, f"{ROOT}/commitlog")):
        if int(path.rpartition("/")[2]) < headers[2].begin_offset:
            disk.remove(path)
    assert verified(disk).findings == []
    disk.remove(paths[1])
    assert verified(disk).findings == []


@pytest.mark.parametrize("name", ["topics.json", "subscriptionGroup.json", "consumerOffset.json"])
def test_a_config_file_that_a_start_refuses_is_a_finding_with_line_and_column(name: str) -> None:
    disk, path = small_store(), f"{ROOT}/config/{name}"
    disk.make_directories(f"{ROOT}/config")
    disk.open(path, create=True).write(b'{\n\t"dataVersion":{\n\t\t"counter":x}}', 0)
    (finding,) = verified(disk).findings
    assert (finding.kind, finding.path) == (Kind.CONFIG_FILE, path)
    assert "a start refuses it: line 3, column 13: not JSON" in finding.problem
    assert "restore it from a copy" in finding.problem
    disk.open(f"{path}.bak", create=True).write(b"{}", 0)
    report = verified(disk)
    assert report.is_sound
    assert f"{path} is damaged (line 3, column 13: not JSON" in report.notes[0]
    assert f"a start takes {path}.bak, without what the last save changed" in report.notes[0]


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        (TOPICS, b'{"topicConfigTable":{"orders":7}}', "topicConfigTable"),
        (TOPICS, b'{"topicConfigTable":{"a":{"topicName":"../a"}}}', "is not the name of a topic"),
        (SUBSCRIPTION_GROUPS, b'{"subscriptionGroupTable":[1]}', "subscriptionGroupTable"),
        (CONSUMER_OFFSETS, b'{"offsetTable":{"a@g":{"0":"x"}}}', "a@g, 0: 'x' is not a number"),
        (DELAY_OFFSETS, b'{"offsetTable":{"x":"y"}}', "offsetTable"),
    ],
)
def test_a_config_file_of_a_wrong_shape_is_a_finding_as_a_start_refuses_it(
    name: str, text: bytes, problem: str
) -> None:
    disk, path = small_store(), f"{ROOT}/config/{name}"
    disk.make_directories(f"{ROOT}/config")
    disk.open(path, create=True).write(text, 0)
    (finding,) = verified(disk).findings
    assert (finding.kind, finding.path) == (Kind.CONFIG_FILE, path)
    assert finding.problem.startswith("a start refuses it: ")
    assert problem in finding.problem
    disk.open(f"{path}.bak", create=True).write(b"{}", 0)
    report = verified(disk)
    assert report.is_sound
    assert f"{path} is damaged (" in report.notes[0]
    assert problem in report.notes[0]


def test_zeros_in_the_place_of_a_config_file_are_told_where_its_backup_is_taken() -> None:
    disk, path = small_store(), f"{ROOT}/config/{CONSUMER_OFFSETS}"
    disk.make_directories(f"{ROOT}/config")
    disk.open(f"{path}.bak", create=True).write(b"{}", 0)
    assert "is damaged" not in "".join(verified(disk).notes)  # Killed between two renames.
    disk.open(path, create=True).write(bytes(40), 0)
    report = verified(disk)
    assert report.is_sound
    assert f"{path} is damaged (it has no content): a start takes {path}.bak" in report.notes[0]


@pytest.mark.parametrize("backup", [None, b"", bytes(40)])
@pytest.mark.parametrize("name", [CONSUMER_OFFSETS, SUBSCRIPTION_GROUPS, DELAY_OFFSETS, TOPICS])
def test_zeros_alone_in_the_place_of_a_config_file_are_told(
    name: str, backup: bytes | None
) -> None:
    disk, path = small_store(), f"{ROOT}/config/{name}"
    disk.make_directories(f"{ROOT}/config")
    assert "no content" not in "".join(verified(disk).notes)  # A new store has none of them.
    disk.open(path, create=True).write(bytes(40), 0)
    if backup is not None:
        disk.open(f"{path}.bak", create=True).write(backup, 0)
    assert (
        verified(disk)
        .notes[0]
        .startswith(
            f"{path} has no content, and there is no good {path}.bak: a start begins with an"
            " empty table"
        )
    )


@pytest.mark.parametrize("length", [0, 10, 4095])
def test_a_checkpoint_that_is_cut_is_damaged(length: int) -> None:
    disk = small_store()
    disk.open(f"{ROOT}/checkpoint").resize(length)
    assert [f.kind for f in verified(disk).findings] == [Kind.CHECKPOINT]


@pytest.mark.parametrize("harm", ["zeros", "empty", "cut in the header"])
def test_checksums_that_lost_what_was_in_them_are_missed(harm: str) -> None:
    disk, path = small_store(), f"{ROOT}/integrity/{0:020d}"
    if harm == "zeros":
        overwrite(disk, path, 0, bytes(len(content(disk, path))))
    else:
        disk.open(path).resize(0 if harm == "empty" else 10)
    report = verified(disk)
    assert (report.findings, report.blocks) == ([], 1)
    (note,) = report.notes
    assert f"{ROOT}/" in note
    assert "checksums" in note


MANY_BLOCKS = replace(SMALL, segment_size=4 << 16, verify_size=1 << 16)


def store_of_many_blocks() -> SimulatedFileSystem:
    """A store with four blocks in the first segment, and three sealed ones in the other."""
    disk = SimulatedFileSystem()
    store = MessageStore.open(ROOT, MANY_BLOCKS, now_ms=1, filesystem=disk, threads=False)
    for _ in range(100):
        store.put("T", 0, bytes(5000), b"", Origin(1, 1, HOST))
        store.commit()
    assert store.close(1)
    return disk


def notes_of_checksums(disk: SimulatedFileSystem) -> list[str]:
    report = verified(disk, ROOT, MANY_BLOCKS)
    assert report.is_sound
    return [note for note in report.notes if "checksum" in note]


@pytest.mark.parametrize("start", [0, MANY_BLOCKS.segment_size])
def test_checksums_that_lost_their_end_are_missed(start: int) -> None:
    disk = store_of_many_blocks()
    assert notes_of_checksums(disk) == []
    path = f"{ROOT}/integrity/{start:020d}"
    disk.open(path).resize(len(content(disk, path)) - 8)
    (note,) = notes_of_checksums(disk)
    assert f"no block checksums for the last blocks of {ROOT}/commitlog/{start:020d}:" in note


@pytest.mark.parametrize("start", [0, MANY_BLOCKS.segment_size])
def test_a_flipped_byte_of_any_checksum_of_a_block_is_told(start: int) -> None:
    disk = store_of_many_blocks()
    path = f"{ROOT}/integrity/{start:020d}"
    for position in range(len(content(disk, path))):
        flip(disk, path, position)
        (note,) = notes_of_checksums(disk)
        assert f"/{start:020d}" in note
        flip(disk, path, position)
    flip(disk, path, 64)
    flip(disk, path, 72)
    (note,) = notes_of_checksums(disk)
    assert f"for the block at byte 0 of {ROOT}/commitlog/{start:020d} and 1 more:" in note


def test_a_block_in_which_a_repair_began_is_told_as_such() -> None:
    disk = store_of_many_blocks()
    flip(disk, f"{ROOT}/commitlog/{0:020d}", 70_000)
    repaired(disk, ROOT, MANY_BLOCKS)
    store = MessageStore.open(ROOT, MANY_BLOCKS, now_ms=1, filesystem=disk, threads=False)
    assert store.close(1)
    (note,) = notes_of_checksums(disk)
    assert f"for the block at byte {1 << 16} of {ROOT}/commitlog/{0:020d}:" in note
    assert "a repair began in the block" in note


def test_checksums_that_are_gone_are_missed_in_a_store_of_ours() -> None:
    disk = small_store()
    for entry in disk.list(f"{ROOT}/integrity"):
        disk.remove(f"{ROOT}/integrity/{entry.name}")
    (note,) = verified(disk).notes
    assert "no block checksums for /s/commitlog/00000000000000000000 and 1 more" in note
    disk.remove(f"{ROOT}/checkpoint")
    assert not any("block checksums" in note for note in verified(disk).notes)


def test_the_holes_of_sparse_queue_files_are_not_read(tmp_path: Path) -> None:
    """Those of 80,000 queues are 480 GB of zeros: verify took half an hour for them alone."""

    def bytes_read() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])

    root, config = str(tmp_path / "s"), replace(SMALL, consume_queue_file_size=6_000_000)
    disk = RealFileSystem()
    write_small_store(disk, root, config)
    before = bytes_read()
    assert verified(disk, root, config).findings == []
    assert bytes_read() - before < 3_000_000
