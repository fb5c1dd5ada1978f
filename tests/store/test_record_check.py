"""Whether an entry leads to a record of its queue, and items to one that has their keys."""

from __future__ import annotations

import pytest
from tests.crash.disk import SimulatedFileSystem
from tests.store.records import record

from cometmq.proto.java import string_hash
from cometmq.store.index.index_format import positive_hash
from cometmq.store.log.segments import Segments
from cometmq.store.queues.record_check import RecordCheck

LOG = "/s/commitlog"
START = 4096
"""Everything before it has expired."""
PROPERTIES = b"UNIQ_KEY\x01id\x02KEYS\x01key\x02TAGS\x01tag\x02"
HASHES = [positive_hash(string_hash(key)) for key in ("T#id", "T#key", "T#T#tag")]


@pytest.fixture
def backs() -> RecordCheck:
    disk = SimulatedFileSystem()
    disk.make_directories(LOG)
    file = disk.open(f"{LOG}/{START:020d}", create=True)
    file.write(record(START, topic="T", queue_id=3, properties=PROPERTIES), 0)
    file.resize(4096)
    return RecordCheck(Segments(disk, LOG, 4096))


SIZE = len(record(START, topic="T", queue_id=3, properties=PROPERTIES))


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


def test_items_are_of_a_record_that_has_their_keys_in_that_order(backs: RecordCheck) -> None:
    first, second, tags = HASHES
    assert backs.count_items(START, HASHES) == 3
    assert backs.count_items(START, [second, tags]) == 2, "the first is in the file before"
    assert backs.count_items(START, [first, tags]) == 1
    assert backs.count_items(START, [first, second, tags, 5]) == 3
    assert backs.count_items(START, [5]) == 0
    assert backs.count_items(START - 1, [5]) == 1, "of what has expired nobody can say"
    for offset in (START + 1, START + SIZE, 2 * START - 1, 2 * START, 1 << 60):
        assert backs.count_items(offset, HASHES) == 0
