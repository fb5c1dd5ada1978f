"""Each captured administrative request gets the answer, header and body, of Apache RocketMQ 5.5.0.

What differs, and why, stands in docs/compatibility.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.broker import captured
from tests.broker.captured import ANSWERED, ASKED, captured_broker, replay, tree_of
from tests.broker.wired import Wired

from cometmq.proto.codes import RequestCode

DATA_CODES = {10, 11, 12, 14, 15, 29, 30, 31, 33, 34, 35, 38, 46, 310, 320, 361, 200052}
"""Sending, pulling, querying and heartbeats: test_replay has those."""

EXCHANGES = [
    exchange
    for exchange, vector in ASKED.items()
    if exchange in ANSWERED and vector.said["requestCode"] not in DATA_CODES
]

OFFLINE = {"300-2"}
"""Captured when no consumer was online, or where it makes no difference."""

MAKING = {"17-1", "17-2", "17-3", "17-4", "18-1"}
"""Captured when there was no such topic yet."""

NO_REMARK = "not set any response code"
"""Apache's slip: success needs no words."""


@pytest.fixture
def wired(tmp_path: Path) -> Iterator[Wired]:
    wired = captured_broker(tmp_path)
    yield wired
    wired.close()


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_a_captured_request_gets_apaches_answer(wired: Wired, exchange: str) -> None:
    if exchange not in OFFLINE:
        captured.join_captured(wired)
    if exchange in MAKING:
        wired.broker.state.topics.discard(ASKED[exchange].ext_fields.get("topic", ""), 0)
    wanted = ANSWERED[exchange]
    response = replay(wired, wired.connect(), ASKED[exchange])
    assert response.code == wanted.said["responseCode"]
    assert response.ext_fields.keys() == wanted.ext_fields.keys()
    remark = wanted.header.get("remark")
    assert response.remark == (None if remark == NO_REMARK else remark)
    text = wanted.said.get("bodyText")
    assert (response.body is None) == (text is None)
    if text is not None:
        assert tree_of(response.body) == tree_of(text.encode())


def test_every_captured_request_of_a_served_code_is_replayed() -> None:
    codes = {ASKED[exchange].said["requestCode"] for exchange in EXCHANGES}
    assert codes.isdisjoint(DATA_CODES)
    assert RequestCode.UPDATE_AND_CREATE_TOPIC in codes
