"""What there is to read in a cluster, above all in one that is still starting."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cometmq.pipeline import bounds
from cometmq.pipeline.cluster import Bounds, Cluster, Queue, Survey
from cometmq.pipeline.errors import ConnectionLostError, DataLossError, OptionError
from cometmq.pipeline.options import ReadOptions, read_options
from cometmq.pipeline.routes import Brokers, Route
from cometmq.pipeline.wire import Answer, Settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class Starting(Cluster):
    """A name server with which the broker of some topics registers only after a few looks."""

    def __init__(self, topics: set[str], looks_before: int) -> None:
        super().__init__(["127.0.0.1:1"], Settings())
        self.topics = topics
        self.looks_before = looks_before

    def brokers(self) -> Brokers:
        if not self.looks_before:
            return Brokers(frozenset({"broker-a"}), frozenset({"127.0.0.1:2"}))
        self.looks_before -= 1
        return Brokers(frozenset(), frozenset())

    def bounds(self, topics: Sequence[str]) -> Survey:
        return Survey(topics=set() if self.looks_before else self.topics.intersection(topics))

    def topics_like(self, pattern: str) -> tuple[str, ...]:
        return tuple(each for each in self.topics if each == pattern and not self.looks_before)


def options_of(**more: str) -> ReadOptions:
    return read_options({"nameserver": "127.0.0.1:1", "fetchOffset.retryIntervalMs": "1", **more})


@pytest.mark.parametrize("which", [{"topic": "T"}, {"topicPattern": "T"}])
def test_a_name_server_without_brokers_is_asked_again(which: dict[str, str]) -> None:
    options = options_of(**which)
    assert bounds.survey(Starting({"T"}, 2), options, whole=False).topics == {"T"}
    with pytest.raises(ConnectionLostError, match=r"no broker has registered with .* yet"):
        bounds.survey(Starting({"T"}, 100), options, whole=False)


class Registering(Starting):
    """A cluster whose broker registers right after the first question about topics."""

    def bounds(self, topics: Sequence[str]) -> Survey:
        found = super().bounds(topics)
        self.looks_before = 0
        return found

    def topics_like(self, pattern: str) -> tuple[str, ...]:
        found = super().topics_like(pattern)
        self.looks_before = 0
        return found


@pytest.mark.parametrize("which", [{"topic": "T"}, {"topicPattern": "T"}, {"topic": "T,U"}])
def test_a_topic_whose_broker_registers_between_two_questions_is_there(
    which: dict[str, str],
) -> None:
    """At the first question the name server had just started, and knew no broker."""
    options = options_of(**which)
    found = bounds.survey(Registering({"T", "U"}, 1), options, whole=True)
    assert found.topics >= {"T", *options.topics}


def test_a_broker_is_asked_once_for_all_topics_and_one_that_says_nothing_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each question may take the whole timeout, and a pattern may match a thousand topics."""
    addresses = {"a": "127.0.0.1:1", "b": "127.0.0.1:2"}
    asked: list[tuple[str, int]] = []

    def ask_all(
        _: Cluster, address: str, _code: int, requests: Sequence[Mapping[str, str]]
    ) -> list[Answer]:
        asked.append((address, len(requests)))
        if address == addresses["a"]:
            raise ConnectionLostError("timed out")
        return [Answer(0, 0, "", {}, b"") for _each in requests]

    def routes(_: Cluster, topics: Sequence[str]) -> dict[str, Route]:
        return {topic: Route(addresses, {"a": 4, "b": 4}) for topic in topics}

    monkeypatch.setattr(Cluster, "ask_all", ask_all)
    monkeypatch.setattr(Cluster, "routes", routes)
    found = Cluster(["127.0.0.1:3"], Settings()).bounds(["T", "U", "V"])
    assert asked == [(addresses["a"], 3), (addresses["b"], 3)]
    assert (found.topics, set(found.missing)) == ({"T", "U", "V"}, {"a"})


def test_a_topic_that_the_brokers_do_not_have_is_not_there() -> None:
    options = options_of(topic="T")
    found = bounds.survey(Starting({"U"}, 0), options, whole=True)
    with pytest.raises(OptionError, match="no such topic"):
        bounds.require_topics(found, options)


def test_a_topic_that_nobody_may_read_is_not_taken_for_one_without_messages() -> None:
    options = options_of(topic="T")
    found = bounds.survey(Starting({"T"}, 0), options, whole=True)
    with pytest.raises(OptionError, match="topic: T: none of its brokers allows reading"):
        bounds.require_topics(found, options)


