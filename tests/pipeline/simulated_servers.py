"""Brokers and name servers that are only simulated: what they answer to the pipeline's requests."""

from __future__ import annotations

import json
from bisect import bisect_left
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.pipeline import cluster
from cometmq.pipeline.fetching import BULK_PULL_MESSAGE, NOT_SUPPORTED, PULL_MESSAGE
from cometmq.pipeline.measuring import GET_RANGE_SIZE
from cometmq.pipeline.unread import GET_QUEUE_RANGES
from cometmq.pipeline.wire import SUCCESS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cometmq.pipeline.cluster import Queue

RECORD: Final = Struct(">20xqq")
"""A record, as far as it is looked at: with its offset, and the number of its queue's life."""
ERROR, BUSY, FORBIDDEN, NO_TOPIC, NOT_FOUND, MOVED, UNKNOWN, NO_GROUP, NO_QUEUE = (
    *(1, 2, 16, 17),
    *(19, 21, 22, 26, 29),
)
_OF_QUEUES: Final = frozenset(
    {
        cluster.GET_MAX_OFFSET,
        cluster.GET_MIN_OFFSET,
        cluster.GET_EARLIEST_MSG_STORETIME,
        cluster.SEARCH_OFFSET_BY_TIMESTAMP,
    }
)
CHECK_CLIENT_CONFIG, RETRY = 46, 20
Said = tuple[int, dict[str, object], bytes]
"""The code, the fields and the body of an answer."""


class Life:
    """A queue, from the creation of its topic to its deletion."""

    def __init__(self, queue: Queue, number: int, born: int, *, is_first: bool) -> None:
        self.queue = queue
        self.number = number
        self.born = born
        self.is_first = is_first
        """Whether no other life was before it."""
        self.ends_lost = 0
        """How often it lost the end of its log."""
        self.stored: list[int] = []
        """When each message was stored."""
        self.first = 0
        self.died: int | None = None
        self.known_from: int | None = None
        """Where the stream began in it."""
        self.reached = 0
        self.seen = self.noted = 0
        """Where it ended when it was last asked for, and when a batch was planned after that."""
        self.skipped = 0
        """How many messages were passed over."""

    def __repr__(self) -> str:
        return (
            f"<{self.queue} life {self.number}: {self.first} to {len(self.stored)}, reached"
            f" {self.reached} from {self.known_from}, died {self.died}>"
        )


class Topic:
    """A topic on one broker."""

    def __init__(self, queues: int) -> None:
        self.read = self.write = queues
        self.is_readable = True
        self.queues: dict[int, Life] = {}


class Registration(NamedTuple):
    """What a name server knows of a broker."""

    place: str
    """0 is a master, 1 a slave."""
    topics: Mapping[str, tuple[int, int, bool]]

    def addresses(self, broker: str) -> dict[str, str]:
        """Return the broker's addresses, as name servers tell them."""
        return {self.place: f"{broker}:{self.place}"}


