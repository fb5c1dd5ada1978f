"""What a stream makes of a moment in which servers do not agree, or one of them says nothing.

Each was found by `test_stream_simulated`, as messages that were lost, or read twice.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.pipeline.simulated import World
from tests.pipeline.simulated_query import BODY, Told, simulate
from tests.pipeline.simulated_rows import rows_of
from tests.pipeline.simulated_servers import Registration

from cometmq.pipeline import gone_topics, nameservers, stream_source
from cometmq.pipeline.cluster import GET_EARLIEST_MSG_STORETIME, Bounds, Cluster, Queue, Survey
from cometmq.pipeline.errors import ConnectionLostError
from cometmq.pipeline.offsets import StreamOffset
from cometmq.pipeline.options import ReadOptions, read_options
from cometmq.pipeline.routes import Brokers
from cometmq.pipeline.stream_source import TopicStreamReader
from cometmq.pipeline.wire import Settings

if TYPE_CHECKING:
    from collections.abc import Set

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]

ALL: Final = ReadAllAvailable()
Document = dict[str, Any]


class Stream:
    """A stream of a sound cluster, which has planned a batch of all its messages."""

    def __init__(self, world: World, told: Told) -> None:
        self.world, self.told = world, told
        reader = self.reader()
        self.start = through_json(reader.initialOffset())
        self.end = through_json(reader.latestOffset(self.start, ALL))

    def reader(self, **options: str) -> TopicStreamReader:
        """Make the reader of another run."""
        servers = ";".join(self.world.nameservers)
        given = {"nameserver": servers, "topicPattern": "T.*", "failOnDataLoss": "false"}
        given |= {"retries": "1", "retryIntervalMs": "1"}
        given |= options or {"startingOffsets": "earliest"}
        return TopicStreamReader(read_options(given), BODY)

    def repeated(self) -> int:
        """Return how many messages the batch has if another run repeats it."""
        reader = self.reader()
        tasks = [part.value[0] for part in reader.partitions(self.start, self.end)]
        return len(rows_of(self.world, tasks, reader.executing.how))


def through_json(offset: Document) -> Document:
    said: Document = json.loads(json.dumps(offset))
    return said


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Stream:
    world = World.sound(T1=3, T2=4)
    told = simulate(world, monkeypatch)
    asked = {tuple(world.nameservers): [*world.nameservers]}
    monkeypatch.setattr(nameservers, "_orders", asked)
    return Stream(world, told)


def test_a_batch_waits_for_a_slave_that_is_behind(stream: Stream) -> None:
    broker = stream.world.brokers["b"]
    broker.lag = 1
    stream.world.announce()
    with pytest.raises(ConnectionLostError, match=r"T1/b/0: a batch ends at 3, but only a slave"):
        stream.repeated()
    broker.lag = 0
    assert stream.repeated() == 14


def test_a_topic_that_one_name_server_does_not_know_is_not_lost_if_another_does(
    stream: Stream,
) -> None:
    """It may not have heard of the topic yet, but of the broker."""
    behind = stream.world.nameservers["ns0:9"]
    for broker in ("a", "b"):
        behind.known[broker] = Registration("0", {"T1": (1, 1, True)})
    assert stream.repeated() == 14
    assert stream.told.texts == []
    stream.world.nameservers["ns1:9"].known.update(behind.known)
    assert stream.repeated() == 6
    assert stream.told.texts == ["data loss: topic T2 no longer exists"]


class Knowing(Cluster):
    """Name servers: which brokers one knows at first, the one asked last, and what others have."""

    def __init__(self, first: str, last: str, others: set[tuple[str, str]]) -> None:
        super().__init__(["127.0.0.1:1"], Settings())
        self.first, self.last, self.others = first, last, others

    def brokers(self) -> Brokers:
        return Brokers(frozenset(self.first), frozenset())

    def known(self) -> frozenset[str]:
        return frozenset(self.last)

    def having(self, parts: Set[tuple[str, str]]) -> set[tuple[str, str]]:
        return self.others & parts


@pytest.mark.parametrize(
    ("first", "last", "others", "expected"),
    [
        ("ab", "ab", set[tuple[str, str]](), ""),
        ("a", "ab", set[tuple[str, str]](), "b"),  # It registers in between.
        ("ab", "a", set[tuple[str, str]](), "b"),  # Another one answers, which knows fewer.
        ("ab", "ab", {("T", "b"), ("V", "a")}, "b"),
        ("", "", set[tuple[str, str]](), "ab"),
    ],
)
def test_a_topic_is_lost_only_if_its_broker_is_known_all_the_time_and_nobody_knows_the_topic(
    first: str, last: str, others: set[tuple[str, str]], expected: str
) -> None:
    before = StreamOffset({Queue("T", "b", 0): 3, Queue("U", "a", 0): 4})
    found, away = gone_topics.away_for_certain(
        Knowing(first, last, others),
        ReadOptions(topic_pattern="."),
        before,
        lambda: Survey(addresses={"b": "127.0.0.1:2"}),
        is_repeated=True,
    )
    assert not found.topics
    assert away == {*expected}


def test_nothing_is_read_of_a_broker_before_it_is_known_whether_its_topics_are_others(
    stream: Stream,
) -> None:
    """The messages of a recreated topic would be read from the middle, and then from the start."""
    world = stream.world
    world.delete("b", "T1")
    world.create("b", "T1", 1)
    world.store(world.lives[-1], 8)
    world.busy_with = {GET_EARLIEST_MSG_STORETIME}
    with pytest.raises(ConnectionLostError, match="broker a: did not say when its first messages"):
        stream.repeated()
    reader = stream.reader()
    assert reader.latestOffset(stream.end, ALL) == stream.end
    said = "did not say when its first messages were stored; its queues wait"
    assert stream.told.texts == [f"broker a: {said}", f"broker b: {said}"]
    world.busy_with = set()
    end = through_json(reader.latestOffset(stream.end, ALL))
    assert (end["from"], end["queues"]["T1"]["b"]) == ({"T1": {"b": {"0": 0}}}, {"0": 8})


def test_a_broker_that_is_silent_when_a_batch_is_repeated_may_have_another_topic(
    stream: Stream,
) -> None:
    stream.world.brokers["b"].is_up = False
    with pytest.raises(ConnectionLostError, match="no connection to b:0"):
        stream.reader().partitions(stream.start, stream.end)


def test_a_stream_may_begin_by_time_when_a_broker_registers(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its queues that cannot be read are seen, but its address was not."""
    late = Queue("T1", "c", 0)

    def unread(*_: object) -> dict[Queue, Bounds]:
        return {late: Bounds(0, 3)}

    monkeypatch.setattr(stream_source, "unread", unread)
    start = stream.reader(startingTimestamp="0").initialOffset()
    assert start["queues"]["T1"] == {"a": {"0": 0}, "b": {"0": 0}}


