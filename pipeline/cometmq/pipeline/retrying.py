"""Trying again: what for, how often, and after which pauses."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from cometmq.pipeline.errors import PASSING

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

_PAUSE_MS_MAX: Final = 10_000

R = TypeVar("R")


@dataclass(slots=True)
class Pauses:
    """The pauses before further tries, each twice as long as the one before."""

    retries: int
    """Tries behind the first one."""
    interval_ms: int
    """The first pause."""
    what: str = ""
    """What is tried: the log is told of it, if there is one."""
    taken: int = 0
    """Since it went well; who sees that sets this to 0."""

    def take(self, error: Exception) -> None:
        """Wait after an error, or raise it when it was tried often enough."""
        self.taken += 1
        if self.taken > self.retries:
            raise error
        if self.what:
            log.warning("%s: %s; trying again", self.what, error)
        time.sleep(min(self.interval_ms << self.taken - 1, _PAUSE_MS_MAX) / 1000)


def retried(do: Callable[[], R], *, retries: int, interval_ms: int) -> R:
    """Do it, and again when a server was away or busy, each time after twice as long a wait."""
    pauses = Pauses(retries, interval_ms)
    while True:
        try:
            return do()
        except PASSING as error:
            pauses.take(error)
