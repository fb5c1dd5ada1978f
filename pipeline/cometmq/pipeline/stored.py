"""Finding rows that are stored already, because their task or batch was run before.

A broker remembers the last messages of each producer and does not store them again. That covers
sends that are repeated soon. A batch that is repeated after a restart may be older, so the sink
asks before it sends. Asking for every message would cost as much as sending it. So it asks for the
first message of each stretch of 4,096 that goes to a queue, for the last one of those that come
together, and for one in 32, or more if they are large. If any of these is stored, an earlier run
has sent messages of this stretch, and all of them are asked for.

An earlier run sent its messages to a queue in order, so if the same rows come again, the first
message is enough. The others find what was sent when a busy broker refused a request and accepted
the next, as nearly all requests have a message that is asked for, and when rows were chosen or
divided into tasks differently. For what they miss, and for rows with a `dedupKey`, there is the
broker's memory. Ids without a time, as earlier runs may have sent them, are only checked by the
first message of a stretch. A message found under such an id may be a copy of another one, which had
that place in a topic that was deleted and recreated: then the copy was stored before the message.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from cometmq.pipeline.cluster import TOPIC_NOT_EXIST
from cometmq.pipeline.identities import COORDINATE_ID_SIZE, PRODUCER_SIZE
from cometmq.pipeline.retrying import retried
from cometmq.pipeline.wire import SUCCESS, with_wire

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from cometmq.pipeline.lanes import Sending
    from cometmq.pipeline.messages import Messages
    from cometmq.pipeline.records.layout import Bytes, Longs, Truths
    from cometmq.pipeline.targets import Target
    from cometmq.pipeline.wire import Answer, Wire

FIND_UNIQUE_KEYS: Final = 31004
_KEYS_MAX: Final = 128
"""The most keys of one request that brokers accept by default."""
_SYSTEM_ERROR: Final = 1
"""The answer to more keys than a broker accepts."""
CLOCKS_MS: Final = 3_600_000
"""How much the clocks of brokers may differ: a copy that is older than its message by more is a
copy of another message, which had the same place in a topic that was deleted and recreated."""
_UNTOLD_MS: Final = 1 << 62
"""The assumed store time if a broker of an earlier version does not report it."""
_ASKED_OF: Final = 32
"""If nothing is known yet, one of so many messages is asked for."""


class Stored:
    """What one task knows about stored messages."""

    def __init__(self, how: Sending) -> None:
        self._how = how
        self._keys_max = _KEYS_MAX
        self._seen: set[tuple[str, Target, bytes]] = set()
        """Stretches, by topic, queue and producer, whose first message was asked for."""
        self._begun: set[tuple[str, Target, bytes]] = set()
        """Those of which an earlier run has sent messages."""

    def look(self, topic: str, target: Target, ids: Bytes, messages: Messages) -> Truths:
        """Return which of the messages with these ids for this queue are stored."""
        if ids.shape[1] != COORDINATE_ID_SIZE or not len(ids):
            return np.zeros(len(ids), np.bool_)
        found = np.zeros(len(ids), np.bool_)
        if messages.untimed_ids is not None and messages.stored_ms is not None:
            copied_ms = self._look(topic, target, messages.untimed_ids, np.zeros(0, np.int64))
            if copied_ms.any():  # More of these stretches may have been sent since, with times.
                stretches = set(_texts(ids[:, :PRODUCER_SIZE]).tolist())
                self._begun.update((topic, target, each) for each in stretches)
            found = (copied_ms > 0) & (copied_ms >= messages.stored_ms - CLOCKS_MS)
        left = np.flatnonzero(~found)
        if len(left):
            some = _some_of(messages.item_sizes(ids.shape[1])[left], self._how.batch_bytes)
            found[left] = self._look(topic, target, ids[left], some) > 0
        return found

    def _look(self, topic: str, target: Target, ids: Bytes, some: Longs) -> Longs:
        """Return the store times in ms; 0 for messages that are not stored or not asked for."""
        found_ms = np.zeros(len(ids), np.int64)
        producers = _texts(ids[:, :PRODUCER_SIZE])
        firsts = np.flatnonzero(np.append(True, producers[1:] != producers[:-1]))
        places = [(topic, target, each) for each in producers[firsts].tolist()]
        asked = np.zeros(len(ids), np.bool_)
        asked[some] = True
        if len(firsts) <= len(some):  # Otherwise they come in no order.
            asked[np.append(firsts[1:], len(ids)) - 1] = True
        for first, place in zip(firsts.tolist(), places, strict=True):
            if place not in self._seen:
                self._seen.add(place)
                asked[first] = True
        self._ask(topic, target, ids, asked, found_ms)
        there = set(producers[found_ms > 0].tolist())
        self._begun.update((topic, target, each) for each in there)
        begun = [place[2] for place in set(places) & self._begun]
        if begun:
            unsure = np.isin(producers, np.array(begun)) & ~asked
            self._ask(topic, target, ids, unsure, found_ms)
        return found_ms

    def _ask(self, topic: str, target: Target, ids: Bytes, asked: Truths, found_ms: Longs) -> None:
        """Ask for some of the messages, and enter the store times of those that are stored."""
        texts = [each.decode() for each in _texts(ids[asked]).tolist()]
        there = self.find(target.address, topic, texts)
        found_ms[asked] = [there.get(each, 0) for each in texts]

    def find(self, address: str, topic: str, ids: Sequence[str]) -> dict[str, int]:
        """Ask a broker which of these are stored, and when; raise if it does not say.

        Taking no answer for "not stored" would be wrong: messages would be stored twice.
        """
        found: dict[str, int] = {}
        first = 0
        while first < len(ids):
            some = ids[first : first + self._keys_max]
            answer = self._answer(address, topic, some)
            if answer.code == TOPIC_NOT_EXIST:
                break
            if answer.code == _SYSTEM_ERROR and len(some) > 1:  # It may accept fewer at a time.
                self._keys_max = len(some) // 2
                continue
            said = json.loads(answer.expect(address).body)
            messages: list[dict[str, Any]] = said.get("messages") or []
            for each in messages:
                found[each["key"]] = each.get("storeTimestamp") or _UNTOLD_MS
            first += len(some)
        return found

    def _answer(self, address: str, topic: str, ids: Sequence[str]) -> Answer:
        """Return a broker's answer; retry while the broker is away or busy."""
        body = json.dumps({"keys": list(ids)}).encode()

        def ask(peer: Wire) -> Answer:
            answer = peer.ask(FIND_UNIQUE_KEYS, {"topic": topic}, body)
            if answer.code not in (SUCCESS, TOPIC_NOT_EXIST, _SYSTEM_ERROR):
                raise answer.refusal(address)
            return answer

        return retried(
            lambda: with_wire(address, self._how.settings, ask),
            retries=self._how.retries,
            interval_ms=self._how.retry_interval_ms,
        )


def _some_of(sizes: Longs, batch_bytes: int) -> Longs:
    """Return which of messages of these sizes to ask for: one in 32, and one in half a request.

    The distances vary: at equal ones, they could all miss a regular pattern, such as every second
    message.
    """
    shares = np.cumsum(1 / _ASKED_OF + sizes * (3 / batch_bytes))
    blocks = np.arange(int(shares[-1]) + 1)
    chosen = np.searchsorted(shares - shares[0], blocks + blocks * 11 % 32 / 32)
    return np.unique(chosen[chosen < len(sizes)])


def _texts(letters: Bytes) -> npt.NDArray[np.bytes_]:
    """Return the rows of a matrix of letters as texts."""
    return np.ascontiguousarray(letters).view(f"S{letters.shape[1]}").reshape(-1)
