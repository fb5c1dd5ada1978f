"""Our requests to one peer, and the callbacks that wait for their answers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.net.errors import NetError
    from cometmq.proto.command import Command

_log = logging.getLogger("cometmq.net")


class Asks:
    """Callbacks by request. Each is called once, with the answer or with why there is none.

    A callback that fails is logged and does not affect the others.
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[int, Callable[[Command | NetError], None]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, opaque: int, answered: Callable[[Command | NetError], None]) -> None:
        """Add the callback for the answer to the request of this number."""
        self._waiting[opaque] = answered

    def settle(self, opaque: int, result: Command | NetError) -> None:
        """Pass a result to the callback that waits for it, if there is one."""
        if answered := self._waiting.pop(opaque, None):
            try:
                answered(result)
            except Exception:
                _log.exception(
                    "the asker failed on the answer to request %d; this is a bug", opaque
                )

    def forget(self, opaque: int) -> None:
        """Remove the callback of this number, if there is one."""
        self._waiting.pop(opaque, None)

    def fail(self, error: NetError) -> None:
        """Pass this error to all callbacks: there will be no more answers."""
        for opaque in tuple(self._waiting):
            self.settle(opaque, error)
