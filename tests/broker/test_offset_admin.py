"""Resetting, copying and comparing offsets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.broker.captured import STORED_MS, beat, fill
from tests.broker.running import config_of, pull_request
from tests.broker.wired import Wired, WiredPeer

from cometmq.proto.bodies import (
    ConsumerData,
    CorrectionOffsets,
    MessageQueue,
    ResetOffsets,
    TopicConfig,
    decode_reset_offsets,
)
from cometmq.proto.codes import Language, RequestCode as Code
from cometmq.proto.command import Command
from cometmq.proto.commands import (
    OffsetResponse,
    PullMessageResponse,
    QueryConsumerOffset,
    SearchOffsetByTimestamp,
    UpdateConsumerOffset,
)
from cometmq.proto.commands.bulk import BulkPullMessage
from cometmq.proto.commands.consumer import ResetOffset
from cometmq.proto.commands.group import CloneGroupOffset, QueryCorrectionOffset
from cometmq.store.disk.filesystem import RealFileSystem
from cometmq.store.tables import CONSUMER_OFFSETS, TableFile


@pytest.fixture(params=[True], ids=["server-side"])
def wired(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Wired]:
    config = config_of(tmp_path, listen_port=21911, server_side_reset_enable=request.param)
    wired = Wired(config)
    state = wired.broker.state
    for topic in ("T", "U"):
        state.topics.put(TopicConfig(topic_name=topic, read_queue_nums=2, write_queue_nums=2), 0)
    for name in ("g", "h"):
        state.groups.find_or_make(name, 0)
    fill(wired, "T", 0, 10)
    fill(wired, "T", 1, 4)
    wired.save()
    yield wired
    wired.close()


@pytest.fixture
def peer(wired: Wired) -> WiredPeer:
    return wired.connect()


AT_CLIENTS = pytest.mark.parametrize("wired", [False], indirect=True, ids=["at-clients"])


def reset(wired: Wired, peer: WiredPeer, timestamp: int, **fields: Any) -> Command:
    header: dict[str, Any] = {"topic": "T", "group": "g", "is_force": True, **fields}
    request = ResetOffset(timestamp=timestamp, **header)
    return wired.ask(peer, Command.request(Code.INVOKE_BROKER_TO_RESET_OFFSET, request))


def offsets(answer: Command) -> dict[int, int]:
    assert answer.code == 0, answer.remark
    return {q.queue_id: n for q, n in ResetOffsets.decode(answer.body).offset_table.items()}


def commit(wired: Wired, peer: WiredPeer, offset: int) -> Command:
    header = UpdateConsumerOffset("g", "T", 0, offset)
    return wired.ask(peer, Command.request(Code.UPDATE_CONSUMER_OFFSET, header))


def committed(wired: Wired, peer: WiredPeer, group: str = "g", topic: str = "T") -> int:
    request = Command.request(Code.QUERY_CONSUMER_OFFSET, QueryConsumerOffset(group, topic, 0))
    return wired.ask(peer, request).read(OffsetResponse).offset


def test_a_group_begins_where_messages_of_a_time_are(wired: Wired, peer: WiredPeer) -> None:
    stored_ms = 1_699_999_000_000
    assert offsets(reset(wired, peer, stored_ms + 2_500)) == {0: 3, 1: 3}
    assert offsets(reset(wired, peer, -1)) == {0: 10, 1: 4}
    assert offsets(reset(wired, peer, 0, queue_id=1)) == {1: 0}
    assert committed(wired, peer) == 10


@pytest.mark.parametrize(
    ("boundary", "offset"), [(None, 4), ("lower", 4), ("UPPER", 3), ("upper", 3)]
)
def test_a_time_between_two_messages_is_behind_one_and_before_the_other(
    wired: Wired, boundary: str | None, offset: int
) -> None:
    header = SearchOffsetByTimestamp("T", 0, STORED_MS + 3_500, boundary)
    request = Command.request(Code.SEARCH_OFFSET_BY_TIMESTAMP, header)
    answer = wired.ask(wired.connect(), request)
    assert answer.read(OffsetResponse).offset == offset


@pytest.mark.parametrize(("offset", "is_in"), [(0, True), (11, True), (12, False), (-5, False)])
def test_an_explicit_offset_must_be_in_the_queue(
    wired: Wired, peer: WiredPeer, offset: int, is_in: bool
) -> None:
    answer = reset(wired, peer, 0, queue_id=0, offset=offset)
    assert (answer.code == 0) is is_in
    if not is_in:
        assert answer.remark == f"Target offset {offset} not in consume queue range [0-10]"


def test_a_queue_that_there_is_not_cannot_be_reset(wired: Wired, peer: WiredPeer) -> None:
    answer = reset(wired, peer, 0, queue_id=2)
    assert answer.code == 1
    assert "2 queues" in (answer.remark or "")


def test_a_reset_is_told_until_a_pull_from_there(wired: Wired, peer: WiredPeer) -> None:
    commit(wired, peer, 9)
    reset(wired, peer, 0, queue_id=0, offset=2)
    answer = wired.ask(peer, pull_request("T", 9, sys_flag=5, commit_offset=9))
    assert (answer.code, answer.remark) == (21, "OFFSET_RESET")
    assert answer.read(PullMessageResponse).next_begin_offset == 2
    assert committed(wired, peer) == 2
    assert wired.ask(peer, pull_request("T", 9)).code == 21, "the answer may have been lost"
    assert wired.ask(peer, pull_request("T", 2)).code == 0
    assert wired.ask(peer, pull_request("T", 9)).code == 0


def test_who_is_already_where_the_group_is_reset_to_is_told_as_well(
    wired: Wired, peer: WiredPeer
) -> None:
    """The messages before that may still be in hand, and are not to be committed one by one."""
    reset(wired, peer, 0, queue_id=0, offset=9)
    assert wired.ask(peer, pull_request("T", 9)).code == 21
    assert commit(wired, peer, 5).remark is not None
    assert wired.ask(peer, pull_request("T", 9)).code == 0


def test_a_reset_is_in_the_file_before_its_answer(wired: Wired, peer: WiredPeer) -> None:
    commit(wired, peer, 9)
    reset(wired, peer, 0, queue_id=0, offset=2)
    state = wired.broker.state
    file = TableFile(RealFileSystem(), f"{state.config.store_path}/config", CONSUMER_OFFSETS)
    kept = {int(key): value for key, value in file.load().tree["offsetTable"]["T@g"].items()}
    assert kept == {0: 2}


def test_a_pull_in_bulk_ends_a_reset_but_is_not_told(wired: Wired, peer: WiredPeer) -> None:
    def pull_in_bulk(offset: int) -> int:
        header = BulkPullMessage("g", "T", 0, offset, offset + 1, 1 << 20)
        return wired.ask(peer, Command.request(Code.BULK_PULL_MESSAGE, header)).code

    reset(wired, peer, 0, queue_id=0, offset=2)
    assert pull_in_bulk(2) == pull_in_bulk(9) == 0
    assert commit(wired, peer, 5).remark is not None
    assert wired.ask(peer, pull_request("T", 9)).code == 21
    assert pull_in_bulk(2) == 0
    assert commit(wired, peer, 5).remark is None


def test_what_is_committed_before_a_pull_from_there_does_not_count(
    wired: Wired, peer: WiredPeer
) -> None:
    reset(wired, peer, 0, queue_id=0, offset=2)
    answer = commit(wired, peer, 9)
    assert (answer.code, answer.remark) == (0, "Offset has been previously reset")
    assert committed(wired, peer) == 2
    wired.ask(peer, pull_request("T", 9))
    assert commit(wired, peer, 9).remark is not None, "sent before the answer came"
    wired.ask(peer, pull_request("T", 2))
    assert commit(wired, peer, 3).remark is None
    assert committed(wired, peer) == 3


def test_a_held_pull_is_told_of_a_reset_at_once(wired: Wired, peer: WiredPeer) -> None:
    held = pull_request("T", 10, sys_flag=6, suspend_timeout_millis=15_000)
    wired.give(peer, wired.frame(peer, held))
    assert wired.answers(peer) == []
    reset(wired, wired.connect(), 0, queue_id=0, offset=2)
    (answer,) = wired.answers(peer)
    assert (answer.code, answer.remark) == (21, "OFFSET_RESET")


def member(wired: Wired, version: int = 513) -> WiredPeer:
    peer = wired.connect()
    beat(wired, peer, f"c{version}", (ConsumerData(group_name="g"),))
    wired.events(peer)
    group = wired.broker.state.consumers.find("g")
    assert group is not None
    group.members[peer].version = version
    return peer


def commit_both(wired: Wired) -> None:
    wired.broker.state.offsets.commit("g", "T", 0, 5)
    wired.broker.state.offsets.commit("g", "T", 1, 1)


@AT_CLIENTS
@pytest.mark.parametrize(("force", "wanted"), [(True, {0: 8, 1: 4}), (False, {0: 5, 1: 1})])
def test_members_are_told_to_begin_elsewhere(
    wired: Wired, peer: WiredPeer, force: bool, wanted: dict[int, int]
) -> None:
    commit_both(wired)
    members = [member(wired), member(wired)]
    answer = reset(wired, peer, 1_699_999_000_000 + 7_500, is_force=force)
    assert offsets(answer) == wanted
    for each in members:
        words = [e for e in wired.events(each) if isinstance(e, Command) and e.code == 220]
        assert len(words) == 1
        assert words[0].is_oneway
        assert words[0].ext_fields == {
            "topic": "T", "group": "g", "timestamp": "1699999007500", "isForce": "false",
            "queueId": "-1",
        }  # fmt: skip
        assert bytes(words[0].body or b"").startswith(b'{"offsetTable":{')  # Not for C++.
        table = decode_reset_offsets(words[0].body).offset_table
        assert {queue.queue_id: offset for queue, offset in table.items()} == wanted
    assert wired.broker.state.offsets.find("g", "T", 0) == 5


@AT_CLIENTS
def test_members_are_told_in_the_form_that_the_admin_speaks(wired: Wired, peer: WiredPeer) -> None:
    """A tool in C++ resets clients in C++, which only read lists."""
    commit_both(wired)
    client = member(wired)
    header = ResetOffset(topic="T", group="g", timestamp=0, is_force=True)
    request = Command.request(Code.INVOKE_BROKER_TO_RESET_OFFSET, header)
    answer = wired.ask(peer, replace(request, language=int(Language.CPP)))
    assert offsets(answer) == {0: 0, 1: 0}
    (word,) = [e for e in wired.events(client) if isinstance(e, Command) and e.code == 220]
    assert bytes(word.body or b"").startswith(b'{"offsetTable":[{')
    queue = MessageQueue(broker_name="broker-a", queue_id=1, topic="T")
    assert decode_reset_offsets(word.body).offset_table[queue] == 0


@AT_CLIENTS
def test_nobody_is_told_when_nobody_is_there(wired: Wired, peer: WiredPeer) -> None:
    commit_both(wired)
    answer = reset(wired, peer, 5)
    assert (answer.code, answer.remark) == (
        206,
        "Consumer not online, so can not reset offset, Group: g Topic: T Timestamp: 5",
    )


@AT_CLIENTS
def test_nobody_is_told_when_a_member_is_too_old(wired: Wired, peer: WiredPeer) -> None:
    commit_both(wired)
    new = member(wired)
    member(wired, version=27)
    wired.events(new)
    answer = reset(wired, peer, 5)
    assert (answer.code, answer.remark) == (
        1, "the client does not support this feature. version=V_27"
    )  # fmt: skip
    assert wired.events(new) == []


@AT_CLIENTS
def test_an_unknown_topic_is_refused_in_other_words(wired: Wired, peer: WiredPeer) -> None:
    answer = reset(wired, peer, 5, topic="nope")
    assert (answer.code, answer.remark) == (
        17, "[reset-offset] reset offset failed, no topic in this broker. topic=nope"
    )  # fmt: skip


def clone(wired: Wired, peer: WiredPeer, **fields: Any) -> None:
    header = CloneGroupOffset(src_group="g", dest_group="h", **fields)
    assert wired.ask(peer, Command.request(Code.CLONE_GROUP_OFFSET, header)).code == 0


def test_one_group_goes_on_where_another_does(wired: Wired, peer: WiredPeer) -> None:
    kept = wired.broker.state.offsets
    kept.commit("h", "T", 1, 9)
    clone(wired, peer, topic="T")
    assert kept.of("h", "T") == {1: 9}, "the other one had none"
    for topic in ("T", "U", "gone"):
        kept.commit("g", topic, 0, 3)
    clone(wired, peer, topic="T")
    assert (kept.of("h", "T"), kept.of("h", "U")) == ({0: 3}, {})
    clone(wired, peer)
    assert (kept.of("h", "U"), kept.of("h", "gone")) == ({0: 3}, {})


def test_of_a_group_that_is_there_only_what_it_wants_is_copied(
    wired: Wired, peer: WiredPeer
) -> None:
    from cometmq.proto.bodies import SubscriptionData

    kept = wired.broker.state.offsets
    for topic in ("T", "U"):
        kept.commit("g", topic, 0, 3)
    wanted = (SubscriptionData(topic="U"),)
    beat(wired, peer, "c", (ConsumerData(group_name="g", subscription_data_set=wanted),))
    wired.events(peer)
    clone(wired, peer)
    assert (kept.of("h", "T"), kept.of("h", "U")) == ({}, {0: 3})
    clone(wired, peer, offline=True)
    assert kept.of("h", "T") == {0: 3}


def test_the_least_offset_of_other_groups_is_compared(wired: Wired, peer: WiredPeer) -> None:
    kept = wired.broker.state.offsets
    for group, offset in (("g", 7), ("h", 4), ("i", 2)):
        kept.commit(group, "T", 0, offset)

    def correction(compare: str, left_out: str | None = None) -> dict[int, int]:
        header = QueryCorrectionOffset(compare, "T", left_out)
        answer = wired.ask(peer, Command.request(Code.QUERY_CORRECTION_OFFSET, header))
        return CorrectionOffsets.decode(answer.body).correction_offsets

    assert correction("g") == {0: 2}
    assert correction("g", "i,x") == {0: 4}
    assert correction("i", "i") == {0: (1 << 63) - 1}
    assert committed(wired, peer, "i") == 2, "what is left out keeps its offsets"
