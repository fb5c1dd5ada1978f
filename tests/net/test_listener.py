from __future__ import annotations

import socket

import pytest

from cometmq.net import ListenError, address_of, listen_on
from cometmq.proto.host import Host


def test_port_zero_takes_any_free_port() -> None:
    first, second = listen_on([Host("127.0.0.1", 0), Host("localhost", 0)])
    with first, second:
        assert address_of(first).port != address_of(second).port
        assert address_of(first).address == "127.0.0.1"
        assert first.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
        assert first.getblocking() is False
        socket.create_connection(address_of(first)).close()


def test_a_port_in_use_is_named_and_nothing_stays_open() -> None:
    (taken,) = listen_on([Host("127.0.0.1", 0)])
    with taken:
        address = address_of(taken)
        with pytest.raises(ListenError, match=f"{address}: the port is in use"):
            listen_on([Host("127.0.0.1", 0), address])  # A socket left open fails the test.


def test_a_port_is_free_again_when_its_connections_fade() -> None:
    (listening,) = listen_on([Host("127.0.0.1", 0)])
    address = address_of(listening)
    listening.setblocking(True)
    with socket.create_connection(address) as client:
        accepted, _ = listening.accept()
        accepted.close()  # This side closes first, so its port is in TIME_WAIT.
        client.recv(1)
    listening.close()
    (again,) = listen_on([address])
    again.close()


@pytest.mark.parametrize(
    ("host", "problem"),
    [
        ("203.0.113.1", "not one of this machine's"),
        ("no.such.host.invalid", "cannot listen on no.such.host.invalid:0"),
        ("x" * 70 + ".invalid", "cannot listen on x"),
    ],
)
def test_an_address_that_is_not_here_is_a_clear_error(host: str, problem: str) -> None:
    with pytest.raises(ListenError, match=problem):
        listen_on([Host(host, 0)])


def test_ipv6_is_listened_on_alone() -> None:
    try:
        (listening,) = listen_on([Host("::1", 0)])
    except ListenError:
        pytest.skip("no IPv6 here")
    with listening:
        (beside,) = listen_on([Host("127.0.0.1", address_of(listening).port)])
        beside.close()
