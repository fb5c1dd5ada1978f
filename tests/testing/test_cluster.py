"""The cluster of the fixture: its methods, its clock, and everything that follows the clock."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Generator
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pytest
from tests.client.running import on_every_loop, on_loop

from cometmq.client import (
    Client,
    Message,
    Queue,
    ReceivedMessage,
    RefusedError,
    SyncClient,
    UsageError,
)
from cometmq.testing import Cluster, MissingMessagesError


@pytest.fixture
def cluster() -> Generator[Cluster]:
    with Cluster() as running:
        yield running


def test_what_was_sent_is_there_in_the_order_of_its_coming(cluster: Cluster) -> None:
    for number in range(20):
        cluster.send("orders", b"%d" % number, tag="paid", key=f"o-{number}")
    found = cluster.sent("orders", count=20)
    assert [each.body for each in found] == [b"%d" % number for number in range(20)]
    assert found[3].key == "o-3"
    assert cluster.sent("nobody-sent-here") == []


def test_fewer_messages_than_are_waited_for_are_a_failed_assertion(cluster: Cluster) -> None:
    cluster.send("orders", b"one")
    with pytest.raises(MissingMessagesError, match=r"orders: 1 of 2 messages within 0\.02 s"):
        cluster.sent("orders", count=2, timeout=0.02)


def test_a_message_that_is_still_to_come_is_waited_for(cluster: Cluster) -> None:
    def send() -> None:
        with SyncClient(cluster.nameserver) as other:
            other.send("orders", b"late")

    sender = threading.Thread(target=send)
    sender.start()
    assert cluster.sent("orders", count=1)[0].body == b"late"
    sender.join()


def test_a_delayed_message_is_delivered_by_a_jump_and_not_before(cluster: Cluster) -> None:
    cluster.send("orders", b"later", delay=3600)
    cluster.clock.jump(3000)
    with pytest.raises(MissingMessagesError):
        cluster.sent("orders", count=1, timeout=0.1)
    cluster.clock.jump(600)
    assert cluster.sent("orders", count=1, timeout=2)[0].body == b"later"


def test_a_jump_is_followed_at_once_however_rarely_a_broker_looks_at_its_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cometmq.broker.daemon.DELAY_TICK_SECONDS", 3600.0)
    with Cluster() as cluster:
        cluster.send("orders", b"later", delay=3600)
        cluster.clock.jump(3600)
        assert cluster.sent("orders", count=1, timeout=20)[0].body == b"later"


def test_the_clock_says_the_brokers_time_and_messages_bear_it(cluster: Cluster) -> None:
    cluster.clock.jump(86_400)
    ahead = cluster.clock.now() - datetime.now(UTC)
    assert timedelta(hours=23) < ahead < timedelta(hours=25)
    cluster.send("orders", b"tomorrow")
    assert cluster.sent("orders", count=1)[0].stored_at > datetime.now(UTC) + timedelta(hours=23)


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_the_clock_does_not_go_back(cluster: Cluster, seconds: float) -> None:
    with pytest.raises(UsageError, match="0 or more"):
        cluster.clock.jump(seconds)


@on_every_loop
def test_retries_follow_the_clock_until_the_message_is_a_dead_letter(
    cluster: Cluster, loop: str
) -> None:
    async def scenario() -> None:
        async with (
            Client(cluster.nameserver) as mq,
            mq.consume("orders", group="billing", start="first", max_retries=2) as consumer,
        ):
            await mq.send("orders", b"o-17")
            for attempt in (1, 2, 3):
                message = await anext(consumer)
                assert (message.body, message.attempt) == (b"o-17", attempt)
                await message.retry()
                cluster.clock.jump(3600)

    on_loop(loop, scenario)
    assert [each.body for each in cluster.dead_letters("billing", count=1)] == [b"o-17"]


def test_the_question_about_a_transaction_follows_the_clock(cluster: Cluster) -> None:
    asked: list[str | None] = []

    def check(message: ReceivedMessage) -> Literal["commit"]:
        asked.append(message.key)
        return "commit"

    mq = cluster.client
    mq.on_transaction_check(check)
    mq.transaction("orders", b"paid", key="o-17").__enter__()  # It stays undecided.
    assert not cluster.sent("orders")
    assert not asked
    cluster.clock.jump(60)
    assert [each.body for each in cluster.sent("orders", count=1)] == [b"paid"]
    assert asked == ["o-17"]


def test_a_jump_costs_no_consumer_its_queues(cluster: Cluster) -> None:
    cluster.send("orders", b"1", sharding_key="c")
    with (
        SyncClient(cluster.nameserver) as mq,
        mq.consume("orders", group="billing", start="first", ordered=True) as consumer,
    ):
        for number in (1, 2, 3):
            with next(consumer) as message:
                assert message.body == b"%d" % number
            cluster.clock.jump(7200)
            cluster.send("orders", b"%d" % (number + 1), sharding_key="c")


def test_a_held_pull_follows_the_clock(cluster: Cluster) -> None:
    cluster.send("orders", b"1", queue=None)
    (message,) = cluster.sent("orders", count=1)
    found: list[bool] = []
    begin = time.monotonic()

    def pull() -> None:
        found.append(cluster.client.pull(message.queue, 1, wait=20).is_empty)

    puller = threading.Thread(target=pull)
    puller.start()
    while puller.is_alive():
        cluster.clock.jump(20)
        puller.join(0.05)
    assert found == [True]
    assert time.monotonic() - begin < 10


@on_every_loop
def test_in_an_async_test_the_verbs_that_wait_are_awaited(cluster: Cluster, loop: str) -> None:
    async def handle(message: Message) -> None:
        await cluster.aio.send("refunds", message.body)

    async def scenario() -> None:
        with pytest.raises(UsageError, match=r"await rocketmq\.aio\.sent"):
            cluster.sent("refunds", count=1)
        assert cluster.sent("refunds") == []
        async with Client(cluster.nameserver) as mq:
            await mq.send("orders", b"o-17")
            async with mq.consume("orders", group="billing", start="first") as consumer:
                async with await anext(consumer) as message:
                    await handle(message)
                (refund,) = await cluster.aio.sent("refunds", count=1, timeout=5)
                assert refund.body == b"o-17"
        assert not await cluster.aio.dead_letters("billing")

    on_loop(loop, scenario)


def test_several_clusters_know_nothing_of_each_other() -> None:
    with Cluster() as here, Cluster() as there:
        here.send("orders", b"here")
        there.clock.jump(3600)
        assert [each.body for each in here.sent("orders", count=1)] == [b"here"]
        assert there.sent("orders") == []
        assert abs(here.clock.now() - datetime.now(UTC)) < timedelta(seconds=60)


def test_settings_are_those_of_the_command_line() -> None:
    with Cluster(auto_create_topic_enable="false") as strict:
        with pytest.raises(RefusedError):
            strict.send("orders", b"x")
        strict.admin.create_topic("orders", queues=2)
        strict.send("orders", b"x", queue=Queue("orders", "broker-a", 1))
        assert strict.sent("orders", count=1)[0].queue.id == 1


def test_what_belongs_to_the_fixture_cannot_be_set() -> None:
    with pytest.raises(UsageError, match="store_path"):
        Cluster(store_path="elsewhere")


USES: list[Callable[[Cluster], object]] = [
    lambda cluster: cluster.send("orders", b"x"),
    lambda cluster: cluster.sent("orders"),
    lambda cluster: cluster.admin,
    lambda cluster: cluster.nameserver,
    lambda cluster: cluster.broker,
    lambda cluster: cluster.clock.jump(5),
]


@pytest.mark.parametrize("use", USES)
def test_a_cluster_that_does_not_run_says_so(use: Callable[[Cluster], object]) -> None:
    cluster = Cluster()
    with pytest.raises(UsageError, match="the cluster is not running: use `with`, or `start`"):
        use(cluster)
    cluster.stop()  # This does nothing.


def test_a_cluster_that_is_started_again_runs_on(cluster: Cluster) -> None:
    with pytest.raises(UsageError, match="started only once: make another one"):
        cluster.start()
    cluster.send("made-after", b"x")
    assert cluster.sent("made-after", count=1)[0].body == b"x"
    cluster.stop()
    cluster.stop()
    with pytest.raises(UsageError, match="is not running"):
        cluster.clock.jump(5)
    with pytest.raises(UsageError, match="started only once"):
        cluster.start()


@pytest.mark.parametrize("wrong", [{"count": "1"}, {"count": -1}, {"timeout": "1"}])
def test_what_is_no_number_to_wait_for_is_refused(cluster: Cluster, wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(wrong))}="):
        cluster.sent("orders", **wrong)


def own_threads() -> set[threading.Thread]:
    """All threads except those that Trio keeps for ten seconds for reuse."""
    return {each for each in threading.enumerate() if not each.name.startswith("Trio thread")}


def test_warm_it_is_ready_within_fifty_milliseconds_and_leaves_no_thread() -> None:
    durations: list[float] = []
    before = own_threads()
    for _ in range(5):
        gc.collect()  # So that the garbage of earlier tests does not count.
        begin = time.process_time()  # Not the time of other processes.
        with Cluster() as cluster:
            durations.append(time.process_time() - begin)
            cluster.send("orders", b"x")
    assert min(durations) <= 0.050
    assert own_threads() <= before