@pytest.mark.parametrize("is_hidden", [True, False])
def test_a_topic_is_known_again_that_could_not_be_read_when_the_stream_began(
    stream: Stream, is_hidden: bool
) -> None:
    """Or that only a slave had: else a recreated one would be read from where the old one stood."""
    world = stream.world
    broker = world.brokers["b"]
    if is_hidden:
        broker.topics["T1"].is_readable = False
    else:
        broker.lag = 0
    world.announce()
    reader = stream.reader(startingOffsets="latest")
    end = through_json(reader.latestOffset(through_json(reader.initialOffset()), ALL))
    assert end["queues"]["T1"]["b"] == {"0": 3}
    broker.lag = None
    world.delete("b", "T1")
    world.create("b", "T1", 1)
    world.store(world.lives[-1], 8)
    world.announce()
    following = stream.reader().latestOffset(end, ALL)
    assert following["from"]["T1"]["b"] == {"0": 0}
    assert "data loss: topic T1 of broker b was deleted and recreated" in stream.told.texts[-1]


def test_a_first_batch_without_messages_has_none_when_it_is_repeated(stream: Stream) -> None:
    """It ends where the stream begins, and a slave that is behind begins earlier at `latest`."""
    reader = stream.reader(startingOffsets="latest")
    end = through_json(reader.initialOffset())
    stream.world.brokers["b"].lag = 2
    stream.world.announce()
    again = stream.reader(startingOffsets="latest")
    start = through_json(again.initialOffset())
    assert start["queues"]["T1"]["b"]["0"] < end["queues"]["T1"]["b"]["0"]
    assert again.partitions(start, end) == []
