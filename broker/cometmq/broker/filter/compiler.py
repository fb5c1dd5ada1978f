"""The compiler of SQL92 expressions, which is loaded when the first one comes.

To load it takes a tenth of a second and 10 MiB, and few brokers need it. It happens in a thread,
so that nobody else waits: `compiler` raises `CompilerLoadingError` until then, and `Loading` keeps
the requests that met it and has them served again.
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
    """Nothing is wrong with a request, but it has to be served again, a moment later."""


def load() -> None:
    """Load the compiler with its grammar; whoever calls this waits."""
    try:
        from cometmq.broker.filter.sql import compile_sql  # on first use

        compile_sql("TRUE", 1)
    finally:
        _loaded.set()  # What failed fails again, with a traceback, where it is needed.


def compiler() -> Callable[[str, int], SqlFilter]:
    """Give what compiles an expression of a depth; `CompilerLoadingError` until that is there."""
    if not _loaded.is_set():
        raise CompilerLoadingError
    from cometmq.broker.filter.sql import compile_sql  # `load` has done the work

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
        """Have a request served when the compiler is there."""
        self._waiting.append((request, peer))
        if len(self._waiting) == 1:
            threading.Thread(target=self._load, name="cometmq-sql", daemon=True).start()

    def _load(self) -> None:
        try:
            load()
        finally:
            with suppress(RuntimeError):  # The loop is closed: there is nobody to answer.
                self._soon(self._serve_all)

    def _serve_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for request, peer in waiting:
            response = self._serve(request, peer)
            if response is not LATER:
                peer.answer(request, response)
