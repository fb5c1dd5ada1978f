"""Whether the topic that a replay wrote to is still the same, without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cometmq.pipeline.cluster import Queue
from cometmq.pipeline.errors import PipelineError
from cometmq.pipeline.jobs.replay_notes import Target
from cometmq.pipeline.offsets import First

if TYPE_CHECKING:
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
