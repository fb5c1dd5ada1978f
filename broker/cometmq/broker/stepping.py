"""Work on stored messages that is done in slices, and may need the disk in between."""

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
    """The result of a step."""

    done: int = 0
    """How many messages it dealt with; if any, there may be more."""
    cold: list[Cold] = field(default_factory=list[Cold])
    """Data to be fetched before the next step can continue."""
    refused: bool = False
    """Whether the store refused it, so that it is tried again."""
    wait_ms: int = 0
    """How long there will be nothing to do, as far as is known."""


class Stepping:
    """Repeats steps; data that a step needs from the disk is fetched in threads before the next."""

    def __init__(
        self,
        what: str,
        step: Callable[[Fetched | None], Step],
        cold_reads: ColdReads,
        *,
        idle_seconds: float,
    ) -> None:
        """`what` names in the log what cannot be read.

        After an idle step comes a pause of `idle_seconds`, or of the step's `wait_ms` if longer.
        """
        self._idle_seconds = idle_seconds
        self._what = what
        self._step = step
        self._cold_reads = cold_reads
        self._is_fetching = False
        self._fetched: Fetched | None = None

    def run(self) -> float:
        """Do a step; return the seconds until the next should come."""
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
        log.error("%s cannot be read, to be retried: %s", self._what, error)
        self._is_fetching = False
