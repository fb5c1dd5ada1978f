"""The service of both drivers to an owner, over real sockets, on asyncio, uvloop and trio."""

from __future__ import annotations

import logging
import socket
from contextlib import ExitStack

import pytest
from tests.net.harness import (
    BIG,
    CHUNK,
    COMMIT,
    DRIVERS,
    ECHO,
    FAIL,
    HOLD,
    NOTHING,
    UNSAYABLE,
    Wire,
    running,
)

from cometmq.net import AnswerTimeoutError, ConnectionLostError, Limits, NetError, Peer
from cometmq.proto.codes import ResponseCode
from cometmq.proto.command import Command

pytestmark = pytest.mark.parametrize("driver", DRIVERS)

TLS_HELLO = bytes.fromhex("16030100c8010000c40303")


def test_pipelined_requests_are_answered_in_their_order(driver: str) -> None:
    with running(driver) as server, Wire(server.address) as wire:
        wire.socket.sendall(
            b"".join(wire.bytes_of(ECHO, body=b"%d" % number) for number in range(300))
        )
        assert [wire.receive().body for _ in range(300)] == [b"%d" % n for n in range(300)]


def test_requests_put_off_are_answered_as_they_complete(driver: str) -> None:
    with running(driver) as server, Wire(server.address) as wire:
        wire.send(HOLD)
        wire.send(HOLD)
        server.owner.wait_for("held")
        peer = server.owner.wait_for("held")
        assert wire.ask(ECHO).opaque == 2  # It does not wait for the earlier ones.
        assert peer.in_flight == 2
        (_, first), (_, second) = server.owner.held
        server.on_loop(lambda: peer.answer(second, second.answer(0)))
        assert wire.receive().opaque == second.opaque == 1
        server.on_loop(lambda: peer.answer(first, first.answer(0)))
        assert wire.receive().opaque == first.opaque == 0
        assert peer.in_flight == 0


def test_what_a_turn_found_is_finished_at_once_and_then_answered(driver: str) -> None:
    with running(driver) as server, Wire(server.address) as wire:
        wire.socket.sendall(b"".join(wire.bytes_of(COMMIT) for _ in range(50)))
        turns = {wire.receive().ext_fields["turn"] for _ in range(50)}
        assert sum(server.owner.turns) == 50
        assert len(turns) == len(server.owner.turns) < 50


def test_many_connections_get_their_own_answers(driver: str) -> None:
    with running(driver) as server, ExitStack() as stack:
        wires = [stack.enter_context(Wire(server.address)) for _ in range(40)]
        for turn in range(5):
            for number, wire in enumerate(wires):
                wire.send(ECHO, body=b"%d.%d" % (turn, number))
                wire.send(COMMIT)
            for number, wire in enumerate(wires):
                answers = [wire.receive().body for _ in range(2)]
                assert b"%d.%d" % (turn, number) in answers
                assert None in answers
        assert sum(server.owner.turns) == 200


def test_a_body_in_parts_arrives_as_it_is(driver: str) -> None:
    with running(driver) as server, Wire(server.address) as wire:
        assert wire.ask(BIG).body == CHUNK


def test_a_frame_that_comes_in_pieces_is_one_request(driver: str) -> None:
    with running(driver) as server, Wire(server.address) as wire:
        body = bytes(3_000_000)
        data = wire.bytes_of(ECHO, body=body)
        for start, end in ((0, 1), (1, 7), (7, 100), (100, 900_000), (900_000, len(data))):
            wire.socket.sendall(data[start:end])
        assert wire.receive().body == body
        assert server.on_loop(lambda: server.peers.receiving_size) == 0


def test_a_handler_that_raises_is_answered_and_logged_and_nothing_ends(
    driver: str, caplog: pytest.LogCaptureFixture
) -> None:
    with running(driver) as server, Wire(server.address) as wire:
        for code in (FAIL, UNSAYABLE, NOTHING):
            answer = wire.ask(code)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert answer.remark
            assert "secret" not in answer.remark
        assert wire.ask(ECHO).code == 0
        errors = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert len(errors) == 3
        assert all(wire.name in record.getMessage() for record in errors)


def test_a_oneway_request_is_handled_and_not_answered(driver: str) -> None:
    with running(driver) as server, Wire(server.address) as wire:
        for code in (ECHO, COMMIT, FAIL):
            wire.send(code, oneway=True)
        assert wire.ask(ECHO).opaque == 3
        assert server.owner.handled_count == 4


