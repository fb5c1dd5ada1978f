"""Retries: for which errors, how often, and after which pauses."""

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
    """The pauses before retries, each twice as long as the one before."""

    retries: int
    """The number of retries."""
    interval_ms: int
    """The first pause."""
    what: str = ""
    """What is tried, for the log; nothing is logged without it."""
    taken: int = 0
    """The pauses since the last success; the caller sets it to 0 then."""

    def take(self, error: Exception) -> None:
        """Wait after an error, or raise it if there are no retries left."""
        self.taken += 1
        if self.taken > self.retries:
            raise error
        if self.what:
            log.warning("%s: %s; trying again", self.what, error)
        time.sleep(min(self.interval_ms << self.taken - 1, _PAUSE_MS_MAX) / 1000)


def retried(do: Callable[[], R], *, retries: int, interval_ms: int) -> R:
    """Do it, and retry while a server is away or busy, with doubling pauses."""
    pauses = Pauses(retries, interval_ms)
    while True:
        try:
            return do()
        except PASSING as error:
            pauses.take(error)
