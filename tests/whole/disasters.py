"""What befalls a whole cluster, and ends by itself."""

from __future__ import annotations

import asyncio
from errno import EIO
from typing import TYPE_CHECKING, Final

from tests.client.simulated_network import now
from tests.crash.disk import KillAt, Killed

from cometmq.client import ClientError
from cometmq.store.config import Flush
from cometmq.store.errors import StoreFilesError

if TYPE_CHECKING:
    from tests.crash.disk import Operation
    from tests.whole.servers import BrokerHost
    from tests.whole.test_whole_simulated import World

TOPIC: Final = "orders"
GROUPS: Final = ("anyhow", "in-order")
TROUBLE_SECONDS: Final = 90.0


class Disasters:
    """All of one history."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._times = world.choose((0, 3, 10, 25))
        self._full: list[BrokerHost] = []

    async def befall(self) -> None:
        """Have disasters happen, each of which ends by itself."""
        kinds = (
            self.restart, self.restart, self.break_, self.break_, self.part, self.slow,
            self.forget_names, self.fill, self.fail_a_sync, self.grow, self.reset,
            self.world.spare.recreate,
        )  # fmt: skip
        running: list[asyncio.Task[None]] = []
        for at in sorted(self.world.random.uniform(2, TROUBLE_SECONDS) for _ in range(self._times)):
            await asyncio.sleep(max(0.0, at - now()))
            running.append(asyncio.create_task(self.world.choose(kinds)()))
        await asyncio.sleep(max(0.0, TROUBLE_SECONDS - now()))
        if running:
            await asyncio.gather(*running)

    async def restart(self) -> None:
        """End a broker in some way, and start it again."""
        host = self.world.choose(self.world.brokers)
        if not host.is_up:
            return
        way = self.world.choose((host.stop, host.kill, host.cut))
        self.world.tell(f"{host.name}: {way.__name__}")
        if way == host.cut and self.world.flush is Flush.ASYNC:
            self.world.cuts.append(now())
        self.world.counts[way.__name__] += 1
        way()
        await self.start_again(host)

    async def start_again(self, host: BrokerHost) -> None:
        """Start a broker after a while, whose start may be killed, too."""
        while True:
            await asyncio.sleep(self.world.choose((0.1, 3, 20)))
            if self.world.random.random() < 0.3:
                host.disk.hook = KillAt(host.disk.operations + self.world.random.randrange(1, 100))
            try:
                host.start()
            except Killed:
                self.world.counts["start killed"] += 1
                self.world.tell(f"{host.name}: its start is killed")
                self._restarted(host)
            except (StoreFilesError, OSError) as error:
                if host not in self._full:
                    self.world.problems.append(f"{host.name} does not start: {error}")
                    raise
                self.world.counts["start refused"] += 1
                host.disk = host.disk.kill()
            else:
                host.disk.hook = None
                self.world.tell(f"{host.name}: start")
                return

    def _restarted(self, host: BrokerHost) -> None:
        """Have the disk be as after a kill, or a power cut."""
        if self.world.flush is Flush.SYNC and self.world.random.random() < 0.5:
            host.disk = host.disk.power_cut(self.world.random)
        else:
            host.disk = host.disk.kill()

    def gave_up(self, host: BrokerHost) -> None:
        """Start a broker again whose disk has failed."""
        if host.is_up:
            self.world.tell(f"{host.name}: ends, as a sync has failed")
            self.world.counts["gave up"] += 1
            host.kill()
            self.world.start(self.start_again(host))

    async def fail_a_sync(self) -> None:
        """Have a sync of the log fail: what was not on the disk then may never be."""
        host = self.world.choose(self.world.brokers)
        if not host.is_up:
            return

        def fail(operation: Operation) -> None:
            if operation.verb == "sync" and "commitlog" in operation.path:
                host.disk.hook = None
                raise OSError(EIO, "it failed", operation.path)

        host.disk.hook = fail
        await asyncio.sleep(5)
        if host.disk.hook is fail:
            host.disk.hook = None

    async def fill(self) -> None:
        """Have a disk be full for a while."""
        host = self.world.choose(self.world.brokers)
        if host in self._full or not host.is_up:
            return
        self.world.tell(f"{host.name}: its disk is full")
        self._full.append(host)
        total = host.disk.total
        host.disk.total = host.disk.used + self.world.choose((0, 5_000, 100_000))
        await asyncio.sleep(self.world.choose((1, 10, 30)))
        host.disk.total = total
        self.world.tell(f"{host.name}: its disk has room")
        await asyncio.sleep(1)
        self._full.remove(host)

    async def grow(self) -> None:
        """Give the topic more queues."""
        self.world.queues += 1
        async with self.world.client("operator") as mq:
            try:
                await mq.admin.create_topic(TOPIC, queues=self.world.queues)
            except ClientError:
                self.world.counts["not grown"] += 1

    async def reset(self) -> None:
        """Have a group read everything again."""
        group = self.world.choose(GROUPS)
        async with self.world.client("operator") as mq:
            try:
                await mq.admin.reset_offsets(group, TOPIC, "first")
            except ClientError:
                self.world.counts["not reset"] += 1
            else:
                self.world.tell(f"{group} is reset")
                self.world.counts["reset"] += 1

    async def break_(self) -> None:
        """Break connections."""
        for _ in range(self.world.choose((1, 5))):
            self.world.network.break_one()

    async def part(self) -> None:
        """Cut a host off from another for a while."""
        hosts = sorted({end.host for end in self.world.network.ends})
        if len(hosts) < 2:
            return
        pair = frozenset(self.world.random.sample(hosts, 2))
        self.world.network.cut.add(pair)
        self.world.tell(f"{sorted(pair)} are parted")
        await asyncio.sleep(self.world.choose((1, 10, 40)))
        self.world.network.heal(pair)

    async def slow(self) -> None:
        """Have a disk be slow for a while."""
        host = self.world.choose(self.world.brokers)
        host.slowness = self.world.choose((0.1, 1.0, 6.0))
        await asyncio.sleep(self.world.random.uniform(1, 20))
        host.slowness = 0.0

    async def forget_names(self) -> None:
        """Start a name server anew."""
        names = self.world.choose(self.world.names)
        if names.is_up:
            names.kill()
            await asyncio.sleep(self.world.choose((0.1, 10)))
            names.start()
