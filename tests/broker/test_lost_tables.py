"""A broker that lost one of its tables says so, though it finds only an empty one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.broker.running import config_of
from tests.broker.wired import Wired
from tests.crash.disk import SimulatedFileSystem

from cometmq.store.config import Flush
from cometmq.store.tables import CONSUMER_OFFSETS, SUBSCRIPTION_GROUPS

CONFIG = config_of(Path("/broker"), flush=Flush.SYNC)
FOLDER = f"{CONFIG.store_path}/config"


def with_groups() -> SimulatedFileSystem:
    """A store in which a group has consumed."""
    disk = SimulatedFileSystem()
    wired = Wired(CONFIG, disk, threads=False)
    state = wired.broker.state
    assert state.groups.find_or_make("billing", 0) is not None
    state.offsets.commit("billing", "orders", 0, 5)
    wired.close()
    return disk


def lose(disk: SimulatedFileSystem, name: str) -> None:
    for path in (f"{FOLDER}/{name}", f"{FOLDER}/{name}.bak"):
        if disk.exists(path):
            disk.remove(path)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (CONSUMER_OFFSETS, r"there are consumer groups \(billing\)"),
        (SUBSCRIPTION_GROUPS, r"groups have consumed \(billing\)"),
    ],
)
def test_a_start_names_a_table_that_was_lost_once(
    name: str, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    disk = with_groups()
    lose(disk, name)
    wired = Wired(CONFIG, disk, threads=False)
    (message,) = caplog.messages
    assert message.startswith(f"{FOLDER}/{name}: missing or empty, and so is its .bak, though ")
    assert told.replace("\\", "") in message
    assert caplog.records[0].levelname == "WARNING"
    wired.close()
    caplog.clear()
    Wired(CONFIG, disk, threads=False).close()
    assert caplog.messages == []


@pytest.mark.parametrize("name", [CONSUMER_OFFSETS, SUBSCRIPTION_GROUPS])
def test_one_that_has_a_backup_is_taken_from_it(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    disk = with_groups()
    disk.rename(f"{FOLDER}/{name}", f"{FOLDER}/{name}.bak")
    wired = Wired(CONFIG, disk, threads=False)
    (message,) = caplog.messages
    assert f"{FOLDER}/{name}.bak" in message
    assert wired.broker.state.offsets.find("billing", "orders", 0) == 5
    wired.close()


def test_a_new_store_has_lost_nothing_nor_has_one_in_which_no_group_has_consumed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = SimulatedFileSystem()
    wired = Wired(CONFIG, disk, threads=False)
    assert wired.broker.state.groups.find_or_make("billing", 0) is not None
    wired.close()
    Wired(CONFIG, disk, threads=False).close()
    assert caplog.messages == []
