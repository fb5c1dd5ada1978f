"""Turns, limits and time, without a loop, on a Peer that writes to lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from tests.net.harness import BIG, CHUNK, COMMIT, ECHO, HOLD, TestOwner

from cometmq.net import AnswerTimeoutError, Limits, NetError, Peer, Peers
from cometmq.net.peers import DROPS_LOGGED_MAX, DROPS_WINDOW_MS
from cometmq.proto.command import Command
from cometmq.proto.connection import Connection
from cometmq.proto.host import Host

if TYPE_CHECKING:
    from cometmq.proto.buffer import Buffer


class MemoryPeer(Peer):
    """A third driver, which puts each write into `written` as one list."""

    def __init__(self, peers: Peers) -> None:
        super().__init__(peers)
        self.written: list[list[Buffer]] = []
        self.is_read = True
        self.ending: str | None = None

    def _write(self, data: Buffer) -> None:
        self.written.append([data])

    def _write_all(self, buffers: list[Buffer]) -> None:
        self.written.append(buffers)

    def _pause_reading(self) -> None:
        self.is_read = False

    def _resume_reading(self) -> None:
        self.is_read = True

    def _unsent_size(self) -> int:
        return sum(len(buffer) for write in self.written for buffer in write)

    def _close(self) -> None:
        self.ending = "closed"

    def _abort(self) -> None:
        self.ending = "aborted"


class Loop:
    """A loop whose `call_soon` calls are run by hand."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []

    def run(self) -> None:
        soon, self.soon = self.soon, []
        for call in soon:
            call()


@pytest.fixture
def owner() -> TestOwner:
    return TestOwner()


def world(owner: TestOwner, count: int, **limits: Any) -> tuple[Loop, Peers, list[MemoryPeer]]:
    loop = Loop()
    peers = Peers(owner, Limits(**limits), call_soon=lambda call: loop.soon.append(call))
    found = [MemoryPeer(peers) for _ in range(count)]
    for number, peer in enumerate(found):
        assert peer.open(Host("10.0.0.1", number), 10911)
    return loop, peers, found


def sends(*codes: int) -> bytes:
    connection = Connection()
    return b"".join(
        buffer
        for opaque, code in enumerate(codes)
        for buffer in connection.send(Command.request(code, opaque=opaque))
    )


def test_the_requests_of_all_connections_in_a_turn_are_finished_together(owner: TestOwner) -> None:
    loop, _, (first, second, third) = world(owner, 3)
    first.data_received(sends(COMMIT, COMMIT))
    second.data_received(sends(COMMIT, ECHO))
    third.data_received(sends(ECHO))
    assert (owner.turns, first.written, second.written, third.written) == ([], [], [], [])
    assert len(loop.soon) == 1
    loop.run()
    assert owner.turns == [3]
    assert [len(peer.written) for peer in (first, second, third)] == [1, 1, 1]


def test_a_connection_that_is_alone_waits_for_no_turn(owner: TestOwner) -> None:
    loop, _, (lone, other) = world(owner, 2)
    lone.data_received(sends(COMMIT))
    loop.run()
    for count in range(2, 5):
        lone.data_received(sends(COMMIT))
        assert not loop.soon
        assert len(lone.written) == len(owner.turns) == count
    other.data_received(sends(COMMIT))
    lone.data_received(sends(COMMIT))
    assert len(owner.turns) == 4
    loop.run()
    assert owner.turns == [1, 1, 1, 1, 2]


def test_answers_given_outside_a_turn_leave_together_soon(owner: TestOwner) -> None:
    loop, peers, (peer,) = world(owner, 1)
    peer.data_received(sends(HOLD, HOLD, HOLD))
    loop.run()
    for _, request in owner.held:
        peer.answer(request, request.answer(0))
    assert peer.written == []
    assert len(loop.soon) == 1
    peers.turn.end()  # An owner that has given all answers need not wait for the loop.
    assert len(peer.written) == 1
    loop.run()
    assert len(peer.written) == 1


