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

import numpy as np

from cometmq.pipeline.cluster import with_wire
from cometmq.pipeline.identities import COORDINATE_ID_SIZE, PRODUCER_SIZE
from cometmq.pipeline.wire import SUCCESS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from cometmq.pipeline.records.layout import Bytes, Truths
    from cometmq.pipeline.wire import Settings, Wire

FIND_UNIQUE_KEYS: Final = 31004
_KEYS_MAX: Final = 128
"""Of one request: what brokers take unless they are told otherwise."""


class Stored:
    """What one task has found out."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._is_begun: dict[tuple[str, bytes], bool] = {}
        """Stretches by topic and producer: whether an earlier run has sent of them."""

    def look(self, topic: str, address: str, ids: Bytes) -> Truths:
        """Return which of the messages with these ids, of one queue, are stored."""
        found = np.zeros(len(ids), np.bool_)
        if ids.shape[1] != COORDINATE_ID_SIZE or not len(ids):
            return found
        producers = _texts(ids[:, :PRODUCER_SIZE])
        firsts = np.flatnonzero(np.append(True, producers[1:] != producers[:-1]))
        runs = producers[firsts].tolist()
        new = {
            producer: ids[first].tobytes().decode()
            for producer, first in zip(reversed(runs), firsts[::-1].tolist(), strict=True)
            if (topic, producer) not in self._is_begun
        }
        if new:
            there = self._find(address, topic, list(new.values()))
            for producer, unique_id in new.items():
                self._is_begun[topic, producer] = unique_id in there
        begun = [producer for producer in set(runs) if self._is_begun[topic, producer]]
        if begun:
            unsure = np.flatnonzero(np.isin(producers, np.array(begun)))
            texts = [each.decode() for each in _texts(ids[unsure]).tolist()]
            there = self._find(address, topic, texts)
            found[unsure] = [each in there for each in texts]
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


def _texts(letters: Bytes) -> npt.NDArray[np.bytes_]:
    """Return the rows of a matrix of letters as texts."""
    return np.ascontiguousarray(letters).view(f"S{letters.shape[1]}").reshape(-1)
