"""Counters of the broker's traffic: plain integers by topic and by group, and rates made of them.

How it works. A `Flow` counts the messages that went one way; the data path only adds to it. A
topic's flow is a field of the topic, so that a send needs no lookup; a pull looks its flow up by
topic and group. `tick` goes through all flows, a slice at a time and each about every 10 s, and
notes their standings: `rate` is the difference to the standing a minute, an hour or a day ago.

A send is counted when it is put into the store's turn. If the turn is then refused, the send is
counted as refused, too.
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
"""Flows whose standings one tick notes: some 200 µs."""
ROUND_MS: Final = 10_000
"""Time between two standings of a flow, unless there are too many flows for that."""
_FIELDS: Final = 4
"""Fields of a standing: time, messages, bytes, calls."""


class Window(Enum):
    """The windows of the rates: place in `_RINGS`, time between kept standings, number of them."""

    MINUTE = (0, 10_000, 7)
    HOUR = (1, 600_000, 7)
    DAY = (2, 3_600_000, 25)

    def __init__(self, place: int, step_ms: int, kept: int) -> None:
        self.place = place
        self.step_ms = step_ms
        self.kept = kept

    @property
    def length_ms(self) -> int:
        """How far back the window goes."""
        return self.step_ms * (self.kept - 1)


_RINGS: Final = [(window.step_ms, window.kept * _FIELDS) for window in Window]
"""By a window's place: its step and how many numbers are kept. An enum's would be slower."""


class Rate(NamedTuple):
    """The traffic in a window, as far back as it is known."""

    messages: int
    size: int
    calls: int
    seconds: float

    @property
    def messages_per_second(self) -> float:
        """Messages; 0 while nothing is known."""
        return self.messages / self.seconds if self.seconds else 0.0

    @property
    def size_per_second(self) -> float:
        """Bytes; 0 while nothing is known."""
        return self.size / self.seconds if self.seconds else 0.0


class Flow:
    """The traffic in one direction since the broker's start."""

    __slots__ = ("_standings", "followers", "messages", "size")

    def __init__(self) -> None:
        self.messages = 0
        self.size = 0
        """Bytes of whole records, as stored."""
        self.followers = 0
        """Messages that were not the first of their call; a call of one message adds none."""
        self._standings: tuple[array[int], array[int], array[int]] | None = None

    def take(self, messages: int, size: int) -> None:
        """Count a call of one or more messages."""
        self.messages += messages
        self.size += size
        self.followers += messages - 1

    @property
    def calls(self) -> int:
        """The number of requests that carried the messages."""
        return self.messages - self.followers

    def note(self, now_ms: int, since_ms: int) -> None:
        """Note the standing; a new flow counts as 0 at `since_ms`."""
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
        """Return the difference to the oldest standing within the window."""
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
        """Add the counts of another flow."""
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
        """Beyond `flows_max` topics, or pairs of topic and group, new ones share `other`."""
        self.clock_ns = clock_ns
        self.all_put = Flow()
        """The sum over all topics, as of the last `sum_up`."""
        self.all_got = Flow()
        """The sum over all groups, likewise."""
        self.other = Flow()
        """The traffic of topics and groups beyond `flows_max`; not in the sums."""
        self.missed = 0
        """Pulls that were answered without a message."""
        self.refused: Counter[tuple[int, int]] = Counter()
        """Requests that were refused, by request code and response code."""
        self.send_durations = Durations()
        """From the first send of a turn to the turn's answers: an upper bound for each send."""
        self.pull_durations = Durations()
        """From a pull to its answer; held pulls are left out."""
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
        """Find or make the flow of the messages put into a topic."""
        return self._find(self._put, topic)

    def got_flow(self, topic: str, group: str) -> Flow:
        """Find or make the flow of the messages that a group gets from a topic."""
        return self._got.get((topic, group)) or self._find(self._got, (topic, group))

    def sent_back_flow(self, topic: str, group: str) -> Flow:
        """Find or make the flow of a topic's messages that a group has sent back."""
        return self._find(self._sent_back, (topic, group))

    def _find(self, flows: dict[K, Flow], key: K) -> Flow:
        flow = flows.get(key)
        if flow is None:
            if len(flows) >= self._flows_max:
                return self.other
            flow = flows[key] = Flow()
        return flow

    def forget_topic(self, topic: str) -> None:
        """Drop the flows of a deleted topic; the sums still count them."""
        if topic in self._put:
            self._gone_put.add(self._put.pop(topic))
        self._forget_got([key for key in self._got if key[0] == topic])

    def forget_group(self, group: str) -> None:
        """Drop the flows of a deleted group; the sums still count them."""
        self._forget_got([key for key in self._got if key[1] == group])

    def _forget_got(self, keys: Iterable[tuple[str, str]]) -> None:
        for key in keys:
            self._sent_back.pop(key, None)
            self._gone_got.add(self._got.pop(key))

    # Looking

    @property
    def put(self) -> Mapping[str, Flow]:
        """The flows of puts, by topic."""
        return self._put

    @property
    def got(self) -> Mapping[tuple[str, str], Flow]:
        """The flows of messages got, by topic and group."""
        return self._got

    @property
    def sent_back(self) -> Mapping[tuple[str, str], Flow]:
        """The flows of messages sent back, by topic and group."""
        return self._sent_back

    def tick(self, now_ms: int) -> None:
        """Note the standings of some flows: a slice of a round, which begins every `ROUND_MS`."""
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
        """Bring `all_put` and `all_got` up to date; takes a millisecond for 10,000 flows."""
        for total, gone, flows in (
            (self.all_put, self._gone_put, self._put.values()),
            (self.all_got, self._gone_got, self._got.values()),
        ):
            total.messages = gone.messages + sum([flow.messages for flow in flows])
            total.size = gone.size + sum([flow.size for flow in flows])
            total.followers = gone.followers + sum([flow.followers for flow in flows])
