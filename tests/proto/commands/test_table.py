"""The table of commands is complete, consistent, and in the order that MessagePack needs."""

from __future__ import annotations

from itertools import combinations

import msgspec
import pytest
from tests.proto.commands.header_strategies import CLASSES, required_fields

from cometmq.proto import commands
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.commands import (
    BROKER_COMMANDS,
    CLIENT_COMMANDS,
    CONTROLLER_COMMANDS,
    NAME_SERVER_COMMANDS,
    SendMessage,
    SendMessageV2,
)
from cometmq.proto.header import Header

TABLES = (BROKER_COMMANDS, NAME_SERVER_COMMANDS, CLIENT_COMMANDS, CONTROLLER_COMMANDS)
# Read in addition to a command's own class, and therefore in no row.
SHARED = {commands.RpcFields, commands.Credentials}

# Codes without a row. The table's docstring gives the reasons.
UNSERVED = {13, 22, 23, 27, 47, *range(50, 55), *range(209, 215), 301, 302}
UNMODELLED = {902, 903, *range(200070, 200080)}


def test_every_code_has_a_row_or_a_reason() -> None:
    rows = {int(code) for table in TABLES for code in table}
    assert rows | UNSERVED | UNMODELLED == {int(code) for code in RequestCode}
    assert rows & (UNSERVED | UNMODELLED) == set()


def test_every_class_is_in_a_row() -> None:
    used = {cls for table in TABLES for row in table.values() for cls in row[:3] if cls is not None}
    assert used | SHARED == set(CLASSES)


def test_no_refusal_requires_a_field() -> None:
    refusals = {row.refusal for table in TABLES for row in table.values() if row.refusal}
    assert len(refusals) == 4
    assert [cls.__name__ for cls in refusals if required_fields(cls)] == []


def test_the_code_of_an_answer_says_which_class_it_has() -> None:
    send = BROKER_COMMANDS[RequestCode.SEND_MESSAGE_V2]
    assert send.of_answer(ResponseCode.SLAVE_NOT_AVAILABLE) is commands.SendMessageResponse
    assert send.of_answer(ResponseCode.MESSAGE_ILLEGAL) is commands.SendMessageRefusal
    assert send.of_answer(9999) is commands.SendMessageRefusal
    pull = BROKER_COMMANDS[RequestCode.LITE_PULL_MESSAGE]
    assert pull.of_answer(ResponseCode.PULL_OFFSET_MOVED) is commands.PullMessageResponse
    assert pull.of_answer(ResponseCode.NO_PERMISSION) is commands.PullMessageRefusal
    query = BROKER_COMMANDS[RequestCode.QUERY_MESSAGE]
    assert query.of_answer(ResponseCode.QUERY_NOT_FOUND) is commands.QueryMessageResponse
    assert query.of_answer(ResponseCode.SYSTEM_ERROR) is None


def test_a_code_that_two_serve_asks_both_the_same() -> None:
    shared = [
        (code, one[code], other[code])
        for one, other in combinations(TABLES, 2)
        for code in one.keys() & other.keys()
    ]
    assert {code for code, _, _ in shared} == {
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        RequestCode.BROKER_HEARTBEAT,
    }
    assert [code for code, first, second in shared if first != second] == []


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_required_fields_come_first(cls: type[Header]) -> None:
    required = [field.required for field in msgspec.structs.fields(cls)]
    assert required == sorted(required, reverse=True)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_no_two_fields_share_a_wire_name(cls: type[Header]) -> None:
    assert len(set(cls.__struct_encode_fields__)) == len(cls.__struct_fields__)


def test_both_forms_of_a_send_read_into_the_same_fields() -> None:
    assert SendMessageV2.__struct_fields__ == SendMessage.__struct_fields__
    assert SendMessageV2.__struct_defaults__ == SendMessage.__struct_defaults__
    assert SendMessageV2.__struct_encode_fields__ == tuple("abcdefghijklmn")


def test_the_package_lists_every_class() -> None:
    assert {cls.__name__ for cls in CLASSES} <= set(commands.__all__)
    assert all(hasattr(commands, name) for name in commands.__all__)
