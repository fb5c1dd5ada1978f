"""What befalls a simulated cluster and the network between it and its clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
from tests.client.simulated_cluster import TOPIC, Cluster
from tests.client.simulated_network import now

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from typing import Any

    from tests.client.simulated_broker import Broker
    from tests.client.simulated_network import Network

    Disaster = Callable[[], Coroutine[Any, Any, None]]


class Trouble:
    """Disasters, each of which ends by itself."""

    def __init__(self, network: Network, cluster: Cluster) -> None:
        self.network = network
        self.cluster = cluster
        self._random = network.random

    async def befall(
        self,
        times: int,
        seconds: float,
        more: Sequence[Callable[[], Coroutine[Any, Any, None]]] = (),
    ) -> None:
        """Have so many of these and `more` begin within some time."""
        kinds: list[Disaster] = [
            self.crash, self.cut, self.grow, self.hide, self.expire, self.silence, self.break_,
            *more,
        ]  # fmt: skip
        for at in sorted(self._random.uniform(0, seconds) for _ in range(times)):
            await anyio.sleep(max(0.0, at - now()))
            disaster = self._random.choice(kinds)
            self.network.count(disaster.__name__)
            self.network.tasks.start_soon(disaster)

    async def end(self) -> None:
        """Have nothing go wrong any more, and wait until what went wrong is over."""
        await anyio.sleep(1)  # The last disaster may only be about to begin.
        self.network.trouble = 0
        for place in tuple(self.network.cut):
            self.network.heal(place)
        servers = [*self.network.servers.values()]
        while not all(each.is_up for each in servers):  # noqa: ASYNC110  # Nobody tells.
            await anyio.sleep(1)

    def _a_broker(self) -> Broker:
        return self._random.choice([*self.cluster.brokers.values()])

    async def crash(self) -> None:
        """A broker goes down, and comes back, perhaps at another address."""
        broker = self._a_broker()
        if broker.is_up:
            broker.crash()
            await anyio.sleep(self._random.uniform(0.1, 15))
            if self._random.random() < 0.5:
                broker.move()
                self.network.later(self._random.uniform(0, 10), self.cluster.publish)
            broker.is_up = True

    async def cut(self) -> None:
        """Nothing passes between a machine and a server."""
        machine = self._random.choice([*self.network.machines])
        place = machine, self._random.choice([*self.network.servers])
        self.network.cut.add(place)
        await anyio.sleep(self._random.choice((1, 5, 20, 70)))
        self.network.heal(place)

    async def grow(self) -> None:
        """The topic gets another queue, of which the name server learns later."""
        broker = self._a_broker()
        broker.have(TOPIC, broker.counts[TOPIC] + 1)
        self.network.later(self._random.uniform(0, 10), self.cluster.publish)

    async def hide(self) -> None:
        """The name server knows a broker no more for a while."""
        gone = self._a_broker().name
        self.cluster.published = {
            topic: tuple(row for row in rows if row.broker_name != gone)
            for topic, rows in self.cluster.published.items()
        }
        await anyio.sleep(self._random.uniform(1, 40))
        self.cluster.publish()

    async def expire(self) -> None:
        """The first messages of a queue expire."""
        _, log = self._random.choice([*self.cluster.logs().items()])
        log.lowest = self._random.choice((log.end, self._random.randrange(log.lowest, log.end + 1)))

    async def silence(self) -> None:
        """The name server does not answer."""
        self.cluster.nameserver.is_up = False
        await anyio.sleep(self._random.uniform(1, 40))
        self.cluster.nameserver.is_up = True

    async def break_(self) -> None:
        """All connections of a machine break."""
        machine = self._random.choice([*self.network.machines.values()])
        for link in machine.links:
            link.break_("reset by the peer")
