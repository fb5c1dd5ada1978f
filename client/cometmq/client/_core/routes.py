"""A topic's route: the queues to send to, the queues to read from, the brokers' addresses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cometmq.client._core.queues import Queue
from cometmq.proto.commands import may_read, may_write

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cometmq.proto.bodies import TopicRouteData

MASTER = 0


@dataclass(frozen=True, slots=True)
class Route:
    """A topic's queues and brokers at one time.

    `is_guess` marks the route of a topic that does not exist yet, with the queues that it would get
    from the template.
    """

    topic: str
    to_send: tuple[Queue, ...]
    to_read: tuple[Queue, ...]
    addresses: Mapping[str, Mapping[int, str]]
    is_guess: bool = False

    def master_of(self, broker: str) -> str | None:
        """Return the address to send to, or None while a broker has no master."""
        return self.addresses.get(broker, {}).get(MASTER)

    def address_of(self, broker: str, preferred: int = MASTER) -> str | None:
        """Return the address to read from: that of the preferred id, of the next id, or any."""
        found = self.addresses.get(broker, {})
        return found.get(preferred) or found.get(preferred + 1) or next(iter(found.values()), None)

    def one_of_each(self) -> list[str]:
        """Return an address of each broker, the master's where there is one."""
        found = (self.address_of(broker) for broker in self.addresses)
        return [address for address in found if address is not None]


def read_route(topic: str, data: TopicRouteData) -> Route:
    """Read a name server's answer, by the rules of Apache's clients."""
    addresses = {each.broker_name: dict(each.broker_addrs) for each in data.broker_datas}
    rows = sorted(data.queue_datas, key=lambda row: row.broker_name.encode("utf-16-be"))
    if data.order_topic_conf:
        to_send = _ordered(topic, data.order_topic_conf)
    else:
        to_send = tuple(
            Queue(topic, row.broker_name, number)
            for row in rows
            if may_write(row.perm) and MASTER in addresses.get(row.broker_name, {})
            for number in range(row.write_queue_nums)
        )
    to_read = tuple(
        Queue(topic, row.broker_name, number)
        for row in rows
        if may_read(row.perm)
        for number in range(row.read_queue_nums)
    )
    return Route(topic, to_send, to_read, addresses)


def guess_route(topic: str, template: TopicRouteData, queue_count: int) -> Route:
    """Return the route that a topic will have once a send has created it."""
    addresses = {each.broker_name: dict(each.broker_addrs) for each in template.broker_datas}
    to_send = tuple(
        Queue(topic, row.broker_name, number)
        for row in sorted(template.queue_datas, key=lambda row: row.broker_name)
        if may_write(row.perm) and MASTER in addresses.get(row.broker_name, {})
        for number in range(min(queue_count, row.read_queue_nums))
    )
    return Route(topic, to_send, (), addresses, is_guess=True)


def _ordered(topic: str, text: str) -> tuple[Queue, ...]:
    """Parse `broker:queues;…` of an ordered topic; malformed parts are ignored."""
    queues: list[Queue] = []
    for item in text.split(";"):
        broker, _, count = item.partition(":")
        if broker and count.isdecimal():
            queues += [Queue(topic, broker, number) for number in range(int(count))]
    return tuple(queues)
