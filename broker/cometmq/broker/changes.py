"""Administrative changes that wait until they are saved, and registered at the name servers.

A change is in force at once; only its answer waits. After the answer, the change survives a kill of
the process, and a name server already knows a topic's new route.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cometmq.net import LATER
from cometmq.proto.codes import ResponseCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.broker.saved_table import SavedTable
    from cometmq.net import Later, Peer
    from cometmq.proto.command import Command

PATIENCE_MS: Final = 3_000
"""Apache's tools give up after 5 s."""


@dataclass(slots=True)
class _Change:
    peer: Peer
    request: Command
    response: Command
    needs: list[tuple[SavedTable, int]]
    """Tables, and the version of each that must be in its file."""
    told_version: int | None
    """The version of the topic table that name servers must have been told of."""
    deadline_ms: int


class Changes:
    """All changes that have not been answered yet."""

    def __init__(self, topics: SavedTable, *, elapsed_ms: Callable[[], int]) -> None:
        self._topics = topics
        self._elapsed_ms = elapsed_ms
        self._told_version = -1
        self._waiting: list[_Change] = []

    def answer(
        self,
        peer: Peer,
        request: Command,
        response: Command,
        *tables: SavedTable,
        is_told: bool = False,
    ) -> Later | Command:
        """Answer once these tables are saved as they are now and, if `is_told`, registered."""
        needs = [(table, table.version) for table in tables if table.is_changed]
        told_version = self._topics.version if is_told else None
        deadline_ms = self._elapsed_ms() + PATIENCE_MS
        change = _Change(peer, request, response, needs, told_version, deadline_ms)
        if self._is_safe(change):
            return response
        self._waiting.append(change)
        return LATER

    def told(self, version: int) -> None:
        """Note up to which version of the topic table the name servers have been told."""
        self._told_version = version
        self.release()

    def release(self) -> None:
        """Answer the changes that are safe by now."""
        waiting, self._waiting = self._waiting, []
        for change in waiting:
            if self._is_safe(change):
                change.peer.answer(change.request, change.response)
            else:
                self._waiting.append(change)

    def tick(self, elapsed_ms: int) -> None:
        """Answer the changes that have waited long enough.

        If only a name server does not answer, the answer is success, as from Apache's brokers: it
        is told later. If a file cannot be written, the answer is an error.
        """
        waiting, self._waiting = self._waiting, []
        for change in waiting:
            if elapsed_ms < change.deadline_ms:
                self._waiting.append(change)
                continue
            unsaved = _unsaved(change)
            response = change.response
            if unsaved:
                response = change.request.answer(
                    ResponseCode.SYSTEM_ERROR,
                    remark=(
                        f"the change is in force but not saved: {', '.join(unsaved)} cannot be"
                        " written; this is retried"
                    ),
                )
            change.peer.answer(change.request, response)

    def _is_safe(self, change: _Change) -> bool:
        told = change.told_version
        return not _unsaved(change) and (told is None or told <= self._told_version)


def _unsaved(change: _Change) -> list[str]:
    return [table.name for table, version in change.needs if table.saved_version < version]
