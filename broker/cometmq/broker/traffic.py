"""What went through the broker: plain integers by topic and by group, and rates made of them.

How it works. A `Flow` counts what went one way; the data path adds to it, and does nothing else. A
topic's flow hangs at the topic, so that a send needs no lookup for it; a pull looks its flow up by
topic and group. `tick` walks all flows, a slice at a time and each about every 10 s, and notes
where they stand: `rate` is the difference to what was noted a minute, an hour or a day ago.

A send counts when it is put into the store's turn. When the disk refuses the turn, it is counted
as refused, too.
"""

from __future__ import annotations

import time
from array import array
from collections import Counter
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from cometmq.proto.durations import Durations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

K = TypeVar("K")

FLOWS_A_TICK: Final = 200
"""Flows whose standing one tick notes: some 200 µs."""
ROUND_MS: Final = 10_000
"""Time from one standing of a flow to the next, when there are few enough of them."""
_FIELDS: Final = 4
"""Of a standing: time, messages, bytes, calls."""


class Window(Enum):
    """The windows that rates are made for, with the time between two standings that are kept."""

    MINUTE = (0, 10_000, 7)
    HOUR = (1, 600_000, 7)
    DAY = (2, 3_600_000, 25)

    def __init__(self, place: int, step_ms: int, kept: int) -> None:
        self.place = place
        self.step_ms = step_ms
        self.kept = kept

    @property
    def length_ms(self) -> int:
        """How far back it goes."""
        return self.step_ms * (self.kept - 1)


_RINGS: Final = [(window.step_ms, window.kept * _FIELDS) for window in Window]
"""By a window's place, its step and the numbers that are kept: an enum's take longer to look up."""


class Rate(NamedTuple):
    """What went through in a window, as far back as it is known."""

    messages: int
    size: int
    calls: int
    seconds: float

    @property
    def messages_per_second(self) -> float:
        """0 while nothing is known."""
        return self.messages / self.seconds if self.seconds else 0.0

    @property
    def size_per_second(self) -> float:
        """Bytes; 0 while nothing is known."""
        return self.size / self.seconds if self.seconds else 0.0


class Flow:
    """What went one way since the broker's start."""

    __slots__ = ("_standings", "followers", "messages", "size")

    def __init__(self) -> None:
        self.messages = 0
        self.size = 0
        """Bytes of whole records, as they are stored."""
        self.followers = 0
        """Messages that were not the first of their call: calls of one message add nothing."""
        self._standings: tuple[array[int], array[int], array[int]] | None = None

    def take(self, messages: int, size: int) -> None:
        """Count a call of one or more messages."""
        self.messages += messages
        self.size += size
        self.followers += messages - 1

    @property
    def calls(self) -> int:
        """Requests that it took."""
        return self.messages - self.followers

    def note(self, now_ms: int, since_ms: int) -> None:
        """Note where it stands; one that is new began with nothing at `since_ms`."""
        standings = self._standings
        if standings is None:
            if not self.messages:
                return
            standings = self._standings = (array("q"), array("q"), array("q"))
            for ring in standings:
                ring.extend((since_ms, 0, 0, 0))
        for ring, (step_ms, size_max) in zip(standings, _RINGS, strict=True):
            if now_ms - ring[-_FIELDS] >= step_ms:
                ring.extend((now_ms, self.messages, self.size, self.calls))
                if len(ring) > size_max:
                    del ring[:_FIELDS]

    def rate(self, window: Window, now_ms: int) -> Rate:
        """Compare with the oldest standing that is within the window."""
        if self._standings is not None:
            ring = self._standings[window.place]
            # A step more than the window, because a standing may be noted a little late.
            oldest_ms = now_ms - window.length_ms - window.step_ms
            for at in range(0, len(ring), _FIELDS):
                if oldest_ms <= ring[at] < now_ms:
                    then_ms, messages, size, calls = ring[at : at + _FIELDS]
                    return Rate(
                        self.messages - messages,
                        self.size - size,
                        self.calls - calls,
                        (now_ms - then_ms) / 1000,
                    )
        return Rate(0, 0, 0, 0.0)

    def add(self, other: Flow) -> None:
        """Count what went through another one, too."""
        self.messages += other.messages
        self.size += other.size
        self.followers += other.followers


