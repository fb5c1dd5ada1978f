"""Queues that have messages but cannot be read: the topic has fewer queues now, or forbids reading.

Brokers keep these messages and hide them from everybody until the topic gets its queues back. Who
reads a topic once would not know that something is left out, so the source looks for them. Our
brokers name them (31001). Apache's do so only (202) if the topic's number of queues for writing is
still larger than that for reading, or if reading is forbidden.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from cometmq.pipeline.cluster import GET_TOPIC_STATS_INFO, Bounds, Queue, read_topic_status
from cometmq.pipeline.errors import ConnectionLostError
from cometmq.pipeline.wire import SUCCESS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cometmq.pipeline.cluster import Cluster
    from cometmq.pipeline.routes import Route
    from cometmq.pipeline.wire import Answer

GET_QUEUE_RANGES: Final = 31001


def unread(cluster: Cluster, topics: Iterable[str]) -> dict[Queue, Bounds]:
    """Return the queues of topics that have messages but cannot be read, as far as brokers tell.

    A broker that does not answer has none: whoever reads from it will notice.
    """
    routes = cluster.routes(sorted(topics))
    by_broker: dict[tuple[str, str], list[str]] = {}
    for topic, route in routes.items():
        for server in route.addresses.items():
            by_broker.setdefault(server, []).append(topic)
    found: dict[Queue, Bounds] = {}
    for (broker, address), of_broker in sorted(by_broker.items()):
        try:
            found |= _of_broker(
                cluster, broker, address, {each: routes[each] for each in of_broker}
            )
        except ConnectionLostError:
            continue
    return {queue: there for queue, there in found.items() if there.first < there.end}


def left_out(queues: Mapping[Queue, Bounds]) -> str:
    """Return what to say of messages that cannot be read."""
    count = sum(there.end - there.first for there in queues.values())
    return (
        f"{count} messages are left out, because their queues, such as {min(queues)}, cannot be"
        " read now: the topic has fewer queues than it had, or its broker does not allow it"
    )


def _of_broker(
    cluster: Cluster, broker: str, address: str, routes: Mapping[str, Route]
) -> dict[Queue, Bounds]:
    found: dict[Queue, Bounds] = {}
    others = dict(routes)
    for topic, answer in _asked(cluster, address, GET_QUEUE_RANGES, routes).items():
        named = json.loads(answer.body).get("unread") if answer.code == SUCCESS else None
        if named is not None:  # Earlier versions do not name them.
            del others[topic]
            for each in named:
                queue = Queue(topic, broker, each["queueId"])
                found[queue] = Bounds(each["minOffset"], each["maxOffset"])
    for topic, answer in _asked(cluster, address, GET_TOPIC_STATS_INFO, others).items():
        if answer.code == SUCCESS:
            readable = others[topic].read_queues.get(broker, 0)
            of_topic = read_topic_status(broker, answer.body)
            found |= {queue: there for queue, there in of_topic if queue.id >= readable}
    return found


def _asked(cluster: Cluster, address: str, code: int, topics: Iterable[str]) -> dict[str, Answer]:
    names = list(topics)
    answers = cluster.ask_all(address, code, [{"topic": name} for name in names])
    return dict(zip(names, answers, strict=True))
