"""Work on stored messages that is done a slice at a time, and may need the disk in between."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cometmq.proto.message_list import MessageList
from cometmq.store.commit_log import Cold

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cometmq.broker.cold_reads import ColdReads
    from cometmq.proto.message import StoredMessage
    from cometmq.store.message_store import MessageStore
    from cometmq.store.reading import Fetched

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


def messages_from(
    store: MessageStore, topic: str, queue_id: int, queue_offset: int, count_max: int
) -> Iterator[StoredMessage]:
    """Give the messages of a queue from an offset on, waiting for the disk: for a start."""
    fetched: Fetched = ()
    while count_max > 0:
        result = store.read(topic, queue_id, queue_offset, count_max, fetched=fetched)
        if result.cold:
            fetched = [store.fetch(cold) for cold in result.cold]
            continue
        fetched = ()
        for part in result.slices:
            for message in MessageList(part):
                count_max -= 1
                yield message
        if result.next_begin_offset <= queue_offset or result.next_begin_offset >= max(
            result.max_offset, 1
        ):
            return
        queue_offset = result.next_begin_offset
