"""Questions to a cluster: where topics are, and which offsets their queues have.

All requests are known to Apache's servers, too. One request (202) returns the first and end offsets
of all queues that a broker has of a topic, so planning does not grow with the number of queues.

A broker that does not answer is not silently left out: `bounds` says which ones were `missing`, and
the caller decides what that means.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.pipeline import wire
from cometmq.pipeline.errors import ConnectionLostError, OptionError, UntrustedError, no_broker_yet
from cometmq.pipeline.nameservers import NameServers
from cometmq.pipeline.routes import read_brokers, read_route
from cometmq.pipeline.users_topics import OF_GROUPS, is_users
from cometmq.pipeline.wire import SUCCESS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence, Set

    from cometmq.pipeline.routes import Brokers, Route
    from cometmq.pipeline.wire import Answer, Settings, Wire

# Request and response codes, as `cometmq.proto.codes` names them.
QUERY_CONSUMER_OFFSET: Final = 14
UPDATE_CONSUMER_OFFSET: Final = 15
SEARCH_OFFSET_BY_TIMESTAMP: Final = 29
GET_MAX_OFFSET: Final = 30
GET_MIN_OFFSET: Final = 31
GET_EARLIEST_MSG_STORETIME: Final = 32
GET_BROKER_RUNTIME_INFO: Final = 28
GET_ROUTEINFO_BY_TOPIC: Final = 105
GET_BROKER_CLUSTER_INFO: Final = 106
UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Final = 200
GET_TOPIC_STATS_INFO: Final = 202
GET_ALL_TOPIC_LIST_FROM_NAMESERVER: Final = 206
GET_SYSTEM_TOPIC_LIST_FROM_NS: Final = 304
REQUEST_CODE_NOT_SUPPORTED: Final = 3
TOPIC_NOT_EXIST: Final = 17
QUERY_NOT_FOUND: Final = 22
SUBSCRIPTION_GROUP_NOT_EXIST: Final = 26

_ASKED_MAX: Final = 200
"""The most requests in flight on one connection."""
_OBJECT: Final = r'(\{(?:[^{}"]++|"(?:[^"\\]++|\\.)*+")*+\})'
_STATUS = re.compile(rf"{_OBJECT}\s*:\s*{_OBJECT}")
"""An entry of the answer to 202, whose keys are objects, which only Apache's JSON has. They contain
broker names, which may have braces. The expression never backtracks, as a stream reads thousands of
entries before each batch."""


class Queue(NamedTuple):
    """One queue of a topic on one broker."""

    topic: str
    broker: str
    id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker}/{self.id}"


class Bounds(NamedTuple):
    """The offsets of a queue that can be read: from `first` up to, but not including, `end`."""

    first: int
    end: int


@dataclass(slots=True)
class Survey:
    """What there is to read now."""

    queues: dict[Queue, Bounds] = field(default_factory=dict[Queue, Bounds])
    addresses: dict[str, str] = field(default_factory=dict[str, str])
    topics: set[str] = field(default_factory=set[str])
    """The topics that exist."""
    missing: dict[str, ConnectionLostError] = field(default_factory=dict[str, ConnectionLostError])
    """Brokers that did not answer."""
    slaves: set[str] = field(default_factory=set[str])
    """Brokers for which a slave answered, which may lag."""


class Cluster:
    """One cluster, asked through its name servers."""

    def __init__(self, nameservers: Sequence[str], settings: Settings) -> None:
        self.nameservers = tuple(nameservers)
        self.settings = settings
        self._servers = NameServers(nameservers)

    def __repr__(self) -> str:
        return f"<Cluster {';'.join(self.nameservers)}>"

    def route(self, topic: str) -> Route | None:
        """Return where a topic is; `None` if it does not exist."""
        return self.routes([topic]).get(topic)

    def routes(self, topics: Sequence[str]) -> dict[str, Route]:
        """Return where topics are; topics that do not exist are left out."""
        requests = _of_routes(topics)
        answers = self._ask_nameserver(GET_ROUTEINFO_BY_TOPIC, requests, TOPIC_NOT_EXIST)
        return {
            topic: read_route(json.loads(answer.body))
            for topic, answer in zip(topics, answers, strict=True)
            if answer.code != TOPIC_NOT_EXIST
        }

    def brokers(self) -> Brokers:
        """Return all registered brokers, from the name server that knows the most.

        That one is asked from then on; callers repeat what another could not answer yet.
        """
        found = read_brokers(self._ask_nameserver(GET_BROKER_CLUSTER_INFO)[0].body)
        for address in self._servers.others():
            try:
                answer = self.ask(address, GET_BROKER_CLUSTER_INFO, {})
            except (ConnectionLostError, UntrustedError):
                self._servers.leave(address)
                continue
            if len((more := read_brokers(answer.body)).names) > len(found.names):
                self._servers.prefer(address)
                found = more
        return found

    def known(self) -> frozenset[str]:
        """Return the brokers that the name server knows that is asked now."""
        return read_brokers(self._ask_nameserver(GET_BROKER_CLUSTER_INFO)[0].body).names

    def having(self, parts: Set[tuple[str, str]]) -> set[tuple[str, str]]:
        """Return which topics, each with its broker, the name servers know that are not asked."""
        topics = sorted({topic for topic, _ in parts})
        found: set[tuple[str, str]] = set()
        for address in self._servers.others() if parts else ():
            try:
                answers = self.ask_all(address, GET_ROUTEINFO_BY_TOPIC, _of_routes(topics))
            except (ConnectionLostError, UntrustedError):
                self._servers.leave(address)
                continue
            for topic, answer in zip(topics, answers, strict=True):
                if answer.code == SUCCESS:
                    brokers = read_route(json.loads(answer.body)).addresses
                    found.update((topic, broker) for broker in brokers)
        return found & parts

    def require(self) -> None:
        """Raise a `ConnectionLostError` unless one of its brokers answers.

        Raise a `RefusedError` if that broker does not accept the credentials; permissions are not
        checked.
        """
        addresses = sorted(self.brokers().addresses)
        if not addresses:
            raise no_broker_yet(";".join(self.nameservers))
        for address in addresses:
            try:
                self.ask(address, GET_BROKER_RUNTIME_INFO, {}).expect_known(address)
            except ConnectionLostError:
                if address == addresses[-1]:
                    raise
            else:
                return

    def topics_like(self, pattern: str) -> tuple[str, ...]:
        """Return the topics whose full names match a regular expression, sorted.

        Topics that brokers keep for themselves are left out; topics of retries and dead letters are
        too, unless the pattern begins as their names do.
        """
        expression = re.compile(pattern)
        named = set(self._listed(GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
        # Each cluster and each broker has a topic with its name.
        named -= {*self._listed(GET_SYSTEM_TOPIC_LIST_FROM_NS)}
        return tuple(
            each
            for each in sorted(named)
            if expression.fullmatch(each)
            and is_users(each, of_groups=pattern.startswith(OF_GROUPS))
        )

    def _listed(self, code: int) -> list[str]:
        (answer,) = self._ask_nameserver(code)
        return json.loads(answer.body or b"{}").get("topicList") or []

    def bounds(self, topics: Sequence[str]) -> Survey:
        """Return the bounds of the queues of topics."""
        found = Survey()
        asked: dict[tuple[str, str], list[str]] = {}
        routes = self.routes(topics)
        for topic, route in routes.items():
            found.topics.add(topic)
            found.addresses.update(route.addresses)
            found.slaves.update(route.slaves)
            for broker, address in sorted(route.addresses.items()):
                if route.read_queues.get(broker):
                    asked.setdefault((broker, address), []).append(topic)
        for (broker, address), of_broker in asked.items():
            try:
                queues = self._status(of_broker, broker, address)
            except ConnectionLostError as error:
                found.missing[broker] = error
                continue
            for queue, there in queues.items():
                if queue.id < routes[queue.topic].read_queues[broker]:
                    found.queues[queue] = there
        return found

    def _status(self, topics: Sequence[str], broker: str, address: str) -> dict[Queue, Bounds]:
        found: dict[Queue, Bounds] = {}
        requests = [{"topic": topic} for topic in topics]
        for answer in self.ask_all(address, GET_TOPIC_STATS_INFO, requests):
            if answer.code != TOPIC_NOT_EXIST:
                answer.expect_all(address)
                found.update(read_topic_status(broker, answer.body))
        return found

    def offsets_at(
        self, queues: Iterable[Queue], addresses: Mapping[str, str], time_ms: int
    ) -> dict[Queue, int]:
        """Return, for each queue, the offset of the first message stored at or after a time."""

        def fields(queue: Queue) -> dict[str, str]:
            return {**_named(queue), "timestamp": str(time_ms), "boundaryType": "LOWER"}

        return self._numbers(queues, addresses, SEARCH_OFFSET_BY_TIMESTAMP, fields)

    def stored_first(
        self, queues: Iterable[Queue], addresses: Mapping[str, str]
    ) -> dict[Queue, int]:
        """Return when the first message of each queue was stored, in ms; omit empty queues."""
        return self._numbers(queues, addresses, GET_EARLIEST_MSG_STORETIME, _named, "timestamp")

    def ends(self, queues: Iterable[Queue], addresses: Mapping[str, str]) -> dict[Queue, int]:
        """Return the offset of each queue's next message, even if the queue is not readable."""
        return self._numbers(queues, addresses, GET_MAX_OFFSET, _named)

    def spans(self, queues: Sequence[Queue], addresses: Mapping[str, str]) -> dict[Queue, Bounds]:
        """Return the bounds of queues, even if they are not readable."""
        firsts = self._numbers(queues, addresses, GET_MIN_OFFSET, _named)  # None without a file.
        ends = self.ends(queues, addresses)
        return {queue: Bounds(firsts.get(queue, 0), end) for queue, end in ends.items()}

    def committed(
        self, group: str, queues: Iterable[Queue], addresses: Mapping[str, str]
    ) -> dict[Queue, int]:
        """Return the committed offsets of a consumer group; omit queues without one."""

        def fields(queue: Queue) -> dict[str, str]:
            return {**_named(queue), "consumerGroup": group, "setZeroIfNotFound": "false"}

        return self._numbers(queues, addresses, QUERY_CONSUMER_OFFSET, fields)

    def commit(
        self, group: str, offsets: Mapping[Queue, int], addresses: Mapping[str, str]
    ) -> None:
        """Commit the offsets of a consumer group."""
        for broker, queues in by_broker(offsets).items():
            fields = [
                {**_named(queue), "consumerGroup": group, "commitOffset": str(offsets[queue])}
                for queue in queues
            ]
            address = addresses[broker]
            answers = self.ask_all(address, UPDATE_CONSUMER_OFFSET, fields)
            if any(answer.code == SUBSCRIPTION_GROUP_NOT_EXIST for answer in answers):
                self._make_group(address, group)
                answers = self.ask_all(address, UPDATE_CONSUMER_OFFSET, fields)
            for answer in answers:
                answer.expect(address)

    def _make_group(self, address: str, group: str) -> None:
        body = json.dumps({"groupName": group}).encode()
        self.ask_with(address, UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body).expect(address)

    def _numbers(
        self,
        queues: Iterable[Queue],
        addresses: Mapping[str, str],
        code: int,
        fields: Callable[[Queue], dict[str, str]],
        said: str = "offset",
    ) -> dict[Queue, int]:
        found: dict[Queue, int] = {}
        for broker, of_broker in by_broker(queues).items():
            address = addresses[broker]
            answers = self.ask_all(address, code, [fields(queue) for queue in of_broker])
            for queue, answer in zip(of_broker, answers, strict=True):
                if answer.code == QUERY_NOT_FOUND:
                    continue
                answer.expect(address)
                number = int(answer.fields[said])
                if number >= 0:
                    found[queue] = number
        return found

    def ask(self, address: str, code: int, fields: Mapping[str, str]) -> Answer:
        """Ask one server; retry over a new connection if a kept one was broken."""
        return self.ask_all(address, code, [fields])[0]

    def ask_with(self, address: str, code: int, body: bytes) -> Answer:
        """Ask one server in the same way, with a request body."""
        return wire.with_wire(address, self.settings, lambda peer: peer.ask(code, {}, body))

    def ask_all(
        self, address: str, code: int, requests: Sequence[Mapping[str, str]]
    ) -> list[Answer]:
        """Send many requests to one server at a time; return the answers in the same order."""

        def ask(peer: Wire) -> list[Answer]:
            answers: list[Answer] = []
            # In portions: writing all first could block on a server that waits for us to read.
            for first in range(0, len(requests), _ASKED_MAX):
                few = requests[first : first + _ASKED_MAX]
                numbers = {peer.send(code, fields): None for fields in few}
                found: dict[int, Answer] = {}
                while len(found) < len(numbers):
                    answer = peer.receive()
                    if answer.opaque in numbers:  # Not an answer to an abandoned request.
                        found[answer.opaque] = answer
                answers += [found[number] for number in numbers]
            return answers

        return wire.with_wire(address, self.settings, ask)

    def _ask_nameserver(
        self, code: int, requests: Sequence[Mapping[str, str]] = ({},), *expected: int
    ) -> list[Answer]:
        """Ask a name server that answers; raise `RefusedError` for an unexpected code.

        Raise `OptionError` if it is no name server: most often a broker's address was given.
        """
        errors: list[ConnectionLostError | UntrustedError] = []
        for address in self._servers.in_turn():
            try:
                answers = self.ask_all(address, code, requests)
            except (ConnectionLostError, UntrustedError) as error:
                self._servers.leave(address)
                errors.append(error)
                continue
            for answer in answers:
                if answer.code == REQUEST_CODE_NOT_SUPPORTED:
                    raise OptionError(
                        f"{address} answers, but looks like a broker: give the name server's"
                        " address, port 9876 unless it was set otherwise"
                    )
                if answer.code not in expected:
                    answer.expect(address)
            return answers
        if all(isinstance(error, UntrustedError) for error in errors):
            raise errors[0]
        raise ConnectionLostError(f"no name server answers: {'; '.join(map(str, errors))}")


def read_topic_status(broker: str, body: bytes) -> Iterable[tuple[Queue, Bounds]]:
    """Parse the answer to 202."""
    for key, value in _STATUS.findall(body.decode()):
        queue, status = json.loads(key), json.loads(value)
        yield (
            Queue(queue["topic"], broker, int(queue["queueId"])),
            Bounds(int(status["minOffset"]), int(status["maxOffset"])),
        )


def _of_routes(topics: Iterable[str]) -> list[dict[str, str]]:
    return [{"topic": topic, "acceptStandardJsonOnly": "true"} for topic in topics]


def _named(queue: Queue) -> dict[str, str]:
    """Return the fields of a request about a queue."""
    return {"topic": queue.topic, "queueId": str(queue.id)}


def by_broker(queues: Iterable[Queue]) -> dict[str, list[Queue]]:
    """Group queues by the names of their brokers."""
    found: dict[str, list[Queue]] = {}
    for queue in queues:
        found.setdefault(queue.broker, []).append(queue)
    return found
