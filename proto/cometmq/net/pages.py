"""A few pages over HTTP, for scrapers and probes; in trio, on whatever loop it runs.

A page is made in pieces, and the loop can do other work between them, so that even a page of
megabytes holds up nothing. There is one request a connection, only GET and HEAD, and no encodings:
just what Prometheus, `curl` and the probes of container platforms need. The body ends with the
connection.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import trio

from cometmq.net.listener import address_of

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from cometmq.proto.host import Host

_log = logging.getLogger("cometmq.net")

REQUEST_SIZE_MAX: Final = 16 * 1024
REQUEST_SECONDS_MAX: Final = 10
"""From the start of the connection to the end of the request."""
ANSWER_SECONDS_MAX: Final = 60
CONNECTIONS_MAX: Final = 32
"""Connections at a time; more are closed as soon as they come."""
SLICE_NS: Final = 200_000
"""The time that work may take before the loop gets its turn."""
_WRITE_SIZE: Final = 64 * 1024
_REASONS: Final = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Unavailable"}

TEXT: Final = "text/plain; charset=utf-8"


class Page(NamedTuple):
    """An answer; making the next piece of it takes no longer than a slice."""

    pieces: Iterable[bytes]
    status: int = 200
    content_type: str = TEXT


Pages: TypeAlias = "Mapping[str, Callable[[], Awaitable[Page]]]"


class Breather:
    """Lets other tasks run whenever a slice is over."""

    def __init__(self) -> None:
        self._until_ns = time.perf_counter_ns() + SLICE_NS

    async def breathe(self) -> None:
        """Continue at once within a slice; otherwise let other tasks run first."""
        if time.perf_counter_ns() > self._until_ns:
            await trio.lowlevel.checkpoint()
            self._until_ns = time.perf_counter_ns() + SLICE_NS


async def serve_pages(
    listening: socket.socket,
    pages: Pages,
    *,
    task_status: trio.TaskStatus[Host] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve pages by path on a socket, which it takes over, until cancelled."""
    address = address_of(listening)
    room = trio.CapacityLimiter(CONNECTIONS_MAX)

    async def carry(stream: trio.SocketStream) -> None:
        try:
            room.acquire_on_behalf_of_nowait(stream)
        except trio.WouldBlock:
            await trio.aclose_forcefully(stream)
            return
        try:
            await answer(stream, pages)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            _log.debug("a page was not read to its end: %s", error)
        except Exception:
            _log.exception("a page could not be made; this is a bug")
        finally:
            room.release_on_behalf_of(stream)
            await trio.aclose_forcefully(stream)

    listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
    async with trio.open_nursery() as nursery:
        await nursery.start(trio.serve_listeners, carry, [listener])
        task_status.started(address)


async def answer(stream: trio.abc.HalfCloseableStream, pages: Pages) -> None:
    """Take one request from a stream and answer it."""
    request = b""
    with trio.move_on_after(REQUEST_SECONDS_MAX):
        request = await _request(stream)
    method, _, rest = request.partition(b"\r\n")[0].partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0].decode("ascii", "replace")
    if not rest:
        return  # There is no request to answer.
    with trio.move_on_after(ANSWER_SECONDS_MAX):
        if method not in (b"GET", b"HEAD"):
            page = Page([b"only GET and HEAD\n"], 405)
        elif path in pages:
            page = await pages[path]()
        else:
            page = Page([f"no such page; there are {', '.join(pages)}\n".encode()], 404)
        await _write(stream, page, with_body=method != b"HEAD")
        await stream.send_eof()
        # Wait until the peer has read everything: closing earlier would cut it off.
        while await stream.receive_some(REQUEST_SIZE_MAX):
            pass


async def _request(stream: trio.abc.HalfCloseableStream) -> bytes:
    """Receive the head of a request; return nothing if it is incomplete or too long."""
    received = b""
    while b"\r\n\r\n" not in received:
        data = await stream.receive_some(REQUEST_SIZE_MAX)
        received += data
        if not data or len(received) > REQUEST_SIZE_MAX:
            return b""
    return received


async def _write(stream: trio.abc.HalfCloseableStream, page: Page, *, with_body: bool) -> None:
    head = (
        f"HTTP/1.1 {page.status} {_REASONS[page.status]}\r\n"
        f"Content-Type: {page.content_type}\r\nConnection: close\r\n\r\n"
    )
    out = bytearray(head.encode())
    breather = Breather()
    for piece in page.pieces if with_body else ():
        out += piece
        if len(out) >= _WRITE_SIZE:
            await stream.send_all(out)
            out = bytearray()
        await breather.breathe()
    if out:
        await stream.send_all(out)
