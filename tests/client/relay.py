"""A relay between a client and a server, which records the types of headers and can be slow.

A server may listen on 127.0.0.1 and announce the address `ANNOUNCED` to clients. A relay listens at
`ANNOUNCED`, on the server's port, so that clients find it by the route as they would the server.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from cometmq.proto.frame import FrameParser

if TYPE_CHECKING:
    from collections.abc import Callable

ANNOUNCED = "127.0.0.2"
"""An address of this machine that servers do not listen on."""


class Relay:
    """Forwards connections to a server on 127.0.0.1, with a thread for each direction."""

    def __init__(self, port: int, *, at: str = ANNOUNCED) -> None:
        self._server = ("127.0.0.1", port)
        self._listening = socket.create_server((at, port if at == ANNOUNCED else 0))
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._sped_up = threading.Event()
        self._delay = 0.0
        self.headers: list[list[int]] = []
        """The types of the headers that the client sent, for each connection."""

    @property
    def address(self) -> str:
        """The address that clients connect to."""
        host, port = self._listening.getsockname()
        return f"{host}:{port}"

    def slow_down(self, seconds: float) -> None:
        """From now on hold back for so long whatever clients send."""
        self._sped_up.clear()
        self._delay = seconds

    def speed_up(self) -> None:
        """Forward everything at once, including data held back."""
        self._delay = 0.0
        self._sped_up.set()

    def __enter__(self) -> Self:
        self._run(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self.speed_up()
        for each in (self._listening, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join()

    def _run(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, name="relay", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._server)
                self._sockets += [client, server]
                self.headers.append([])
                self._run(self._pass_on, client, server, self.headers[-1])
                self._run(self._pass_on, server, client, None)

    def _pass_on(
        self, source: socket.socket, target: socket.socket, seen: list[int] | None
    ) -> None:
        parser = FrameParser()
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if seen is not None:
                    parser.receive_data(data)
                    seen += [serialize_type for serialize_type, _, _ in parser.frames]
                    parser.frames.clear()
                    if self._delay:
                        self._sped_up.wait(self._delay)
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)
