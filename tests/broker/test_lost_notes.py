"""A start that rebuilds a note of the store says so: the disk lost it, and maybe more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.broker.running import config_of, send_request
from tests.broker.wired import Wired
from tests.crash.disk import SimulatedFileSystem

if TYPE_CHECKING:
    from pathlib import Path

    from cometmq.broker.config import BrokerConfig


@pytest.fixture
def config(tmp_path: Path) -> BrokerConfig:
    return config_of(tmp_path)


@pytest.fixture
def shut_down(config: BrokerConfig) -> SimulatedFileSystem:
    """The disk of a broker that had a message and was shut down."""
    disk = SimulatedFileSystem()
    wired = Wired(config, disk, threads=False)
    peer = wired.connect()
    wired.give(peer, wired.frame(peer, send_request("orders", b"body")))
    wired.close()
    return disk


def test_a_store_that_is_whole_is_opened_without_a_word(
    config: BrokerConfig, shut_down: SimulatedFileSystem, caplog: pytest.LogCaptureFixture
) -> None:
    Wired(config, shut_down, threads=False).close()
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("name", "what"), [("checkpoint", "read the whole log"), ("queue_ends.json", "notice a queue")]
)
@pytest.mark.parametrize("size", [0, 20])
def test_a_note_that_is_damaged_is_named(
    name: str,
    what: str,
    size: int,
    config: BrokerConfig,
    shut_down: SimulatedFileSystem,
    caplog: pytest.LogCaptureFixture,
) -> None:
    file = shut_down.open(f"{config.store_path}/{name}")
    file.resize(size)
    file.close()
    Wired(config, shut_down, threads=False).close()
    (message,) = caplog.messages
    assert message.startswith(
        f"{config.store_path}/{name}: was damaged or missing, and was written"
    )
    assert what in message
    caplog.clear()
    Wired(config, shut_down, threads=False).close()
    assert caplog.messages == []  # The note is there again.


def test_a_checkpoint_that_is_missing_is_named(
    config: BrokerConfig, shut_down: SimulatedFileSystem, caplog: pytest.LogCaptureFixture
) -> None:
    shut_down.remove(f"{config.store_path}/checkpoint")
    Wired(config, shut_down, threads=False).close()
    (message,) = caplog.messages
    assert message.startswith(f"{config.store_path}/checkpoint: was damaged or missing")


def test_a_damaged_checkpoint_is_named_though_nothing_else_tells_whose_the_store_is(
    config: BrokerConfig, caplog: pytest.LogCaptureFixture
) -> None:
    disk = SimulatedFileSystem()
    Wired(config, disk, threads=False)
    killed = disk.kill()
    file = killed.open(f"{config.store_path}/checkpoint")
    file.resize(100)
    file.close()
    Wired(config, killed, threads=False).close()
    (message,) = caplog.messages
    assert message.startswith(f"{config.store_path}/checkpoint: was damaged or missing")
