"""An index file that Apache keeps after our broker was killed has all of its slots."""

from __future__ import annotations

import pytest
from tests.crash.disk import SimulatedFileSystem
from tests.crash.oracle import index_files, index_items, read_log
from tests.store.records import HOST
from tests.store.test_deletions import CONFIG, ROOT, opened

from cometmq.store.index.index_format import HEADER_SIZE, IndexHeader
from cometmq.store.log.turn import Origin
from cometmq.store.upkeep.checkpoint import load_checkpoint

HOUR_MS = 3_600_000


@pytest.mark.parametrize(("step_ms", "kept"), [(0, 2), (1, 1)])
def test_what_came_in_the_millisecond_of_the_file_before_is_found_there(
    step_ms: int, kept: int
) -> None:
    disk = SimulatedFileSystem()
    store = opened(disk)
    for number in range(40):
        at = 1 + number * step_ms
        store.put("T", 0, b"", b"KEYS\x01a%d b\x02" % number, Origin(at, at, HOST))
        store.commit()
        store.tick(at)
    for later in (HOUR_MS, 2 * HOUR_MS, 3 * HOUR_MS):
        store.run_jobs()
        store.advance()
        store.tick(later)
    longs = load_checkpoint(disk, f"{ROOT}/checkpoint").longs
    assert longs.index_timestamp
    after = disk.kill()
    entries = after.list(f"{ROOT}/commitlog")
    log = {
        int(each.name): after.open(f"{ROOT}/commitlog/{each.name}").read(each.size, 0)
        for each in entries
    }
    expected = index_files(index_items(read_log(log)), CONFIG.index_slots, CONFIG.index_items)
    names = [each.name for each in after.list(f"{ROOT}/index")]
    assert len(names) == len(expected) == 2
    there = [after.open(f"{ROOT}/index/{name}").read(1 << 20, 0) for name in names]
    ends = [IndexHeader.unpack(each[:HEADER_SIZE]).end_time for each in there]
    assert sum(end <= longs.index_timestamp for end in ends) == kept
    for content, data in zip(there[:kept], expected, strict=False):
        assert content[: len(data)] == data