class Traffic:
    """All flows of one broker, and how long its answers took."""

    def __init__(
        self,
        *,
        flows_max: int,
        now_ms: int,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        """Beyond `flows_max` topics, or pairs of topic and group, a new one shares `other`."""
        self.clock_ns = clock_ns
        self.all_put = Flow()
        """Of all topics, as of the last `sum_up`."""
        self.all_got = Flow()
        """Of all groups, likewise."""
        self.other = Flow()
        """What topics or groups beyond `flows_max` put and got; in neither sum."""
        self.missed = 0
        """Pulls that were answered without a message."""
        self.refused: Counter[tuple[int, int]] = Counter()
        """Requests that were refused, by request code and response code."""
        self.send_durations = Durations()
        """From the first send of a turn to the turn's answers: an upper bound for each of them."""
        self.pull_durations = Durations()
        """From a pull to its answer; one that was held is left out."""
        self._flows_max = flows_max
        self._put: dict[str, Flow] = {}
        self._got: dict[tuple[str, str], Flow] = {}
        self._sent_back: dict[tuple[str, str], Flow] = {}
        self._gone_put = Flow()
        self._gone_got = Flow()
        self._round: Iterator[Flow] = iter(())
        self._round_ms = now_ms
        self._previous_ms = now_ms

    # Counting

    def put_flow(self, topic: str) -> Flow:
        """Find or make the flow of the messages that are put into a topic."""
        return self._find(self._put, topic)

    def got_flow(self, topic: str, group: str) -> Flow:
        """Find or make the flow of the messages that a group gets from a topic."""
        return self._got.get((topic, group)) or self._find(self._got, (topic, group))

    def sent_back_flow(self, topic: str, group: str) -> Flow:
        """Find or make the flow of the messages of a topic that a group could not consume."""
        return self._find(self._sent_back, (topic, group))

    def _find(self, flows: dict[K, Flow], key: K) -> Flow:
        flow = flows.get(key)
        if flow is None:
            if len(flows) >= self._flows_max:
                return self.other
            flow = flows[key] = Flow()
        return flow

    def forget_topic(self, topic: str) -> None:
        """Let go what is known of a topic that was deleted; the sums keep it."""
        if topic in self._put:
            self._gone_put.add(self._put.pop(topic))
        self._forget_got([key for key in self._got if key[0] == topic])

    def forget_group(self, group: str) -> None:
        """Let go what is known of a group that was deleted; the sums keep it."""
        self._forget_got([key for key in self._got if key[1] == group])

    def _forget_got(self, keys: Iterable[tuple[str, str]]) -> None:
        for key in keys:
            self._sent_back.pop(key, None)
            self._gone_got.add(self._got.pop(key))

    # Looking

    @property
    def put(self) -> Mapping[str, Flow]:
        """What was put, by topic."""
        return self._put

    @property
    def got(self) -> Mapping[tuple[str, str], Flow]:
        """What was got, by topic and group."""
        return self._got

    @property
    def sent_back(self) -> Mapping[tuple[str, str], Flow]:
        """What could not be consumed, by topic and group."""
        return self._sent_back

    def tick(self, now_ms: int) -> None:
        """Note where some flows stand: a slice of a round, which begins every `ROUND_MS`."""
        for _ in range(FLOWS_A_TICK):
            flow = next(self._round, None)
            if flow is None:
                if now_ms - self._round_ms >= ROUND_MS:
                    self._begin_round(now_ms)
                return
            flow.note(now_ms, self._previous_ms)

    def _begin_round(self, now_ms: int) -> None:
        self._previous_ms, self._round_ms = self._round_ms, now_ms
        self.sum_up()
        tables = (self._put, self._got, self._sent_back)
        flows = [flow for table in tables for flow in table.values()]
        self._round = iter([self.all_put, self.all_got, *flows])

    def sum_up(self) -> None:
        """Bring `all_put` and `all_got` up to date: a millisecond for 10,000 flows."""
        for total, gone, flows in (
            (self.all_put, self._gone_put, self._put.values()),
            (self.all_got, self._gone_got, self._got.values()),
        ):
            total.messages = gone.messages + sum([flow.messages for flow in flows])
            total.size = gone.size + sum([flow.size for flow in flows])
            total.followers = gone.followers + sum([flow.followers for flow in flows])
