"""The compiler of SQL92 expressions, which is loaded when the first expression comes.

Loading takes a tenth of a second and 10 MiB, and few brokers need it. It is done in a thread, so
that nobody else waits: until it is done `compiler` raises `CompilerLoadingError`, and `Loading`
keeps the requests that raised it and has them served again.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from cometmq.net import LATER

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.broker.filter.sql import SqlFilter
    from cometmq.net import Frame, Later, Peer
    from cometmq.proto.command import Command

_loaded = threading.Event()


class CompilerLoadingError(Exception):
    """The compiler is being loaded: the request is sound, but has to be served again later."""


def load() -> None:
    """Load the compiler with its grammar; blocks until that is done."""
    try:
        from cometmq.broker.filter.sql import compile_sql  # on first use

        compile_sql("TRUE", 1)
    finally:
        _loaded.set()  # A failure repeats, with a traceback, where the compiler is used.


def compiler() -> Callable[[str, int], SqlFilter]:
    """Return the compiler of an expression and a depth; `CompilerLoadingError` until loaded."""
    if not _loaded.is_set():
        raise CompilerLoadingError
    from cometmq.broker.filter.sql import compile_sql  # `load` has imported it

    return compile_sql


class Loading:
    """The requests that wait for the compiler."""

    def __init__(
        self,
        call_soon_threadsafe: Callable[[Callable[[], None]], object],
        serve: Callable[[Command, Peer], Command | Frame | Later],
    ) -> None:
        self._soon = call_soon_threadsafe
        self._serve = serve
        self._waiting: list[tuple[Command, Peer]] = []

    def wait(self, request: Command, peer: Peer) -> None:
        """Have a request served once the compiler is loaded."""
        self._waiting.append((request, peer))
        if len(self._waiting) == 1:
            threading.Thread(target=self._load, name="cometmq-sql", daemon=True).start()

    def _load(self) -> None:
        try:
            load()
        finally:
            with suppress(RuntimeError):  # The loop may be closed: then there is nobody to answer.
                self._soon(self._serve_all)

    def _serve_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for request, peer in waiting:
            response = self._serve(request, peer)
            if response is not LATER:
                peer.answer(request, response)
