"""Request codes 25 and 26: the settings of a running broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.broker.running import config_of, pull_request, send_request
from tests.broker.wired import Wired

from cometmq.proto.bodies import DataVersion, decode_settings, encode_settings
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands import GetBrokerConfigResponse


@pytest.fixture
def wired(tmp_path: Path) -> Iterator[Wired]:
    wired = Wired(config_of(tmp_path))
    yield wired
    wired.close()


def update(wired: Wired, **settings: str) -> Command:
    body = encode_settings(settings)
    return wired.ask(wired.connect(), Command.request(RequestCode.UPDATE_BROKER_CONFIG, body=body))


def told(wired: Wired) -> tuple[dict[str, str], int]:
    response = wired.ask(wired.connect(), Command.request(RequestCode.GET_BROKER_CONFIG))
    assert response.code == ResponseCode.SUCCESS
    version = response.read(GetBrokerConfigResponse).version
    assert version is not None
    return decode_settings(bytes(response.body or b"")), DataVersion.decode(
        version.encode()
    ).counter


def test_an_update_takes_effect_and_is_told(wired: Wired) -> None:
    settings, counter = told(wired)
    assert (settings["longPollingEnable"], settings["brokerName"]) == ("true", "broker-a")
    assert update(wired, longPollingEnable="false").code == ResponseCode.SUCCESS
    settings, later = told(wired)
    assert settings["longPollingEnable"] == "false"
    assert later == counter + 1


def test_long_polling_ends_at_once(wired: Wired) -> None:
    update(wired, longPollingEnable="false", shortPollingTimeMills="10")
    peer = wired.connect()
    waiting = pull_request("BenchmarkTest", sys_flag=6, suspend_timeout_millis=15_000)
    wired.give(peer, wired.frame(peer, waiting))
    assert wired.answers(peer) == []
    wired.now_ms += 10
    wired.broker.tick(wired.now_ms)
    wired.turn()
    assert [answer.code for answer in wired.answers(peer)] == [ResponseCode.PULL_NOT_FOUND]


def test_topics_are_made_no_more_at_once(wired: Wired) -> None:
    peer = wired.connect()
    assert wired.ask(peer, send_request("one", b"x")).code == ResponseCode.SUCCESS
    update(wired, autoCreateTopicEnable="false")
    assert wired.ask(peer, send_request("two", b"x")).code == ResponseCode.TOPIC_NOT_EXIST
    assert wired.ask(peer, send_request("one", b"x")).code == ResponseCode.SUCCESS


def test_nothing_is_changed_when_anything_is_refused(wired: Wired) -> None:
    before = told(wired)
    refused = update(wired, longPollingEnable="false", listenPort="1")
    assert refused.code == ResponseCode.NO_PERMISSION
    assert refused.remark == (
        "Can not update config in black list. listenPort: fixed while the broker runs"
    )
    assert update(wired, longPollingEnable="no").code == ResponseCode.INVALID_PARAMETER
    assert told(wired) == before


def test_an_unknown_key_is_accepted(wired: Wired, caplog: pytest.LogCaptureFixture) -> None:
    assert update(wired, transactionTimeOut="2000", nonsense="1").code == ResponseCode.SUCCESS
    assert "nonsense: no such setting; ignored" in caplog.text


def test_a_text_that_is_no_properties_is_refused(wired: Wired) -> None:
    request = Command.request(RequestCode.UPDATE_BROKER_CONFIG, body=b"a=\\u12")
    assert wired.ask(wired.connect(), request).code == ResponseCode.SYSTEM_ERROR


def test_messages_are_kept_by_the_new_settings(wired: Wired) -> None:
    """The store's expiry is what applies them."""
    update(wired, diskSpaceWarningLevelRatio="1", diskSpaceCleanForciblyRatio="0")
    wired.broker.store.tick(wired.now_ms + 10_000)
    response = wired.ask(wired.connect(), send_request("BenchmarkTest", b"x"))
    assert response.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "the limit is 1%" in (response.remark or "")
