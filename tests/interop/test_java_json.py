"""Apache's own classes read every body that we write, with fastjson 1 and 2, and lose nothing.

Release 5.3.1 reads bodies with fastjson 1.2.83, release 5.5.0 with fastjson2 2.0.59.
"""

from __future__ import annotations

import base64
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

import msgspec
import pytest
from tests.interop.apache_java import ask, class_path
from tests.proto.bodies.samples import sample
from tests.proto.bodies.wire_bodies import BODIES

from cometmq.proto import bodies
from cometmq.proto.body import Body

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

pytestmark = pytest.mark.slow

JAVA_JSON = Path(__file__).parent / "java-json"
RELEASES = ("5.3.1", "5.5.0")
PROTOCOL = "org.apache.rocketmq.remoting.protocol."

CLASSES: dict[type[Body], str] = {
    bodies.BatchAcks: "body.BatchAckMessageRequestBody",
    bodies.BrokerConsumeStats: "body.ConsumeStatsList",
    bodies.BrokerMemberGroup: "body.GetBrokerMemberGroupResponseBody",
    bodies.BrokerStats: "body.BrokerStatsData",
    bodies.CheckClientConfig: "body.CheckClientRequestBody",
    bodies.ClusterInfo: "body.ClusterInfo",
    bodies.ConsumeMessageDirectlyResult: "body.ConsumeMessageDirectlyResult",
    bodies.ConsumeQueueEntries: "body.QueryConsumeQueueResponseBody",
    bodies.ConsumeStats: "admin.ConsumeStats",
    bodies.ConsumeTimeSpans: "body.QueryConsumeTimeSpanBody",
    bodies.ConsumerConnections: "body.ConsumerConnection",
    bodies.ConsumerList: "header.GetConsumerListByGroupResponseBody",
    bodies.ConsumerOffsets: "body.ConsumerOffsetSerializeWrapper",
    bodies.ConsumerRunningInfo: "body.ConsumerRunningInfo",
    bodies.ConsumerStatus: "body.GetConsumerStatusBody",
    bodies.CorrectionOffsets: "body.QueryCorrectionOffsetBody",
    bodies.DataVersion: "DataVersion",
    bodies.GroupForbidden: "subscription.GroupForbidden",
    bodies.GroupList: "body.GroupList",
    bodies.GroupSubscription: "body.QuerySubscriptionResponseBody",
    bodies.HARuntimeInfo: "body.HARuntimeInfo",
    bodies.HeartbeatData: "heartbeat.HeartbeatData",
    bodies.KVTable: "body.KVTable",
    bodies.LockBatch: "body.LockBatchRequestBody",
    bodies.LockedQueues: "body.LockBatchResponseBody",
    bodies.MessageQueueAssignments: "body.QueryAssignmentResponseBody",
    bodies.MessageRequestModes: "body.MessageRequestModeSerializeWrapper",
    bodies.ProducerConnections: "body.ProducerConnection",
    bodies.ProducerTable: "body.ProducerTableInfo",
    bodies.QueryAssignment: "body.QueryAssignmentRequestBody",
    bodies.RegisterBrokerBody: "body.RegisterBrokerBody",
    bodies.ResetOffsetList: "body.ResetOffsetBodyForC",
    bodies.ResetOffsets: "body.ResetOffsetBody",
    bodies.SetMessageRequestMode: "body.SetMessageRequestModeRequestBody",
    bodies.SubscriptionGroupConfig: "subscription.SubscriptionGroupConfig",
    bodies.SubscriptionGroupList: "body.SubscriptionGroupList",
    bodies.SubscriptionGroupTable: "body.SubscriptionGroupWrapper",
    bodies.TopicConfigAndQueueMapping: "statictopic.TopicConfigAndQueueMapping",
    bodies.TopicConfigList: "body.CreateTopicListRequestBody",
    bodies.TopicConfigTable: "body.TopicConfigAndMappingSerializeWrapper",
    bodies.TopicList: "body.TopicList",
    bodies.TopicQueueMappingDetail: "statictopic.TopicQueueMappingDetail",
    bodies.TopicRouteData: "route.TopicRouteData",
    bodies.TopicStats: "admin.TopicStatsTable",
}
NOT_IN_BOTH_RELEASES = {
    bodies.ConsumeQueueWriteProgress: "another class with other members in each release",
    bodies.DelayOffsets: "a class of the broker",
    bodies.TimerMetrics: "a class of the store",
    **dict.fromkeys(
        (bodies.QueueRanges, bodies.UniqueKeys, bodies.FoundMessages), "our own, as its command"
    ),
}

# The members that a release reads but does not keep.
DROPPED_BY_EACH = {
    # Java derives these from the timestamps.
    "ConsumeTimeSpans.consume_time_span_set.consume_time_stamp_str",
    "ConsumeTimeSpans.consume_time_span_set.max_time_stamp_str",
    "ConsumeTimeSpans.consume_time_span_set.min_time_stamp_str",
    # Written by the broker's class, read by one without this member.
    "ConsumerOffsets.group_topic_map",
}
DROPPED = {
    "5.3.1": {
        *DROPPED_BY_EACH,
        "SubscriptionGroupTable.forbidden_table",
        "TopicStats.topic_put_tps",
    },
    "5.5.0": DROPPED_BY_EACH,
}

