"""Administrative changes that wait to be safe: in their files, and told to the name servers.

A change is in force at once; what waits is the answer. Who gets it may kill the process and finds
the change again, and who asks a name server next finds a topic's new route there.
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
    """Of the table of topics, that name servers must have been told of."""
    deadline_ms: int


class Changes:
    """All changes that are not answered yet."""

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
        """Answer when what these tables hold now is saved and, if it `is_told`, registered."""
        needs = [(table, table.version) for table in tables if table.is_changed]
        told_version = self._topics.version if is_told else None
        deadline_ms = self._elapsed_ms() + PATIENCE_MS
        change = _Change(peer, request, response, needs, told_version, deadline_ms)
        if self._is_safe(change):
            return response
        self._waiting.append(change)
        return LATER

    def told(self, version: int) -> None:
        """Note up to which version of the table of topics the name servers were told."""
        self._told_version = version
        self.release()

    def release(self) -> None:
        """Answer what is safe by now."""
        waiting, self._waiting = self._waiting, []
        for change in waiting:
            if self._is_safe(change):
                change.peer.answer(change.request, change.response)
            else:
                self._waiting.append(change)

    def tick(self, elapsed_ms: int) -> None:
        """Answer what has waited long enough.

        A name server that does not answer is told later: Apache's brokers, too, say "success" then.
        A file that cannot be written is another matter.
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
                    remark=f"the change is in force but not saved: {', '.join(unsaved)} cannot be"
                    " written; it is tried again",
                )
            change.peer.answer(change.request, response)

    def _is_safe(self, change: _Change) -> bool:
        told = change.told_version
        return not _unsaved(change) and (told is None or told <= self._told_version)


def _unsaved(change: _Change) -> list[str]:
    return [table.name for table, version in change.needs if table.saved_version < version]
