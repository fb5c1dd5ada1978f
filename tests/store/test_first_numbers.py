"""With which number a queue may continue in an unpromised tail, depending on what is left of it."""

from __future__ import annotations

import pytest
from tests.crash.disk import SimulatedFileSystem
from tests.store.queue_model import EVERYTHING
from tests.store.records import record
from tests.store.test_consume_queues import opened

from cometmq.proto.message import read_message
from cometmq.store.deletions import Deletions
from cometmq.store.queues.consume_queues import ConsumeQueues
from cometmq.store.queues.queue_ends import QueueEnd, QueueKey
from cometmq.store.starting.tail_check import Succession

ROOT = "/store"
QUEUE = f"{ROOT}/consumequeue/T/0"
LISTED = QueueEnd(5, 400, 5)
FIRST, PLACE = 1000, 5000
"""Where a log that has lost its front begins, and where the record is."""


def left(files: str) -> ConsumeQueues:
    """What is left of the queue of the record."""
    disk = SimulatedFileSystem()
    queues = opened(disk)
    if files == "three entries":
        for number in range(3):
            queues.simple.get("T", 0).append(FIRST + number * 100, 100, 0)
        assert queues.write_behind(EVERYTHING, EVERYTHING)
        queues.close()
    elif files != "none":
        disk.make_directories(QUEUE)
        file = disk.open(f"{QUEUE}/{0:020d}", create=True)
        file.resize(queues.simple.file_size if files == "blank" else 33)
        file.close()
    return opened(disk)


@pytest.mark.parametrize(
    ("files", "listed", "mark", "first_offset", "right", "wrong"),
    [
        ("none", False, None, 0, [0], [1, 5]),
        ("none", False, None, FIRST, [0, 7], []),
        ("none", False, FIRST - 1, FIRST, [0, 7], []),
        ("none", False, FIRST, FIRST, [0], [7]),
        ("blank", False, None, FIRST, [0, 7], []),
        ("blank", False, None, 0, [0], [7]),
        ("odd", False, None, 0, [0, 7], []),
        ("none", True, None, 0, [5], [0, 4, 6]),
        ("none", True, PLACE - 1, 0, [5, 4, 0], [6]),
        ("odd", True, None, 0, [5, 4, 0], [6]),
        ("three entries", False, None, 0, [3], [0, 2, 4]),
        ("three entries", False, None, FIRST, [3], [0, 2, 4]),
    ],
)
def test_the_first_record_of_a_queue_is_the_next_one_of_what_is_left_of_it(
    files: str,
    listed: bool,
    mark: int | None,
    first_offset: int,
    right: list[int],
    wrong: list[int],
) -> None:
    for number in right + wrong:
        queues = left(files)
        if listed:
            known = {QueueKey(is_batch=False, topic="T", queue_id=0): LISTED}
            queues.ends.begin_with(known, known)
        deletions = Deletions(SimulatedFileSystem(), ROOT)
        deletions.offsets = {} if mark is None else {b"T": mark}
        succession = Succession(0, deletions, lambda _topic: False)
        succession.look_at(read_message(record(PLACE, queue_offset=number)))
        found = succession.first_contradiction(queues, first_offset)
        assert found == (None if number in right else PLACE), number
