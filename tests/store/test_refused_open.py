"""A store that is refused leaves nothing behind in the process."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from tests.store.damaged_stores import SMALL, write_small_store

from cometmq.store.disk.filesystem import RealFileSystem
from cometmq.store.errors import LostQueuesError
from cometmq.store.message_store import MessageStore


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("has_lock", [True, False])
def test_a_refused_store_keeps_no_file_open(has_lock: bool, tmp_path: Path) -> None:
    write_small_store(RealFileSystem(), str(tmp_path), SMALL)
    for path in (tmp_path / "consumequeue/T/0").iterdir():
        path.unlink()
    if not has_lock:
        (tmp_path / "lock").unlink()
    gc.collect()
    gc.disable()
    try:
        before = descriptors()
        for _ in range(3):
            with pytest.raises(LostQueuesError):
                MessageStore.open(str(tmp_path), SMALL, now_ms=1, threads=False)
        assert descriptors() == before
    finally:
        gc.enable()
