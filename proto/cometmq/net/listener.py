"""Listening sockets, bound here so that both drivers listen alike and fail with the same words."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from typing import TYPE_CHECKING

from cometmq.net.errors import ListenError, reason_of
from cometmq.net.port_holder import process_on
from cometmq.proto.host import Host

if TYPE_CHECKING:
    from collections.abc import Iterable

# All clients of a restarted broker come at once; the kernel caps this at net.core.somaxconn.
BACKLOG = 4096

_REASONS = {
    errno.EADDRINUSE: "the port is in use",
    errno.EADDRNOTAVAIL: "the address is not one of this machine's",
    errno.EACCES: "ports below 1024 need privileges",
}


def listen_on(addresses: Iterable[Host]) -> list[socket.socket]:
    """Open a listening socket for each address, or open none and raise a ListenError.

    Port 0 takes any free port: ask `address_of`. A name must have one address of a kind; the caller
    judges which addresses may be listened on. The sockets are non-blocking and have SO_REUSEADDR,
    so that a restart need not wait for old connections to fade. The drivers set TCP_NODELAY, and no
    keep-alive, for each connection.
    """
    with contextlib.ExitStack() as opened:
        sockets = [opened.enter_context(_listening(address)) for address in addresses]
        opened.pop_all()
    return sockets


def address_of(listening: socket.socket) -> Host:
    """Return the address and port that a socket really has."""
    name = listening.getsockname()
    return Host(name[0], name[1])


def _listening(address: Host) -> socket.socket:
    try:
        family, kind, protocol, _, name = socket.getaddrinfo(
            address.address, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise ListenError(f"cannot listen on {address}: {error}") from error
    listening = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.setblocking(False)
        listening.bind(name)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        reason = _REASONS.get(error.errno or 0) or reason_of(error)
        if error.errno == errno.EADDRINUSE and (holder := process_on(address.port)) is not None:
            reason += f" by {holder}"
        raise ListenError(f"cannot listen on {address}: {reason}") from error
    return listening
