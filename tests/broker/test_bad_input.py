"""Whatever a peer sends gets an answer and causes no error of ours, and the store stays sound.

Every request code of the dispatch table is tried, so new codes need no change here.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from tests.broker.bad_requests import GROUP, TOPICS, BadRequest, bad_requests
from tests.broker.running import config_of, send_request
from tests.broker.wired import Wired, WiredPeer

from cometmq.broker.dispatch import TABLE
from cometmq.proto.bodies import SubscriptionGroupConfig, TopicConfig
from cometmq.proto.command import RESPONSE_FLAG, Command
from cometmq.proto.errors import RemoteProtocolError
from cometmq.proto.frame import FrameParser
from cometmq.proto.header_codecs import HEADER_CODECS
from cometmq.store.checking.verify import verify
from cometmq.store.disk.filesystem import RealFileSystem
from cometmq.store.looking.findings import Report
from cometmq.store.looking.inspection import inspect

MANY = int(os.environ.get("BAD_REQUESTS", "120"))
"""The number of requests of each code in the slow form; 3,000 take some 8 minutes."""
IS_RANDOM = "BAD_REQUESTS" in os.environ
"""Whether each run makes new requests. Without `BAD_REQUESTS` they are the same each time."""
SLOWNESS = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example)
CODES = sorted(int(code) for code in TABLE)


class Complaints(logging.Handler):
    """The log's records of level error, which stand for faults of ours."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(self.format(record))


class Target:
    """A broker that gets bad requests over one connection."""

    def __init__(self, folder: Path) -> None:
        self.wired = Wired(config_of(folder))
        self.complaints = Complaints()
        state = self.wired.broker.state
        for name in TOPICS:
            attributes = {"queue.type": "BatchCQ"} if name == "B" else {}
            state.topics.put(TopicConfig(topic_name=name, attributes=attributes), 0)
        state.groups.put(SubscriptionGroupConfig(group_name=GROUP), 0)
        self.wired.save()
        self.peer = self.wired.connect()
        self.honest = self.wired.connect()
        self.check_honest()

    def check_honest(self) -> None:
        """Check that other clients are served."""
        request = send_request("honest", b"x", properties="KEYS\x01k\x02")
        assert self.wired.ask(self.honest, request).code == 0

    def ask(self, request: BadRequest) -> None:
        """Send one request, and check that it gets exactly one answer, or none if oneway."""
        wired, peer = self.wired, self.peer
        try:
            decode(request.frame)
        except RemoteProtocolError:
            return  # Only this closes a connection.
        wired.give(peer, request.frame)
        wired.save()
        answers = taken(peer)
        if not answers and not request.is_oneway:
            wired.now_ms += 200_000  # The pull is held: let it end.
            wired.broker.tick(wired.now_ms)
            wired.turn()
            answers = taken(peer)
        assert not peer.is_dropped
        assert self.complaints.found == []
        assert [answer.opaque for answer in answers] == [request.opaque] * (not request.is_oneway)
        for answer in answers:
            assert "an error of the server" not in (answer.remark or "")
            assert answer.code == 0 or answer.remark


def decode(frame: bytes) -> Command:
    parser = FrameParser()
    parser.receive_data(frame)
    found = parser.next_frame()
    assert found is not None
    return HEADER_CODECS[found[0]].decode(found[1], found[2], 1024)


def taken(peer: WiredPeer) -> list[Command]:
    """Take the answers sent to a peer, without any requests of the broker among them."""
    parser = FrameParser()
    parser.receive_data(bytes(peer.written))
    peer.written.clear()
    found: list[Command] = []
    while (frame := parser.next_frame()) is not None:
        found.append(HEADER_CODECS[frame[0]].decode(frame[1], frame[2], 1024))
    return [command for command in found if command.flag & RESPONSE_FLAG]


@contextmanager
def target(folder: Path) -> Generator[Target]:
    """Run a broker, and check at the end that its store is sound."""
    found = Target(folder)
    logging.getLogger("cometmq").addHandler(found.complaints)
    try:
        yield found
        found.check_honest()
        found.wired.broker.expire_clients(found.wired.now_ms + 1_000_000)
    finally:
        found.wired.close()
        logging.getLogger("cometmq").removeHandler(found.complaints)
    assert found.complaints.found == []
    config = found.wired.broker.state.config
    report = Report(10)
    for _ in verify(inspect(RealFileSystem(), config.store_path, config.store), report):
        pass
    assert report.is_sound, report.findings
    assert report.records > 0
    again = Wired(config)
    assert again.broker.store.max_offset("honest", 0) >= 2
    again.close()


def try_code(folder: Path, code: int, examples: int) -> None:
    with target(folder) as found:

        @settings(
            max_examples=examples,
            suppress_health_check=SLOWNESS,
            database=None,
            derandomize=not IS_RANDOM,
        )
        @given(bad_requests(code))
        def tried(request: BadRequest) -> None:
            found.ask(request)

        tried()


@pytest.mark.parametrize("code", CODES)
def test_bad_requests_of_every_code_are_answered(tmp_path: Path, code: int) -> None:
    try_code(tmp_path, code, 30)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("code", CODES)
def test_very_many_bad_requests_of_every_code_are_answered(tmp_path: Path, code: int) -> None:
    try_code(tmp_path, code, MANY)
