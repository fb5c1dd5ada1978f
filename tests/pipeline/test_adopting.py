"""Where a new checkpoint continues an archive, at each border and mostly without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.pipeline.test_first_messages import Q0, Q1, Q2, Answering, there

from cometmq.pipeline.cluster import Queue
from cometmq.pipeline.jobs import adopting
from cometmq.pipeline.jobs.adopting import GoingOn, going_on, last_messages
from cometmq.pipeline.jobs.hidden_queues import Looked
from cometmq.pipeline.jobs.streams import StreamSettings
from cometmq.pipeline.offsets import First

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import SparkSession

    from cometmq.pipeline.cluster import Survey

SETTINGS = StreamSettings(nameserver="127.0.0.1:1", topic="T", checkpoint="c")
LAST = First(4, 1000)
AWAY = Queue("T", "away", 0)


def found_to_go_on(
    monkeypatch: pytest.MonkeyPatch,
    reached: Mapping[Queue, int],
    last: Mapping[Queue, First],
    found: Survey,
    hidden: Survey | None = None,
) -> GoingOn:
    cluster = Answering(found, dict.fromkeys((Q0, Q1, Q2), 900))
    asked: list[Queue] = []

    def looked(_: StreamSettings, queues: Iterable[Queue]) -> Looked:
        asked.extend(queues)
        return Looked(cluster, found, hidden or there({}), [AWAY])

    monkeypatch.setattr(adopting, "look", looked)
    going = going_on(SETTINGS, reached, last)
    assert going.away == [AWAY]
    assert asked == [queue for queue, end in reached.items() if end > 0]
    return going


@pytest.mark.parametrize(
    ("end", "last", "slaves", "is_lost"),
    [
        (8, LAST, "", False),
        (5, LAST, "", False),
        (4, LAST, "", True),
        (4, LAST, "a", False),  # A slave may lag.
        (8, First(4, 800), "", True),  # The first message is a later one.
        (8, None, "", False),
        (4, None, "", True),
    ],
)
def test_a_queue_that_has_other_messages_now_is_not_continued(
    monkeypatch: pytest.MonkeyPatch, end: int, last: First | None, slaves: str, is_lost: bool
) -> None:
    lasts = {} if last is None else {Q0: last, Q1: last}
    reached = {Q1: 5, Q0: 5, Q2: 0}
    found = there({Q0: (0, end), Q2: (0, end)}, {*slaves})
    going = found_to_go_on(monkeypatch, reached, lasts, found)
    assert going.starts == ({Q2: 0} if is_lost else {Q0: 5, Q2: 0})
    assert (going.hidden, len(going.lost)) == ({}, int(is_lost))
    hidden = there({Q1: (2, end)}, {*slaves})
    going = found_to_go_on(monkeypatch, reached, lasts, there({}), hidden)
    assert (going.starts, going.lost) == ({}, [])
    assert going.hidden == ({} if is_lost else {Q1: 5})


def test_the_first_of_several_queues_is_named_first(monkeypatch: pytest.MonkeyPatch) -> None:
    queues = [Queue("T", "a", number) for number in range(9)]
    found = there(dict.fromkeys(queues, (0, 4)))
    lost = found_to_go_on(monkeypatch, dict.fromkeys(queues, 5), {}, found).lost
    assert [each.partition(":")[0] for each in lost] == [f"queue {queue}" for queue in queues]
    assert "queue T/a/0: the archive has it up to 5, but now it has other messages" in lost[0]


@pytest.mark.spark
def test_the_last_message_of_a_queue_is_that_of_its_later_life(spark: SparkSession) -> None:
    rows = spark.sql(
        "SELECT 'T' AS topic, 'a' AS broker, queue_id, batch, queue_offset,"
        " timestamp_millis(stored) AS store_time FROM VALUES (0, 1, 9L, 1000L), (0, 2, 3L, 2000L),"
        " (0, 2, 4L, 2001L), (0, 3, 5L, NULL), (1, 1, 7L, 3000L), (2, 1, 1L, NULL)"
        " AS rows(queue_id, batch, queue_offset, stored)"
    )
    assert last_messages(rows) == {Q0: First(4, 2001), Q1: First(7, 3000)}
