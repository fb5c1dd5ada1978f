"""Which rows are stored already, because their task, or their batch, was run before.

A broker remembers the last messages of each producer, and stores none of them again. That is for
sends that are repeated soon. A batch that is repeated after a restart may be older than that, so
the sink asks before it sends: once for each stretch of 4,096 messages of a queue, whether its first
message is there. As the messages of a stretch are sent one behind the other, by one task, nothing
of it is stored when the first is not. When it is, each of them is asked for.

That holds as long as rows come in the order of their offsets, as the source reads them: a query
that shuffles has only what the broker remembers. So have rows with a `dedupKey`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from cometmq.pipeline.cluster import with_wire
from cometmq.pipeline.wire import SUCCESS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cometmq.pipeline.rows import Row
    from cometmq.pipeline.targets import Target
    from cometmq.pipeline.wire import Settings, Wire

FIND_UNIQUE_KEYS: Final = 31004
_KEYS_MAX: Final = 128
"""Of one request: what brokers take unless they are told otherwise."""


class Stored:
    """What one task has found out."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._is_begun: dict[tuple[str, str], bool] = {}
        """Stretches by topic and producer: whether an earlier run has sent of them."""

    def look(self, rows: Iterable[tuple[Row, Target]]) -> set[str]:
        """Return the ids of those of these rows that are stored."""
        firsts: dict[tuple[str, str], list[str]] = {}
        unsure: dict[tuple[str, str], list[str]] = {}
        stretches: dict[tuple[str, str], list[tuple[str, str]]] = {}
        counted = [(row, target) for row, target in rows if row.stretch is not None]
        for row, target in counted:
            stretch = (row.topic, row.stretch or "")
            if stretch not in self._is_begun:
                self._is_begun[stretch] = False
                firsts.setdefault((target.address, row.topic), []).append(row.unique_id or "")
                stretches.setdefault((target.address, row.topic), []).append(stretch)
        for place, ids in firsts.items():
            there = self._find(*place, ids)
            for stretch, unique_id in zip(stretches[place], ids, strict=True):
                self._is_begun[stretch] = unique_id in there
        for row, target in counted:
            if self._is_begun[row.topic, row.stretch or ""]:
                unsure.setdefault((target.address, row.topic), []).append(row.unique_id or "")
        found: set[str] = set()
        for place, ids in unsure.items():
            found |= self._find(*place, ids)
        return found

    def _find(self, address: str, topic: str, ids: Sequence[str]) -> set[str]:
        def ask(peer: Wire) -> set[str]:
            found: set[str] = set()
            for first in range(0, len(ids), _KEYS_MAX):
                body = json.dumps({"keys": list(ids[first : first + _KEYS_MAX])}).encode()
                answer = peer.ask(FIND_UNIQUE_KEYS, {"topic": topic}, body)
                if answer.code == SUCCESS:
                    messages: list[dict[str, Any]] = json.loads(answer.body).get("messages") or []
                    found.update(each["key"] for each in messages)
            return found

        return with_wire(address, self._settings, ask)