class Broker:
    """A broker; if its master is away, a slave may answer in its place."""

    def __init__(self, name: str, *, is_ours: bool) -> None:
        self.name = name
        self.is_ours = is_ours
        self.is_up = True
        self.topics: dict[str, Topic] = {}
        self.lag: int | None = None
        """How far behind the slave is that answers; `None` for the master."""
        self.groups: dict[tuple[str, str, int], int] = {}
        self.known_groups: set[str] = set()
        self.left_out: list[tuple[int, int]] = []
        """By life and offset, what did not pass a filter in the answers to an attempt."""

    def registration(self) -> Registration:
        """Return what it tells name servers."""
        said = {name: (t.read, t.write, t.is_readable) for name, t in self.topics.items()}
        return Registration("0" if self.lag is None else "1", said)

    def span(self, life: Life | None) -> tuple[int, int]:
        """Return the offsets that it has of a queue."""
        if life is None:
            return 0, 0
        end = max(len(life.stored) - (self.lag or 0), 0)
        return min(life.first, end), end

    def answer(self, code: int, fields: Mapping[str, str]) -> Said:
        """Answer a request."""
        if code >= GET_QUEUE_RANGES and not self.is_ours:
            return NOT_SUPPORTED, {}, b""
        if code in (cluster.QUERY_CONSUMER_OFFSET, cluster.UPDATE_CONSUMER_OFFSET):
            return self._of_group(code, fields)
        if code in (CHECK_CLIENT_CONFIG, cluster.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP):
            self.known_groups.update(["told"] if code != CHECK_CLIENT_CONFIG else [])
            return SUCCESS, {}, b""
        topic = self.topics.get(fields["topic"])
        if code in _OF_QUEUES:
            life = topic.queues.get(int(fields["queueId"])) if topic else None
            return SUCCESS, self._of_queue(code, fields, life), b""
        if topic is None:
            return NO_TOPIC, {}, b""
        if code == cluster.GET_TOPIC_STATS_INFO:
            return SUCCESS, {}, self._status(fields["topic"], topic)
        if not topic.is_readable:
            return FORBIDDEN, {}, b""
        if code == GET_QUEUE_RANGES:
            return SUCCESS, {}, self._unread(topic)
        life = topic.queues.get(int(fields["queueId"]))
        if life is None or life.queue.id >= topic.read:
            return NO_QUEUE, {}, b""
        return self._of_messages(code, fields, life)

    def _of_queue(
        self, code: int, fields: Mapping[str, str], life: Life | None
    ) -> dict[str, object]:
        first, end = self.span(life)
        if code == cluster.GET_EARLIEST_MSG_STORETIME:
            return {"timestamp": life.stored[first] if life and first < end else -1}
        if code == cluster.SEARCH_OFFSET_BY_TIMESTAMP:
            at = bisect_left(life.stored, int(fields["timestamp"])) if life else 0
            return {"offset": min(max(at, first), end)}
        return {"offset": end if code == cluster.GET_MAX_OFFSET else first}

    def _of_messages(self, code: int, fields: Mapping[str, str], life: Life) -> Said:
        begin = int(fields["queueOffset"])
        if code == GET_RANGE_SIZE:
            until = max(min(self.span(life)[1], int(fields["endOffset"])), begin)
            return SUCCESS, {"endOffset": until, "size": (until - begin) * 100}, b""
        assert code in (PULL_MESSAGE, BULK_PULL_MESSAGE), code
        until = int(fields.get("endOffset", begin + int(fields.get("maxMsgNums", 0))))
        if (expression := fields["subscription"]) != "*" and code == PULL_MESSAGE:
            until += begin % 7  # It looks further, as those that do not pass do not count.
        return self._pulled(life, begin, until, expression)

    def _unread(self, topic: Topic) -> bytes:
        spans = {at: self.span(each) for at, each in topic.queues.items() if at >= topic.read}
        unread = [
            {"queueId": at, "minOffset": low, "maxOffset": high}
            for at, (low, high) in spans.items()
            if low < high
        ]
        return json.dumps({"queues": [], "unread": unread}).encode()

    def _of_group(self, code: int, fields: Mapping[str, str]) -> Said:
        key = fields["consumerGroup"], fields["topic"], int(fields["queueId"])
        if code == cluster.QUERY_CONSUMER_OFFSET:
            found = self.groups.get(key)
            return (UNKNOWN, {}, b"") if found is None else (SUCCESS, {"offset": found}, b"")
        if key[0] not in self.known_groups:
            return NO_GROUP, {}, b""
        self.groups[key] = int(fields["commitOffset"])
        return SUCCESS, {}, b""

    def _status(self, name: str, topic: Topic) -> bytes:
        told: list[str] = []
        for at in range(max(topic.read, topic.write)):
            life = topic.queues.get(at)
            first, end = self.span(life)
            if life and at < topic.read and topic.is_readable:
                life.seen = end
            key = json.dumps({"brokerName": self.name, "queueId": at, "topic": name})
            said = {"lastUpdateTimestamp": 0, "maxOffset": end, "minOffset": first}
            told.append(f"{key}:{json.dumps(said)}")
        return f'{{"offsetTable":{{{",".join(told)}}}}}'.encode()

    def _pulled(self, life: Life, begin: int, until: int, expression: str) -> Said:
        first, end = self.span(life)
        code, following, found = SUCCESS, max(min(until, end), begin), b""
        if begin < first or begin > end:
            code, following = MOVED, first if begin < first else end
        elif begin == end:
            code = NOT_FOUND
        else:
            looked_at = range(begin, following)
            passing = [at for at in looked_at if passes(expression, life.number, at)]
            found = b"".join(RECORD.pack(at, life.number) for at in passing)
            self.left_out += [(life.number, at) for at in {*looked_at} - {*passing}]
            code = SUCCESS if found else RETRY
        said: dict[str, object] = {"nextBeginOffset": following}
        return code, said | {"minOffset": first, "maxOffset": end}, found


def passes(expression: str, life: int, offset: int) -> bool:
    """Whether a message passes a filter: some in a row do, and then twice as many do not."""
    return expression == "*" or (offset // 4 + life) % 3 == 0


class NameServer:
    """A name server; it may not hear of what is new, or have just started."""

    def __init__(self) -> None:
        self.known: dict[str, Registration] = {}
        self.is_silent = self.is_deaf = False

    def answer(self, code: int, fields: Mapping[str, str]) -> Said:
        """Answer a request."""
        if code == cluster.GET_BROKER_CLUSTER_INFO:
            table = {
                name: {"brokerAddrs": each.addresses(name), "brokerName": name}
                for name, each in self.known.items()
            }
            return SUCCESS, {}, json.dumps({"brokerAddrTable": table}).encode()
        if code == cluster.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
            names = sorted({topic for each in self.known.values() for topic in each.topics})
            return SUCCESS, {}, json.dumps({"topicList": names}).encode()
        if code == cluster.GET_SYSTEM_TOPIC_LIST_FROM_NS:
            return SUCCESS, {}, b"{}"
        assert code == cluster.GET_ROUTEINFO_BY_TOPIC, code
        topic = fields["topic"]
        having = {name: each for name, each in self.known.items() if topic in each.topics}
        if not having:
            return NO_TOPIC, {}, b""
        queues: list[dict[str, object]] = []
        for name, each in having.items():
            read, write, is_readable = each.topics[topic]
            perm = 6 if is_readable else 2
            said = {"brokerName": name, "readQueueNums": read, "writeQueueNums": write}
            queues.append({**said, "perm": perm})
        brokers = [
            {"brokerName": name, "brokerAddrs": each.addresses(name)}
            for name, each in having.items()
        ]
        body = json.dumps({"brokerDatas": brokers, "queueDatas": queues}).encode()
        return SUCCESS, {}, body
