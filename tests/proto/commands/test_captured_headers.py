"""Every captured header of a command with a class is read into that class without loss."""

from __future__ import annotations

import pytest
from tests.proto.test_wire_vectors import command_of
from tests.proto.wire_vectors import VECTORS, Vector

from cometmq.proto.codes import RequestCode, request_name
from cometmq.proto.commands import (
    BROKER_COMMANDS,
    CLIENT_COMMANDS,
    NAME_SERVER_COMMANDS,
    Headers,
    RpcFields,
)
from cometmq.proto.errors import FieldError
from cometmq.proto.header import Header, fields_of, to_texts

TABLE: dict[int, Headers] = {
    int(code): row
    for table in (BROKER_COMMANDS, NAME_SERVER_COMMANDS, CLIENT_COMMANDS)
    for code, row in table.items()
}
SHARED = {field.wire_name for field in fields_of(RpcFields)}

# A test client sent many codes with the same four fields, even to commands without these fields.
PROBE = {"topic", "group", "consumerGroup", "configType"}
PROBED = {354, 355, 905, 907, 1007, 2001, 2002, 2003, 3001, 3005, 3010, 5001, 200056}

# Deliberately wrong requests, each with the field that is missing or not a number.
WRONG = {
    "10-1-request": "producerGroup",
    "10-3-request": "producerGroup",
    "11-40-request": "consumerGroup",
    "11-45-request": "queueOffset",
    "15-5-request": "commitOffset",
    "15-6-request": "queueId",
    "30-4-request": "queueId",
    "30-5-request": "topic",
    "38-4-request": "consumerGroup",
    "100-2-request": "key",
    "103-9-request": "brokerName",
    "310-15-request": "e",
    "310-16-request": "a",
    "361-6-request": "consumerGroup",
    "908-1-request": "masterFlushOffset",
    "2004-1-request": "READ_AHEAD_MODE",
    "200050-1-request": "consumerGroup",
    "200052-1-request": "maxMsgNums",
    "200054-1-request": "consumerGroup",
    "200055-1-request": "consumerGroup",
}

MODELLED = [v for v in VECTORS if v.said.get("requestCode") in TABLE]
SOUND = [v for v in MODELLED if v.said.get("name") not in WRONG]


def class_of(vector: Vector) -> type[Header] | None:
    row = TABLE[vector.said["requestCode"]]
    if vector.said["kind"] == "response":
        return row.of_answer(vector.header["code"])
    return row.request


def test_all_but_a_few_captured_frames_belong_to_a_row() -> None:
    assert len(MODELLED) > 850
    assert len(MODELLED) - len(SOUND) == len(WRONG)
    others = {int(v.said.get("requestCode") or 0) for v in VECTORS} - TABLE.keys()
    known = {code for code in others if code in set(RequestCode)}
    assert {request_name(code) for code in known} == {
        "QUERY_BROKER_OFFSET",
        "GET_TOPIC_CONFIG_LIST",
        "TRIGGER_DELETE_FILES",
        "GET_CLIENT_CONFIG",
        "UPDATE_AND_CREATE_ACL_CONFIG",
        "GET_BROKER_CLUSTER_ACL_CONFIG",
        "SUSPEND_CONSUMER",
        "REGISTER_FILTER_SERVER",
        "ADD_BROKER",
        "POP_LITE_MESSAGE",
        "LITE_SUBSCRIPTION_CTL",
        "GET_BROKER_LITE_INFO",
        "GET_PARENT_TOPIC_INFO",
        "GET_LITE_TOPIC_INFO",
        "GET_LITE_CLIENT_INFO",
        "GET_LITE_GROUP_INFO",
        "TRIGGER_LITE_DISPATCH",
    }


@pytest.mark.parametrize("vector", SOUND, ids=lambda vector: vector.where)
def test_every_captured_field_is_modelled(vector: Vector) -> None:
    cls = class_of(vector)
    known = {field.wire_name for field in fields_of(cls)} if cls else set[str]()
    unknown = vector.ext_fields.keys() - known - SHARED
    assert unknown <= (PROBE if vector.said["requestCode"] in PROBED else set())


@pytest.mark.parametrize("vector", SOUND, ids=lambda vector: vector.where)
def test_a_captured_header_is_read_and_written_without_loss(vector: Vector) -> None:
    cls = class_of(vector)
    if cls is None:
        return
    header = command_of(vector.frame).read(cls)
    written = to_texts(header)
    for field in fields_of(cls):
        if field.wire_name in vector.ext_fields:
            assert written[field.wire_name] == vector.ext_fields[field.wire_name]
        else:
            assert getattr(header, field.name) == field.default


@pytest.mark.parametrize(
    "vector", [v for v in MODELLED if v not in SOUND], ids=lambda vector: vector.where
)
def test_a_header_that_was_made_wrong_is_refused_by_its_field(vector: Vector) -> None:
    cls = class_of(vector)
    assert cls is not None
    with pytest.raises(FieldError) as caught:
        command_of(vector.frame).read(cls)
    assert caught.value.field == WRONG[vector.said["name"]]


def test_what_the_official_client_sends_is_never_refused() -> None:
    official = {
        vector.said.get("name")
        for vector in MODELLED
        if vector.header.get("language") == "JAVA" and "serializeTypeCurrentRPC" in vector.header
    }
    assert len(official) > 400
    assert official & WRONG.keys() == set()
