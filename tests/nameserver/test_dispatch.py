from __future__ import annotations

from typing import TYPE_CHECKING, Never

import pytest
from tests.crash.disk import SimulatedFileSystem
from tests.nameserver.servers import PEER, ask, new_server

from cometmq.nameserver.config import NameServerConfig
from cometmq.nameserver.dispatch import REMARK_LENGTH_MAX, TABLE, Dispatcher, Row
from cometmq.nameserver.errors import RequestError
from cometmq.nameserver.kv_config import KvConfig
from cometmq.nameserver.state import Context, State
from cometmq.proto.codes import RequestCode as Code, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands.table import NAME_SERVER_COMMANDS
from cometmq.proto.errors import BodyError, FieldError

if TYPE_CHECKING:
    from cometmq.nameserver.dispatch import Handler


def context() -> Context:
    kv = KvConfig.load(SimulatedFileSystem(), "/ns/kv.json")
    return Context(State(NameServerConfig(), kv, now_ms=0), 1, PEER, 0)


def raising(error: Exception) -> Handler:
    def handler(request: Command, context: Context) -> Never:
        raise error

    return handler


def answered(row: Row, request: Command | None = None) -> Command:
    dispatcher = Dispatcher({Code.GET_KV_CONFIG: row})
    return dispatcher.answer(request or Command(Code.GET_KV_CONFIG, opaque=5), context())


def test_every_command_of_a_name_server_has_a_row() -> None:
    assert set(TABLE) == set(NAME_SERVER_COMMANDS)


@pytest.mark.parametrize("code", [0, 10, 34, 999, 200050, -1, 2**31 - 1])
def test_a_code_of_no_row_is_answered_in_apaches_words(code: int) -> None:
    response = ask(new_server(), code)
    assert response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert response.remark == f" request type {code} not supported"


def test_a_refused_request_is_answered_with_its_code_and_remark() -> None:
    response = answered(Row(raising(RequestError(ResponseCode.NO_PERMISSION, "no"))))
    assert (response.code, response.remark, response.opaque) == (16, "no", 5)


def test_a_wrong_field_is_answered_with_the_code_of_its_row() -> None:
    error = FieldError("X", "topic", "is missing")
    assert answered(Row(raising(error))).code == ResponseCode.SYSTEM_ERROR
    response = answered(Row(raising(error), field_refusal=ResponseCode.TOPIC_NOT_EXIST))
    assert (response.code, response.remark) == (17, "X: field 'topic' is missing")


def test_a_wrong_body_is_a_system_error_whatever_the_row_says() -> None:
    row = Row(raising(BodyError("bad")), field_refusal=ResponseCode.TOPIC_NOT_EXIST)
    response = answered(row)
    assert (response.code, response.remark) == (1, "bad")


@pytest.mark.parametrize(
    "error", [RequestError(ResponseCode.SYSTEM_ERROR, "x" * 9999), BodyError("x" * 9999)]
)
def test_a_remark_is_limited_in_length(error: Exception) -> None:
    assert len(answered(Row(raising(error))).remark or "") == REMARK_LENGTH_MAX


def test_a_mistake_of_ours_is_answered_and_logged_once_without_what_the_peer_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    row = Row(raising(KeyError("the peer's secret")))
    dispatcher = Dispatcher({Code.GET_KV_CONFIG: row})
    for _ in range(3):
        response = dispatcher.answer(Command(Code.GET_KV_CONFIG), context())
        assert response.code == ResponseCode.SYSTEM_ERROR
        assert response.remark == (
            "GET_KV_CONFIG: a mistake of this name server (KeyError), see its log"
        )
    (record,) = caplog.records
    text = record.getMessage()
    assert "GET_KV_CONFIG" in text
    assert PEER in text
    assert "KeyError at " in text
    assert "test_dispatch.py:" in text
    assert "secret" not in caplog.text
    assert record.exc_info is None


@pytest.mark.parametrize("code", sorted(TABLE))
def test_a_body_over_the_limit_of_its_row_is_refused(code: int) -> None:
    config = NameServerConfig(registration_size_max=100, small_body_size_max=50)
    limit: int = getattr(config, TABLE[code].body_limit)
    server = new_server(config)
    assert "body has" not in (ask(server, code, body=b" " * limit).remark or "")
    response = ask(server, code, body=b" " * (limit + 1))
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert response.remark == (
        f"body has {limit + 1} bytes, this name server's {TABLE[code].body_limit} is {limit}"
    )
