"""Which rows are stored already, because their task, or their batch, was run before.

A broker remembers the last messages of each producer, and stores none of them again. That is for
sends that are repeated soon. A batch that is repeated after a restart may be older than that, so
the sink asks before it sends. To ask for every message would cost as much as to send it, so it asks
for the first message of each stretch of 4,096 that goes to a queue, and for one of 32. Where one of
them is there, an earlier run has sent of this stretch, and each message of it is asked for.

What an earlier run sent to a queue goes there in order, so where the same rows come again the first
message is enough. The others find what was sent when rows were chosen or cut into tasks otherwise,
or when a busy broker refused the first request and took the next. What they pass over, and rows
with a `dedupKey`, have what the broker remembers. Ids that say nothing of the time, as earlier runs
may have sent them, are asked for by the first message of a stretch alone; and what is found by one
may be a copy of another message, which was at that place of a topic that was deleted and made anew:
then it was stored before the message was.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from cometmq.pipeline.cluster import TOPIC_NOT_EXIST, with_wire
from cometmq.pipeline.identities import COORDINATE_ID_SIZE, PRODUCER_SIZE
from cometmq.pipeline.retrying import retried
from cometmq.pipeline.wire import SUCCESS

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
"""Of one request: what brokers take unless they are told otherwise."""
_SYSTEM_ERROR: Final = 1
"""What more keys than a broker takes are answered with."""
CLOCKS_MS: Final = 3_600_000
"""By how much clocks of brokers may differ: a copy that is older than its message by more than
that is one of another, which was at the same place of a topic that was deleted and made anew."""
_UNTOLD_MS: Final = 1 << 62
"""When something was stored of which a broker of an earlier version does not say when."""
_ASKED_OF: Final = 32
"""Of so many messages one is asked for, where nothing is known yet."""


class Stored:
    """What one task has found out."""

    def __init__(self, how: Sending) -> None:
        self._how = how
        self._keys_max = _KEYS_MAX
        self._seen: set[tuple[str, Target, bytes]] = set()
        """Stretches, by topic, queue and producer, whose first message was asked for."""
        self._begun: set[tuple[str, Target, bytes]] = set()
        """Of these, those of which an earlier run has sent something."""

    def look(self, topic: str, target: Target, ids: Bytes, messages: Messages) -> Truths:
        """Return which of the messages with these ids, that go to this queue, are stored."""
        if ids.shape[1] != COORDINATE_ID_SIZE or not len(ids):
            return np.zeros(len(ids), np.bool_)
        found = np.zeros(len(ids), np.bool_)
        if messages.untimed_ids is not None and messages.stored_ms is not None:
            copied_ms = self._look(topic, target, messages.untimed_ids, np.zeros(0, np.int64))
            if copied_ms.any():  # Of such a stretch more may have been sent since, with times.
                stretches = set(_texts(ids[:, :PRODUCER_SIZE]).tolist())
                self._begun.update((topic, target, each) for each in stretches)
            found = (copied_ms > 0) & (copied_ms >= messages.stored_ms - CLOCKS_MS)
        left = np.flatnonzero(~found)
        if len(left):
            found[left] = self._look(topic, target, ids[left], _some_of(len(left))) > 0
        return found

    def _look(self, topic: str, target: Target, ids: Bytes, some: Longs) -> Longs:
        """Return when they were stored, in ms; 0 of those that are not, or were not asked for."""
        found_ms = np.zeros(len(ids), np.int64)
        producers = _texts(ids[:, :PRODUCER_SIZE])
        firsts = np.flatnonzero(np.append(True, producers[1:] != producers[:-1]))
        places = [(topic, target, each) for each in producers[firsts].tolist()]
        asked = np.zeros(len(ids), np.bool_)
        asked[some] = True
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
        """Take down when those of the messages that are asked for were stored that are."""
        texts = [each.decode() for each in _texts(ids[asked]).tolist()]
        there = self.find(target.address, topic, texts)
        found_ms[asked] = [there.get(each, 0) for each in texts]

    def find(self, address: str, topic: str, ids: Sequence[str]) -> dict[str, int]:
        """Ask a broker which of these are stored, and when; an error where it does not say which.

        For what it does not say, no is the wrong guess: it would be stored twice.
        """
        found: dict[str, int] = {}
        first = 0
        while first < len(ids):
            some = ids[first : first + self._keys_max]
            answer = self._answer(address, topic, some)
            if answer.code == TOPIC_NOT_EXIST:
                break
            if answer.code == _SYSTEM_ERROR and len(some) > 1:  # It may take fewer at a time.
                self._keys_max = len(some) // 2
                continue
            said = json.loads(answer.expect(address).body)
            messages: list[dict[str, Any]] = said.get("messages") or []
            for each in messages:
                found[each["key"]] = each.get("storeTimestamp") or _UNTOLD_MS
            first += len(some)
        return found

    def _answer(self, address: str, topic: str, ids: Sequence[str]) -> Answer:
        """Return what a broker says, which is asked again while it is away or busy."""
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


def _some_of(count: int) -> Longs:
    """Return one of each 32 numbers in front of `count`, now an early and now a late one.

    At equal distances they could all miss what has a distance of its own, such as each second.
    """
    blocks = np.arange(-(-count // _ASKED_OF))
    chosen = blocks * _ASKED_OF + blocks * 11 % _ASKED_OF
    return chosen[chosen < count]


def _texts(letters: Bytes) -> npt.NDArray[np.bytes_]:
    """Return the rows of a matrix of letters as texts."""
    return np.ascontiguousarray(letters).view(f"S{letters.shape[1]}").reshape(-1)
