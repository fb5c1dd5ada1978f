"""A live Apache RocketMQ broker, started on a store, and stopped or killed by its process id."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.interop.apache_java import one_at_a_time, required

from cometmq.client import ClientConfig, SyncClient

if TYPE_CHECKING:
    from collections.abc import Mapping

START = Path(__file__).parent / "apache" / "start.sh"
START_SECONDS = 180
"""The first start on a machine downloads the jars."""
STOP_SECONDS = 60
HEAP = "512m"
PATIENT = ClientConfig(timeout=15.0)
FIRST_PORT, LAST_PORT = 32010, 32700
"""Below the ports that Linux gives to clients."""


def free_ports() -> tuple[int, int]:
    """Return a port for a broker, which takes port - 2 and + 1 too, and one for a name server."""
    for broker in range(FIRST_PORT + os.getpid() % 50 * 10, LAST_PORT, 10):
        if all(is_free(port) for port in (broker - 2, broker, broker + 1, broker + 5)):
            return broker, broker + 5
    raise AssertionError(f"no four free ports from {FIRST_PORT} to {LAST_PORT}")


def is_free(port: int) -> bool:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class Process:
    """A process that is not our child, by a handle that never comes to mean another process."""

    def __init__(self, pid: int) -> None:
        self._handle = os.pidfd_open(pid)

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, number)

    def wait(self, seconds: float) -> bool:
        """Whether it ended in time."""
        ended = select.poll()
        ended.register(self._handle, select.POLLIN)
        return bool(ended.poll(seconds * 1000))

    def close(self) -> None:
        """Make sure that it is gone."""
        self.signal(signal.SIGKILL)
        self.wait(STOP_SECONDS)
        os.close(self._handle)


class ApacheBroker:
    """One broker on `folder`/store, with a name server of its own; leaves no process behind."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str],
        release: str = "5.5.0",
        known_by: ClientConfig = PATIENT,
    ) -> None:
        self.port = self.name_server_port = 0
        """Chosen when it starts."""
        self._folder = folder
        self._settings = settings
        self._release = release
        self._known_by = known_by
        """How a client gets in."""
        self._processes: list[Process] = []

    @property
    def nameserver(self) -> str:
        """The address of its name server."""
        return f"127.0.0.1:{self.name_server_port}"

    def __enter__(self) -> Self:
        """Start it, and wait until it serves and clients find it."""
        required("java")
        required("mvn")
        with one_at_a_time():
            self.port, self.name_server_port = free_ports()
            self._start()
        try:
            self._wait_until_it_is_known()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        command = ["bash", str(START), str(self._folder), str(self.port)]
        command += [str(self.name_server_port), "ASYNC_FLUSH", HEAP]
        settings = "\n".join(f"{name}={value}" for name, value in self._settings.items())
        starter = subprocess.Popen(
            command,
            env={**os.environ, "EXTRA": settings, "VERSION": self._release},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        try:
            assert starter.stderr is not None
            with starter.stderr:
                starter.wait(START_SECONDS)
                assert starter.returncode == 0, starter.stderr.read()
            for name in ("broker", "ns"):
                self._processes.append(Process(int((self._folder / f"{name}.pid").read_text())))
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(starter.pid, signal.SIGKILL)
            starter.wait()
            raise

    def _wait_until_it_is_known(self) -> None:
        """A name server shows the broker's name a moment after its start, and then its address."""
        deadline = time.monotonic() + START_SECONDS
        with SyncClient(self.nameserver, self._known_by) as mq:
            while not any(broker.addresses for broker in mq.admin.brokers()):
                assert time.monotonic() < deadline, "the name server does not know the broker"
                time.sleep(0.02)

    def __exit__(self, *_: object) -> None:
        """End what still runs, the hard way."""
        for process in self._processes:
            process.close()
        self._processes.clear()

    def stop(self) -> None:
        """Shut the broker down cleanly."""
        self._processes[0].signal(signal.SIGTERM)
        assert self._processes[0].wait(STOP_SECONDS), "the broker does not stop"
        assert not (self._folder / "store" / "abort").exists()

    def kill(self) -> None:
        """End the broker as a crash would."""
        self._processes[0].signal(signal.SIGKILL)
        assert self._processes[0].wait(STOP_SECONDS)
        assert (self._folder / "store" / "abort").exists()
