"""A broker on a small disk that fills up: `python -m tests.admin.full_disk FOLDER FLUSH MODE`.

Run it in a mount namespace (`unshare`): it mounts a small tmpfs over FOLDER. With MODE `nearly` the
broker itself fills the disk. With `wholly` another program takes the last byte, while the log still
has room in its file but the sparse files of queues and index do not. Reading or writing a map of
such a file there would end the process by SIGBUS.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Final

from tests.broker.test_up import running

from cometmq.client import BusyError, Client

COMETMQ: Final = [sys.executable, "-m", "cometmq.admin"]
DISK_SIZE: Final = "48m"
BALLAST_SIZE: Final = 24 << 20
SEGMENT_SIZE: Final = 4 << 20
PATIENCE_SECONDS: Final = 60.0
INSISTED_COUNT: Final = 10
PADDING: Final = Random(1).randbytes(60_000)
"""Data that cannot be compressed."""
FEW: Final = 20
TOPIC: Final = "orders"


def fill(path: Path) -> None:
    """Take all free space, to the last byte."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    assert os.statvfs(path).f_bavail == 0


class Play:
    """The actions of a user meanwhile, and the messages that the broker has promised."""

    def __init__(self, mq: Client, folder: Path) -> None:
        self._mq = mq
        self._folder = folder
        self._stored: set[int] = set()
        self._next = 0

    async def send(self) -> None:
        """Send the next message, whose number is used up once it is acknowledged."""
        body = b"%06d" % self._next + PADDING
        await self._mq.send(TOPIC, body, key=f"k{self._next}")
        self._stored.add(self._next)
        self._next += 1

    async def send_until_refused(self) -> str:
        """Send until the broker refuses, and return its reason."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            try:
                await self.send()
            except BusyError as refused:
                return str(refused)
        raise AssertionError("never refused")

    async def send_until_taken(self) -> None:
        """Send until the broker accepts a message again."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return await self.send()
            except BusyError:
                assert time.monotonic() < deadline, "refused for ever"
                await asyncio.sleep(0.05)

    async def consume_all(self, group: str) -> None:
        """Check that consuming finds all acknowledged messages and no others."""
        found: set[int] = set()
        async with (
            asyncio.timeout(PATIENCE_SECONDS),
            self._mq.consume(TOPIC, group=group, start="first") as consumer,
        ):
            async for message in consumer:
                async with message:
                    found.add(int(message.body[:6]))
                if len(found) >= len(self._stored):
                    break
        assert found == self._stored

    async def find_first(self) -> None:
        """Wait until the index finds the first message by its key."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (found := await self._mq.admin.find_messages(TOPIC, "k0")):
            assert time.monotonic() < deadline, "not in the index"
            await asyncio.sleep(0.05)
        assert [int(message.body[:6]) for message in found] == [0]

    async def play(self, *, wholly: bool) -> None:
        """Fill the disk, keep sending, check the messages, make room and continue."""
        if wholly:
            for _ in range(FEW):
                await self.send()
            await self.find_first()  # The index is written later, and no longer on a full disk.
            fill(self._folder / "the last bytes")
        why = await self.send_until_refused()
        sys.stdout.write(f"refused after {len(self._stored)}: {why}\n")
        assert "SERVICE_NOT_AVAILABLE" in why
        assert "disk" in why
        for _ in range(INSISTED_COUNT):
            with suppress(BusyError):
                await self.send()
        await self.find_first()
        await self.consume_all("while_it_is_full")
        (self._folder / "ballast").unlink()
        await self.send_until_taken()
        await self.consume_all("afterwards")


def main() -> int:
    """Mount, start, play, stop, and check the store that is left."""
    folder, flush, mode = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_SIZE}", "none", str(folder)]
    subprocess.run(mount, check=True)
    (folder / "ballast").write_bytes(bytes(BALLAST_SIZE))
    store = folder / "store"
    settings = [f"--segment-size={SEGMENT_SIZE}", f"--flush={flush}"]
    # Nothing may expire here before the disk itself has refused something.
    limits = {"expire": 98, "force": 99, "max": 100 if mode == "wholly" else 90}
    for name, percent in limits.items():
        settings += ["--set", f"disk_used_percent_{name}={percent}"]
    with running(store, *settings) as (broker, ready):

        async def play() -> None:
            async with Client(f"127.0.0.1:{ready[1]}") as mq:
                await Play(mq, folder).play(wholly=mode == "wholly")

        asyncio.run(play())
        broker.send_signal(signal.SIGTERM)
        assert broker.wait(PATIENCE_SECONDS) == 0
    return subprocess.run([*COMETMQ, "store", "verify", str(store)], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
