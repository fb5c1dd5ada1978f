"""A start accepts what `rebuild --accept-gaps` makes of a store of a killed Apache broker."""

from __future__ import annotations

from contextlib import closing
from random import Random

import pytest
from tests.crash.disk import SimulatedFileSystem
from tests.store.damaged_stores import verified
from tests.store.held_stores import bodies, remove_all
from tests.store.test_apache_deletions import take_our_notes
from tests.store.test_deletions import CONFIG, ROOT, opened, put
from tests.store.test_rebuilding import rebuilt

from cometmq.store.errors import CorruptionError, StoreFilesError
from cometmq.store.looking.inspection import inspect
from cometmq.store.looking.log_check import LogCheck

NUMBER_AT = 20
"""The place of the queue offset in a record."""


def with_a_gap(topic: str, behind: bytes) -> SimulatedFileSystem:
    """Return such a store: a queue has messages 0, 4 and 5, and `behind` follows the log's end.

    The writer of the log did not get to sync it.
    """
    disk = SimulatedFileSystem()
    store = opened(disk)
    put(store, b"other 0", topic="Other")
    put(store, b"0", b"4", b"5", topic=topic)
    put(store, b"other 1", topic="Other")
    end = store.end_offset
    assert store.close(1)
    take_our_notes(disk, 0)
    messages = [each for each in LogCheck(inspect(disk, ROOT, CONFIG)) if each.topic == topic]
    with closing(disk.open(f"{ROOT}/commitlog/{0:020d}")) as log:
        for each in messages[1:]:
            log.write((each.queue_offset + 3).to_bytes(8, "big"), each.physical_offset + NUMBER_AT)
        log.write(behind, end)
    return disk


@pytest.mark.parametrize("torn", [b"", b"torn"])
@pytest.mark.parametrize("topic", ["T", "Batches"])
def test_a_gap_that_a_rebuild_accepted_refuses_no_start(topic: str, torn: bytes) -> None:
    disk = with_a_gap(topic, torn)
    with pytest.raises(CorruptionError, match="rebuild --accept-gaps"):
        opened(disk)
    disk = disk.kill()
    assert rebuilt(disk, ROOT, CONFIG, accept_gaps=True).gaps == [f"{topic}/0"]
    for after in (*(disk.power_cut(Random(seed)) for seed in range(4)), disk.kill()):
        for number in range(3):
            store = opened(after)
            assert bodies(store, topic)[:2] == [b"4", b"5"]
            assert store.min_offset(topic, 0) == 4
            assert bodies(store, "Other")[:2] == [b"other 0", b"other 1"]
            put(store, b"new", topic=topic)
            assert store.max_offset(topic, 0) == 7 + number
            assert store.close(1)
        found = verified(after, ROOT, CONFIG).findings
        assert len(found) == 1  # The message before the gap.


def test_a_queue_that_is_lost_behind_it_is_missed() -> None:
    disk = with_a_gap("T", b"")
    rebuilt(disk, ROOT, CONFIG, accept_gaps=True)
    remove_all(disk, f"{ROOT}/consumequeue/T/0")
    with pytest.raises(StoreFilesError, match=r"the last entries of T/0 \(\d+ messages\) are lost"):
        opened(disk)
