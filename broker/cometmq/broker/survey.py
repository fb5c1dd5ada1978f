"""The survey of topics and groups for the metrics page: the busiest of each, and the rest.

A broker may have more topics than a page should have lines. The `metrics_labels_max` busiest get
lines of their own; all others share one line, `(other)`, which no topic can have as its name. The
set of the others changes from survey to survey, so the shared counters are not their sum: they grow
by what each of the others has counted since the last survey. This way they never fall, and rates
made of them are right.

A survey looks at every queue of every group. It is taken in slices, and data that is not in memory
is read in a thread.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import trio

from cometmq.broker.traffic import Flow
from cometmq.net.pages import Breather
from cometmq.proto.errors import MessageError
from cometmq.proto.message import read_message
from cometmq.store.disk.cold import Cold
from cometmq.store.errors import StoreFilesError
from cometmq.store.messages.reading import ReadStatus
from cometmq.store.queues.consume_queues import Span

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cometmq.broker.session import State
    from cometmq.store.message_store import MessageStore

OTHER: Final = "(other)"

K = TypeVar("K")


class Lag(NamedTuple):
    """How far a group is behind in a topic."""

    messages: int
    latency_ms: int
    """The age of the oldest message that it has not consumed; 0 if there is none."""


class _Shown:
    """The flows of one kind: those with lines, and the shared counter of the others."""

    def __init__(self) -> None:
        self.other = Flow()
        """What flows without a line have counted while they had none."""
        self._told: dict[object, tuple[int, int]] = {}

    async def choose(
        self, flows: Mapping[K, Flow], labels_max: int, breather: Breather
    ) -> list[tuple[K, Flow]]:
        """Choose the busiest, and add what the others have counted since the last time."""
        # Tables of all topics are emptied step by step: dropping one at once takes as long.
        keys = list(flows)
        if len(keys) <= labels_max:
            chosen = list(keys)
        else:
            weights = ((flow.messages, key) for key in keys if (flow := flows.get(key)) is not None)
            chosen = await _largest(weights, labels_max, breather)
        kept = set(chosen)
        told = self._told
        while keys:
            key = keys.pop()
            flow = flows.get(key)
            if flow is None or not flow.messages:
                continue
            if key not in kept:
                messages, size = told.get(key, (0, 0))
                self.other.messages += flow.messages - messages
                self.other.size += flow.size - size
            told[key] = flow.messages, flow.size
            await breather.breathe()
        known = list(told)
        while known:
            if (each := known.pop()) not in flows:
                del told[each]
            await breather.breathe()
        return [(key, flows[key]) for key in chosen if key in flows]


class Survey:
    """The last survey; `take` takes the next."""

    def __init__(self, state: State, labels_max: int) -> None:
        self.put: list[tuple[str, Flow]] = []
        self.got: list[tuple[tuple[str, str], Flow]] = []
        self.lags: list[tuple[tuple[str, str], Lag]] = []
        """The longest lags, by group and topic."""
        self.other_lag = 0
        """The lag of all others together, in messages."""
        self.earliest_ms: int | None = None
        """When the first message of the log was stored; None while there is none."""
        self._state = state
        self._labels_max = labels_max
        self._put, self._got = _Shown(), _Shown()
        self._times: dict[tuple[str, int], tuple[int, int]] = {}  # Looked up last time.
        self._earliest = (-1, 0)
        self._busy = trio.Lock()

    @property
    def other_put(self) -> Flow:
        """The messages put into topics without a line."""
        return self._put.other

    @property
    def other_got(self) -> Flow:
        """The messages got by groups without a line."""
        return self._got.other

    async def take(self) -> None:
        """Survey all flows and groups; one survey at a time."""
        async with self._busy:
            breather = Breather()
            traffic, labels_max = self._state.traffic, self._labels_max
            self.put = await self._put.choose(traffic.put, labels_max, breather)
            self.got = await self._got.choose(traffic.got, labels_max, breather)
            await self._look_for_lags(breather)
            await self._find_earliest()

    async def _look_for_lags(self, breather: Breather) -> None:
        """Find the groups with the longest lags, and how old each lag is."""
        behind: dict[tuple[str, str], int] = {}
        for key in self._state.offsets.pairs():
            behind[key] = await self._behind(key, breather)
        chosen = list(behind)
        if len(behind) > self._labels_max:
            weights = ((messages, key) for key, messages in behind.items())
            chosen = await _largest(weights, self._labels_max, breather)
        lags: list[tuple[tuple[str, str], Lag]] = []
        times: dict[tuple[str, int], tuple[int, int]] = {}
        for key in chosen:
            messages = behind.pop(key)
            latency_ms = await self._latency(key, times, breather) if messages else 0
            lags.append((key, Lag(messages, latency_ms)))
        self.lags, self._times = lags, times
        self.other_lag = sum(behind.values())

    async def _behind(self, key: tuple[str, str], breather: Breather) -> int:
        """Count the messages that a group has not consumed."""
        behind = 0
        _, topic = key
        store = self._state.store
        for queue_id, offset in tuple(self._state.offsets.of(*key).items()):
            span = await _span(store, topic, queue_id)
            behind += max(0, span.max_offset - max(offset, span.min_offset))
            await breather.breathe()
        return behind

    async def _latency(
        self,
        key: tuple[str, str],
        times: dict[tuple[str, int], tuple[int, int]],
        breather: Breather,
    ) -> int:
        """Return the age of the oldest message that a group has not consumed."""
        _, topic = key
        store = self._state.store
        now_ms = oldest_ms = self._state.now_ms()
        for queue_id, offset in tuple(self._state.offsets.of(*key).items()):
            span = await _span(store, topic, queue_id)
            start = max(offset, span.min_offset)
            if start < span.max_offset:
                place = (topic, queue_id)
                known = self._times.get(place)
                if known is None or known[0] != start:
                    known = (start, await self._stored_ms(topic, queue_id, start) or now_ms)
                times[place] = known
                oldest_ms = min(oldest_ms, known[1])
            await breather.breathe()
        return now_ms - oldest_ms

    async def _stored_ms(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        """Return when a message was stored; None if it has just expired or cannot be read."""
        store = self._state.store
        fetched: list[tuple[Cold, bytes]] = []
        try:
            while True:
                result = store.read(topic, queue_id, queue_offset, 1, fetched=fetched or None)
                if not result.cold:
                    break
                fetched += await trio.to_thread.run_sync(_fetch, store, result.cold)
            if result.status is not ReadStatus.FOUND:
                return None
            return read_message(bytes(result.slices[0])).store_timestamp
        except (StoreFilesError, MessageError, OSError):
            return None  # A pull of it tells the client.

    async def _find_earliest(self) -> None:
        """Find when the first message of the log was stored."""
        store = self._state.store
        offset = store.first_offset
        if offset == self._earliest[0]:
            return
        fetched: list[tuple[Cold, bytes]] = []
        try:
            while isinstance(record := store.find_record(offset, fetched), Cold):
                fetched += await trio.to_thread.run_sync(_fetch, store, (record,))
            if record is not None:
                self._earliest = (offset, read_message(bytes(record)).store_timestamp)
                self.earliest_ms = self._earliest[1]
        except (MessageError, OSError):
            self.earliest_ms = None


async def _span(store: MessageStore, topic: str, queue_id: int) -> Span:
    """Return where a queue begins and ends; an empty span, without any lag, if it is unreadable."""
    try:
        if (cold := store.queues.cold_front(topic, queue_id)) is not None:
            await trio.to_thread.run_sync(store.fetch, cold)
        return store.queues.span(topic, queue_id) or Span(0, 0)
    except OSError:
        return Span(0, 0)


def _fetch(store: MessageStore, cold: Sequence[Cold]) -> list[tuple[Cold, bytes]]:
    return [store.fetch(each) for each in cold]


async def _largest(weighed: Iterable[tuple[int, K]], count: int, breather: Breather) -> list[K]:
    """Return the `count` heaviest keys."""
    heap: list[tuple[int, int, K]] = []
    for number, (weight, key) in enumerate(weighed):
        if len(heap) < count:
            heapq.heappush(heap, (weight, number, key))
        elif weight > heap[0][0]:
            heapq.heapreplace(heap, (weight, number, key))
        await breather.breathe()
    return [key for _, _, key in heap]
