"""A start warns of a disk so small that one file of the log is several percent of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.broker.running import STORE, config_of
from tests.broker.wired import Wired
from tests.crash.disk import SimulatedFileSystem

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(("files", "is_told"), [(19, True), (20, False)])
def test_a_start_tells_of_a_disk_that_few_files_of_the_log_fill(
    files: int, is_told: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = SimulatedFileSystem()
    disk.total = files * STORE.segment_size
    Wired(config_of(tmp_path), disk, threads=False).close()
    told = [text for text in caplog.messages if "a smaller segment_size" in text]
    assert len(told) == is_told
    assert all("may take it above 90% at once" in text for text in told)
