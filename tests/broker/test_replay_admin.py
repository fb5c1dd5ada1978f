"""Each captured administrative request gets the answer, header and body, of Apache RocketMQ 5.5.0.

docs/compatibility.md lists the differences, with reasons.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.broker import captured
from tests.broker.captured import ANSWERED, ASKED, captured_broker, replay, tree_of
from tests.broker.wired import Wired

from cometmq.proto.codes import RequestCode
from cometmq.proto.command import Command

DATA_CODES = {10, 11, 12, 14, 15, 25, 26, 29, 30, 31, 33, 34, 35, 38, 46, 310, 320, 361, 200052}
"""Sending, pulling, querying, heartbeats and settings, which test_replay covers."""

OFFLINE = {"300-2"}
"""Captured while no consumer was online, or not affected by that."""

MAKING = {"17-1", "17-2", "17-3", "17-4", "18-1"}
"""Captured before the topic existed."""

AT_CLIENTS = {"222-6", "222-7"}
"""Captured while clients, not the broker, did the resets."""

RELAYED = {"307-2": "307-3", "223-1": "221-1"}
"""The request that the broker then sends to the client, with the captured client's answer."""

UNLIKE = {"36-4", "37-8", "325-1", "325-2", "325-3"}
"""Without a topic Apache fails with a null pointer, and a dead letter needs none. test_transactions
covers where a half message was, and test_reply who asked."""

OTHER_WORDS = {"41-3", "41-4", "41-5"}
"""Exchanges in which Apache's text names a Java exception."""

EXCHANGES = [
    exchange
    for exchange, vector in ASKED.items()
    if exchange in ANSWERED
    and exchange not in UNLIKE
    and vector.said["requestCode"] not in DATA_CODES
]

NO_REMARK = "not set any response code"
"""A slip of Apache's: a success needs no remark."""


@pytest.fixture
def wired(tmp_path: Path, exchange: str) -> Iterator[Wired]:
    wired = captured_broker(tmp_path, server_side_reset_enable=exchange not in AT_CLIENTS)
    if exchange in MAKING:
        for topic in (ASKED[exchange].ext_fields.get("topic", ""), "T_list1", "T_list2"):
            wired.broker.state.topics.discard(topic, 0)
    if exchange == "317-2":  # Captured after a reset.
        wired.broker.state.offsets.commit("g_norm", "T_norm", 0, 1)
    if exchange in AT_CLIENTS:
        for queue_id in (0, 1):
            wired.broker.state.offsets.commit("g_online", "T_norm", queue_id, 5)
    yield wired
    wired.close()


def answer_of(wired: Wired, exchange: str) -> Command:
    """Replay a request, and if the broker then asks a client, the client's answer."""
    admin = wired.connect()
    if exchange in OFFLINE:
        return replay(wired, admin, ASKED[exchange])
    consumer, _ = captured.join_captured(wired)
    if exchange not in RELAYED:
        return replay(wired, admin, ASKED[exchange])
    captured.give(wired, admin, ASKED[exchange])
    (question,) = [each for each in wired.events(consumer) if isinstance(each, Command)]
    said = captured.SAID_BY_CLIENTS[RELAYED[exchange]]
    answer = replace(captured.command_of(said), opaque=question.opaque, codec=None)
    wired.give(consumer, b"".join(consumer.client.send(answer)))
    (response,) = wired.answers(admin)
    return response


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_a_captured_request_gets_apaches_answer(wired: Wired, exchange: str) -> None:
    response, wanted = answer_of(wired, exchange), ANSWERED[exchange]
    assert response.code == wanted.said["responseCode"]
    assert response.ext_fields.keys() == wanted.ext_fields.keys()
    remark = wanted.header.get("remark")
    if exchange not in OTHER_WORDS:
        assert response.remark in {remark, None if remark == NO_REMARK else remark}
    text = wanted.said.get("bodyText")
    assert (response.body is None) == (text is None)
    if text is not None:
        compare = COMPARISONS.get(wanted.said["requestCode"], same)
        compare(response.body, text.encode())


def same(ours: Any, theirs: bytes) -> None:
    """Compare all but times."""
    assert tree_of(ours) == tree_of(theirs)


def same_keys(ours: Any, theirs: bytes) -> None:
    """Compare the names, and the form of the texts, whose numbers differ."""
    mine, captured_table = tree_of(ours)["table"], tree_of(theirs)["table"]
    for name, value in captured_table.items():
        if "/" in name or name.startswith("scheduleMessageOffset"):
            continue
        assert form_of(mine[name]) == form_of(value), name


def form_of(value: str) -> str:
    """Return a text without its numbers. Rates that are not known yet are 0.0."""
    numbers = r"[0-9.]+(E-?[0-9]+)?( [0-9.]+)*"
    return re.sub("[KMGT]iB", "B", re.sub(numbers, "N", value)).strip()


def same_levels(ours: Any, theirs: bytes) -> None:
    """Compare the levels that had messages. None of the messages here is due."""
    assert tree_of(ours)["offsetTable"].keys() == tree_of(theirs)["offsetTable"].keys()


def same_but_pulled(ours: Any, theirs: bytes) -> None:
    """Compare all but the pulled offsets in Apache's 43, which Apache's own slaves cannot read."""
    mine, wanted = tree_of(ours), tree_of(theirs)
    del wanted["pullOffsetTable"]
    for tree in (mine, wanted):
        tree["groupTopicMap"] = {k: sorted(topics) for k, topics in tree["groupTopicMap"].items()}
    assert mine == wanted


def same_stats(ours: Any, theirs: bytes) -> None:
    """Compare groups and consumed offsets. Apache omits the pulled ones in 317."""

    def offsets(body: Any) -> Any:
        return {
            group: {
                queue: (reached["brokerOffset"], reached["consumerOffset"])
                for stats in found
                for queue, reached in stats["offsetTable"].items()
            }
            for each in tree_of(body)["consumeStatsList"]
            for group, found in each.items()
            if group not in {"g_pop", "g_online", "g_zz8"}
        }

    assert offsets(ours) == offsets(theirs)


def same_entries(ours: Any, theirs: bytes) -> None:
    """Compare all but the places of the records."""

    def entries(body: Any) -> Any:
        tree = tree_of(body)
        for each in tree["queueData"]:
            each["physicOffset"] = each["physicSize"] = each["tagsCode"] = 0
        return tree

    assert entries(ours) == entries(theirs)


def same_spans(ours: Any, theirs: bytes) -> None:
    """Compare the queues, and which times are present."""

    def spans(body: Any) -> Any:
        return [
            {key: value if key == "messageQueue" else type(value) for key, value in each.items()}
            for each in tree_of(body)["consumeTimeSpanSet"]
        ]

    assert spans(ours) == spans(theirs)


COMPARISONS: dict[int, Callable[[Any, bytes], None]] = {
    RequestCode.GET_BROKER_RUNTIME_INFO: same_keys,
    RequestCode.GET_ALL_CONSUMER_OFFSET: same_but_pulled,
    RequestCode.GET_ALL_DELAY_OFFSET: same_levels,
    RequestCode.GET_BROKER_CONSUME_STATS: same_stats,
    RequestCode.QUERY_CONSUME_QUEUE: same_entries,
    RequestCode.QUERY_CONSUME_TIME_SPAN: same_spans,
}


def test_every_captured_request_of_a_served_code_is_replayed() -> None:
    codes = {ASKED[exchange].said["requestCode"] for exchange in EXCHANGES}
    assert codes.isdisjoint(DATA_CODES)
    assert RequestCode.UPDATE_AND_CREATE_TOPIC in codes
