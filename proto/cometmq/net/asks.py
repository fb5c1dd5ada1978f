"""Requests of ours to one peer, and who waits for their answers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.net.errors import NetError
    from cometmq.proto.command import Command

_log = logging.getLogger("cometmq.net")


class Asks:
    """Who waits for which answer. Each is called once, with the answer or with why there is none.

    One that fails is logged and harms nobody else.
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[int, Callable[[Command | NetError], None]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, opaque: int, answered: Callable[[Command | NetError], None]) -> None:
        """Note who waits for the answer to the request of this number."""
        self._waiting[opaque] = answered

    def settle(self, opaque: int, result: Command | NetError) -> None:
        """Give a result to who waits for it, if anybody does."""
        if answered := self._waiting.pop(opaque, None):
            try:
                answered(result)
            except Exception:
                _log.exception("who asked fails on the answer to %d; this is a bug", opaque)

    def forget(self, opaque: int) -> None:
        """Let nobody wait for this number."""
        self._waiting.pop(opaque, None)

    def fail(self, error: NetError) -> None:
        """Give this to all that wait: there will be no more answers."""
        for opaque in tuple(self._waiting):
            self.settle(opaque, error)
