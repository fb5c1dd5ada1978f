"""The requests captured from a live Apache RocketMQ 5.5.0, and a broker in the state of that one.

Most administrative requests were captured at the end, when the broker had topics, groups, offsets
and a consumer online. The captured bodies say which.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace
from tests.broker.running import config_of
from tests.broker.wired import Wired, WiredPeer
from tests.crash.disk import SimulatedFileSystem
from tests.proto.wire_vectors import VECTORS, Vector

from cometmq.broker.dispatch import TABLE
from cometmq.proto.bodies import (
    ConsumerConnections,
    ConsumerData,
    ConsumerOffsets,
    ConsumeStats,
    HeartbeatData,
    ProducerData,
    SubscriptionGroupTable,
    TopicConfigTable,
)
from cometmq.proto.codes import RequestCode
from cometmq.proto.command import ONEWAY_FLAG, Command
from cometmq.proto.fastjson import loads
from cometmq.proto.frame import FrameParser
from cometmq.proto.header_codecs import HEADER_CODECS
from cometmq.store.log.turn import Origin

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ASKED: dict[str, Vector] = {
    vector.said["exchange"]: vector
    for vector in VECTORS
    if vector.said["direction"] == "client->broker"
    and vector.said["kind"] != "response"
    and vector.said["requestCode"] in TABLE
}
"""The requests of the codes that we serve, by the name of their exchange."""

ANSWERED: dict[str, Vector] = {
    vector.said["exchange"]: vector
    for vector in VECTORS
    if vector.said["direction"] == "broker->client" and vector.said["kind"] == "response"
}
"""Apache's answers."""

SAID_BY_CLIENTS: dict[str, Vector] = {
    vector.said["exchange"]: vector
    for vector in VECTORS
    if vector.said["direction"] == "client->broker" and vector.said["kind"] == "response"
}
"""The answers of a client to the broker's requests."""

COUNTS = {
    "T_norm": (9, 7),
    "T_delay": (4,),
    "T_trans": (2,),
    "T_rr": (1,),
    "T_sql": (6,),
    "T_order": (4, 4),
    "T_retry": (3,),
    "%RETRY%g_retry": (3,),
    "SCHEDULE_TOPIC_XXXX": (3, 1, 2),
    "RMQ_SYS_TRANS_HALF_TOPIC": (6,),
    "RMQ_SYS_TRANS_OP_HALF_TOPIC": (2,),
}
"""The number of messages in each queue. `g_norm` had not consumed the later ones of `T_norm`."""

TAGS = (b"TAGS\x01TagA\x02", b"KEYS\x01k\x02", b"TAGS\x01TagB\x02")
"""The properties of the first messages of each queue."""

STORED_MS = 1_699_999_000_000


def command_of(vector: Vector) -> Command:
    """Decode a captured frame."""
    parser = FrameParser()
    parser.receive_data(vector.frame)
    found = parser.next_frame()
    assert found is not None
    return HEADER_CODECS[found[0]].decode(found[1], found[2], 1024)


def body_of(exchange: str) -> bytes:
    """Return the body of a captured answer."""
    text = ANSWERED[exchange].said["bodyText"]
    assert isinstance(text, str)
    return text.encode()


def give(wired: Wired, peer: WiredPeer, vector: Vector) -> None:
    """Give the broker a captured frame, whose sender then waits for the answer."""
    request = command_of(vector)
    if request.code == RequestCode.CONSUMER_SEND_MSG_BACK and "bname" in request.ext_fields:
        # The record is at another offset in this log.
        place = wired.broker.store.queues.entries("T_retry", 0, 0, 1)
        assert place
        fields = request.ext_fields | {"offset": str(place[0][0])}
        wired.give(peer, b"".join(peer.client.send(replace(request, fields=fields, codec=None))))
        return
    if not request.flag & ONEWAY_FLAG:
        peer.client.send(replace(request, flag=0))
    wired.give(peer, vector.frame)


def replay(wired: Wired, peer: WiredPeer, vector: Vector) -> Command:
    """Give the broker a captured frame, save what the answer waits for, and return the answer."""
    give(wired, peer, vector)
    wired.save()
    (answer,) = wired.answers(peer)
    return answer


