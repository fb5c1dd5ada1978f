"""A cluster that is only simulated, and what befalls it, as a random generator has it.

It takes the place of `wire`, so no socket is opened, and time passes only when something is asked.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Final

import pytest
from tests.pipeline.simulated_servers import BUSY, ERROR, Broker, Life, NameServer, Topic

from cometmq.pipeline.cluster import GET_EARLIEST_MSG_STORETIME, Queue
from cometmq.pipeline.errors import ConnectionLostError
from cometmq.pipeline.wire import Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

PATTERN: Final = "T.*"
TOPICS: Final = ("T1", "T2", "T3")
BROKERS: Final = ("a", "b")


class Peer:
    """A connection to a server."""

    is_known = False

    def __init__(self, world: World, address: str) -> None:
        self.address = address
        self._world = world
        self._server = world.server(address)
        self._asked: list[tuple[int, int, Mapping[str, str]]] = []
        self._number = 0

    def send(self, code: int, fields: Mapping[str, str], _body: bytes = b"") -> int:
        """Send a request."""
        self._number += 1
        self._asked.append((self._number, code, fields))
        return self._number

    def receive(self) -> Answer:
        """Return an answer; any of those that wait."""
        world = self._world
        number, code, fields = self._asked.pop(world.random.randrange(len(self._asked)))
        world.goes_on()
        if not world.is_there(self.address) or world.is_trouble():
            raise ConnectionLostError(f"{self.address} is away")
        if code in world.busy_with:
            return Answer(number, BUSY, "busy", {}, b"")
        if isinstance(self._server, Broker) and world.is_trouble():
            # Of who refuses this for good, a stream knows no recreated topics.
            no = BUSY if code == GET_EARLIEST_MSG_STORETIME else ERROR
            return Answer(number, world.random.choice((no, BUSY, BUSY)), "trouble", {}, b"")
        said, more, body = self._server.answer(code, fields)
        return Answer(number, said, "", {key: str(each) for key, each in more.items()}, body)

    def ask(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> Answer:
        """Send a request and return its answer."""
        self.send(code, fields, body)
        return self.receive()

    def close(self) -> None:
        """Close it."""


class World:
    """The cluster, and what happens in it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        choose = self.random
        self.now = 1_700_000_000_000
        self.lives: list[Life] = []
        self.is_quiet = True
        """Whether nothing happens by itself."""
        self.keeps_first = False
        """Whether a queue that loses its end keeps its first message."""
        self.busy_with: set[int] = set()
        """Codes of requests for which all are too busy."""
        self.small: Sequence[Callable[[], None]] = (
            *(self.send, self.send, self.expire),
            *(self.move, self.register),
        )
        """What may happen while something is asked."""
        self.happening = choose.choice((0.0, 0.02, 0.1))
        self.trouble = choose.choice((0.0, 0.0, 0.01, 0.05))
        self.has_slaves = choose.random() < 0.2
        # Of a recreated topic that only a slave has, a stream does not know that it is another.
        self.deletes = choose.random() < 0.6 and not self.has_slaves
        self.brokers = {each: Broker(each, is_ours=choose.random() < 0.5) for each in BROKERS}
        self.nameservers = {f"ns{at}:9": NameServer() for at in range(choose.choice((1, 2, 3)))}
        for topic in TOPICS[: choose.randrange(1, 3)]:
            for broker in choose.sample(BROKERS, choose.randrange(1, 3)):
                self.create(broker, topic, choose.randrange(1, 4))
        for _ in range(choose.randrange(12)):
            self.send()
        self.announce()
        self.is_quiet = False

    @classmethod
    def sound(cls, **topics: int) -> World:
        """Make one of two brokers and name servers, in which nothing happens by itself.

        Both brokers have these topics of one queue, with so many messages.
        """
        world = cls(0)
        world.is_quiet = True
        world.lives.clear()
        world.nameservers = {"ns0:9": NameServer(), "ns1:9": NameServer()}
        for name in BROKERS:
            world.brokers[name] = Broker(name, is_ours=True)
            for topic, count in topics.items():
                world.create(name, topic, 1)
                world.store(world.lives[-1], count)
        world.announce()
        return world

    def connect(self, address: str, _settings: object) -> Peer:
        """Connect to a server, if it is there."""
        if not self.is_there(address) or self.is_trouble():
            raise ConnectionLostError(f"no connection to {address}")
        return Peer(self, address)

    def server(self, address: str) -> Broker | NameServer:
        """Return the server that has an address."""
        return self.nameservers.get(address) or self.brokers[address.partition(":")[0]]

    def is_there(self, address: str) -> bool:
        """Whether a server answers."""
        server = self.server(address)
        if isinstance(server, NameServer):
            return not server.is_silent
        return server.is_up and address.endswith(server.registration().place)

    def is_trouble(self) -> bool:
        """Whether a request fails."""
        return not self.is_quiet and self.random.random() < self.trouble

    def goes_on(self) -> None:
        """Let something small happen, or nothing."""
        self.now += 1
        if not self.is_quiet and self.random.random() < self.happening:
            self.random.choice(self.small)()

    def waits(self, *_: object) -> None:
        """Let some time pass."""
        for _each in range(3):
            self.goes_on()

    def changes(self) -> None:
        """Let something larger happen, as between two batches."""
        for _ in range(self.random.randrange(4)):
            self.random.choice((*self.small[1:], self.alter))()

    def announce(self) -> None:
        """Have all brokers register with the name servers that hear them."""
        for server in self.nameservers.values():
            if not server.is_deaf:
                server.known.update(
                    {each.name: each.registration() for each in self.brokers.values() if each.is_up}
                )

    def readable(self) -> list[Life]:
        """Return the queues that can be read."""
        return [
            life
            for broker in self.brokers.values()
            for topic in broker.topics.values()
            for at, life in topic.queues.items()
            if at < topic.read and topic.is_readable
        ]

    def create(self, broker: str, name: str, queues: int) -> None:
        """Make a topic on a broker."""
        topic = Topic(queues)
        self.brokers[broker].topics[name] = topic
        self._fill(broker, name, topic)

    def _fill(self, broker: str, name: str, topic: Topic) -> None:
        self.now += 1
        for at in range(max(topic.read, topic.write)):
            if at not in topic.queues:
                queue = Queue(name, broker, at)
                is_first = all(each.queue[:2] != queue[:2] or not each.died for each in self.lives)
                life = Life(queue, len(self.lives), self.now, is_first=is_first)
                self.lives.append(life)
                topic.queues[at] = life

    def delete(self, broker: str, name: str) -> None:
        """Delete a topic on a broker."""
        self.now += 1
        for life in self.brokers[broker].topics.pop(name).queues.values():
            life.died = self.now

    def send(self) -> None:
        """Store some messages in a queue."""
        masters = [each for each in self.brokers.values() if each.is_up and each.lag is None]
        topics = [topic for each in masters for topic in each.topics.values()]
        if topics:
            topic = self.random.choice(topics)
            life = topic.queues[self.random.randrange(topic.write)]
            self.store(life, self.random.randrange(1, 9))

    def store(self, life: Life, count: int) -> None:
        """Store so many messages in a queue."""
        for _ in range(count):
            self.now += self.random.randrange(3)
            life.stored.append(self.now)

    def expire(self) -> None:
        """Remove the first messages of a queue.

        Not those of a recreated topic of which nothing was read: nobody could tell it from the
        first one.
        """
        lives = [
            each
            for each in self.lives
            if each.died is None and (each.is_first or each.reached > (each.known_from or 0))
        ]
        if lives:
            life = self.random.choice(lives)
            life.first = min(life.first + self.random.randrange(1, 6), len(life.stored))

    def lose_end(self) -> None:
        """Have a queue end earlier, as on a master that was restored, or a promoted slave.

        What is stored from then on has the offsets of what was lost.
        """
        lives = [
            each
            for each in self.lives
            if each.died is None
            and len(each.stored) > each.first + self.keeps_first
            and self.brokers[each.queue.broker].lag is None
        ]
        if lives:
            life = self.random.choice(lives)
            least = life.first + self.keeps_first
            del life.stored[self.random.randrange(least, len(life.stored)) :]
            life.ends_lost += 1

    def move(self) -> None:
        """Have a server go away, or come back."""
        broker = self.random.choice([*self.brokers.values()])
        if not broker.is_up or broker.lag is not None:
            broker.is_up, broker.lag = True, None
            self._tell_some(broker)
        elif self.random.random() < 0.5:
            server = self.random.choice([*self.nameservers.values()])
            server.is_silent = not server.is_silent and len(self.nameservers) > 1
        elif self.has_slaves:
            broker.lag = self.random.randrange(6)
            self._tell_some(broker)
        else:
            broker.is_up = False
            if self.random.random() < 0.7:
                for server in self.nameservers.values():
                    server.known.pop(broker.name, None)

    def _tell_some(self, broker: Broker) -> None:
        for server in self.nameservers.values():
            if self.random.random() < 0.7 and not server.is_deaf:
                server.known[broker.name] = broker.registration()

    def register(self) -> None:
        """Have a broker register, or a name server start again, which knows nobody then."""
        server = self.random.choice([*self.nameservers.values()])
        if self.random.random() < 0.2:
            server.known.clear()
        else:
            broker = self.random.choice([*self.brokers.values()])
            if broker.is_up:
                server.known[broker.name] = broker.registration()
        if self.random.random() < 0.1:
            server.is_deaf = not server.is_deaf

    def alter(self) -> None:
        """Change a topic, or make or delete one."""
        broker = self.random.choice([*self.brokers.values()])
        name = self.random.choice(TOPICS)
        if not broker.is_up or broker.lag is not None:
            return
        topic = broker.topics.get(name)
        kind = self.random.randrange(5)
        if topic is None:
            self.create(broker.name, name, self.random.randrange(1, 4))
        elif kind in (0, 1) and self.deletes:
            for each in self.random.choice(([broker], [*self.brokers.values()])):
                if name in each.topics and each.is_up and each.lag is None:
                    self.delete(each.name, name)
                    if self.random.random() < 0.5:
                        self.create(each.name, name, self.random.randrange(1, 4))
                        self.store(self.lives[-1], self.random.randrange(20))
        elif kind == 2:
            topic.read = self.random.randrange(1, 5)
            topic.write = self.random.choice((topic.read, max(topic.write, topic.read)))
        elif kind == 3:
            topic.is_readable = not topic.is_readable
        if topic is not None and name in broker.topics:
            self._fill(broker.name, name, broker.topics[name])
        self.announce()

    def heals(self) -> None:
        """Bring everything back that was away, perhaps with all queues that topics ever had."""
        opens = self.random.random() < 0.5
        self.is_quiet = True
        for broker in self.brokers.values():
            broker.is_up, broker.lag = True, None
            for topic in broker.topics.values():
                topic.is_readable = True
                topic.read = max(topic.read, len(topic.queues)) if opens else topic.read
        for server in self.nameservers.values():
            server.is_silent = server.is_deaf = False
            server.known.clear()
        self.announce()


def of_all(seeds: range, read: Callable[[int, pytest.MonkeyPatch], Counter[str]]) -> Counter[str]:
    """Return how often reading ended how, with these seeds."""
    ends: Counter[str] = Counter()
    for seed in seeds:
        with pytest.MonkeyPatch.context() as monkeypatch:
            try:
                ends += read(seed, monkeypatch)
            except AssertionError as error:
                raise AssertionError(f"seed {seed}: {error}") from error
    return ends