def test_an_end_of_turn_that_fails_holds_no_answer_back(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(TestOwner):
        def end_turn(self) -> None:
            raise OSError("disk")

    loop, _, (peer,) = world(Failing(), 1)
    peer.data_received(sends(ECHO))
    loop.run()
    assert len(peer.written) == 1
    assert "end_turn failed" in caplog.text


def test_answers_of_one_read_leave_in_one_write_and_bodies_uncopied(owner: TestOwner) -> None:
    loop, _, (peer,) = world(owner, 1)
    peer.data_received(sends(ECHO, ECHO, ECHO))
    peer.data_received(sends(BIG, ECHO))
    loop.run()
    (buffers,) = peer.written
    assert [buffer.obj for buffer in buffers if isinstance(buffer, memoryview)] == [CHUNK.obj] * 2


def test_small_answers_are_joined(owner: TestOwner) -> None:
    loop, _, (peer,) = world(owner, 1)
    peer.data_received(sends(*[ECHO] * 10))
    loop.run()
    ((joined,),) = peer.written
    assert len(joined) > 500


def test_what_is_answered_with_much_stops_those_behind_it(owner: TestOwner) -> None:
    loop, _, (peer,) = world(owner, 1, unsent_bytes_pause=3 * len(CHUNK))
    peer.data_received(sends(*[BIG] * 10))
    assert owner.handled_count == 3
    assert not peer.is_read
    peer.data_received(sends(ECHO))  # It was on its way when reading stopped.
    assert owner.handled_count == 3
    for handled in (6, 9, 11):
        while owner.handled_count < handled:
            loop.run()
    assert peer.is_read
    loop.run()
    assert len(peer.written) == 4


def test_a_peer_that_leaves_much_unread_is_asked_nothing_until_it_reads(owner: TestOwner) -> None:
    loop, _, (peer,) = world(owner, 1)
    peer.data_received(sends(BIG))
    loop.run()
    peer.pause_writing()
    assert not peer.is_read
    peer.data_received(sends(ECHO))
    loop.run()
    assert owner.handled_count == 1
    peer.resume_writing()
    loop.run()
    assert owner.handled_count == 2
    assert peer.is_read
    peer.pause_writing()
    peer.resume_writing()
    assert peer.is_read, "also if it asked nothing meanwhile"


def test_unfinished_frames_are_accounted_for_to_the_byte(owner: TestOwner) -> None:
    loop, peers, (peer,) = world(owner, 1)
    data = sends(ECHO)
    for _ in range(3):
        peer.data_received(data[:-1])
        assert peers.receiving_size == len(data) - 1
        peer.data_received(data[-1:])
        loop.run()
        assert peers.receiving_size == 0


def test_nothing_is_handled_or_sent_behind_a_drop(owner: TestOwner) -> None:
    loop, _, (peer,) = world(owner, 1)
    broken = b"\0\0\0\5\0\0\0\1{"
    peer.data_received(sends(ECHO) + broken + sends(ECHO))
    assert peer.ending == "aborted"
    loop.run()
    assert peer.written == []
    assert owner.handled_count == 1
    peer.gone("aborted")
    assert owner.wait_for("closed") is peer
    peer.answer(Command.request(1), Command.request(1).answer(0))
    loop.run()
    assert peer.written == []


def test_an_answer_whose_body_is_not_bytes_says_so_instead(
    owner: TestOwner, caplog: pytest.LogCaptureFixture
) -> None:
    loop, _, (bad,) = world(owner, 1)
    bad.data_received(sends(HOLD))
    loop.run()
    (_, request) = owner.held[0]
    bad.answer(request, request.answer(0, body="text"))  # type: ignore[arg-type]  # an owner's bug
    loop.run()
    assert bad.ending is None
    assert b"cannot be" in bytes(bad.written[0][0])
    assert "body or part is str" in caplog.text


def test_a_body_that_is_gone_when_it_shall_be_written_drops_its_peer_and_no_other(
    owner: TestOwner, caplog: pytest.LogCaptureFixture
) -> None:
    loop, _, (bad, good) = world(owner, 2)
    bad.data_received(sends(HOLD))
    loop.run()
    (_, request) = owner.held[0]
    view = memoryview(b"text")
    bad.answer(request, request.answer(0, body=view))
    view.release()
    good.data_received(sends(ECHO))
    loop.run()
    assert bad.ending == "aborted"
    assert len(good.written) == 1
    assert "this is a bug" in caplog.text


@pytest.mark.parametrize("step_ms", [50, 100, 999, 1000])
@pytest.mark.parametrize("count", [1, 3, 1000])
def test_the_idle_are_closed_in_time_however_many_and_however_often_looked_for(
    owner: TestOwner, step_ms: int, count: int
) -> None:
    _, peers, found = world(owner, count + 1, idle_timeout_ms=10_000)
    speaker = found.pop()
    ended: dict[int, int] = {}
    for now_ms in range(0, 13_000, step_ms):
        speaker.data_received(sends(ECHO))
        peers.tick(now_ms)
        ended |= {n: now_ms for n, p in enumerate(found) if p.ending and n not in ended}
    assert len(ended) == count
    assert min(ended.values()) >= 10_000
    assert max(ended.values()) <= 12_000 + step_ms
    assert speaker.ending is None


def test_one_that_never_reads_what_is_unsent_is_dropped_in_the_end(owner: TestOwner) -> None:
    _, peers, (paused, closing, slow) = world(owner, 3, idle_timeout_ms=1000)
    paused.pause_writing()
    closing.receive_end()
    slow.receive_end()
    assert (closing.ending, slow.ending) == ("closed", "closed")
    peers.tick(900)
    slow.resume_writing()  # The other end has read something.
    peers.tick(1100)
    peers.tick(1200)
    assert [peer.ending for peer in (paused, closing, slow)] == ["aborted", "aborted", "closed"]


def test_one_that_asks_on_and_never_reads_is_dropped_after_twice_the_time_at_most(
    owner: TestOwner, caplog: pytest.LogCaptureFixture
) -> None:
    loop, peers, (deaf, slow, quick) = world(owner, 3, unsent_timeout_ms=1000)
    ended_ms = None
    for now_ms in range(0, 10_000, 50):
        for peer in (deaf, slow, quick):
            peer.data_received(sends(ECHO, BIG))
        loop.run()
        peers.tick(now_ms)
        quick.written.clear()
        if len(slow.written) > 5:  # There is always something unsent, none of it for long.
            del slow.written[0]
        if deaf.ending and ended_ms is None:
            ended_ms = now_ms
    assert ended_ms is not None
    assert 1000 <= ended_ms <= 2200
    assert "bytes sent to it were unread for unsent_timeout_ms 1000" in caplog.text
    assert (deaf.ending, slow.ending, quick.ending) == ("aborted", None, None)


def test_a_flood_of_bad_connections_is_no_flood_of_log_lines(
    owner: TestOwner, caplog: pytest.LogCaptureFixture
) -> None:
    _, peers, found = world(owner, DROPS_LOGGED_MAX + 7)
    for peer in found:
        peer.drop("it is bad")
    assert caplog.text.count("it is bad") == DROPS_LOGGED_MAX
    peers.tick(DROPS_WINDOW_MS)
    assert caplog.records[-1].getMessage() == "7 more connections were dropped in 10 s"
    late = MemoryPeer(peers)
    assert late.open(Host("10.0.0.2", 1), 10911)
    late.drop("a new window")
    peers.tick(2 * DROPS_WINDOW_MS)
    assert caplog.records[-1].getMessage() == "10.0.0.2:1: dropped: a new window"


def test_an_owner_that_fails_on_a_connection_keeps_it(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(TestOwner):
        def opened(self, peer: Peer) -> None:
            raise ValueError(peer.host)

        def closed(self, peer: Peer) -> None:
            raise ValueError(peer.host)

    loop, peers, (peer,) = world(Failing(), 1)
    peer.data_received(sends(ECHO))
    loop.run()
    assert len(peer.written) == 1
    peer.gone("the end")
    assert len(peers) == 0
    assert caplog.text.count("this is a bug") == 2


def test_a_tick_looks_at_a_share_of_the_peers(owner: TestOwner) -> None:
    _, peers, found = world(owner, 1000, idle_timeout_ms=100_000, unsent_timeout_ms=100_000)
    peers.tick(50_000)
    for peer in found:
        peer.heard_ms = -1_000_000
    peers.tick(50_100)
    assert 0 < sum(peer.ending is not None for peer in found) <= 11


def test_requests_of_ours_are_given_up_by_their_deadlines(owner: TestOwner) -> None:
    _, peers, (peer,) = world(owner, 1)
    results: list[Command | NetError] = []
    for timeout_ms in (300, 100, 200):
        peer.ask(Command.request(40), results.append, timeout_ms=timeout_ms)
    for now_ms, count in ((99, 0), (100, 1), (250, 2), (400, 3)):
        peers.tick(now_ms)
        assert len(results) == count
    assert all(isinstance(result, AnswerTimeoutError) for result in results)
    assert not peer.connection.pending


def test_a_request_of_ours_leaves_at_once_when_none_waits_beside_it(owner: TestOwner) -> None:
    loop, _, (peer,) = world(owner, 1)
    results: list[Command | NetError] = []

    def ask() -> None:
        peer.ask(Command.request(40), results.append, timeout_ms=100)

    ask()
    assert len(peer.written) == 1
    ask()
    ask()
    assert len(peer.written) == 1, "those beside it are joined"
    loop.run()
    assert len(peer.written) == 2
    answers = [Command.request(40, opaque=opaque).answer(0) for opaque in range(3)]
    peer.data_received(b"".join(b for each in answers for b in Connection().send(each)))
    assert len(results) == 3
    ask()
    assert len(peer.written) == 3


def test_a_request_of_ours_does_not_take_answers_along_before_their_turn_ends(
    owner: TestOwner,
) -> None:
    loop, _, (peer, other) = world(owner, 2)
    results: list[Command | NetError] = []
    other.data_received(sends(ECHO))  # This opens a turn.
    peer.data_received(sends(ECHO))
    peer.ask(Command.request(40), results.append, timeout_ms=100)
    assert peer.written == []
    loop.run()
    assert len(peer.written) == 1


def test_who_asks_and_fails_on_the_answer_harms_nobody(
    owner: TestOwner, caplog: pytest.LogCaptureFixture
) -> None:
    _, peers, (peer,) = world(owner, 1)

    def fail(result: Command | NetError) -> None:
        raise ValueError(result)

    results: list[Command | NetError] = []
    peer.ask(Command.request(40), fail, timeout_ms=100)
    peer.ask(Command.request(40), results.append, timeout_ms=100)
    peers.tick(100)
    assert len(results) == 1
    assert "this is a bug" in caplog.text
