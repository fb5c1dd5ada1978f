"""Records of batch topics that are sound, but have another topic, queue or number."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.crash.disk import SimulatedFileSystem
from tests.store.damaged_stores import (
    BATCHES,
    INNER,
    ROOT,
    SMALL,
    contents,
    overwrite,
    verified,
    write_small_store,
)
from tests.store.records import HOST
from tests.store.test_rebuilding import rebuilt
from tests.store.test_wrong_heads import (
    CONFIG,
    LOG,
    NUMBER,
    QUEUE_ID,
    check_nothing_to_repair,
    check_refused,
    record,
    repaired,
)

from cometmq.store.errors import CorruptionError
from cometmq.store.log.turn import Origin
from cometmq.store.looking.findings import Kind
from cometmq.store.looking.queue_files import QueueFiles
from cometmq.store.mending.placeholders import Lost
from cometmq.store.message_store import MessageStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cometmq.store.looking.right_heads import Place
    from cometmq.store.mending.repair_plan import Plan

COUNT = 20
SMALLER = replace(SMALL, batch_consume_queue_file_size=92)
"""A file of a batch queue has two entries."""
CHANGES = {
    "a queue that is not there": (QUEUE_ID, b"\x20\0\0\0"),
    "another queue": (QUEUE_ID, b"\0\0\0\x01"),
    "another topic": (None, b"C"),
}


def opened(disk: SimulatedFileSystem) -> MessageStore:
    return MessageStore.open(
        ROOT,
        CONFIG,
        now_ms=1,
        filesystem=disk,
        is_batch_topic=lambda topic: topic == "B",
        threads=False,
    )


def two_queues(*, close: bool = True) -> SimulatedFileSystem:
    """Batches of three in `B/0` and `B/1` in turn; every fourth record is a single message."""
    disk = SimulatedFileSystem()
    store = opened(disk)
    for number in range(COUNT):
        at = 1_700_000_000_000 + 1500 * number
        kind = (b"", Origin(at, at, HOST)) if is_single(number) else (INNER, inner(at))
        store.put("B", number % 2, b"body %02d" % number, *kind)
        store.commit()
        store.run_jobs()
        store.advance()
        store.tick(at)
    if close:
        assert store.close(2)
        return disk
    return disk.kill()


def inner(at: int) -> Origin:
    return Origin(at, at, HOST, 0xC0)


def is_single(number: int) -> bool:
    return number % 8 in (2, 3)


def change(disk: SimulatedFileSystem, number: int, name: str) -> bytes:
    """Change a record as damage may, and return what it was."""
    before = record(disk, number)
    place, data = CHANGES[name]
    at = before.topic_start - before.start if place is None else place
    overwrite(disk, LOG, before.physical_offset + at, data)
    return before.raw


def base_of(number: int) -> int:
    return sum(1 if is_single(each) else 3 for each in range(number % 2, number, 2))


def check_whole(disk: SimulatedFileSystem) -> None:
    for _ in range(2):
        store = opened(disk)
        ends = [(store.min_offset("B", each), store.max_offset("B", each)) for each in (0, 1)]
        assert ends == [(0, 24)] * 2
        assert store.close(3)
        assert verified(disk, config=CONFIG).findings == []
        rebuilt(disk, config=CONFIG)


def written_right(plan: Plan) -> list[Place | None]:
    assert plan.steps == []
    return [head.truth for head in plan.heads]


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("number", [0, 2, 6, 10, COUNT - 4])
def test_a_record_is_written_right_where_the_entry_of_a_batch_queue_leads_to_it(
    name: str, number: int
) -> None:
    disk = two_queues()
    was = change(disk, number, name)
    check_refused(disk)
    assert written_right(repaired(disk)) == [("B", 0, base_of(number))]
    assert record(disk, number).raw == was
    check_whole(disk)


def test_the_number_of_a_message_by_itself_is_written_right_as_well() -> None:
    disk = two_queues()
    was = record(disk, 10)
    overwrite(disk, LOG, was.physical_offset + NUMBER, (1 << 40).to_bytes(8, "big"))
    assert written_right(repaired(disk)) == [("B", 0, base_of(10))]
    assert record(disk, 10).raw == was.raw
    check_whole(disk)


def test_beside_other_damage_no_queue_is_made_up() -> None:
    disk = two_queues()
    was = change(disk, 6, "a queue that is not there")
    overwrite(disk, LOG, record(disk, 9).physical_offset + 88, b"\xff")
    plan = repaired(disk)
    assert [head.truth for head in plan.heads] == [("B", 0, base_of(6))]
    assert [step.lost for step in plan.steps] == [[Lost("B", 1, base_of(9), 3)]]
    assert record(disk, 6).raw == was
    check_whole(disk)


def test_without_entries_verify_says_which_messages_of_a_batch_queue_the_log_lacks() -> None:
    disk = two_queues(close=False)
    change(disk, 6, "a queue that is not there")
    report = verified(disk, config=CONFIG)
    first = base_of(6)
    assert f"missing from the log: B queue 0 offset {first} to {first + 2}" in report.notes
    assert report.queues_with_gaps == 1
    with pytest.raises(CorruptionError, match=f"from {first} to {first + 2}"):
        rebuilt(disk, config=CONFIG)
    assert repaired(disk).is_empty


def test_an_entry_of_a_batch_queue_that_is_wrong_itself_is_no_witness() -> None:
    disk = two_queues()
    other = record(disk, 9)
    queue = f"{ROOT}/batchconsumequeue/B/0/{0:020d}"
    overwrite(disk, queue, 4 * 46, other.physical_offset.to_bytes(8, "big"))
    kinds = [each.kind for each in verified(disk, config=CONFIG).findings]
    assert kinds == [Kind.WRONG_ENTRY]
    assert repaired(disk).is_empty
    rebuilt(disk, config=CONFIG)
    check_whole(disk)


def test_the_files_of_a_batch_queue_under_the_name_of_another_are_no_witness() -> None:
    disk = two_queues()
    disk.rename(f"{ROOT}/batchconsumequeue/B/1", f"{ROOT}/batchconsumequeue/B/2")
    check_nothing_to_repair(disk)


def test_queues_that_have_the_files_of_one_another_are_read_once_for_all_entries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = two_queues()
    paths = [f"{ROOT}/batchconsumequeue/B/{each}/{0:020d}" for each in (0, 1)]
    first, second = (contents(disk)[each] for each in paths)
    overwrite(disk, paths[0], 0, second)
    overwrite(disk, paths[1], 0, first)
    reads: list[str] = []
    read = QueueFiles.entries_outside

    def count(files: QueueFiles, ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[int, bytes]]:
        reads.append(files.folder)
        return read(files, ranges)

    monkeypatch.setattr(QueueFiles, "entries_outside", count)
    kinds = [each.kind for each in verified(disk, config=CONFIG).findings]
    assert kinds.count(Kind.WRONG_ENTRY) == COUNT
    assert len(reads) <= 4


def test_no_order_is_missed_where_nothing_says_that_a_topic_has_batches() -> None:
    """A power cut may lose the queues and the list, and an operator the table."""
    disk = SimulatedFileSystem()
    store = opened(disk)
    for number, (queue_id, count) in enumerate([(0, 9), (1, 10), (0, 2), (1, 1), (0, 1)]):
        kind = (
            (b"INNER_NUM\x01%d\x02" % count, inner(1)) if count > 1 else (b"", Origin(1, 1, HOST))
        )
        store.put("B", queue_id, b"body %02d" % number, *kind)
    store.commit()
    assert store.close(2)
    assert verified(disk, config=CONFIG).findings == []
    disk = disk.kill()
    for path in contents(disk):
        if "queue" in path:
            disk.remove(path)
    assert Kind.RECORD not in {each.kind for each in verified(disk, config=CONFIG).findings}
    assert repaired(disk).heads == []


def test_files_of_a_batch_queue_that_were_exchanged_are_found() -> None:
    """Their entries are all there, but a reader would skip those that come after later messages."""
    disk = SimulatedFileSystem()
    write_small_store(disk, ROOT, SMALLER)
    queue = f"{ROOT}/batchconsumequeue/{BATCHES}/0"
    first, second = (f"{queue}/{number * 92:020d}" for number in range(2))
    disk.exchange(first, second)
    found = verified(disk, config=SMALLER).findings
    assert {(each.kind, each.path) for each in found} == {(Kind.WRONG_ENTRY, second)}
    assert "it comes after the entry of a later record" in found[0].problem
    rebuilt(disk, config=SMALLER)
    assert not verified(disk, config=SMALLER).findings


@pytest.mark.parametrize("close", [True, False])
def test_a_batch_of_more_messages_than_there_can_be_is_told_as_damage(*, close: bool) -> None:
    """One flipped bit turns 32767 into 72767, and no checksum of a body covers it."""
    disk = SimulatedFileSystem()
    store = opened(disk)
    for _ in range(3):
        store.put("B", 0, b"body", b"INNER_NUM\x0132767\x02", inner(1))
    store.commit()
    store.run_jobs()
    if close:
        assert store.close(1)
    else:
        disk = disk.kill()
    second = record(disk, 1)
    at = second.physical_offset + second.raw.index(b"INNER_NUM\x01") + 10
    overwrite(disk, LOG, at, b"7")
    before = contents(disk)
    report = verified(disk, config=CONFIG)
    assert "missing from the log: B queue 0 offset 32768 to 65533" in report.notes
    with pytest.raises(CorruptionError, match="from 32768 to 65533"):
        rebuilt(disk, config=CONFIG)
    assert repaired(disk).is_empty
    if not close:
        with pytest.raises(CorruptionError, match="from 32768 to 65533"):
            opened(disk)
    assert contents(disk) == before
