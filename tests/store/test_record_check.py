"""Whether an entry leads to a record of its queue."""

from __future__ import annotations

import pytest
from tests.crash.disk import SimulatedFileSystem
from tests.store.records import record

from cometmq.store.record_check import RecordCheck
from cometmq.store.segments import Segments

LOG = "/s/commitlog"
START = 4096
"""What was in front of it has expired."""


@pytest.fixture
def backs() -> RecordCheck:
    disk = SimulatedFileSystem()
    disk.make_directories(LOG)
    file = disk.open(f"{LOG}/{START:020d}", create=True)
    file.write(record(START, topic="T", queue_id=3), 0)
    file.resize(4096)
    return RecordCheck(Segments(disk, LOG, 4096))


SIZE = len(record(START, topic="T", queue_id=3))


def test_a_record_backs_the_entry_of_its_queue(backs: RecordCheck) -> None:
    assert backs("T", 3, START, SIZE)


@pytest.mark.parametrize(
    "entry",
    [
        ("U", 3, START, SIZE),
        ("T", 4, START, SIZE),
        ("T", 3, START + 1, SIZE),
        ("T", 3, START, SIZE - 1),
        ("T", 3, START, SIZE + 1),
        ("T", 3, START, 0),
        ("T", 3, START, -1),
        ("T", 3, START, 1 << 30),
        ("T", 3, START + SIZE, SIZE),
        ("T", 3, 2 * START, SIZE),
        ("T", 3, 1 << 60, SIZE),
    ],
)
def test_nothing_else_does(backs: RecordCheck, entry: tuple[str, int, int, int]) -> None:
    assert not backs(*entry)


def test_of_what_has_expired_and_of_light_queues_nobody_can_say(backs: RecordCheck) -> None:
    assert backs("T", 3, START - 1, SIZE)
    assert backs("%LMQ%T", 0, START, SIZE)


def test_a_record_begins_where_it_says_and_nowhere_else(backs: RecordCheck) -> None:
    assert backs.begins_at(START)
    assert backs.begins_at(START - 1), "of what has expired nobody can say"
    for offset in (START + 1, START + SIZE, 2 * START - 1, 2 * START, 1 << 60):
        assert not backs.begins_at(offset)
