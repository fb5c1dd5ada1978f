"""Whatever a peer sends is answered, and is no mistake of ours; the store stays sound.

Every request code of the dispatch table is tried, so a new one is without a word here.
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
"""Of each code in the slow form; some 8 minutes for 3,000."""
IS_RANDOM = "BAD_REQUESTS" in os.environ
"""Otherwise the same requests each time: whoever looks for new ones says how many."""
SLOWNESS = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example)
CODES = sorted(int(code) for code in TABLE)


class Complaints(logging.Handler):
    """What the log has of level error, which is for what is wrong with us."""

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
        """Make sure that others are served."""
        request = send_request("honest", b"x", properties="KEYS\x01k\x02")
        assert self.wired.ask(self.honest, request).code == 0

    def ask(self, request: BadRequest) -> None:
        """Give one request, and see that it gets its one answer."""
        wired, peer = self.wired, self.peer
        try:
            decode(request.frame)
        except RemoteProtocolError:
            return  # The one thing that closes a connection.
        wired.give(peer, request.frame)
        wired.save()
        answers = taken(peer)
        if not answers and not request.is_oneway:
            wired.now_ms += 200_000  # Held: nothing comes any more.
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
    """The answers that a peer was sent; the broker may have asked it something, too."""
    parser = FrameParser()
    parser.receive_data(bytes(peer.written))
    peer.written.clear()
    found: list[Command] = []
    while (frame := parser.next_frame()) is not None:
        found.append(HEADER_CODECS[frame[0]].decode(frame[1], frame[2], 1024))
    return [command for command in found if command.flag & RESPONSE_FLAG]


@contextmanager
def target(folder: Path) -> Generator[Target]:
    """A broker whose store is sound in the end."""
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
    try_code(tmp_path, code, 60)


@pytest.mark.slow
@pytest.mark.parametrize("code", CODES)
def test_very_many_bad_requests_of_every_code_are_answered(tmp_path: Path, code: int) -> None:
    try_code(tmp_path, code, MANY)
