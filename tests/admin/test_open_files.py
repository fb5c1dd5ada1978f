"""Clients do not take the descriptors that the store needs."""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.broker.test_up import READY

from cometmq.admin.open_files import raised_limit, within_limit
from cometmq.broker.config import BrokerConfig
from cometmq.client import Client

if TYPE_CHECKING:
    from pathlib import Path

LIMIT = 400
RAISED = """
import resource
from cometmq.admin.open_files import raised_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 300))
print(raised_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_a_daemon_takes_what_it_may_have() -> None:
    done = subprocess.run(
        [sys.executable, "-c", RAISED], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["300", "300", "300"]


@pytest.mark.parametrize(
    ("limit", "connections", "files"),
    [
        (resource.RLIM_INFINITY, 10_000, 512),
        (65_536, 10_000, 512),
        (4096, 3452, 512),
        (1024, 636, 256),
        (256, 64, 64),
    ],
)
def test_the_store_keeps_its_files_where_the_limit_is_low(
    limit: int, connections: int, files: int, caplog: pytest.LogCaptureFixture
) -> None:
    config = within_limit(BrokerConfig(), limit)
    assert (config.limits.connections_max, config.store.consume_queue_files_max) == (
        connections,
        files,
    )
    assert len(caplog.messages) == (connections < 10_000)


@pytest.mark.parametrize(
    ("limit", "connections_max", "files_max", "files"),
    [
        (1024, 9, 512, 512),
        (256, 9, 512, 64),
        (256, 9, 50, 50),
        (65_536, 10_000, 60_000, 16_384),
        (resource.RLIM_INFINITY, 10_000, 60_000, 60_000),
    ],
)
def test_the_store_opens_no_more_than_there_are_where_its_clients_are_few(
    limit: int,
    connections_max: int,
    files_max: int,
    files: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = BrokerConfig()
    few = replace(
        config,
        store=replace(config.store, consume_queue_files_max=files_max),
        limits=replace(config.limits, connections_max=connections_max),
    )
    store = replace(few.store, consume_queue_files_max=files)
    assert within_limit(few, limit) == replace(few, store=store)
    assert not caplog.messages


def test_sends_go_on_when_clients_have_all_connections(tmp_path: Path) -> None:
    raised_limit()  # This process opens as many connections as the broker may have files.
    up = [sys.executable, "-m", "cometmq.admin", "up", "--dir", str(tmp_path), "--flush", "async"]
    ports = ["--broker-port", "0", "--nameserver-port", "0", "--metrics-port", "0"]
    limited = ["sh", "-c", f'ulimit -n {LIMIT}; exec "$@"', "sh", *up, *ports]
    with (
        ExitStack() as stack,
        subprocess.Popen(
            limited, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as daemon,
    ):
        try:
            assert daemon.stdout is not None
            found = READY.fullmatch(daemon.stdout.readline())
            assert found

            async def send() -> None:
                async with Client(f"127.0.0.1:{found[1]}") as mq:
                    await mq.admin.create_topic("many", queues=LIMIT)
                    for _ in range(LIMIT):
                        await mq.send("many", b"x")
                    for _ in range(LIMIT):
                        address = ("127.0.0.1", int(found[2]))
                        stack.enter_context(socket.create_connection(address, timeout=5))
                    for _ in range(LIMIT):
                        await mq.send("many", b"x")
                    await asyncio.sleep(2)  # Meanwhile the queues' entries are written.
                    await mq.send("many", b"x")

            asyncio.run(send())
            daemon.send_signal(signal.SIGTERM)
            assert daemon.wait(30) == 0
        finally:
            daemon.kill()
