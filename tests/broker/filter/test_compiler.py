"""Only the sender of a process's first SQL92 expression waits for the compiler to load."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.broker.running import config_of, pull_request, send_request
from tests.broker.wired import Wired
from tests.crash.disk import SimulatedFileSystem

from cometmq.broker.filter import compiler
from cometmq.proto.bodies import CheckClientConfig, SubscriptionData
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.message_list import MessageList

PULL = pull_request("T", subscription="a = '1'", expression_type="SQL92")


def check(expression: str) -> Command:
    data = SubscriptionData(topic="T", sub_string=expression, expression_type="SQL92")
    body = CheckClientConfig(client_id="c", group="g", subscription_data=data).encode()
    return Command.request(RequestCode.CHECK_CLIENT_CONFIG, body=body)


def test_requests_with_expressions_wait_for_the_compiler_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wired = Wired(config_of(tmp_path), SimulatedFileSystem())
    first, second, third, other = (wired.connect() for _ in range(4))
    for value in (b"1", b"2"):
        properties = f"a\x01{value.decode()}\x02"
        assert wired.ask(other, send_request("T", value, properties=properties)).code == 0
    monkeypatch.setattr(compiler, "_loaded", threading.Event())
    may_load = threading.Event()
    load = compiler.load

    def load_when_told() -> None:
        may_load.wait()
        load()

    monkeypatch.setattr(compiler, "load", load_when_told)
    for peer, request in ((first, PULL), (second, check("a = 1")), (third, check("a = ="))):
        wired.give(peer, wired.frame(peer, request))
    assert [bytes(peer.written) for peer in (first, second, third)] == [b"", b"", b""]
    assert wired.ask(other, pull_request("T")).code == ResponseCode.SUCCESS
    may_load.set()
    (answer,) = wired.answers_of_threads(first)
    assert [message.body for message in MessageList(bytes(answer.body or b""))] == [b"1"]
    assert [answer.code for answer in wired.answers(second)] == [ResponseCode.SUCCESS]
    assert [answer.code for answer in wired.answers(third)] == [
        ResponseCode.SUBSCRIPTION_PARSE_FAILED
    ]
    assert wired.ask(first, PULL).code == ResponseCode.SUCCESS
    wired.close()
