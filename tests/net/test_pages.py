"""Pages over HTTP, for scrapers, probes and strangers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, suppress

import pytest
import trio

from cometmq.net import listen_on, pages
from cometmq.net.pages import CONNECTIONS_MAX, REQUEST_SIZE_MAX, Page, serve_pages
from cometmq.proto.host import Host

PATIENCE_SECONDS = 20


async def _hello() -> Page:
    return Page([b"hello ", b"you"])


async def _bad() -> Page:
    return Page([b"no\n"], 503)


def _endless() -> Iterator[bytes]:
    while True:
        yield b"x" * 1000


async def _flood() -> Page:
    return Page(_endless())


async def _broken() -> Page:
    raise ValueError("a bug")


PAGES = {"/hello": _hello, "/bad": _bad, "/flood": _flood, "/broken": _broken}


@asynccontextmanager
async def serving() -> AsyncGenerator[Host]:
    (listening,) = listen_on([Host("127.0.0.1", 0)])
    with trio.fail_after(PATIENCE_SECONDS):
        async with trio.open_nursery() as nursery:
            yield await nursery.start(serve_pages, listening, PAGES)
            nursery.cancel_scope.cancel()


async def asked(address: Host, request: bytes) -> bytes:
    """Send bytes and return everything that comes back."""
    stream = await trio.open_tcp_stream(address.address, address.port)
    async with stream:
        await stream.send_all(request)
        return b"".join([data async for data in stream])


async def test_a_page_is_given_whole() -> None:
    async with serving() as address:
        answer = await asked(address, b"GET /hello?x=1 HTTP/1.1\r\nHost: a\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Type: text/plain; charset=utf-8" in head
    assert body == b"hello you"


async def test_a_head_has_no_body() -> None:
    async with serving() as address:
        answer = await asked(address, b"HEAD /hello HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /bad HTTP/1.1", b"503 "),
        (b"GET /elsewhere HTTP/1.1", b"404 "),
        (b"GET /hello/../x HTTP/1.1", b"404 "),
        (b"GET / HTTP/1.1", b"404 "),
        (b"POST /hello HTTP/1.1", b"405 "),
    ],
)
async def test_other_answers_have_their_status(request_line: bytes, status: bytes) -> None:
    async with serving() as address:
        answer = await asked(address, request_line + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize("data", [b"\r\n\r\n", b"nonsense\r\n\r\n", b"x" * (REQUEST_SIZE_MAX + 1)])
async def test_what_is_no_request_gets_nothing(data: bytes) -> None:
    async with serving() as address:
        stream = await trio.open_tcp_stream(address.address, address.port)
        async with stream:
            await stream.send_all(data)
            with suppress(trio.BrokenResourceError):  # The server closes with some data unread.
                assert await stream.receive_some() == b""
        assert (await asked(address, b"GET /hello HTTP/1.1\r\n\r\n")).endswith(b"hello you")


async def test_a_slow_request_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    """By the clock of the test, which jumps over idle time."""
    del autojump_clock
    ours, theirs = trio.testing.memory_stream_pair()
    await ours.send_all(b"GET /hello HTTP/1.1\r\n")
    started = trio.current_time()
    await pages.answer(theirs, PAGES)
    assert trio.current_time() - started == pytest.approx(pages.REQUEST_SECONDS_MAX)


async def test_a_page_lets_others_have_their_turn() -> None:
    async with serving() as address, trio.open_nursery() as nursery:
        stream = await trio.open_tcp_stream(address.address, address.port)
        async with stream:
            await stream.send_all(b"GET /flood HTTP/1.1\r\n\r\n")

            async def swallow() -> None:
                with suppress(trio.ClosedResourceError):  # In the end.
                    async for _ in stream:
                        pass

            nursery.start_soon(swallow)
            for _ in range(5):  # While an endless page is made.
                answer = await asked(address, b"GET /hello HTTP/1.1\r\n\r\n")
                assert answer.endswith(b"hello you")
            nursery.cancel_scope.cancel()


async def test_others_have_their_turn_between_any_two_slices_of_a_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This also holds for a page so small that it is written at once."""
    monkeypatch.setattr(pages, "SLICE_NS", -1)  # Each piece takes longer.
    turns = [0]
    found: list[int] = []

    async def others() -> None:
        while True:
            turns[0] += 1
            await trio.lowlevel.checkpoint()

    def pieces() -> Iterator[bytes]:
        for _ in range(100):
            found.append(turns[0])
            yield b"x"

    async def small() -> Page:
        return Page(pieces())

    monkeypatch.setitem(PAGES, "/small", small)
    async with serving() as address, trio.open_nursery() as nursery:
        nursery.start_soon(others)
        assert (await asked(address, b"GET /small HTTP/1.1\r\n\r\n")).endswith(b"x" * 100)
        nursery.cancel_scope.cancel()
    assert len(set(found)) > 30, "trio throws a coin for who is next"


async def test_too_many_connections_are_closed() -> None:
    async with serving() as address:
        held = [
            await trio.open_tcp_stream(address.address, address.port)
            for _ in range(CONNECTIONS_MAX)
        ]
        await trio.testing.wait_all_tasks_blocked(0.01)
        with pytest.raises((trio.BrokenResourceError, AssertionError)):
            assert await asked(address, b"GET /hello HTTP/1.1\r\n\r\n")
        for stream in held:
            await stream.aclose()
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert (await asked(address, b"GET /hello HTTP/1.1\r\n\r\n")).endswith(b"hello you")


async def test_a_page_that_fails_is_logged_and_ends_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving() as address:
        assert await asked(address, b"GET /broken HTTP/1.1\r\n\r\n") == b""
        assert (await asked(address, b"GET /hello HTTP/1.1\r\n\r\n")).endswith(b"hello you")
    assert "ValueError: a bug" in caplog.text
