"""Work on stored messages that is done a slice at a time, and may need the disk in between."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cometmq.store.disk.cold import Cold

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.broker.cold_reads import ColdReads
    from cometmq.store.messages.reading import Fetched

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.1


@dataclass(slots=True)
class Step:
    """What a step did."""

    done: int = 0
    """How many messages it dealt with: there may be more."""
    cold: list[Cold] = field(default_factory=list[Cold])
    """What has to be fetched before the next step can go on."""
    refused: bool = False
    """Whether the disk refused it: it is tried again."""
    wait_ms: int = 0
    """For how long there will be nothing to do, as far as is known."""


class Stepping:
    """Repeats steps; what one needs from the disk is fetched in threads before the next."""

    def __init__(
        self,
        what: str,
        step: Callable[[Fetched | None], Step],
        cold_reads: ColdReads,
        *,
        idle_seconds: float,
    ) -> None:
        """`what` says in the log what cannot be read.

        Behind an idle step pass `idle_seconds`, or what it says that is more.
        """
        self._idle_seconds = idle_seconds
        self._what = what
        self._step = step
        self._cold_reads = cold_reads
        self._is_fetching = False
        self._fetched: Fetched | None = None

    def run(self) -> float:
        """Do a step; returns after how many seconds the next should come."""
        if self._is_fetching:
            return self._idle_seconds
        step = self._step(self._fetched)
        self._fetched = None
        if step.cold:
            self._is_fetching = True
            self._cold_reads.fetch(step.cold, self._take, self._unreadable)
            return self._idle_seconds
        if step.refused:
            return RETRY_SECONDS
        return 0.0 if step.done else max(step.wait_ms / 1000, self._idle_seconds)

    def _take(self, fetched: Fetched) -> None:
        self._is_fetching, self._fetched = False, fetched

    def _unreadable(self, error: OSError) -> None:
        log.error("%s cannot be read, tried again: %s", self._what, error)
        self._is_fetching = False
