"""Real kills of a whole broker under load: `python -m tests.crash.broker_kills --kills 50`.

A broker with small segments runs in its own process. Senders and a consumer group work until a
random number of sends is acknowledged. Then the process is killed (SIGKILL), and the next one
continues with what it left. These promises must hold:

* An acknowledged message stays at its place for ever: the consumers of each life check what they
  read, and in the end all queues are read from their beginning.
* A queue has no gaps, and the messages of one sender are in the order in which it sent them.
* A group continues where it committed, or earlier: at most its commits between two saves of its
  offsets are forgotten. So it never falls back further than where the life before began.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

import trio
from tests.broker.running import config_of, pull_request, send_request
from tests.broker.test_up import connected, play

from cometmq.broker import daemon
from cometmq.net import LoopPeer, NetError, guest
from cometmq.proto import fastjson
from cometmq.proto.batch import BatchItem, encode_batch
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands import (
    OffsetResponse,
    QueryConsumerOffset,
    SendMessageResponse,
    UpdateConsumerOffset,
)
from cometmq.proto.host import Host
from cometmq.proto.message_list import MessageList
from cometmq.store.config import Flush

if TYPE_CHECKING:
    from collections.abc import Iterable

TOPIC: Final = "T"
QUEUES: Final = 4
SENDERS: Final = 8
BATCH: Final = 8
SAVE_INTERVAL_MS: Final = 50
PATIENCE_SECONDS: Final = 120.0
TIMEOUT_MS: Final = 60_000


@dataclass
class Promises:
    """What the broker has acknowledged, over all its lives."""

    sent: dict[tuple[int, int], bytes] = field(default_factory=dict[tuple[int, int], bytes])
    committed: dict[int, int] = field(default_factory=dict[int, int])
    """The last offset that the group committed, by queue."""
    saved: dict[int, int] = field(default_factory=dict[int, int])
    """The least offset at which the group continues, by queue: where it did in the life before."""

    def check_message(self, queue_id: int, offset: int, body: bytes) -> None:
        """Check what is at a place against what was acknowledged for it."""
        wanted = self.sent.get((queue_id, offset))
        assert wanted in (None, body), (
            f"queue {queue_id}, offset {offset}: {body!r}, not {wanted!r}"
        )

    def check_resumed(self, queue_id: int, offset: int) -> None:
        """Check where the group continues."""
        committed = self.committed.get(queue_id, 0)
        saved = self.saved.get(queue_id, 0)
        assert saved <= offset <= committed, (
            f"queue {queue_id}: the group goes on at {offset}, it committed {committed} and went on"
            f" at {saved} before"
        )
        self.saved[queue_id] = offset


class Life:
    """One life of a broker, from its start to the kill."""

    def __init__(self, folder: str, number: int, promises: Promises, goal: int) -> None:
        self._folder = folder
        self._number = number
        self._promises = promises
        self._goal = len(promises.sent) + goal
        self._has_enough = asyncio.Event()

    async def run(self, address: Host, kill: subprocess.Popen[str]) -> None:
        """Send and consume, kill, and wait until everybody has noticed."""
        async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
            for sender in range(SENDERS):
                tasks.create_task(self._send(address, sender))
            for queue_id in range(QUEUES):
                tasks.create_task(self._consume(address, queue_id))
            await self._has_enough.wait()
            # Without a save short lives would show nothing of a group.
            while self._number == 0 and len(saved_offsets(self._folder)) < QUEUES:  # noqa: ASYNC110  # Untold.
                await asyncio.sleep(0.01)
            kill.send_signal(signal.SIGKILL)

    async def _send(self, address: Host, sender: int) -> None:
        """Send one message after the other to one queue; the last sender sends batches."""
        queue_id = sender % QUEUES
        async with connected(address) as peer:
            with suppress(NetError):
                for number in itertools.count():
                    bodies = [b"%d-%d-%d" % (self._number, sender, number)]
                    if sender == SENDERS - 1:
                        bodies = [b"%b.%d" % (bodies[0], item) for item in range(BATCH)]
                    self._note(await self._put(peer, queue_id, bodies), bodies)

    async def _put(
        self, peer: LoopPeer, queue_id: int, bodies: list[bytes]
    ) -> SendMessageResponse | None:
        request = send_request(TOPIC, bodies[0], queue_id=queue_id)
        if len(bodies) > 1:
            body = encode_batch(TOPIC, [BatchItem(each) for each in bodies])
            request = send_request(TOPIC, body, queue_id=queue_id, code=320, batch=True)
        answer = await peer.call(request, timeout_ms=TIMEOUT_MS)
        # With sync flush the answer may report a slow disk; that promises nothing.
        if answer.code == ResponseCode.FLUSH_DISK_TIMEOUT:
            return None
        assert answer.code == 0, answer.remark
        return answer.read(SendMessageResponse)

    def _note(self, said: SendMessageResponse | None, bodies: list[bytes]) -> None:
        sent = self._promises.sent
        if said is not None:
            for number, body in enumerate(bodies):
                sent[said.queue_id, said.queue_offset + number] = body
        if len(sent) >= self._goal:
            self._has_enough.set()

    async def _consume(self, address: Host, queue_id: int) -> None:
        """Pull from where the group continues, and commit."""
        async with connected(address) as peer:
            with suppress(NetError):
                offset = await resumed(peer, queue_id)
                self._promises.check_resumed(queue_id, offset)
                while True:
                    messages = await pulled(peer, queue_id, offset, wait_ms=1000)
                    for body in messages:
                        self._promises.check_message(queue_id, offset, body)
                        offset += 1
                    if messages:
                        await self._commit(peer, queue_id, offset)

    async def _commit(self, peer: LoopPeer, queue_id: int, offset: int) -> None:
        # It may be saved even if its answer does not come.
        self._promises.committed[queue_id] = offset
        header = UpdateConsumerOffset("g", TOPIC, queue_id, offset)
        request = Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, header)
        answer = await peer.call(request, timeout_ms=TIMEOUT_MS)
        assert answer.code == 0, answer.remark


def saved_offsets(folder: str) -> dict[str, int]:
    """Read the group's saved offsets, by queue."""
    try:
        table = fastjson.loads(Path(folder, "data", "config", "consumerOffset.json").read_bytes())
    except FileNotFoundError:
        return {}
    offsets: dict[str, int] = table["offsetTable"].get(f"{TOPIC}@g", {})
    return offsets


