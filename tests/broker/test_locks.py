"""Locks decide which client consumes a queue in order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.broker.captured import beat
from tests.broker.running import config_of
from tests.broker.test_heartbeats import notices
from tests.broker.wired import Wired, WiredPeer

from cometmq.proto.bodies import ConsumerData, LockBatch, LockedQueues, MessageQueue, TopicConfig
from cometmq.proto.codes import RequestCode as Code
from cometmq.proto.command import Command

QUEUES = tuple(MessageQueue(broker_name="broker-a", queue_id=n, topic="T") for n in range(3))


@pytest.fixture
def wired(tmp_path: Path) -> Iterator[Wired]:
    wired = Wired(config_of(tmp_path, listen_port=21911, locks_max=4))
    wired.broker.state.topics.put(TopicConfig(topic_name="T"), 0)
    yield wired
    wired.close()


def ask(
    wired: Wired, peer: WiredPeer, code: Code, client: str, *queues: int, group: str = "g"
) -> Command:
    body = LockBatch(
        client_id=client, consumer_group=group, mq_set=tuple(QUEUES[number] for number in queues)
    )
    answer = wired.ask(peer, Command.request(code, body=body.encode()))
    assert answer.code == 0
    return answer


def lock(wired: Wired, peer: WiredPeer, client: str, *queues: int, group: str = "g") -> set[int]:
    answer = ask(wired, peer, Code.LOCK_BATCH_MQ, client, *queues, group=group)
    return {queue.queue_id for queue in LockedQueues.decode(answer.body).lock_ok_mq_set}


def join(wired: Wired, client: str) -> WiredPeer:
    peer = wired.connect()
    beat(wired, peer, client, (ConsumerData(group_name="g"),))
    wired.events(peer)
    return peer


def test_a_queue_has_one_holder_in_a_group(wired: Wired) -> None:
    one, two = wired.connect(), wired.connect()
    assert lock(wired, one, "c1", 0, 1) == {0, 1}
    assert lock(wired, two, "c2", 1, 2) == {2}
    assert lock(wired, two, "c2", 1, group="other") == {1}
    assert lock(wired, one, "c1", 0, 1) == {0, 1}


def test_a_queue_that_is_given_back_is_free(wired: Wired) -> None:
    one, two = wired.connect(), wired.connect()
    lock(wired, one, "c1", 0, 1)
    ask(wired, two, Code.UNLOCK_BATCH_MQ, "c2", 0)
    assert lock(wired, two, "c2", 0) == set()
    ask(wired, one, Code.UNLOCK_BATCH_MQ, "c1", 0)
    assert lock(wired, two, "c2", 0, 1) == {0}


def test_who_was_refused_a_queue_hears_of_it_when_the_holder_gives_it_back(wired: Wired) -> None:
    """Otherwise it would ask again 20 s later. A group is told nothing if nobody was refused."""
    one, two, other = join(wired, "c1"), join(wired, "c2"), join(wired, "c3")
    lock(wired, one, "c1", 0, 1)
    assert lock(wired, two, "c2", 1) == set()
    for peer in (one, two, other):
        wired.events(peer)
    ask(wired, one, Code.UNLOCK_BATCH_MQ, "c1", 0)
    assert notices(wired, two) == [], "nobody wanted that queue"
    ask(wired, two, Code.UNLOCK_BATCH_MQ, "c2", 1)
    assert notices(wired, other) == [], "it was not the holder"
    ask(wired, one, Code.UNLOCK_BATCH_MQ, "c1", 1)
    assert notices(wired, two) == ["g"]
    assert lock(wired, two, "c2", 1) == {1}
    ask(wired, two, Code.UNLOCK_BATCH_MQ, "c2", 1)
    assert notices(wired, other) == ["g"], "once: nobody has wanted it since"


def test_a_lock_that_is_not_renewed_ends(wired: Wired) -> None:
    one, two = wired.connect(), wired.connect()
    lock(wired, one, "c1", 0, 1)
    wired.now_ms += 40_000
    lock(wired, one, "c1", 1)
    wired.now_ms += 20_000
    assert lock(wired, two, "c2", 0, 1) == set()
    wired.now_ms += 1
    assert lock(wired, two, "c2", 0, 1) == {0}


def test_another_takes_over_as_soon_as_the_holders_connection_ends(wired: Wired) -> None:
    one, two = join(wired, "c1"), join(wired, "c2")
    lock(wired, one, "c1", 0)
    one.gone("reset")
    assert lock(wired, two, "c2", 0) == {0}


def test_an_end_frees_what_was_locked_over_that_connection_alone(wired: Wired) -> None:
    one, two, three = (join(wired, f"c{number}") for number in (1, 2, 3))
    lock(wired, one, "c1", 0)
    lock(wired, two, "alone", 1)  # A client that no heartbeat has named yet.
    one.gone("reset")
    assert lock(wired, three, "c3", 0, 1) == {0}


def test_a_holder_with_another_connection_keeps_its_locks(wired: Wired) -> None:
    one, again, two = join(wired, "c1"), join(wired, "c1"), join(wired, "c2")
    lock(wired, one, "c1", 0)
    one.gone("reset")
    assert lock(wired, two, "c2", 0) == set()
    again.gone("reset")
    assert lock(wired, two, "c2", 0) == {0}


def test_locks_beyond_locks_max_are_not_given(wired: Wired) -> None:
    peer = wired.connect()
    assert lock(wired, peer, "c1", 0, 1, 2) == {0, 1, 2}
    assert len(lock(wired, peer, "c1", 0, 1, 2, group="h")) == 1
    wired.now_ms += 60_001
    wired.broker.expire_clients(wired.now_ms)
    assert len(wired.broker.state.locks) == 0
    assert lock(wired, peer, "c2", 0, 1, 2, group="h") == {0, 1, 2}


def test_queues_that_a_topic_does_not_have_are_not_locked(wired: Wired) -> None:
    peer = wired.connect()
    two = TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2)
    wired.broker.state.topics.put(two, 0)
    assert lock(wired, peer, "c1", 0, 1, 2) == {0, 1}
    wanted = (QUEUES[0], msgspec.structs.replace(QUEUES[0], queue_id=-1))
    body = LockBatch(client_id="c2", consumer_group="h", mq_set=wanted)
    answer = wired.ask(peer, Command.request(Code.LOCK_BATCH_MQ, body=body.encode()))
    assert LockedQueues.decode(answer.body).lock_ok_mq_set == (QUEUES[0],)


def test_queues_of_unknown_topics_are_not_locked(wired: Wired) -> None:
    peer = wired.connect()
    wired.broker.state.topics.discard("T", 0)
    assert lock(wired, peer, "c1", 0) == set()
