"""A start that cuts off the torn end of the log says so. The cut part was never promised."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.broker.running import config_of, send_request
from tests.broker.wired import Wired
from tests.crash.disk import SimulatedFileSystem

from cometmq.store.config import Flush

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_start_names_where_it_keeps_what_it_cut_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config, disk = config_of(tmp_path, flush=Flush.SYNC), SimulatedFileSystem()
    wired = Wired(config, disk, threads=False)
    peer = wired.connect()
    wired.give(peer, wired.frame(peer, send_request("orders", b"body")))
    wired.sync()
    wired.save()
    end = wired.broker.store.end_offset
    killed = disk.kill()
    Wired(config, killed, threads=False).close()
    assert caplog.messages == []  # Nothing was torn.
    killed = disk.kill()
    file = killed.open(f"{config.store_path}/commitlog/{0:020d}")
    file.write(b"half a record", end)
    file.close()
    Wired(config, killed, threads=False).close()
    (message,) = caplog.messages
    kept = f"{config.store_path}/cut/{end:020d}-0"
    assert message.endswith(f"the bytes are kept in {kept}")
    assert killed.open(kept, read_only=True).read(99, 0) == b"half a record"
