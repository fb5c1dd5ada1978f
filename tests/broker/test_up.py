"""`cometmq up` as a separate process: ready line, signals, refusals, and kills."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvloop
from click.testing import CliRunner
from tests.broker.running import send_request

from cometmq.admin.program import program
from cometmq.net import LATER, Later, LoopPeer, Peer, Peers, connect
from cometmq.proto.command import Command
from cometmq.proto.host import Host

READY = re.compile(
    r"cometmq ready nameserver=127\.0\.0\.1:(\d+) broker=127\.0\.0\.1:(\d+)"
    r" metrics=(http://127\.0\.0\.1:\d+/metrics)\n"
)
PATIENCE_SECONDS = 30
QUEUES = 4
T = TypeVar("T")


@contextmanager
def up(folder: Path, *options: str) -> Generator[tuple[subprocess.Popen[str], Host]]:
    """Run `cometmq up`; yield the process and the broker's address."""
    with running(folder, *options) as (process, found):
        yield process, Host("127.0.0.1", int(found[2]))


@contextmanager
def running(folder: Path, *options: str) -> Generator[tuple[subprocess.Popen[str], re.Match[str]]]:
    """Run `cometmq up` on free ports, and kill it in the end if it still runs."""
    command = [sys.executable, "-m", "cometmq.admin", "up", "--dir", str(folder)]
    ports = ["--broker-port", "0", "--nameserver-port", "0", "--metrics-port", "0"]
    # A file, because a full pipe would hold up a process that logs.
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [*command, *ports, *options], stdout=subprocess.PIPE, stderr=log, text=True
        )
        assert process.stdout is not None
        try:
            found = READY.fullmatch(line := process.stdout.readline())
            if not found:
                process.kill()
                process.wait()
            assert found, (line, log.seek(0), log.read())
            yield process, found
        finally:
            process.kill()
            process.communicate()


@contextmanager
def up_pages(folder: Path) -> Generator[str]:
    """Run `cometmq up`; yield the address of its metrics page."""
    with running(folder) as (_, found):
        yield found[3]


def play(scenario: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(scenario)


class Asker:
    """Owns the one connection of a client that gets no requests."""

    def __init__(self) -> None:
        self.is_closed = asyncio.Event()

    def handle(self, request: Command, peer: Peer) -> Later:  # noqa: ARG002  # Owner's
        return LATER

    def end_turn(self) -> None: ...

    def opened(self, peer: Peer) -> None: ...

    def closed(self, peer: Peer) -> None:  # noqa: ARG002  # Owner's
        self.is_closed.set()


@asynccontextmanager
async def connected(address: Host) -> AsyncGenerator[LoopPeer]:
    asker = Asker()
    call_soon = asyncio.get_running_loop().call_soon
    peer = await connect(Peers(asker, call_soon=call_soon), address, timeout_ms=10_000)
    try:
        yield peer
    finally:
        peer.drop("the test is done with it")
        await asker.is_closed.wait()


@pytest.mark.slow
def test_a_signal_shuts_down_cleanly(tmp_path: Path) -> None:
    async def load(address: Host) -> None:
        async with connected(address) as peer:
            response = await peer.call(send_request("T", b"x"), timeout_ms=10_000)
            assert response.code == 0

    for number in (signal.SIGTERM, signal.SIGINT):
        with up(tmp_path) as (process, address):
            play(load(address))
            process.send_signal(number)
            assert process.wait(PATIENCE_SECONDS) == 0
        assert not (tmp_path / "abort").exists(), "the next start takes it for a crash"


@pytest.mark.slow
def test_a_second_start_on_a_store_is_refused_and_names_the_first(tmp_path: Path) -> None:
    with up(tmp_path) as (process, _), pytest.raises(AssertionError) as refused, up(tmp_path):
        pass
    assert f"pid {process.pid}" in str(refused.value)


@pytest.mark.slow
def test_a_port_in_use_is_a_clear_error(tmp_path: Path) -> None:
    with up(tmp_path / "a") as (_, address):
        command = [sys.executable, "-m", "cometmq.admin", "up", "--dir", str(tmp_path / "b")]
        ports = ["--broker-port", str(address.port), "--nameserver-port", "0"]
        refused = subprocess.run([*command, *ports], capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    said = f"Error: cannot listen on 127.0.0.1:{address.port}: the port is in use by process "
    assert said in refused.stderr


@pytest.mark.parametrize("nameserver_port", [20911, 20909])
def test_a_name_server_at_a_port_of_the_broker_is_refused(
    tmp_path: Path, nameserver_port: int
) -> None:
    ports = ["--broker-port", "20911", "--nameserver-port", str(nameserver_port)]
    refused = CliRunner().invoke(program, ["up", "--dir", str(tmp_path / "store"), *ports])
    assert refused.exit_code == 2
    said = f"--nameserver-port {nameserver_port}: the broker listens there, at its own port 20911"
    assert said in " ".join(refused.stderr.split())


def test_a_name_server_at_another_address_may_have_a_port_of_the_broker(tmp_path: Path) -> None:
    """Only binding tells whether a port is free. Here the store fails first."""
    (tmp_path / "store").touch()
    settings = tmp_path / "up.toml"
    settings.write_text('[nameserver]\nbind_address = "127.0.0.2"\nlisten_port = 20909\n')
    words = ["--dir", str(tmp_path / "store"), "--broker-port", "20911", "--config", str(settings)]
    refused = CliRunner().invoke(program, ["up", *words, "--metrics-port", "off"])
    assert refused.exit_code == 1
    assert "the broker listens there" not in refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "nonsense"])  # refused
def test_an_address_that_others_reach_is_refused(tmp_path: Path, host: str) -> None:
    command = [sys.executable, "-m", "cometmq.admin", "up", "--dir", str(tmp_path)]
    refused = subprocess.run(
        [*command, "--host", host], capture_output=True, text=True, check=False, env=os.environ
    )
    assert refused.returncode == 2
    assert host in refused.stderr