class Filled(Cluster):
    """A cluster with one queue, which begins at 5 and ends at 9.

    A group has committed 7, and the message of a time has the same number as the time.
    """

    def __init__(self) -> None:
        super().__init__(["127.0.0.1:1"], Settings())

    def bounds(self, topics: Sequence[str]) -> Survey:
        queues = {Queue(topic, "a", 0): Bounds(5, 9) for topic in topics}
        return Survey(queues, {"a": "127.0.0.1:2"}, set(topics))

    def committed(
        self, group: str, queues: Iterable[Queue], addresses: Mapping[str, str]
    ) -> dict[Queue, int]:
        assert addresses == {"a": "127.0.0.1:2"}
        return dict.fromkeys(queues, 7) if group == "seven" else {}

    def offsets_at(
        self, queues: Iterable[Queue], addresses: Mapping[str, str], time_ms: int
    ) -> dict[Queue, int]:
        assert addresses == {"a": "127.0.0.1:2"}
        return dict.fromkeys(queues, time_ms) if time_ms else {}


def wanted_of_filled(**given: str) -> tuple[int, int]:
    options = options_of(topic="T", **given)
    found = bounds.survey(Filled(), options, whole=True)
    return bounds.wanted(Filled(), options, found)[Queue("T", "a", 0)]


@pytest.mark.parametrize(
    ("given", "begin"),
    [
        ({}, 5),
        ({"startingOffsets": "earliest"}, 5),
        ({"startingOffsets": "latest"}, 9),
        ({"startingOffsets": "group:seven"}, 7),
        ({"startingOffsets": "{}"}, 5),
        *(
            ({"startingOffsets": f'{{"T": {{"0": {said}}}}}'}, begin)
            for said, begin in {-2: 5, -1: 9, 5: 5, 6: 6, 9: 9}.items()
        ),
        *(({"startingTimestamp": str(said)}, begin) for said, begin in {4: 5, 6: 6, 10: 9}.items()),
        ({"startingTimestamp": "0"}, 9),
    ],
)
def test_reading_begins_where_it_is_said(given: dict[str, str], begin: int) -> None:
    assert wanted_of_filled(**given) == (begin, 9)


@pytest.mark.parametrize(
    ("given", "end"),
    [
        ({"endingOffsets": "latest"}, 9),
        ({"endingOffsets": "group:seven"}, 7),
        ({"endingOffsets": "{}"}, 9),
        *(
            ({"endingOffsets": f'{{"T": {{"0": {said}}}}}'}, end)
            for said, end in {-2: 5, -1: 9, 5: 5, 8: 8, 9: 9}.items()
        ),
        *(({"endingTimestamp": str(said)}, end) for said, end in {4: 5, 6: 6, 10: 9}.items()),
        ({"endingTimestamp": "0"}, 9),
    ],
)
def test_reading_ends_where_it_is_said(given: dict[str, str], end: int) -> None:
    assert wanted_of_filled(**given) == (5, end)


def test_an_end_before_the_beginning_is_refused_except_between_times() -> None:
    with pytest.raises(OptionError, match="would end at 6, before 7, where it begins"):
        wanted_of_filled(startingOffsets="group:seven", endingOffsets='{"T": {"0": 6}}')
    assert wanted_of_filled(startingOffsets="group:seven", endingTimestamp="6") == (7, 6)
    with pytest.raises(OptionError, match="earliest would read nothing"):
        wanted_of_filled(endingOffsets="earliest")
    with pytest.raises(OptionError, match="group 'other' has no offset in T"):
        wanted_of_filled(startingOffsets="group:other")


@pytest.mark.parametrize(
    ("option", "offset", "does", "nearest"),
    [
        ("startingOffsets", 4, "begins", 5),
        ("startingOffsets", 10, "begins", 9),
        ("endingOffsets", 10, "ends", 9),
    ],
)
def test_an_offset_that_is_not_there_is_told_with_the_one_that_would_be_taken(
    option: str, offset: int, does: str, nearest: int, caplog: pytest.LogCaptureFixture
) -> None:
    def reached(**more: str) -> Bounds:
        options = options_of(topic="T", **{option: f'{{"T": {{"0": {offset}}}}}'}, **more)
        found = bounds.survey(Filled(), options, whole=True)
        return bounds.wanted(Filled(), options, found)[Queue("T", "a", 0)]

    said = f"reading {does} at {nearest}"
    with pytest.raises(DataLossError, match=rf"from 5 to 9\. With failOnDataLoss=false {said}$"):
        reached()
    read = reached(failOnDataLoss="false")
    assert (read.first if does == "begins" else read.end) == nearest
    assert caplog.messages[-1].endswith(f"; {said}")


def test_a_broker_that_says_nothing_is_an_error_where_all_is_to_be_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = read_options({"nameserver": "a:1", "topic": "T", "fetchoffset.numretries": "0"})
    cluster = options.cluster()
    queues = {Queue("T", "b", 0): Bounds(0, 1)}

    def found(_topics: Sequence[str]) -> Survey:
        return Survey(dict(queues), {}, {"T"}, {"a": ConnectionLostError("a is away")})

    monkeypatch.setattr(cluster, "bounds", found)
    assert bounds.survey(cluster, options, whole=False).queues == queues
    with pytest.raises(ConnectionLostError, match="a is away"):
        bounds.survey(cluster, options, whole=True)
    queues.clear()
    with pytest.raises(ConnectionLostError, match="a is away"):
        bounds.survey(cluster, options, whole=False)
