"""Whether what a replay read, and the topic that it wrote to, are still the same, without Spark."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest
from tests.pipeline.store.logs import write_log

from cometmq.pipeline.cluster import Queue
from cometmq.pipeline.errors import OptionError, PipelineError
from cometmq.pipeline.jobs.replay_notes import Notes, Target
from cometmq.pipeline.jobs.replay_sources import StoreSource
from cometmq.pipeline.offsets import First
from cometmq.pipeline.store.splits import look

if TYPE_CHECKING:
    from pathlib import Path

    from cometmq.testing import Cluster

pytestmark = pytest.mark.usefixtures("no_connection_is_kept")


def written(cluster: Cluster, topic: str, *, queues: int = 2) -> Target:
    """Create a topic, send a message to each of its queues, and return it as a target."""
    cluster.admin.create_topic(topic, queues=queues)
    for queue in cluster.client.queues(topic):
        cluster.send(topic, b"x", queue=queue)
    return Target({"nameserver": cluster.nameserver}, topic)


def test_a_topic_is_the_same_as_long_as_it_has_what_was_sent(rocketmq_session: Cluster) -> None:
    target = written(rocketmq_session, "noted")
    firsts = target.firsts()
    assert {(queue.broker, queue.id, first.offset) for queue, first in firsts.items()} == {
        ("broker-a", 0, 0),
        ("broker-a", 1, 0),
    }
    rocketmq_session.send("noted", b"y")
    assert not target.is_other(firsts)
    assert not target.is_other({})


def test_of_a_topic_that_nobody_may_read_and_of_brokers_that_are_away_nothing_is_known(
    rocketmq_session: Cluster,
) -> None:
    target = written(rocketmq_session, "noted-away")
    firsts = target.firsts()
    elsewhere = {Queue("noted-empty", "broker-z", 0): First(0, 1)}
    rocketmq_session.admin.create_topic("noted-empty", queues=1)
    assert not Target({"nameserver": rocketmq_session.nameserver}, "noted-empty").is_other(
        elsewhere
    )
    rocketmq_session.admin.create_topic("noted-away", queues=2, permission="w")
    assert not target.is_other(firsts)


@pytest.mark.parametrize("queues", [1, 4])
@pytest.mark.parametrize("count", [0, 9])
def test_a_topic_that_was_made_anew_is_another(
    rocketmq_session: Cluster, queues: int, count: int
) -> None:
    topic = f"noted-anew-{queues}-{count}"
    target = written(rocketmq_session, topic)
    firsts = target.firsts()
    rocketmq_session.admin.delete_topic(topic)
    with pytest.raises(PipelineError, match=f"to-topic: {topic}, to which an earlier run"):
        target.is_other(firsts)
    rocketmq_session.admin.create_topic(topic, queues=queues)
    for _ in range(count):
        rocketmq_session.send(topic, b"z")
    assert target.is_other(firsts)


def test_a_topic_that_lacks_the_queues_that_were_written_to_is_another_unless_they_are_hidden(
    rocketmq_session: Cluster,
) -> None:
    cluster = rocketmq_session
    cluster.admin.create_topic("noted-lower", queues=4)
    last = max(cluster.client.queues("noted-lower"), key=lambda queue: queue.id)
    cluster.send("noted-lower", b"x", queue=last)
    target = Target({"nameserver": cluster.nameserver}, "noted-lower")
    firsts = target.firsts()
    cluster.admin.create_topic("noted-lower", queues=2)
    cluster.send("noted-lower", b"y")
    assert not target.is_other(firsts)  # It was given fewer queues.
    cluster.admin.delete_topic("noted-lower")
    cluster.admin.create_topic("noted-lower", queues=2)
    cluster.send("noted-lower", b"z")
    assert target.is_other(firsts)


@pytest.mark.parametrize(
    ("bodies", "expired", "is_other"),
    [
        ([b"one"] * 90, 0, False),
        ([b"one"] * 99, 0, False),
        ([b"one"] * 99, 1, False),
        ([b"two"] * 99, 0, True),
        ([b"other"] * 99, 0, True),
        ([b"two"] * 200, 4, False),  # Of what has expired nobody can tell.
        ([b"two"] * 50, 0, True),  # It may go on behind what was replayed.
        ([], 0, True),
        ([b"one"], 0, False),
        ([b"two"], 0, True),  # Of which the first record was the last one.
    ],
)
def test_a_store_is_another_if_it_has_another_record_where_the_log_ended(
    tmp_path: Path, bodies: list[bytes], expired: int, is_other: bool
) -> None:
    nothing: Any = None

    def store(name: str) -> StoreSource:
        path = str(tmp_path / name)
        return StoreSource(nothing, path, "T", "broker-a", "*", "fail", look(path))

    write_log(tmp_path / "before", [b"one"] * (90 if len(bodies) != 1 else 1))
    write_log(tmp_path / "now", bodies)
    for file in sorted((tmp_path / "now" / "commitlog").iterdir())[:expired]:
        file.unlink()
    notes = Notes(nothing, "to-t", "store:newest#T", "", nothing, "queue")
    notes.require_source(store("before"))
    refused = pytest.raises(OptionError, match="another archive or store that was at this place")
    with refused if is_other else nullcontext():
        notes.require_source(store("now"))
