"""Every header class survives a round trip in every codec, and wrong fields are named."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from tests.proto.commands.header_strategies import (
    CLASSES,
    TEXTS,
    full_texts,
    headers_of,
    required_fields,
)

from cometmq.proto.codes import RequestCode
from cometmq.proto.command import Command, HeaderCodec
from cometmq.proto.commands import (
    Credentials,
    GetMaxOffset,
    RpcFields,
    SendMessage,
    SendMessageV2,
    UnregisterClient,
    read_shared,
)
from cometmq.proto.errors import FieldError
from cometmq.proto.header import Header, fields_of, from_texts, to_texts
from cometmq.proto.header_codecs import HEADER_CODECS

CODECS = list(HEADER_CODECS.values())
FIELDS_MAX = 1024
CODE = RequestCode.GET_MAX_OFFSET  # Any code that fits the binary header.


def sent_and_received(command: Command, codec: HeaderCodec) -> Command:
    return codec.decode(codec.encode(command), None, FIELDS_MAX)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
@given(data=st.data())
@settings(max_examples=10)
def test_a_header_comes_back_as_it_went_in_every_codec(
    cls: type[Header], data: st.DataObject
) -> None:
    header = data.draw(headers_of(cls))
    for codec in CODECS:
        received = sent_and_received(Command.request(CODE, header), codec)
        assert received.read(cls) == header
        assert received.ext_fields_as(cls) == to_texts(header)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_missing_field_is_named_as_it_is_on_the_wire(cls: type[Header]) -> None:
    for field in required_fields(cls):
        texts = full_texts(cls)
        del texts[field.wire_name]
        for codec in CODECS:
            received = sent_and_received(Command.request(CODE, texts), codec)
            with pytest.raises(FieldError) as caught:
                received.read(cls)
            assert caught.value.field == field.wire_name
            assert caught.value.problem == "is missing"


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_wrong_number_is_named_as_it_is_on_the_wire(cls: type[Header]) -> None:
    for field in fields_of(cls):
        if field.kind is not int:
            continue
        for wrong in ("x", str(field.bounds[1] + 1), str(field.bounds[0] - 1), "1_0", "0x7"):
            texts = full_texts(cls) | {field.wire_name: wrong}
            for codec in CODECS:
                received = sent_and_received(Command.request(CODE, texts), codec)
                with pytest.raises(FieldError) as caught:
                    received.read(cls)
                assert caught.value.field == field.wire_name


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_an_empty_map_gives_the_defaults(cls: type[Header]) -> None:
    texts = {field.wire_name: full_texts(cls)[field.wire_name] for field in required_fields(cls)}
    header = from_texts(cls, texts)
    for field in fields_of(cls):
        if field.wire_name not in texts:
            assert getattr(header, field.name) == field.default


DEFAULTS: dict[str, dict[str, Any]] = {
    # The values of missing fields in Apache's classes. Every other default is None.
    "SendMessage": {"reconsume_times": 0, "unit_mode": False, "batch": False},
    "SendMessageV2": {"reconsume_times": 0, "unit_mode": False, "batch": False},
    "ConsumerSendMsgBack": {"unit_mode": False},
    "PushReplyMessageToClient": {"unit_mode": False},
    "PullMessage": {"expression_type": "TAG"},
    "BulkPullMessage": {"expression_type": "TAG"},  # Our own class.
    "GetMaxOffset": {"committed": True},
    "ResetOffset": {"queue_id": -1},
    "GetConsumerRunningInfo": {"jstack_enable": False},
    "EndTransaction": {"from_transaction_check": False},
    "UpdateAndCreateTopic": {"topic_sys_flag": 0, "order": False, "force": False},
    "DeleteSubscriptionGroup": {"clean_offset": False},
    "CloneGroupOffset": {"offline": False},
    "RegisterBroker": {"compressed": False, "body_crc32": 0},
    "ElectMaster": {
        "cluster_name": "",
        "broker_name": "",
        "broker_id": -1,
        "designate_elect": False,
    },
    "GetMetadataInfoResponse": {"is_leader": False},
    "CleanBrokerData": {"is_clean_living_broker": False},
    "PopMessage": {"order": False},
    "Notification": {"order": False},
    "NotificationResponse": {"polling_full": False},
}


def test_the_defaults_are_apaches() -> None:
    found = {
        cls.__name__: {
            field.name: field.default
            for field in fields_of(cls)
            if field not in required_fields(cls) and field.default is not None
        }
        for cls in CLASSES
    }
    assert {name: defaults for name, defaults in found.items() if defaults} == DEFAULTS


@given(headers_of(RpcFields), st.sampled_from(CODECS))
@settings(deadline=None)
def test_shared_fields_are_read_beside_a_requests_own(
    shared: RpcFields, codec: HeaderCodec
) -> None:
    request = GetMaxOffset("T", 3)
    received = sent_and_received(
        Command.request(CODE, request, extras=to_texts(shared)),
        codec,
    )
    assert received.read(GetMaxOffset) == request
    assert read_shared(received, RpcFields) == shared


@given(TEXTS)
@settings(deadline=None)
def test_credentials_are_read_beside_a_requests_own(key: str) -> None:
    credentials = Credentials(key, "IUc8rrO/0gDch8CjObLQsW2rsiA=")
    for codec in CODECS:
        received = sent_and_received(
            Command.request(CODE, UnregisterClient("c"), extras=to_texts(credentials)), codec
        )
        assert read_shared(received, Credentials) == credentials


@given(headers_of(SendMessageV2))
def test_a_handler_treats_both_forms_of_a_send_alike(sent: SendMessageV2) -> None:
    assert isinstance(sent, SendMessage)
    values = [getattr(sent, name) for name in sent.__struct_fields__]
    by_long_names = SendMessage(*values)
    assert from_texts(SendMessage, to_texts(by_long_names)) == by_long_names
    assert from_texts(SendMessageV2, to_texts(sent)) == sent
    assert list(to_texts(sent).values()) == list(to_texts(by_long_names).values())
