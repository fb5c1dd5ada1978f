"""Some brokers and a name server of a simulated network, and what the test is told of them."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from tests.client.simulated_broker import Broker

from cometmq.proto.bodies import BrokerData, QueueData, TopicRouteData
from cometmq.proto.codes import ResponseCode as Code
from cometmq.proto.commands import GetRouteInfoByTopic

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.client.simulated_broker import Log
    from tests.client.simulated_network import Link, Network

    from cometmq.client import Queue
    from cometmq.proto.command import Command

    Respond = Callable[[Command], None]

TOPIC: Final = "orders"
NAMESERVER: Final = "127.0.0.1:9876"


class Cluster:
    """Some brokers and a name server."""

    def __init__(
        self,
        network: Network,
        names: list[str],
        *,
        is_apache: bool,
        kind: type[Broker] = Broker,
    ) -> None:
        self.network = network
        self.is_apache = is_apache
        self.published: dict[str, tuple[QueueData, ...]] = {}
        self.addresses: dict[str, str] = {}
        self.number = 0
        self.listener = Listener()
        self.brokers = {name: kind(self, name, at) for at, name in enumerate(names)}
        self.nameserver = NameServer(self)
        network.servers[NAMESERVER] = self.nameserver
        self.publish()

    def log(self, queue: Queue) -> Log:
        """Return what is in a queue."""
        return self.brokers[queue.broker].logs[queue]

    def logs(self) -> dict[Queue, Log]:
        """Return all queues."""
        return {q: log for broker in self.brokers.values() for q, log in broker.logs.items()}

    def publish(self) -> None:
        """Have the name server know the queues and addresses as they are."""
        rows: dict[str, list[QueueData]] = defaultdict(list)
        for broker in self.brokers.values():
            self.addresses[broker.name] = broker.address
            for topic, count in broker.counts.items():
                row = QueueData(
                    broker_name=broker.name, perm=6, read_queue_nums=count, write_queue_nums=count
                )
                rows[topic].append(row)
        self.published = {topic: tuple(each) for topic, each in rows.items()}


class Listener:
    """Told of what brokers are asked to do; for invariants."""

    def begun(self, queue: Queue, offset: int) -> None:
        """Handle that a group reads a queue from there on."""

    def committed(self, group: str, queue: Queue, offset: int) -> None:
        """Handle that a group commits an offset."""

    def taken_back(self, queue: Queue, offset: int) -> None:
        """Handle that a message comes again later, or is a dead letter."""


class NameServer:
    """The name server."""

    address = NAMESERVER

    def __init__(self, cluster: Cluster) -> None:
        self.is_up = True
        self._cluster = cluster

    def handle(self, request: Command, _link: Link, respond: Respond) -> None:
        """Answer a request for a route."""
        topic = request.read(GetRouteInfoByTopic).topic
        rows = self._cluster.published.get(topic)
        if rows is None:
            respond(request.answer(Code.TOPIC_NOT_EXIST))
            return
        data = tuple(
            BrokerData(
                broker_addrs={0: self._cluster.addresses[each.broker_name]},
                broker_name=each.broker_name,
            )
            for each in rows
        )
        respond(
            request.answer(0, body=TopicRouteData(broker_datas=data, queue_datas=rows).encode())
        )

    def refuse(self, request: Command) -> Command:
        """Refuse."""
        return request.answer(Code.SYSTEM_ERROR, remark="refused")

    def gone(self, _link: Link) -> None:
        """Do nothing."""
