"""Each captured request about messages gets the answer that Apache RocketMQ 5.5.0 gave.

docs/compatibility.md lists the differences, with reasons.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.broker.captured import ANSWERED, ASKED, command_of
from tests.broker.running import config_of, send_request
from tests.broker.test_replay_admin import DATA_CODES
from tests.broker.wired import Wired
from tests.crash.disk import SimulatedFileSystem
from tests.proto.wire_vectors import Vector

from cometmq.proto.bodies import (
    ConsumerData,
    HeartbeatData,
    SubscriptionData,
    SubscriptionGroupConfig,
    TopicConfig,
)
from cometmq.proto.bodies.enums import ConsumeType, MessageModel
from cometmq.proto.codes import RequestCode
from cometmq.proto.command import ONEWAY_FLAG, Command

UNSERVED = {
    "310-4", "310-5", "310-6", "310-7", "310-8", "310-25", "310-27", "310-28", "310-32", "310-33",
    "310-34", "310-35", "310-36",  # delays
    "310-10", "310-38",  # priorities
    "11-31", "11-36",  # refused: see docs/compatibility.md
}  # fmt: skip
EMPTY = {"14-1", "14-4", "14-8", "14-9"}
"""Requests about queues that never had a message, where we let a group begin at 0. Apache makes the
client ask again, and miss the messages that come in between."""
RESET = {"11-26": 0, "11-27": 0, "11-39": 1, "15-7": 1}
"""Exchanges with a pending reset of an operator, and its offset."""
# Apache's text names a Java exception.
OTHER_REMARKS = {"310-13", "310-15", "310-16", "10-3", "320-4", "11-45", "30-4", "30-5", "33-2",
                 "34-8", "38-4", "46-2", "46-3", "46-5"}  # fmt: skip
TOPICS = {"T_norm": 2, "T_delay": 1, "T_order": 4, "T_trans": 1, "T_rr": 1, "T_bcq": 1, "T_sql": 1,
          "T_pop": 1}  # fmt: skip
EXCHANGES = [
    exchange
    for exchange, vector in ASKED.items()
    if exchange in ANSWERED
    and exchange not in UNSERVED
    and vector.said["requestCode"] in DATA_CODES
]


@pytest.fixture
def wired(tmp_path: Path) -> Iterator[Wired]:
    wired = Wired(config_of(tmp_path, listen_port=21911), SimulatedFileSystem())
    state = wired.broker.state
    for name, queues in TOPICS.items():
        attributes = {"queue.type": "BatchCQ"} if name == "T_bcq" else {}
        config = TopicConfig(
            topic_name=name,
            read_queue_nums=queues,
            write_queue_nums=queues,
            attributes=attributes,
        )
        state.topics.put(config, 0)
    state.groups.put(SubscriptionGroupConfig(group_name="g_norm"), 0)
    wired.save()
    yield wired
    wired.close()


def fill(wired: Wired, topic: str, queue_id: int, count: int, *, is_half: bool = False) -> None:
    peer = wired.connect()
    properties = "KEYS\x01KB1\x02a\x014" + "\x02TRAN_MSG\x01true" * is_half
    for number in range(count):
        request = send_request(topic, b"%d" % number, queue_id=queue_id, properties=properties)
        assert wired.ask(peer, request).code == 0


def prepare(wired: Wired, vector: Vector, wanted: Vector) -> None:
    """Bring the broker into the state of the captured one."""
    fields, answer = vector.ext_fields, wanted.ext_fields
    code = vector.said["requestCode"]
    queue_id = int(fields["queueId"]) if fields.get("queueId", "").isdigit() else 0
    if "maxOffset" in answer:
        topic = fields["topic"]
        if topic.startswith("%RETRY%"):
            wired.broker.state.topics.make_derived(topic, 1, 0)
            wired.save()
        fill(wired, topic, queue_id, int(answer["maxOffset"]))
        if wanted.said["responseCode"] == 20 and fields.get("subscription") is None:
            join(wired, vector, "nothing")
    if code in (11, 361) and wanted.said["responseCode"] in (0, 19, 21, 25):
        join(wired, vector, "*")
    if code in (10, 310, 320) and "queueOffset" in answer:
        fill_to(wired, vector, int(answer["queueOffset"]))
    count = answer.get({RequestCode.GET_MAX_OFFSET: "offset", 200052: "restNum"}.get(code, ""))
    if count is not None:
        fill(wired, fields["topic"], queue_id, int(count))
    if code == RequestCode.QUERY_CONSUMER_OFFSET and "offset" in answer:
        fill(wired, fields["topic"], queue_id, 1)
    if code == RequestCode.VIEW_MESSAGE_BY_ID or vector.said["exchange"] in {"12-1", "12-4"}:
        fill(wired, "T_norm", 0, 1)
    if code == RequestCode.GET_CONSUMER_LIST_BY_GROUP and wanted.said["responseCode"] == 0:
        join(wired, vector, "*", client_id="192.0.2.2@inst0")


def fill_to(wired: Wired, vector: Vector, count: int) -> None:
    fields = vector.ext_fields
    topic, queue = fields.get("b", fields.get("topic")), fields.get("e", fields.get("queueId"))
    assert topic is not None
    assert queue is not None
    fill(wired, topic, int(queue), count, is_half="TRAN_MSG" in str(fields))


def join(wired: Wired, vector: Vector, expression: str, client_id: str = "c") -> None:
    """Let a client join the group of a request."""
    fields = vector.ext_fields
    version = int(fields.get("subVersion", "0"))
    if vector.said["exchange"] in ANSWERED and (
        ANSWERED[vector.said["exchange"]].said["responseCode"] == 25
    ):
        version -= 1
    is_sql = fields.get("expressionType") == "SQL92"
    subscription = SubscriptionData(
        topic=fields.get("topic", "T_norm"),
        expression_type="SQL92" if is_sql else "TAG",
        sub_string="a BETWEEN 2 AND 4" if is_sql else expression,
        sub_version=version,
    )
    data = HeartbeatData(
        client_id=client_id,
        consumer_data_set=(
            ConsumerData(
                group_name=fields["consumerGroup"],
                subscription_data_set=(subscription,),
                consume_type=ConsumeType.CONSUME_PASSIVELY,
                message_model=MessageModel.CLUSTERING,
            ),
        ),
    )
    peer = wired.connect()
    answer = wired.ask(peer, Command.request(RequestCode.HEART_BEAT, body=data.encode()))
    assert answer.code == 0


def replayed(wired: Wired, exchange: str) -> Command:
    vector = ASKED[exchange]
    wanted = ANSWERED[exchange]
    prepare(wired, vector, wanted)
    if exchange in RESET:
        fields, state = vector.ext_fields, wired.broker.state
        group, topic, queue_id = fields["consumerGroup"], fields["topic"], int(fields["queueId"])
        state.groups.find_or_make(group, 0)
        state.offsets.reset(group, topic, queue_id, RESET[exchange])
    is_vip = wanted.said["responseCode"] == 3
    peer = wired.connect(vip=is_vip)
    request = command_of(vector)
    if not request.flag & ONEWAY_FLAG:
        peer.client.send(replace(request, flag=0))
    wired.give(peer, vector.frame)
    wired.save()
    answers = wired.answers(peer)
    if not answers:  # A held pull, for which nothing came.
        wired.now_ms += 60_000
        wired.broker.tick(wired.now_ms)
        wired.turn()
        answers = wired.answers(peer)
    (answer,) = answers
    return answer


# Places in the log, the progress of the index, times, counts, and ids that the broker makes up.
PLACES = {"version", "msgId", "indexLastUpdatePhyoffset", "indexLastUpdateTimestamp"}


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_a_captured_request_gets_apaches_answer(wired: Wired, exchange: str) -> None:
    response = replayed(wired, exchange)
    vector, wanted = ASKED[exchange], ANSWERED[exchange]
    if exchange in EMPTY:
        assert (response.code, response.ext_fields) == (0, {"offset": "0"})
        return
    assert response.code == wanted.said["responseCode"]
    ours, theirs = response.ext_fields, wanted.ext_fields
    if exchange not in OTHER_REMARKS:
        assert ours.keys() == theirs.keys()
        remark = wanted.header.get("remark") or None
        if remark is not None and "Producer: " in remark:
            remark = remark.replace("127.0.0.1:46124", str(remark_port(response)))
        assert response.remark == remark or "consumer:[" in (remark or "")
    skipped = set(PLACES)
    if "UNIQ_KEY" not in str(vector.ext_fields):
        skipped.add("transactionId")
    if vector.said["requestCode"] in (11, 361):
        skipped.add("nextBeginOffset")  # It depends on the captured messages' tags: see below.
    assert {k: v for k, v in ours.items() if k not in skipped} == {
        k: v for k, v in theirs.items() if k not in skipped
    }


def remark_port(response: Command) -> str:
    return (response.remark or "").rpartition("Producer: ")[2]
