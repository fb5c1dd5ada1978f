"""Broadcasts, while simulated brokers, their network and the members do what they may do.

Each member gets each message from where it first began, however often it is killed and restarted,
and even if the last write of its file of offsets is torn.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import anyio
import anyio.lowlevel
import pytest
from tests.client.simulated_broker import Broker
from tests.client.simulated_cluster import NAMESERVER, TOPIC, Cluster
from tests.client.simulated_network import Machine, Network, now, runtime_of
from tests.client.simulated_run import run, seeds_of
from tests.client.simulated_trouble import Trouble

from cometmq.client import Client, ClientConfig, ClientError, Queue
from cometmq.proto.commands import PullMessage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cometmq.client import Message
    from cometmq.proto.command import Command

GROUP: Final = "screens"
TROUBLE_SECONDS: Final = 120.0
PATIENCE_SECONDS: Final = 150.0


class BroadcastBroker(Broker):
    """A broker that tells where each member first begins."""

    def _pull(self, request: Command, respond: Callable[[Command], None]) -> None:
        header = request.read(PullMessage)
        queue = Queue(header.topic, self.name, header.queue_id)
        begun = WORLDS[self.network].begun
        begun.setdefault((self._from.owner.name, queue), header.queue_offset)
        super()._pull(request, respond)


WORLDS: Final[dict[Network, World]] = {}


class World:
    """One history."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.network = Network(seed, (0.0, 0.01, 0.05, 0.1)[seed % 4])
        self.random = self.network.random
        self.choose = self.random.choice
        self.begun: dict[tuple[str, Queue], int] = {}
        self.done: dict[tuple[str, Queue], set[int]] = {}
        self.opening: Machine
        self.cluster: Cluster
        self.problems: list[str] = []
        self.dying: set[str] = set()
        """Ends of the names of the folders of members that write no more."""

        self._folder = folder
        self._start: Literal["first", "last"] = self.choose(("first", "last"))
        self._scopes: dict[str, anyio.CancelScope] = {}
        self._is_troubled = True
        self._disasters = self.choose((5, 15)) if seed % 4 else 2

    async def play(self) -> None:
        """Broadcast through trouble, and see who has got what."""
        async with anyio.create_task_group() as self.network.tasks:
            names = ["a", "b"][: self.random.randrange(1, 3)]
            self.cluster = Cluster(
                self.network, names, is_apache=self.choose((True, False)), kind=BroadcastBroker
            )
            for broker in self.cluster.brokers.values():
                broker.have(TOPIC, self.random.randrange(1, 3))
            self.cluster.publish()
            self.network.tasks.start_soon(self._produce)
            for number in range(self.random.randrange(1, 4)):
                self.network.tasks.start_soon(self._live, f"m{number}")
            trouble = Trouble(self.network, self.cluster)
            trouble.expire = self._kill  # type: ignore[method-assign]  # Nothing expires here.
            await trouble.befall(self._disasters, TROUBLE_SECONDS, [self._kill] * 3)
            self._is_troubled = False
            await trouble.end()
            self.cluster.publish()
            until = now() + PATIENCE_SECONDS
            while self._left() and now() < until:  # noqa: ASYNC110  # Nobody tells.
                await anyio.sleep(1)
            self.problems += self._left()
            self.network.tasks.cancel_scope.cancel()

    async def _produce(self) -> None:
        while self._is_troubled:
            queue = self.choose([q for q in self.cluster.logs() if q.topic == TOPIC])
            self.cluster.brokers[queue.broker].store(queue, b"body", b"")
            await anyio.sleep(self.random.uniform(0, 2))

    async def _kill(self) -> None:
        """Kill a member, or have it end well; it is started again."""
        if not self._scopes:
            return
        name = self.choose([*self._scopes])
        if self.choose((True, False)):
            self.dying.add(f"@{name}")
        self._scopes.pop(name).cancel()

    async def _live(self, name: str) -> None:
        while True:
            machine = self.network.machines[name] = Machine(name)
            with anyio.CancelScope() as self._scopes[name]:
                await self._run(machine)
            machine.is_dead = True
            for link in machine.links:
                link.break_("killed")
            if f"@{name}" in self.dying:
                self.network.count("killed")
                if self.choose((True, False)):
                    self._tear(name)
            self.dying.discard(f"@{name}")
            await anyio.sleep(self.random.uniform(0, 10))

    async def _run(self, machine: Machine) -> None:
        self.opening = machine
        config = ClientConfig(instance=machine.name, broadcast_folder=str(self._folder))
        async with Client(NAMESERVER, config) as mq:
            consumer = mq.consume(TOPIC, group=GROUP, start=self._start, broadcast=True)
            while True:
                try:
                    await consumer.run(partial(self._handle, machine), concurrency=3)
                except ClientError as error:
                    if not error.can_retry:
                        self.problems.append(f"it cannot begin: {error}")
                        return
                    await anyio.sleep(1)

    async def _handle(self, machine: Machine, message: Message) -> None:
        await anyio.sleep(self.choose((0, 0.01, 1)))
        if not machine.is_dead:
            self.network.count("handled")
            self.done.setdefault((machine.name, message.queue), set()).add(message.offset)

    def _tear(self, name: str) -> None:
        """As if the machine had lost power: what was written last has a bad end."""
        for file in self._folder.glob(f"*@{name}/{GROUP}/offsets.json"):
            if file.with_suffix(".json.bak").exists():
                file.write_bytes(file.read_bytes()[:-2])
                self.network.count("torn")

    def _left(self) -> list[str]:
        left: list[str] = []
        for (name, queue), first in self.begun.items():
            missing = {*range(first, self.cluster.log(queue).end)} - self.done.get(
                (name, queue), set()
            )
            if missing:
                left.append(f"{name} has not got {sorted(missing)} of {queue}")
        return left


def play(seed: int, loop: str, folder: Path) -> Counter[str]:
    """Play one history, check that nothing went wrong in it, and return what happened."""
    world = World(seed, folder)
    WORLDS[world.network] = world
    try:
        run(loop, seed, world.play, lambda: runtime_of(world.network, world.opening))
    finally:
        del WORLDS[world.network]
    assert not world.problems, f"seed {seed}: {world.problems[0]}"
    return world.network.counts


@pytest.mark.parametrize(("loop", "seeds"), [("asyncio", 8), ("trio", 2)])
def test_each_member_gets_each_message(
    loop: str, seeds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run_sync(function: Callable[[], Any]) -> Any:
        await anyio.lowlevel.checkpoint()
        path: Path = cast("Any", function).__self__._path
        if any(path.parts[-3].endswith(name) for world in WORLDS.values() for name in world.dying):
            raise OSError("killed")
        return function()  # Time passes only while all tasks wait, and threads are none of them.

    inline = SimpleNamespace(to_thread=SimpleNamespace(run_sync=run_sync))
    monkeypatch.setattr("cometmq.client._offset_store.anyio", inline)

    def fsync(_: int) -> None:
        """Do nothing: nobody pulls the plug."""

    unsynced = SimpleNamespace(fsync=fsync)
    monkeypatch.setattr("cometmq.client._offset_store.os", unsynced)
    counts = sum(
        (play(seed, loop, tmp_path / str(seed)) for seed in seeds_of(seeds)), Counter[str]()
    )
    assert counts["handled"] > 20 * seeds, counts
    if seeds > 2:
        assert counts.keys() >= {"killed", "torn", "crash", "cut"}, counts
