"""What `repair` knows, by the list of the queues' ends, of a queue that lost entries."""

from __future__ import annotations

import pytest
from tests.store.damaged_stores import flip
from tests.store.held_stores import (
    CONFIG,
    MESSAGES,
    QUEUES,
    ROOT,
    TAIL,
    Held,
    hole,
    killed,
    rebuild,
    repair,
    upkeep,
)

from cometmq.store.errors import LostQueuesError
from cometmq.store.log.log_scan import LogScan
from cometmq.store.looking.inspection import inspect

GIVEN_OUT = MESSAGES + TAIL


def damaged(topic: str, queue: str, entry_size: int) -> Held:
    """A store in which a queue lost entries, and its last record is damaged."""
    held = killed(topic)
    hole(held, queue, entry_size)
    held.opened()
    upkeep(held)
    held.stop(clean=True)
    records = LogScan(inspect(held.disk, ROOT, CONFIG).segments, 0)
    last = [record.physical_offset for record in records if record.topic == topic][-1]
    segment = last // CONFIG.segment_size * CONFIG.segment_size
    flip(held.disk, f"{ROOT}/commitlog/{segment:020d}", last - segment + 3, 0x55)
    return held


@pytest.mark.parametrize(("topic", "queue", "entry_size"), QUEUES)
def test_what_is_stepped_over_keeps_the_offset_of_the_last_message(
    topic: str, queue: str, entry_size: int
) -> None:
    held = damaged(topic, queue, entry_size)
    (step,) = repair(held, cut=False).steps
    assert [(each.topic, each.queue_offset, each.count) for each in step.lost] == [
        (topic, GIVEN_OUT - 1, 1)
    ]
    held.opened()
    held.stop(clean=True)
    rebuild(held)
    held.opened()
    assert held.put(b"next", topic) == GIVEN_OUT


@pytest.mark.parametrize(("topic", "queue", "entry_size"), QUEUES)
def test_what_is_cut_off_is_told_and_the_queue_is_made_again_without(
    topic: str, queue: str, entry_size: int
) -> None:
    held = damaged(topic, queue, entry_size)
    lost = {each.topic: each for each in repair(held, cut=True).lost}
    assert (lost[topic].first_offset, lost[topic].next_offset) == (GIVEN_OUT - 1, GIVEN_OUT)
    with pytest.raises(LostQueuesError):
        held.opened()
    rebuild(held)
    held.opened()
    assert held.put(b"next", topic) == GIVEN_OUT - 1
