"""Behaviour that clients and tools silently rely on, over real sockets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio
from tests.broker.running import PATIENCE_SECONDS, Client, Running, config_of, pull_request, run
from tests.broker.test_topic_admin import topic_request

from cometmq.proto.batch import BatchItem, encode_batch
from cometmq.proto.bodies import (
    ConsumerData,
    HeartbeatData,
    TopicList,
    TopicRouteData,
    TopicStats,
)
from cometmq.proto.codes import RequestCode as Code
from cometmq.proto.commands import (
    GetMaxOffset,
    GetMinOffset,
    GetTopicStatsInfo,
    OffsetResponse,
    PullMessageResponse,
    QueryConsumerOffset,
    QueryMessage,
)
from cometmq.proto.commands.route import GetKvConfig, GetRouteInfoByTopic

if TYPE_CHECKING:
    from pathlib import Path

    from cometmq.proto.command import Command

OWN_TOPICS = {
    "TBW102", "SELF_TEST_TOPIC", "BenchmarkTest", "DefaultCluster", "broker-a",
    "OFFSET_MOVED_EVENT", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRACE_TOPIC",
    "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
    "DefaultCluster_REPLY_TOPIC", "rmq_sys_REVIVE_LOG_DefaultCluster",
    "rmq_sys_SYNC_BROKER_MEMBER_broker-a", "rmq_sys_wheel_timer",
}  # fmt: skip


async def route(names: Client, topic: str) -> Command:
    return await names.ask(Code.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoByTopic(topic=topic))


def test_topics_named_as_cluster_and_broker_have_a_route(tmp_path: Path) -> None:
    """createTopic of every Java admin asks for the route of a topic with such a name, and makes the
    new topic on the brokers that it finds there."""

    async def scenario(running: Running) -> None:
        names = await Client().connect(running.nameserver)
        for topic in ("DefaultCluster", "broker-a"):
            answer = await route(names, topic)
            assert answer.code == 0
            (broker,) = TopicRouteData.decode(answer.body).broker_datas
            assert broker.broker_addrs == {0: str(running.address)}

    run(config_of(tmp_path), scenario)


def test_the_topic_list_of_a_fresh_broker_is_apaches(tmp_path: Path) -> None:
    """Tools distinguish the topics of users from the broker's own by name."""

    async def scenario(running: Running) -> None:
        names = await Client().connect(running.nameserver)
        answer = await names.ask(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        assert set(TopicList.decode(answer.body).topic_list) == OWN_TOPICS
        answer = await running.client.ask(Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
        own = {"TRANS_CHECK_MAX_TIME_TOPIC", "CHECKPOINT_TOPIC"}
        assert set(TopicList.decode(answer.body).topic_list) == OWN_TOPICS | own

    run(config_of(tmp_path), scenario)


def test_a_new_topic_is_known_and_shown_with_all_its_queues_at_once(tmp_path: Path) -> None:
    """Test suites wait seconds for a table of offsets that has rows, even rows of zeros."""

    async def scenario(running: Running) -> None:
        names = await Client().connect(running.nameserver)
        assert (await running.client.call(topic_request("fresh"))).code == 0
        assert (await route(names, "fresh")).code == 0
        asked = GetTopicStatsInfo("fresh")
        answer = await running.client.ask(Code.GET_TOPIC_STATS_INFO, asked)
        assert len(TopicStats.decode(answer.body).offset_table) == 2

    run(config_of(tmp_path), scenario)


def test_a_group_and_its_retry_topic_come_with_its_first_heartbeat(tmp_path: Path) -> None:
    """Before that, the route of the retry topic gets code 17, which clients log and survive."""

    async def scenario(running: Running) -> None:
        names = await Client().connect(running.nameserver)
        before = await route(names, "%RETRY%young")
        assert (before.code, (before.remark or "").partition("\n")[0]) == (
            17, "No topic route info in name server for the topic: %RETRY%young"
        )  # fmt: skip
        beat = HeartbeatData(client_id="c", consumer_data_set=(ConsumerData(group_name="young"),))
        await running.client.ask(Code.HEART_BEAT, body=beat.encode())
        with trio.fail_after(PATIENCE_SECONDS):
            while (found := await route(names, "%RETRY%young")).code == 17:
                pass
        (queues,) = TopicRouteData.decode(found.body).queue_datas
        assert (queues.read_queue_nums, queues.write_queue_nums, queues.perm) == (1, 1, 6)

    run(config_of(tmp_path), scenario)


def test_refusals_have_the_codes_that_clients_branch_on(tmp_path: Path) -> None:
    """17: no route; 22: nothing there; 29: an illegal or a system name; 3: an unknown request."""

    async def scenario(running: Running) -> None:
        names = await Client().connect(running.nameserver)
        client = running.client
        query = QueryMessage(
            topic="T", key="k", max_num=9, begin_timestamp=0, end_timestamp=1 << 60
        )
        answers = [
            await route(names, "nowhere"),
            await names.ask(Code.GET_KV_CONFIG, GetKvConfig("ORDER_TOPIC_CONFIG", "T")),
            await client.ask(Code.QUERY_MESSAGE, query),
            await client.call(topic_request("bad!")),
            await client.call(topic_request("SCHEDULE_TOPIC_XXXX")),
            await client.ask(7777),
        ]
        assert [answer.code for answer in answers] == [17, 22, 22, 29, 29, 3]

    run(config_of(tmp_path), scenario)


def test_a_new_group_on_a_young_topic_begins_with_its_first_message(tmp_path: Path) -> None:
    """`consumeFromWhere` does not matter: the benchmark's consumer drains the backlog first."""

    async def scenario(running: Running) -> None:
        client = running.client
        await client.send("T", b"first")

        async def found(**fields: bool) -> Command:
            header = QueryConsumerOffset("new", "T", 0, **fields)
            return await client.ask(Code.QUERY_CONSUMER_OFFSET, header)

        assert (await found()).read(OffsetResponse).offset == 0
        assert (await found(set_zero_if_not_found=False)).code == 22
        # In a queue without messages, a client sent to the queue's end would miss the first one.
        header = QueryConsumerOffset("new", "T", 1)
        answer = await client.ask(Code.QUERY_CONSUMER_OFFSET, header)
        assert answer.read(OffsetResponse).offset == 0
        for topic, queue_id in (("T", 99), ("nowhere", 0)):
            header = QueryConsumerOffset("new", topic, queue_id)
            assert (await client.ask(Code.QUERY_CONSUMER_OFFSET, header)).code == 22

    run(config_of(tmp_path), scenario)


def test_a_new_group_decides_itself_where_that_is_set(tmp_path: Path) -> None:
    async def scenario(running: Running) -> None:
        await running.client.send("T", b"first")
        header = QueryConsumerOffset("new", "T", 0)
        assert (await running.client.ask(Code.QUERY_CONSUMER_OFFSET, header)).code == 22

    run(config_of(tmp_path, offset_from_zero_enable=False), scenario)


def test_a_batch_queue_counts_the_messages_in_its_batches(tmp_path: Path) -> None:
    """A batch has one id, offsets count its messages, an empty queue has -1 and 0, and pulls bring
    whole batches."""

    async def scenario(running: Running) -> None:
        client = running.client
        request = topic_request("B", "+queue.type=BatchCQ")
        assert (await client.call(request)).code == 0

        async def ends() -> tuple[int, int]:
            low = await client.ask(Code.GET_MIN_OFFSET, GetMinOffset("B", 0))
            high = await client.ask(Code.GET_MAX_OFFSET, GetMaxOffset("B", 0))
            return low.read(OffsetResponse).offset, high.read(OffsetResponse).offset

        assert await ends() == (-1, 0)
        body = encode_batch("B", [BatchItem(b"%d" % n, b"") for n in range(100)])
        properties = "UNIQ_KEY\x01AB\x02"
        for first in (0, 100):
            sent = await client.send("B", body, code=320, batch=True, properties=properties)
            assert (sent.queue_offset, "," in sent.msg_id) == (first, False)
        assert await ends() == (0, 200)
        answer = await client.call(pull_request("B", max_msg_nums=1))
        assert answer.read(PullMessageResponse).next_begin_offset == 100
        (record,) = await client.pull("B", max_msg_nums=1)
        assert record.properties["INNER_NUM"] == "100"

    run(config_of(tmp_path), scenario)


def test_integer_keys_have_no_quotes_where_apaches_have_none(tmp_path: Path) -> None:
    """Readers of Apache's JSON rely on it, although a strict parser cannot read it."""

    async def scenario(running: Running) -> None:
        client = running.client
        await client.send("T", b"x")
        await client.pull("T", sys_flag=5, commit_offset=1)
        answer = await client.ask(Code.GET_ALL_CONSUMER_OFFSET)
        assert b'"T@g":{0:1}' in bytes(answer.body or b"")
        names = await Client().connect(running.nameserver)
        answer = await names.ask(Code.GET_BROKER_CLUSTER_INFO)
        assert b'"brokerAddrs":{0:"' in bytes(answer.body or b"")
        answer = await client.ask(Code.GET_TOPIC_STATS_INFO, GetTopicStatsInfo("T"))
        assert b'{{"brokerName":"broker-a","queueId":0,"topic":"T"}:' in bytes(answer.body or b"")

    run(config_of(tmp_path), scenario)


def test_a_namespace_is_nothing_but_a_prefix(tmp_path: Path) -> None:
    """`%` is legal in the names of topics and groups."""

    async def scenario(running: Running) -> None:
        assert (await running.client.call(topic_request("ns%T"))).code == 0
        await running.client.send("ns%T", b"x")
        assert len(await running.client.pull("ns%T", consumer_group="ns%g")) == 1

    run(config_of(tmp_path), scenario)
