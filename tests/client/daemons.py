"""Daemons of the command line in separate processes, for tests that kill and restart them."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

_PORTS = re.compile(r"(?:nameserver|broker)=127\.0\.0\.1:(\d+)")


class Daemon:
    """A daemon that each start brings back at the ports that it had at first."""

    def __init__(
        self, kind: str, folder: Path, *options: str, port_options: Sequence[str] = ("--port",)
    ) -> None:
        """Take `port_options` in the order in which the ready line names the ports."""
        self._command = [sys.executable, "-m", "cometmq.admin", kind, "--dir", str(folder)]
        self._command += ["--metrics-port", "0", *options]
        self._ports = dict.fromkeys(port_options, "0")

    @property
    def address(self) -> str:
        """The daemon's address, with the first of several ports."""
        return f"127.0.0.1:{next(iter(self._ports.values()))}"

    @contextmanager
    def running(self) -> Generator[str]:
        self.start()
        try:
            yield self.address
        finally:
            self.kill()

    def start(self) -> None:
        ports = [text for pair in self._ports.items() for text in pair]
        self._process = subprocess.Popen(
            [*self._command, *ports], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        ready = self._process.stdout.readline()
        self._ports = dict(zip(self._ports, _PORTS.findall(ready), strict=True))

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
