"""Where rows can go: the write queues of topics, always in the same order."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.pipeline.cluster import GET_TOPIC_STATS_INFO
from cometmq.pipeline.errors import ConnectionLostError, OptionError, no_broker_yet
from cometmq.pipeline.retrying import retried
from cometmq.pipeline.wire import SUCCESS, with_wire

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cometmq.pipeline.cluster import Cluster
    from cometmq.pipeline.options import WriteOptions
    from cometmq.pipeline.routes import Route
    from cometmq.pipeline.wire import Settings

UPDATE_AND_CREATE_TOPIC: Final = 17
_TEMPLATE: Final = "TBW102"
"""The topic that brokers have if they create topics by themselves."""
_INVALID_PARAMETER: Final = 29
"""The code with which a broker refuses an invalid topic name."""
_QUEUES: Final = 4
_KNOWN_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.02
_READ_AND_WRITE: Final = "6"
GET_BROKER_CONFIG: Final = 26
_BATCH_SIZE_COMMON: Final = 4 << 20
"""What brokers accept by default."""
BODY_SIZE_COMMON: Final = 15 << 20
"""A larger body does not fit into a frame by default."""
_MESSAGE_SIZE_MAX: Final = re.compile(rb"^maxMessageSize=([0-9]{1,15})\s*$", re.MULTILINE)
_MAKES_NONE: Final = re.compile(rb"^autoCreateTopicEnable=false\s*$", re.MULTILINE)


def require_batch_size(options: WriteOptions, addresses: Iterable[str]) -> None:
    """Refuse requests that are larger than these brokers accept, if they say how much."""
    if options.batch_bytes <= _BATCH_SIZE_COMMON:
        return
    for address in sorted(addresses):
        if options.batch_bytes > (most := body_size_max(address, options.settings())):
            raise OptionError(
                f"batchBytes: {options.batch_bytes} bytes are more than broker {address} accepts in"
                f" a request, {most} (maxMessageSize)"
            )


def body_size_max(address: str, settings: Settings) -> int:
    """Return how large a request's body may be for a broker, if it says so."""
    said = _said(address, settings, _MESSAGE_SIZE_MAX)
    return int(said[1]) if said else BODY_SIZE_COMMON


def _said(address: str, settings: Settings, what: re.Pattern[bytes]) -> re.Match[bytes] | None:
    """Return the match in a broker's settings, if it shows them to us."""
    answer = with_wire(address, settings, lambda peer: peer.ask(GET_BROKER_CONFIG, {}))
    return what.search(answer.body) if answer.code == SUCCESS else None


class Target(NamedTuple):
    """A queue that can be written to."""

    broker: str
    address: str
    queue_id: int


class Targets:
    """The targets of each topic, asked for once per topic, and again if nobody answers."""

    def __init__(self, cluster: Cluster, retries: int = 0, retry_interval_ms: int = 200) -> None:
        self._cluster = cluster
        self._retries = retries
        self._retry_interval_ms = retry_interval_ms
        self._known: dict[str, tuple[Target, ...]] = {}

    def of(self, topic: str) -> tuple[Target, ...]:
        """Return the targets of a topic, which is created if brokers do that by themselves."""
        found = self._known.get(topic)
        if found is None:
            route = retried(
                lambda: self._route(topic) or self._made(topic),
                retries=self._retries,
                interval_ms=self._retry_interval_ms,
            )
            found = tuple(
                Target(broker, route.addresses[broker], queue_id)
                for broker, count in sorted(route.write_queues.items())
                for queue_id in range(count)
            )
            if not found:
                raise OptionError(f"topic: {topic}: none of its brokers allows writing")
            self._known[topic] = found
        return found

    def _route(self, topic: str) -> Route | None:
        """Return where a topic is; `None` if there are brokers, but none has it."""
        route = self._cluster.route(topic)
        if route is None:
            if not self._cluster.brokers().names:
                raise no_broker_yet(";".join(self._cluster.nameservers))
            # A broker may have registered since; creating its topic would change its queues.
            route = self._cluster.route(topic)
        return route

    def _made(self, topic: str) -> Route:
        template = self._cluster.route(_TEMPLATE)
        if template is not None and not template.write_queues:
            raise OptionError(
                f"topic: {topic}: no such topic, and none of the brokers allows writing"
            )
        makers = self._makers(template)
        if template is None or not makers:
            raise OptionError(
                f"topic: {topic}: no such topic, and the brokers do not create topics by"
                f" themselves; `cometmq topic create {topic}` creates it"
            )
        for broker, count in makers.items():
            queues = str(min(count, _QUEUES))
            address = template.addresses[broker]
            there = self._cluster.ask(address, GET_TOPIC_STATS_INFO, {"topic": topic})
            if there.code == SUCCESS:  # Creating it again would change its queues.
                continue
            answer = self._cluster.ask(
                address,
                UPDATE_AND_CREATE_TOPIC,
                {
                    "topic": topic,
                    "defaultTopic": _TEMPLATE,
                    "readQueueNums": queues,
                    "writeQueueNums": queues,
                    "perm": _READ_AND_WRITE,
                    "topicFilterType": "SINGLE_TAG",
                    "topicSysFlag": "0",
                    "order": "false",
                },
            )
            if answer.code != SUCCESS:
                said = f"{answer.remark}. Topic {topic} does not exist, and cannot be created here"
                if answer.code != _INVALID_PARAMETER:
                    said += f"; have someone with the permission run `cometmq topic create {topic}`"
                raise type(answer.refusal(address))(address, answer.code, said)
        return self._routed(topic, len(makers))

    def _makers(self, template: Route | None) -> dict[str, int]:
        """Return the brokers that create topics, and how many queues each gives a topic.

        A broker that was later told not to create topics keeps the template.
        """
        if template is None:
            return {}
        return {
            broker: count
            for broker, count in template.write_queues.items()
            if not _said(template.addresses[broker], self._cluster.settings, _MAKES_NONE)
        }

    def _routed(self, topic: str, brokers: int) -> Route:
        """Wait until the name server knows a topic that was just created."""
        deadline = time.monotonic() + _KNOWN_SECONDS
        while time.monotonic() < deadline:
            route = self._cluster.route(topic)
            # A broker's permissions come with its queues: no more will follow.
            if route is not None and len({*route.read_queues, *route.write_queues}) >= brokers:
                return route
            time.sleep(_LOOK_SECONDS)
        raise ConnectionLostError(f"topic {topic} was created, but no name server knows it yet")
