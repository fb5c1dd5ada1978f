"""Problems that a handler finds in the store's folder become answers that say what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.broker.running import config_of, send_request
from tests.broker.wired import Wired
from tests.crash.disk import SimulatedFileSystem

from cometmq.proto.codes import ResponseCode


def odd_file(disk: SimulatedFileSystem, queue: str) -> str:
    disk.open(f"{queue}/00000000000000000010", create=True).resize(20)
    return "stop the broker, restore the file from a copy or move it elsewhere"


def bad_sector(disk: SimulatedFileSystem, queue: str) -> str:
    disk.make_unreadable(f"{queue}/{0:020d}", 0, 512)
    return "the disk is failing: copy what can be read"


@pytest.mark.parametrize("spoil", [odd_file, bad_sector])
def test_a_queue_that_cannot_be_loaded_is_named_to_who_asks_and_in_the_log(
    spoil: Callable[[SimulatedFileSystem, str], str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk, config = SimulatedFileSystem(), config_of(tmp_path)
    wired = Wired(config, disk)
    assert wired.ask(wired.connect(), send_request("T", b"x")).code == 0
    wired.close()
    wired = Wired(config, disk)
    queue = f"{config.store_path}/consumequeue/T/0"
    advice = spoil(disk, queue)
    answer = wired.ask(wired.connect(), send_request("T", b"x"))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert queue in (answer.remark or "")
    assert advice in (answer.remark or "")
    assert [record.exc_info for record in caplog.records if queue in record.message] == [None]
    assert wired.ask(wired.connect(), send_request("U", b"x")).code == 0
    wired.close()
