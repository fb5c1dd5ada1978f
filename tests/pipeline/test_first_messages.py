"""Which first messages show that a topic is another one, at each border and without Spark."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cometmq.pipeline.cluster import Bounds, Cluster, Queue, Survey
from cometmq.pipeline.errors import BusyError, ConnectionLostError, RefusedError
from cometmq.pipeline.first_messages import Looked, begins_otherwise, look as looked_at, look_at_all
from cometmq.pipeline.offsets import First
from cometmq.pipeline.options import ReadOptions
from cometmq.pipeline.wire import Settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Q0, Q1, Q2, OTHER = (*(Queue("T", "a", number) for number in range(3)), Queue("U", "a", 0))
PART = ("T", "a")
OPTIONS = ReadOptions(retries=2, retry_interval_ms=1)
OTHERS = frozenset({PART})


class Answering(Cluster):
    """Brokers that say when first messages were stored, and which offsets hidden queues have."""

    def __init__(self, found: Survey, stored: Mapping[Queue, int] | Exception) -> None:
        super().__init__(["127.0.0.1:1"], Settings())
        self.found = found
        self.stored = stored
        self.asked: list[Queue] = []

    def bounds(self, topics: Sequence[str]) -> Survey:
        assert topics == ["T"]
        return self.found

    def stored_first(
        self, queues: Iterable[Queue], addresses: Mapping[str, str]
    ) -> dict[Queue, int]:
        assert addresses == {"a": "127.0.0.1:2"}
        self.asked = list(queues)
        if isinstance(self.stored, Exception):
            raise self.stored
        return {queue: self.stored[queue] for queue in self.asked}

    def spans(self, queues: Sequence[Queue], addresses: Mapping[str, str]) -> dict[Queue, Bounds]:
        assert addresses == {"a": "127.0.0.1:2"}
        return dict.fromkeys(queues, Bounds(2, 9))


def look(
    cluster: Cluster, before: Mapping[Queue, First], found: Survey, news: Iterable[Queue]
) -> Looked:
    return looked_at(cluster, before, found, news, OPTIONS)


def there(queues: Mapping[Queue, tuple[int, int]], slaves: set[str] | None = None) -> Survey:
    bounds = {queue: Bounds(*each) for queue, each in queues.items()}
    return Survey(bounds, {"a": "127.0.0.1:2"}, {"T"}, slaves=slaves or set())


@pytest.mark.parametrize(
    ("noted", "now", "is_other"),
    [
        (First(5, 1000), First(5, 1000), False),
        (First(5, 1000), First(5, 999), True),
        (First(5, 1000), First(5, 1001), True),
        (First(5, 0), First(5, 1), True),
        (First(5, 1000), First(4, 1001), True),
        (First(5, 1000), First(4, 1000), False),
        (First(5, 1000), First(6, 9000), False),
        (First(5, -1000), First(5, 1001), False),
        (First(5, -1000), First(4, 1001), True),
        (First(5, -1000), First(4, 1000), False),
    ],
)
def test_first_messages_are_compared_as_far_as_that_says_anything(
    noted: First, now: First, is_other: bool
) -> None:
    found = there({Q0: (now.offset, 20)})
    answering = Answering(found, {Q0: now.stored_ms})
    looked = look(answering, {Q0: noted}, found, [Q0])
    assert looked == Looked({Q0: now}, OTHERS if is_other else frozenset())
    assert begins_otherwise(answering, Q0, noted, found) == is_other
    of_slave = replace(found, slaves={"a"})
    assert look(Answering(of_slave, {}), {Q0: noted}, of_slave, [Q0]) == Looked({}, frozenset())


def test_a_first_message_that_expired_between_two_answers_is_not_noted() -> None:
    found = there({Q0: (5, 20)})
    for again in (there({Q0: (6, 20)}), there({})):
        looked = look(Answering(again, {Q0: 2000}), {Q0: First(5, 1000)}, found, [Q0])
        assert looked == Looked({}, frozenset())


@pytest.mark.parametrize(
    ("noted", "end", "is_other"),
    [
        (First(5, 1000), 5, True),
        (First(5, 1000), 6, False),
        (First(5, 0), 5, True),
        (First(5, -1000), 4, True),
        (First(5, -1000), 5, False),
    ],
)
def test_a_queue_that_ends_before_its_noted_first_message_is_another(
    noted: First, end: int, is_other: bool
) -> None:
    found = there({Q0: (end, end), OTHER: (0, 3)})
    looked = look(Answering(found, {}), {Q0: noted}, found, [Q0])
    assert looked == Looked({}, OTHERS if is_other else frozenset())
    assert look(Answering(found, {}), {Q0: noted}, found, []).other == frozenset()
    found.slaves.add("a")
    assert look(Answering(found, {}), {Q0: noted}, found, [Q0]).other == frozenset()
    filled = there({Q0: (end, end), Q1: (0, 1)})
    looked = look(Answering(filled, {Q1: 2000}), {Q0: noted}, filled, [Q1])
    assert looked == Looked({Q1: First(0, 2000)}, OTHERS if is_other else frozenset())


def test_the_noted_queue_and_the_lowest_with_messages_are_asked_and_the_lowest_is_noted() -> None:
    found = there({Q2: (3, 9), Q1: (4, 8), Q0: (7, 7), OTHER: (0, 5)})
    answering = Answering(found, {Q1: 1000, Q2: 500})
    looked = look(answering, {Q2: First(3, 500)}, found, [Q2])
    assert answering.asked == [Q1, Q2]
    assert looked == Looked({Q1: First(4, 1000)}, frozenset())
    assert look(answering, {Q2: First(3, 400)}, found, [Q2]).other == OTHERS
    before = {Q2: First(3, 500), OTHER: First(0, 1)}
    assert looked.kept(before) == {Q1: First(4, 1000), OTHER: First(0, 1)}
    assert Looked({}, OTHERS).kept(before) == {OTHER: First(0, 1)}


def test_a_noted_queue_that_is_not_readable_now_is_asked_all_the_same() -> None:
    found = there({Q0: (0, 9)})
    answering = Answering(found, {Q0: 1000, Q1: 3000})
    before = {Q1: First(2, 1500), OTHER: First(0, 1)}
    assert look(answering, before, found, [Q0]) == Looked({Q0: First(0, 1000)}, OTHERS)
    assert answering.asked == [Q0, Q1]


def test_where_all_messages_have_expired_the_offset_and_the_time_are_noted() -> None:
    found = there({Q1: (4, 4), Q0: (6, 6)})
    (noted,) = look(Answering(found, {}), {}, found, [Q1, Q0]).now.items()
    assert noted[0] == Q0
    assert noted[1].offset == 6
    assert noted[1].stored_ms < -1_700_000_000_000
    one = there({Q0: (1, 1)})
    assert look(Answering(one, {}), {}, one, [Q0]).now[Q0].offset == 1
    for other in (there({Q0: (0, 0)}), there({Q0: (6, 6)}, {"a"})):
        assert look(Answering(other, {}), {}, other, [Q0]).now == {}
    assert look(Answering(found, {}), {Q1: First(2, 1000)}, found, [Q0]).now == {}
    filled = there({Q0: (6, 6), Q1: (3, 4)})
    assert look(Answering(filled, {Q1: 9}), {}, filled, [Q0]).now == {Q1: First(3, 9)}


def test_no_answer_says_nothing_but_to_who_asks_only_once() -> None:
    found = there({Q0: (5, 20)})
    refusing = Answering(found, RefusedError("127.0.0.1:2", 1, "damaged"))
    assert look(refusing, {Q0: First(5, 1000)}, found, [Q0]) == Looked({}, frozenset())
    assert not begins_otherwise(refusing, Q0, First(5, 1000), found)
    busy = Answering(found, BusyError("127.0.0.1:2", 2, "later"))
    with pytest.raises(BusyError):
        begins_otherwise(busy, Q0, First(5, 1000), found)


def test_of_a_broker_that_is_busy_nothing_is_known_and_it_is_named() -> None:
    """Its topic may be another one, of which nothing must be read before that is known."""
    found = there({Q0: (5, 20)})
    busy = Answering(found, BusyError("127.0.0.1:2", 2, "later"))
    before = {Q0: First(5, 1000)}
    assert look(busy, before, found, [Q0]) == Looked({}, frozenset(), frozenset({"a"}))
    assert look(busy, before, found, []) == Looked({}, frozenset())
    with pytest.raises(ConnectionLostError, match="broker a: did not say when its first messages"):
        look_at_all(busy, before, found, [Q0], OPTIONS)


@pytest.mark.parametrize("is_missing", [True, False])
def test_a_broker_that_is_away_at_the_second_question_is_named_too(is_missing: bool) -> None:
    """As when the name server has just started again: whether the topic is another is not known."""
    found = there({Q0: (0, 20)})
    again = Survey(topics={"T"})
    if is_missing:
        again = replace(found, queues={}, missing={"a": ConnectionLostError("away")})
    answering = Answering(again, {Q0: 2000})
    assert look(answering, {Q0: First(0, 1000)}, found, [Q0]).silent == {"a"}