async def resumed(peer: LoopPeer, queue_id: int) -> int:
    """Ask where the group continues; at the beginning of a queue that it has not read yet."""
    header = QueryConsumerOffset("g", TOPIC, queue_id)
    request = Command.request(RequestCode.QUERY_CONSUMER_OFFSET, header)
    answer = await peer.call(request, timeout_ms=TIMEOUT_MS)
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        return 0
    assert answer.code == 0, answer.remark
    return answer.read(OffsetResponse).offset


async def pulled(peer: LoopPeer, queue_id: int, offset: int, wait_ms: int = 0) -> list[bytes]:
    """Pull once; return the messages from an offset on, which must have no gap."""
    request = pull_request(
        TOPIC,
        offset,
        queue_id=queue_id,
        sys_flag=6 if wait_ms else 4,
        suspend_timeout_millis=wait_ms,
    )
    answer = await peer.call(request, timeout_ms=TIMEOUT_MS)
    if answer.code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY):
        return []
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return []
    assert answer.code == 0, (answer.code, answer.remark, queue_id, offset)
    messages = list(MessageList(bytes(answer.body or b"")))
    found = [message.queue_offset for message in messages]
    assert found == list(range(offset, offset + len(found))), (queue_id, offset, found)
    return [message.body for message in messages]


async def read_all(address: Host, promises: Promises) -> int:
    """Read all queues from their beginning, and compare; return how many messages they have."""
    count = 0
    async with connected(address) as peer:
        for queue_id in range(QUEUES):
            promises.check_resumed(queue_id, await resumed(peer, queue_id))
            bodies: list[bytes] = []
            while more := await pulled(peer, queue_id, len(bodies)):
                bodies += more
            for offset, body in enumerate(bodies):
                promises.check_message(queue_id, offset, body)
            lost = [o for q, o in promises.sent if q == queue_id and o >= len(bodies)]
            assert not lost, f"queue {queue_id} ends at {len(bodies)}, acknowledged: {lost[:5]}"
            check_order(bodies)
            count += len(bodies)
    return count


def check_order(bodies: Iterable[bytes]) -> None:
    """Check that the messages of each sender are in its order, each once."""
    last: dict[bytes, list[int]] = defaultdict(list)
    for body in bodies:
        life, sender, number = body.split(b"-")
        place = [int(part) for part in number.split(b".")]
        key = life + b"-" + sender
        assert last[key] < place, f"{body!r} stands behind {key!r}-{last[key]}"
        last[key] = place


def serve(folder: str, flush: Flush) -> None:
    """Be the process that is killed: a broker that tells its port."""
    config = replace(config_of(Path(folder), flush=flush), save_interval_ms=SAVE_INTERVAL_MS)

    async def main(_: trio.Event) -> None:
        async with trio.open_nursery() as nursery:
            address = await nursery.start(daemon.serve, config)
            sys.stdout.write(f"{address.port}\n")
            sys.stdout.flush()

    guest.run(main)


def started(folder: str, flush: Flush) -> tuple[subprocess.Popen[str], Host]:
    """Start a broker on what the one before left."""
    command = [sys.executable, "-m", "tests.crash.broker_kills", "--serve", folder]
    process = subprocess.Popen(
        [*command, "--flush", flush.value], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    port = process.stdout.readline()
    assert port, "the broker does not start"
    return process, Host("127.0.0.1", int(port))


def run(kills: int, flush: Flush, rng: Random) -> str:
    """Kill a broker `kills` times; return what was seen."""
    promises = Promises()
    count = 0
    with tempfile.TemporaryDirectory(prefix="cometmq-kills-") as folder:
        for number in range(kills + 1):
            process, address = started(folder, flush)
            try:
                if number < kills:
                    life = Life(folder, number, promises, rng.randrange(1, 4000))
                    play(life.run(address, process))
                else:
                    count = play(read_all(address, promises))
            finally:
                process.kill()
                process.communicate()
    assert all(promises.saved.get(queue_id, 0) for queue_id in range(QUEUES)), promises.saved
    return (
        f"{flush.value}: {kills} kills, {len(promises.sent)} sends acknowledged, {count} messages"
        " found, none of the former lost, order held, consumers went on"
    )


def main() -> int:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.broker_kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=3, help="for each way of flushing")
    parser.add_argument("--flush", choices=[each.value for each in Flush], help="only this way")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)))
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    ways = [Flush(arguments.flush)] if arguments.flush else list(Flush)
    if arguments.serve:
        serve(arguments.serve, ways[0])
        return 0
    for flush in ways:
        said = run(arguments.kills, flush, Random(arguments.seed))
        sys.stdout.write(f"seed {arguments.seed}, {said}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
