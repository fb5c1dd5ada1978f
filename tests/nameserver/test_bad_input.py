"""Whatever a peer sends gets an answer: nothing raises or is reported as an error of ours."""

from __future__ import annotations

import json

from hypothesis import given, settings, strategies as st
from tests.nameserver.servers import PEER, header_of, new_server, registered, table_of

from cometmq.nameserver import NameServer
from cometmq.nameserver.dispatch import TABLE
from cometmq.proto.bodies import DataVersion, QueueData, RegisterBrokerBody, TopicRouteData
from cometmq.proto.codes import RequestCode as Code
from cometmq.proto.command import RESPONSE_FLAG, Command
from cometmq.proto.commands.table import NAME_SERVER_COMMANDS
from cometmq.proto.errors import RemoteProtocolError
from cometmq.proto.header import fields_of
from cometmq.proto.header_codecs import HEADER_CODECS
from cometmq.proto.header_json import JSON

NAMES = sorted(
    {
        field.wire_name
        for headers in NAME_SERVER_COMMANDS.values()
        if headers.request is not None
        for field in fields_of(headers.request)
    }
)
SERVED = sorted(int(code) for code in TABLE)

codes = st.sampled_from(SERVED) | st.integers(-(2**31), 2**31 - 1)
texts = st.text(max_size=20) | st.sampled_from(
    ["T1", "broker-a", "C", "10.0.0.1:10911", "0", "1", "-1", "true", "", " ", "9" * 30, "null"]
)
values = texts | st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False)
ext_fields = st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=5), values, max_size=9)
odd_fields = st.none() | st.lists(values, max_size=2) | values
sound_bodies = [
    RegisterBrokerBody(topic_config_serialize_wrapper=table_of(["T1", "T7"], counter=2)).encode(),
    DataVersion(counter=1).encode(),
    TopicRouteData(queue_datas=(QueueData(broker_name="broker-a"),)).encode(),
    b"enableTopicList=true\nwaitSecondsForService=1\n",
]
json_trees: st.SearchStrategy[object] = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=10,
)


def torn(body: bytes, at: int, inserted: bytes) -> bytes:
    at %= len(body)
    return body[:at] + inserted + body[at:]


bodies: st.SearchStrategy[bytes | None] = st.one_of(
    st.none(),
    st.binary(max_size=40),
    json_trees.map(lambda tree: json.dumps(tree).encode()),
    st.sampled_from(sound_bodies),
    st.builds(torn, st.sampled_from(sound_bodies), st.integers(0, 1000), st.binary(max_size=3)),
)


def running() -> NameServer:
    server = new_server()
    registered(server)
    registered(server, header_of(broker_id=1, address="s", acting=True))
    return server


def check(server: NameServer, request: Command) -> None:
    response = server.handle(request, connection_id=3, peer=PEER, now_ms=5)
    if response is None:
        assert request.flag & 3
        return
    assert response.opaque == request.opaque
    assert response.flag == RESPONSE_FLAG
    assert "mistake of this name server" not in (response.remark or "")
    if response.code:
        assert response.remark
        assert response.body is None
    assert response.codec is not None
    response.codec.encode(response)


@settings(deadline=None, max_examples=300)
@given(
    asked=st.lists(
        st.tuples(codes, ext_fields | odd_fields, bodies, st.integers(0, 600)), max_size=8
    ),
)
def test_random_json_headers_and_bodies_are_answered(
    asked: list[tuple[int, object, bytes | None, int]],
) -> None:
    server = running()
    for code, fields, body, version in asked:
        header = {"code": code, "extFields": fields, "opaque": 9, "flag": 0, "version": version}
        try:
            request = JSON.decode(json.dumps(header).encode(), body, 256)
        except RemoteProtocolError:
            continue  # A lone surrogate, or anything else that breaks the connection.
        check(server, request)


@settings(deadline=None, max_examples=300)
@given(
    serialize_type=st.sampled_from(sorted(HEADER_CODECS)),
    code=st.sampled_from(SERVED),
    fields=st.dictionaries(st.sampled_from(NAMES), texts, max_size=9),
    body=bodies,
    flag=st.integers(-(2**31), 2**31 - 1),
)
def test_random_fields_in_every_codec_are_answered(
    serialize_type: int, code: int, fields: dict[str, str], body: bytes | None, flag: int
) -> None:
    codec = HEADER_CODECS[serialize_type]
    sent = codec.encode(Command(code, fields, flag=flag, opaque=-7, version=513))
    check(running(), codec.decode(sent, body, 256))


@settings(deadline=None, max_examples=200)
@given(data=st.data(), code=st.sampled_from(SERVED))
def test_each_field_may_be_missing_or_wrong(data: st.DataObject, code: int) -> None:
    header = NAME_SERVER_COMMANDS[Code(code)].request
    names = [] if header is None else [field.wire_name for field in fields_of(header)]
    sound = {"brokerName": "broker-a", "topic": "T1", "clusterName": "C", "brokerId": "0"}
    fields = {name: sound.get(name, "true") for name in names}
    for name in data.draw(st.lists(st.sampled_from(names), unique=True) if names else st.just([])):
        fields[name] = data.draw(texts)
        if data.draw(st.booleans()):
            del fields[name]
    sent = JSON.encode(Command(code, fields, opaque=4))
    check(running(), JSON.decode(sent, data.draw(bodies), 256))