def captured_broker(folder: Path, **settings: Any) -> Wired:
    """Start a broker with the topics, groups, offsets and messages of the captured one."""
    wired = Wired(config_of(folder, listen_port=21911, **settings), SimulatedFileSystem())
    state = wired.broker.state
    for config in TopicConfigTable.decode(body_of("21-1")).topic_config_table.values():
        state.topics.put(config, 1)
    for group in SubscriptionGroupTable.decode(body_of("201-1")).subscription_group_table.values():
        state.groups.put(group, 1)
    for name, counts in COUNTS.items():
        for queue_id, count in enumerate(counts):
            fill(wired, name, queue_id, count)
    for key, offsets in ConsumerOffsets.decode(body_of("43-1")).offset_table.items():
        topic, _, group_name = key.partition("@")
        for queue_id, offset in offsets.items():
            state.offsets.commit(group_name, topic, queue_id, offset)
    for queue, reached in ConsumeStats.decode(body_of("208-1")).offset_table.items():
        state.offsets.note_pull("g_norm", queue.topic, queue.queue_id, reached.pull_offset)
    wired.save()
    return wired


def fill(wired: Wired, topic: str, queue_id: int, count: int) -> None:
    """Store messages of one queue, a second apart."""
    store = wired.broker.store
    for number in range(count):
        tags = TAGS[number] if number < len(TAGS) else b""
        origin = Origin(STORED_MS + 1000 * number, 1, bytes(8))
        put = store.put(topic, queue_id, b"%d" % number, tags, origin, 0)
        found = wired.broker.state.topics.find(topic)
        assert found is not None
        found.flow.take(1, put.size)
    store.commit()
    store.advance()


def join_captured(wired: Wired) -> tuple[WiredPeer, WiredPeer]:
    """Let the consumer and the producer that were online join."""
    consumer, producer = wired.connect(from_port=53566), wired.connect(from_port=53576)
    group = ConsumerConnections.decode(body_of("203-2"))
    (client,) = group.connection_set
    data = ConsumerData(
        group_name="g_online",
        consume_from_where=group.consume_from_where,
        consume_type=group.consume_type,
        message_model=group.message_model,
        subscription_data_set=tuple(group.subscription_table.values()),
    )
    inner = ProducerData(group_name="CLIENT_INNER_PRODUCER")
    beat(wired, consumer, client.client_id, (data,), (inner,))
    online = ProducerData(group_name="pg_online")
    beat(wired, producer, "192.0.2.2@15716#1183667772275", (), (inner, online))
    wired.events(consumer)
    return consumer, producer


def beat(
    wired: Wired,
    peer: WiredPeer,
    client_id: str | None,
    consumers: tuple[ConsumerData, ...],
    producers: tuple[ProducerData, ...] = (),
    **fields: Any,
) -> Command:
    """Send a heartbeat as a Java client does."""
    data = HeartbeatData(
        client_id=client_id or "c",
        consumer_data_set=consumers,
        producer_data_set=producers,
        **fields,
    )
    request = replace(
        Command.request(RequestCode.HEART_BEAT, body=data.encode()), language=0, version=513
    )
    answer = wired.ask(peer, request)
    assert answer.code == 0
    return answer


def tree_of(body: Any) -> Any:
    """Parse a body of either side for a comparison that ignores the order of sets."""
    return _comparable(loads(bytes(body)))


def _comparable(tree: Any, key: str = "") -> Any:
    if isinstance(tree, list):
        items: list[Any] = [_comparable(item) for item in tree]  # pyright: ignore[reportUnknownVariableType]  # Any tree.
        return sorted(items, key=str) if key in SETS else items
    if not hasattr(tree, "items"):
        return tree
    members: Mapping[Any, Any] = tree
    return {
        _plain(name): "a number" if name in TIMES else _comparable(value, str(name))
        for name, value in members.items()
    }


def _plain(key: Any) -> Any:
    return tuple(sorted(key.items())) if hasattr(key, "items") else key


SETS = {"groupList", "topicList", "consumeTimeSpanSet", "consumeStatsList", "connectionSet",
        "subscriptionSet", "CLIENT_INNER_PRODUCER"}  # fmt: skip
TIMES = {"timestamp", "lastUpdateTimestamp", "lastTimestamp", "counter"}
