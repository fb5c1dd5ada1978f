"""A start that misses entries of a queue reads all of the log back; the index has it only once."""

from __future__ import annotations

import pytest
from tests.crash.disk import SimulatedFileSystem
from tests.store.damaged_stores import verified
from tests.store.records import HOST
from tests.store.test_apache_deletions import take_our_notes
from tests.store.test_deletions import CONFIG, ROOT, opened

from cometmq.store.log.log_scan import LogScan
from cometmq.store.log.turn import Origin
from cometmq.store.message_store import MessageStore

FAR_MS = 1 << 60


def put(store: MessageStore, topic: str, numbers: range) -> None:
    for number in numbers:
        store.put(topic, 0, b"%d" % number, b"KEYS\x01all\x02", Origin(1, 1, HOST))
        store.commit()
        store.tick(1)


@pytest.mark.parametrize("after", [0, 1 << 20])
def test_no_key_is_in_the_index_twice(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogScan, "stretches_after", after)
    disk = SimulatedFileSystem()
    store = opened(disk)
    put(store, "Lacking", range(30))
    put(store, "T", range(300))
    assert store.end_offset > 2 * CONFIG.segment_size
    put(store, "Lacking", range(30, 40))
    assert store.close(1)
    take_our_notes(disk, CONFIG.segment_size)
    for number in (20, 30):
        disk.remove(f"{ROOT}/consumequeue/Lacking/0/{number * 20:020d}")
    store = opened(disk)
    assert (store.max_offset("T", 0), store.max_offset("Lacking", 0)) == (300, 40)
    for topic, count in (("T", 300), ("Lacking", 40)):
        found = store.query(topic, "all", 1000, begin_ms=0, end_ms=FAR_MS, now_ms=1)
        assert len(found) == count
    assert store.close(1)
    assert not verified(disk, ROOT, CONFIG).findings