Run: TypeAlias = "Callable[[Sequence[tuple[type[Body] | str, bytes]]], list[bytes]]"


@pytest.fixture(scope="module", params=RELEASES)
def java(request: pytest.FixtureRequest) -> tuple[str, Run]:
    """A release, and a function that reads and writes bodies with its classes."""
    release: str = request.param
    classes = class_path(release)

    def run(texts: Sequence[tuple[type[Body] | str, bytes]]) -> list[bytes]:
        names = [c if isinstance(c, str) else PROTOCOL + CLASSES[c] for c, _ in texts]
        data = [base64.b64encode(text).decode() for _, text in texts]
        lines = [f"{name} {text}" for name, text in zip(names, data, strict=True)]
        answers = ask(classes, JAVA_JSON / "RoundTrip.java", lines)
        return [a.encode() if a.startswith("!") else base64.b64decode(a) for a in answers]

    return release, run


def test_every_body_of_the_tables_is_tried() -> None:
    tabled = {*bodies.REQUEST_BODIES.values(), *bodies.RESPONSE_BODIES.values()}
    assert tabled <= CLASSES.keys() | NOT_IN_BOTH_RELEASES.keys()


def test_apache_reads_what_we_write_and_loses_nothing(java: tuple[str, Run]) -> None:
    release, run = java
    values = [sample(body) for body in CLASSES if body is not bodies.ConsumerOffsets]
    # 5.5.0 cannot skip the table, as a test below shows.
    offsets = sample(bodies.ConsumerOffsets)
    values.append(msgspec.structs.replace(offsets, pull_offset_table=None))
    texts = [(type(value), value.encode()) for value in values]
    route = sample(bodies.TopicRouteData)
    values.append(route)
    texts.append((bodies.TopicRouteData, route.encode_standard()))
    lost: set[str] = set()
    for value, answer in zip(values, run(texts), strict=True):
        assert not answer.startswith(b"!"), (type(value), answer)
        lost |= lost_members(value, type(value).decode(answer))
    assert lost == DROPPED[release]


def test_apache_reads_bodies_with_nothing_in_them(java: tuple[str, Run]) -> None:
    _, run = java
    empty = [
        body
        for body in CLASSES
        if not any(field.required for field in msgspec.structs.fields(body))
    ]
    answers = run([(body, body().encode()) for body in empty])
    assert [a for a in answers if a.startswith(b"!")] == []


def test_apache_reads_what_is_written_of_captured_bodies(java: tuple[str, Run]) -> None:
    _, run = java
    values: list[Body] = []
    for captured in BODIES:
        table = bodies.REQUEST_BODIES if captured.is_request else bodies.RESPONSE_BODIES
        body = table.get(captured.code)
        if captured.is_from_apache and body in CLASSES and captured.code != 43:
            values.append(body.decode(captured.data))
    assert len(values) > 90
    answers = run([(type(value), value.encode()) for value in values])
    assert [a for a in answers if a.startswith(b"!")] == []


def test_apache_reads_and_writes_compressed_registrations_as_we_do(java: tuple[str, Run]) -> None:
    _, run = java
    table = bodies.TopicConfigTable(
        data_version=bodies.DataVersion(counter=7, timestamp=1700000000000),
        topic_config_table={
            "T": bodies.TopicConfig(
                attributes={"+message.type": "FIFO"},
                perm=4,
                read_queue_nums=8,
                topic_filter_type=bodies.TopicFilterType.MULTI_TAG,
                topic_name="T",
                write_queue_nums=4,
            ),
            "U": bodies.TopicConfig(topic_name="U"),
        },
        topic_queue_mapping_info_map={
            "S": bodies.TopicQueueMappingInfo(
                bname="b", curr_id_map={0: 1}, scope="__global__", topic="S"
            )
        },
    )
    ours = bodies.RegisterBrokerBody(
        filter_server_list=("f:1",), topic_config_serialize_wrapper=table
    )
    (answer,) = run([("compressed", bodies.encode_compressed(ours, version=413))])
    assert not answer.startswith(b"!"), answer
    assert bodies.decode_registration(answer, version=413, compressed=True) == ours


def test_a_slave_of_5_5_0_cannot_skip_the_pull_offsets(java: tuple[str, Run]) -> None:
    """This is why `pull_offset_table` is left out; if the test fails, it need not be."""
    release, run = java
    offsets = bodies.ConsumerOffsets(pull_offset_table={"T@g": {0: 1}})
    (answer,) = run([(bodies.ConsumerOffsets, offsets.encode())])
    assert answer.startswith(b"!") == (release == "5.5.0")


def lost_members(ours: Body, theirs: Body) -> set[str]:
    """Return members whose values differ; list order does not count, as some are sets in Java."""
    name = type(ours).__name__
    lost = Counter(leaves(ours, name)) - Counter(leaves(theirs, name))
    return {path for path, _ in lost}


def leaves(value: object, path: str, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield each scalar of a body: the path of its member, then its map keys and value."""
    match value:
        case Body():
            for field in msgspec.structs.fields(value):
                yield from leaves(getattr(value, field.name), f"{path}.{field.name}", key)
        case tuple():
            for item in cast("tuple[object, ...]", value):
                yield from leaves(item, path, key)
        case dict():
            for name, item in cast("dict[object, object]", value).items():
                yield from leaves(item, path, f"{key}[{name!r}]")
        case _:
            yield path, f"{key} {value!r}"
