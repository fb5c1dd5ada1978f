"""Disks that are small, and disks that are full when a broker stops."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.broker.running import STORE, config_of, pull_request, send_request
from tests.broker.wired import Wired
from tests.crash.disk import SimulatedFileSystem

from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands import UpdateConsumerOffset

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


def test_a_broker_on_a_full_disk_stops_in_order(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = SimulatedFileSystem()
    wired = Wired(config_of(tmp_path), disk, threads=False)
    peer = wired.connect()
    assert wired.ask(peer, send_request("T", b"x")).code == ResponseCode.SUCCESS
    wired.ask(peer, pull_request("T", queue_id=0))  # This makes the group.
    told = Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffset("g", "T", 0, 1))
    assert wired.ask(peer, told).code == ResponseCode.SUCCESS
    total, disk.total = disk.total, disk.used
    assert not wired.broker.close(wired.now_ms), "there is no room for entries of queues either"
    assert "consumerOffset.json is not saved, its last changes are lost" in caplog.text
    disk.total = total
    wired = Wired(config_of(tmp_path), disk, threads=False)
    answer = wired.ask(wired.connect(), send_request("T", b"y"))
    assert answer.code == ResponseCode.SUCCESS, "the store was given back"
    wired.close()