@pytest.mark.parametrize(
    ("opening", "said"),
    [
        (TLS_HELLO, "TLS"),
        (TLS_HELLO[:1], "TLS"),
        (b"PROXY TCP4 10.0.0.1 10.0.0.2 5 6\r\n", "PROXY"),
        (b"\r\n\r\n\0\r\nQUIT\n", "PROXY"),
        (b"GET / HTTP/1.1\r\n\r\n", "HTTP"),
        (b"\xffsomething else", "0xff"),
        (bytes.fromhex("00000010 01ffffff") + bytes(8), "frame at byte 0"),
        (bytes.fromhex("00ffffff"), "exceed frame_size_max"),
        (bytes.fromhex("0000000500000001") + b"{", "frame at byte 0"),
    ],
)
def test_what_is_not_the_protocol_is_closed_with_a_clear_line(
    driver: str, opening: bytes, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with running(driver) as server, Wire(server.address) as wire:
        wire.socket.sendall(opening + bytes(8))
        assert wire.is_closed()
        server.owner.wait_for("closed")
        (record,) = caplog.records
        assert record.getMessage().startswith(f"{wire.name}: dropped: ")
        assert said in record.getMessage()


def test_a_peer_that_does_not_read_is_not_read_from_until_it_does(driver: str) -> None:
    with running(driver) as server, Wire(server.address, receive_buffer=4096) as wire:
        wire.socket.sendall(b"".join(wire.bytes_of(BIG) for _ in range(300)))
        with Wire(server.address) as other:
            for _ in range(200):
                assert other.ask(ECHO).code == 0
        assert server.owner.handled_count - 200 < 200
        for _ in range(300):
            assert wire.receive().body == CHUNK
        assert server.owner.handled_count == 500


def test_a_peer_that_leaves_too_much_unread_is_dropped(
    driver: str, caplog: pytest.LogCaptureFixture
) -> None:
    limits = Limits(unsent_bytes_max=1_000_000)
    with running(driver, limits) as server, Wire(server.address, receive_buffer=4096) as wire:
        for _ in range(200):
            wire.send(HOLD)
        for _ in range(200):
            server.owner.wait_for("held")

        def answer_all() -> None:
            for peer, request in server.owner.held:
                peer.answer(request, request.answer(0, parts=[CHUNK]))

        server.on_loop(answer_all)
        server.owner.wait_for("closed")
        assert "unsent_bytes_max 1000000" in caplog.text


def unsent_size(peer: Peer) -> int:
    return peer._unsent_size()  # pyright: ignore[reportPrivateUsage]  # A driver's own verb.


def test_a_peer_that_asks_on_and_never_reads_is_dropped(
    driver: str, caplog: pytest.LogCaptureFixture
) -> None:
    limits = Limits(unsent_bytes_pause=1 << 30, unsent_timeout_ms=1000)
    with (
        running(driver, limits) as server,
        Wire(server.address) as reader,
        Wire(server.address, receive_buffer=4096) as deaf,
    ):
        reader.ask(ECHO)
        while server.on_loop(lambda: sum(map(unsent_size, server.peers))) < 8_000_000:
            deaf.send(BIG)
            reader.ask(ECHO)
        for now_ms in range(0, 1000, 100):
            server.tick(now_ms)
            deaf.send(ECHO)
            assert reader.ask(BIG).body == CHUNK
        assert server.on_loop(lambda: len(server.peers)) == 2
        server.tick(1200)
        server.tick(1400)
        assert server.owner.wait_for("closed").host.port == deaf.socket.getsockname()[1]
        assert "unsent_timeout_ms 1000" in caplog.text
        assert reader.ask(ECHO).code == 0


def test_connections_beyond_the_limit_are_closed(
    driver: str, caplog: pytest.LogCaptureFixture
) -> None:
    with running(driver, Limits(connections_max=2)) as server, ExitStack() as stack:
        first = stack.enter_context(Wire(server.address))
        assert first.ask(ECHO).code == 0
        admitted = server.owner.wait_for("opened")
        assert stack.enter_context(Wire(server.address)).ask(ECHO).code == 0
        for _ in range(3):
            assert stack.enter_context(Wire(server.address)).is_closed()
        assert server.peers.refused_count == 3
        assert caplog.text.count("connections_max 2") == 1
        first.socket.close()
        assert server.owner.wait_for("closed") is admitted, "it hears of no connection refused"
        assert stack.enter_context(Wire(server.address)).ask(ECHO).code == 0


def test_requests_beyond_those_in_flight_are_refused_by_the_name_of_the_limit(driver: str) -> None:
    with running(driver, Limits(in_flight_max=2)) as server, Wire(server.address) as wire:
        wire.send(HOLD)
        wire.send(HOLD)
        refusal = wire.ask(HOLD)
        assert refusal.code == ResponseCode.SYSTEM_BUSY
        assert "in_flight_max 2" in (refusal.remark or "")
        peer, request = server.owner.held[0]
        server.on_loop(lambda: peer.answer(request, request.answer(0)))
        assert wire.receive().opaque == 0
        assert wire.ask(ECHO).code == 0


def test_a_silent_connection_is_closed_and_one_that_speaks_is_not(driver: str) -> None:
    limits = Limits(idle_timeout_ms=1000)
    with running(driver, limits) as server, Wire(server.address) as silent:
        silent.ask(ECHO)
        with Wire(server.address) as speaker:
            for now_ms in range(0, 1600, 100):
                server.tick(now_ms)
                assert speaker.ask(ECHO).code == 0
            assert silent.is_closed()
            assert speaker.ask(ECHO).code == 0


def test_a_frame_that_is_never_finished_is_given_up(
    driver: str, caplog: pytest.LogCaptureFixture
) -> None:
    limits = Limits(frame_timeout_ms=1000)
    with running(driver, limits) as server, Wire(server.address) as wire:
        data = wire.bytes_of(ECHO)
        wire.socket.sendall(data[:5])
        with Wire(server.address) as other:
            while not server.on_loop(lambda: server.peers.receiving_size):
                other.ask(ECHO)
            server.tick(900)
            wire.socket.sendall(data[5:6])  # A trickle does not help.
            while server.on_loop(lambda: server.peers.receiving_size) != 6:
                other.ask(ECHO)
            server.tick(1000)
            assert other.ask(ECHO).code == 0
        assert wire.is_closed()
        assert "frame_timeout_ms 1000" in caplog.text
        assert server.on_loop(lambda: server.peers.receiving_size) == 0


def test_unfinished_frames_of_all_together_are_limited(
    driver: str, caplog: pytest.LogCaptureFixture
) -> None:
    limits = Limits(receiving_bytes_max=1_000_000)
    with running(driver, limits) as server, Wire(server.address) as honest:
        with Wire(server.address) as greedy:
            data = greedy.bytes_of(ECHO, body=bytes(2_000_000))
            try:
                greedy.socket.sendall(data[:-1])
                assert greedy.is_closed()
            except (BrokenPipeError, ConnectionResetError):
                pass
        server.owner.wait_for("closed")
        assert "receiving_bytes_max 1000000" in caplog.text
        assert server.on_loop(lambda: server.peers.receiving_size) == 0
        assert honest.ask(ECHO).code == 0


def test_the_server_asks_too(driver: str) -> None:
    with running(driver) as server, Wire(server.address) as wire:
        results: list[Command | NetError] = []
        wire.ask(ECHO)
        peer = server.owner.wait_for("opened")
        request = Command.request(40, {"group": "g"})
        for _ in range(3):
            server.on_loop(lambda: peer.ask(request, results.append, timeout_ms=500))
        asked = [wire.receive() for _ in range(3)]
        assert [request.ext_fields for request in asked] == [{"group": "g"}] * 3
        wire.socket.sendall(b"".join(wire.connection.send(asked[1].answer(7))))
        wire.ask(ECHO)
        assert [result.code for result in results if isinstance(result, Command)] == [7]
        server.tick(499)
        assert len(results) == 1
        server.on_loop(lambda: peer.ask(request, results.append, timeout_ms=500))
        server.tick(500)
        assert isinstance(results[1], AnswerTimeoutError)
        assert isinstance(results[2], AnswerTimeoutError)
        wire.socket.close()
        server.owner.wait_for("closed")
        assert isinstance(results[3], ConnectionLostError)
        with pytest.raises(ConnectionLostError, match="is closed"):
            server.on_loop(lambda: peer.ask(request, results.append, timeout_ms=500))
        assert len(results) == 4


def test_the_server_tells_and_waits_for_nothing(driver: str) -> None:
    with running(driver) as server, Wire(server.address) as wire:
        wire.ask(ECHO)
        peer = server.owner.wait_for("opened")
        server.on_loop(lambda: peer.tell(Command.request(40)))
        assert wire.receive().is_oneway
        assert not peer.connection.pending


def test_a_peer_that_ends_its_side_gets_the_answers_to_what_it_asked(driver: str) -> None:
    with running(driver) as server, Wire(server.address) as wire:
        wire.socket.sendall(wire.bytes_of(ECHO) + wire.bytes_of(COMMIT))
        wire.socket.shutdown(socket.SHUT_WR)
        assert {wire.receive().opaque for _ in range(2)} == {0, 1}
        assert wire.is_closed()


def test_an_owner_learns_of_each_connection_and_of_its_end_once(driver: str) -> None:
    with running(driver) as server:
        for _ in range(5):
            with Wire(server.address) as wire:
                wire.ask(ECHO)
                name = wire.name
            opened = server.owner.told.get(timeout=20)
            closed = server.owner.told.get(timeout=20)
            assert (opened[0], closed[0]) == ("opened", "closed")
            assert opened[1] is closed[1]
            assert str(opened[1].host) == name
            assert opened[1].local_port == server.address.port
        assert server.owner.told.empty()
        assert server.on_loop(lambda: len(server.peers)) == 0


def test_a_server_that_closes_sends_what_was_answered_first(driver: str) -> None:
    with running(driver) as server, Wire(server.address) as wire:
        wire.send(HOLD)
        peer = server.owner.wait_for("held")
        _, request = server.owner.held[0]

        def close() -> None:
            peer.answer(request, request.answer(0, parts=[CHUNK] * 100))
            server.peers.close("shutdown")

        server.on_loop(close)
        assert len(wire.receive().body or b"") == 100 * len(CHUNK)
        assert wire.is_closed()
        server.owner.wait_for("closed")
        assert peer.closed_because == "shutdown"
