"""When a send is answered, and what the answer is when the disk fails."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.broker.running import config_of, pull_request, send_request
from tests.broker.wired import Wired
from tests.crash.disk import Moment, Operation, SimulatedFileSystem

from cometmq.broker.acknowledgements import TELLING_PATIENCE_MS
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands import SendMessageRefusal, SendMessageResponse
from cometmq.proto.header_codecs import HEADER_CODECS
from cometmq.store.config import Flush

TOPIC = "BenchmarkTest"  # It always exists, so no send waits for the topics' file.


def alike(number: int, codec: int = 0) -> Command:
    """A send like those before it, so that its answer is made at once and then waits."""
    properties = f"UNIQ_KEY\x01{number:032X}\x02WAIT\x01true\x02"
    request = send_request(TOPIC, b"x", properties=properties)
    return replace(request, codec=HEADER_CODECS[codec])


def test_with_async_flush_a_send_is_answered_with_its_turn(tmp_path: Path) -> None:
    wired = Wired(config_of(tmp_path), SimulatedFileSystem())
    peer = wired.connect()
    frames = [wired.frame(peer, send_request(TOPIC, b"%d" % n)) for n in range(3)]
    peer.data_received(b"".join(frames))
    assert not peer.written, "an answer left before the turn was written"
    wired.turn()
    assert [answer.code for answer in wired.answers(peer)] == [0, 0, 0]
    wired.close()


def test_a_send_that_makes_its_topic_waits_for_the_topics_file(tmp_path: Path) -> None:
    wired = Wired(config_of(tmp_path), SimulatedFileSystem())
    peer = wired.connect()
    wired.give(peer, wired.frame(peer, send_request("fresh", b"x")))
    wired.broker.told(wired.broker.state.topics.file.version)
    wired.broker.synced()
    wired.turn()
    assert wired.answers(peer) == []
    wired.save()
    assert [answer.code for answer in wired.answers(peer)] == [0]
    wired.close()


def test_a_send_that_makes_its_topic_waits_until_name_servers_know_the_route(
    tmp_path: Path,
) -> None:
    wired = Wired(config_of(tmp_path), SimulatedFileSystem())
    first, second = wired.connect(), wired.connect()
    wired.give(first, wired.frame(first, send_request("fresh", b"x")))
    wired.save_tables()
    wired.give(second, wired.frame(second, send_request(TOPIC, b"y")))
    assert [answer.code for answer in wired.answers(second)] == [0], "it need not wait"
    assert wired.answers(first) == []
    wired.give(second, wired.frame(second, pull_request("fresh")))
    assert [answer.code for answer in wired.answers(second)] == [0], "it can be read"
    assert len(wired.broker.acknowledgements) == 1, "a shutdown waits for it"
    wired.broker.told(wired.broker.state.topics.file.version - 1)
    assert wired.answers(first) == []
    wired.save()
    assert [answer.code for answer in wired.answers(first)] == [0]
    assert len(wired.broker.acknowledgements) == 0
    wired.close()


def test_a_name_server_that_hangs_holds_a_send_up_for_a_second_at_most(tmp_path: Path) -> None:
    wired = Wired(config_of(tmp_path), SimulatedFileSystem())
    peer = wired.connect()
    wired.give(peer, wired.frame(peer, send_request("fresh", b"x")))
    wired.save_tables()
    wired.now_ms += TELLING_PATIENCE_MS - 1
    wired.broker.tick(wired.now_ms)
    wired.turn()
    assert wired.answers(peer) == []
    wired.now_ms += 1
    wired.broker.tick(wired.now_ms)
    wired.turn()
    assert [answer.code for answer in wired.answers(peer)] == [0]
    wired.close()


def test_a_sync_send_is_answered_and_read_only_when_the_disk_has_it(tmp_path: Path) -> None:
    wired = Wired(config_of(tmp_path, flush=Flush.SYNC), SimulatedFileSystem(), threads=False)
    peer = wired.connect()
    wired.give(peer, wired.frame(peer, send_request(TOPIC, b"x")))
    assert wired.answers(peer) == []
    assert wired.ask(peer, pull_request(TOPIC)).code == ResponseCode.PULL_NOT_FOUND
    wired.sync()
    assert [answer.code for answer in wired.answers(peer)] == [0]
    assert wired.ask(peer, pull_request(TOPIC)).code == ResponseCode.SUCCESS
    wired.close()


def test_a_sync_send_that_need_not_wait_does_not(tmp_path: Path) -> None:
    wired = Wired(config_of(tmp_path, flush=Flush.SYNC), SimulatedFileSystem(), threads=False)
    peer = wired.connect()
    request = send_request(TOPIC, b"x", properties="WAIT\x01false\x02")
    wired.give(peer, wired.frame(peer, request))
    assert [answer.code for answer in wired.answers(peer)] == [0]
    wired.close()


def test_a_slow_disk_makes_sends_stored_but_not_safe_and_answers_once(tmp_path: Path) -> None:
    wired = Wired(config_of(tmp_path, flush=Flush.SYNC), SimulatedFileSystem(), threads=False)
    peer = wired.connect()
    wired.give(peer, wired.frame(peer, send_request(TOPIC, b"x")))
    wired.now_ms += 4_999
    wired.broker.tick(wired.now_ms)
    wired.turn()
    assert wired.answers(peer) == []
    wired.now_ms += 1
    wired.broker.tick(wired.now_ms)
    wired.turn()
    assert [a.code for a in wired.answers(peer)] == [ResponseCode.FLUSH_DISK_TIMEOUT]
    wired.sync()
    assert wired.answers(peer) == []
    assert wired.ask(peer, pull_request(TOPIC)).code == ResponseCode.SUCCESS
    wired.close()


@pytest.mark.parametrize("codec", [0, 2])
def test_sends_that_are_alike_hear_of_a_slow_disk_too(tmp_path: Path, codec: int) -> None:
    wired = Wired(config_of(tmp_path, flush=Flush.SYNC), SimulatedFileSystem(), threads=False)
    peer = wired.connect()
    wired.give(peer, wired.frame(peer, alike(0, codec)))
    wired.sync()
    assert [answer.code for answer in wired.answers(peer)] == [0]
    requests = [wired.frame(peer, alike(number, codec)) for number in (1, 2)]
    wired.give(peer, *requests)
    wired.now_ms += 5_000
    wired.broker.tick(wired.now_ms)
    wired.turn()
    answers = wired.answers(peer)
    assert [answer.code for answer in answers] == [ResponseCode.FLUSH_DISK_TIMEOUT] * 2
    assert [answer.read(SendMessageResponse).queue_offset for answer in answers] == [1, 2]
    refused = wired.broker.state.traffic.refused
    assert refused[RequestCode.SEND_MESSAGE_V2, ResponseCode.FLUSH_DISK_TIMEOUT] == 2
    wired.sync()
    assert wired.answers(peer) == []
    wired.close()


@pytest.mark.parametrize("codec", [0, 2])
def test_a_write_that_fails_refuses_exactly_the_sends_of_its_turn(
    tmp_path: Path, codec: int
) -> None:
    disk = SimulatedFileSystem()
    wired = Wired(config_of(tmp_path), disk, threads=False)
    peer = wired.connect()
    assert wired.ask(peer, alike(0, codec)).code == ResponseCode.SUCCESS

    def refuse(operation: Operation) -> None:
        # The next test covers a failed sync, which is final.
        is_write = operation.verb == "write" and "commitlog" in operation.path
        if is_write and operation.moment is Moment.BEFORE:
            raise OSError(errno.ENOSPC, "no room")

    disk.hook = refuse
    requests = [*(send_request(TOPIC, b"%d" % n) for n in range(3)), alike(1, codec)]
    wired.give(peer, *[wired.frame(peer, request) for request in requests])
    answers = wired.answers(peer)
    code = ResponseCode.SERVICE_NOT_AVAILABLE
    assert [answer.code for answer in answers] == [code] * 4
    assert all(answer.remark for answer in answers)
    assert answers[3].codec is HEADER_CODECS[codec]
    assert wired.broker.state.traffic.refused == {(RequestCode.SEND_MESSAGE_V2, code): 4}
    assert answers[0].ext_fields == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    disk.hook = None
    sent = wired.ask(peer, send_request(TOPIC, b"after")).read(SendMessageResponse)
    assert sent.queue_offset == 1, "the refused ones left a hole"
    wired.close()


def test_a_sync_that_fails_refuses_those_who_wait_and_all_that_come(tmp_path: Path) -> None:
    disk = SimulatedFileSystem()
    wired = Wired(config_of(tmp_path, flush=Flush.SYNC), disk, threads=False)
    peer = wired.connect()
    wired.give(peer, wired.frame(peer, send_request(TOPIC, b"x")))

    def refuse(operation: Operation) -> None:
        if operation.verb == "sync" and operation.moment is Moment.BEFORE:
            raise OSError(errno.EIO, "broken")

    disk.hook = refuse
    wired.sync()
    disk.hook = None
    [refused] = wired.answers(peer)
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert refused.read(SendMessageRefusal).may_be_stored, "it is written"
    wired.give(peer, wired.frame(peer, send_request(TOPIC, b"y")))
    [refused] = wired.answers(peer)
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert not refused.read(SendMessageRefusal).may_be_stored, "it is not even written"
    assert wired.broker.store.failure is not None
    wired.close()
