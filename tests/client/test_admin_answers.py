"""Whatever a server answers to an administrator's request, the error is one of the tree."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from tests.client.running import on_loop
from tests.client.test_faults import EAGER, Scripted

from cometmq.client import Client, ClientError, ProtocolViolationError, Queue, RefusedError
from cometmq.proto.bodies import BrokerData, ClusterInfo, TopicList
from cometmq.proto.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cometmq.proto.command import Command

ID = "A" * 32
QUEUE = Queue("orders", "b", 0)
GARBAGE = (b"\x01\x02\x03\x04" * 10, b"", b"{", b"[]", b"null", b'{"offsetTable":{"x":1}}')
CALLS: dict[str, Callable[[Any], Awaitable[object]]] = {
    "find_messages": lambda admin: admin.find_messages("orders", "k"),
    "message": lambda admin: admin.message(ID, topic="orders"),
    "trace": lambda admin: admin.message_trace(ID),
    "topic_status": lambda admin: admin.topic_status("orders"),
    "create_topic": lambda admin: admin.create_topic("orders", ordered=True),
    "create_group": lambda admin: admin.create_group("billing"),
    "delete_group": lambda admin: admin.delete_group("billing"),
    "group_members": lambda admin: admin.group_members("billing"),
    "group_progress": lambda admin: admin.group_progress("billing"),
    "reset_offsets": lambda admin: admin.reset_offsets("billing", "orders", "first"),
    "set_offset": lambda admin: admin.set_offset("billing", QUEUE, 1),
    "settings": lambda admin: admin.settings(),
    "change_settings": lambda admin: admin.change_settings({"a": "b"}),
    "groups": lambda admin: admin.dead_letters.groups(),
    "redrive": lambda admin: admin.dead_letters.redrive("billing"),
    "purge": lambda admin: admin.dead_letters.purge("billing"),
    "pending": lambda admin: admin.transactions.pending(),
}


class Cluster(Scripted):
    """A name server that lists one broker, `b`; the test scripts what else that answers."""

    def _usual(self, request: Command) -> Command | None:
        if request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            broker = BrokerData(broker_name="b", cluster="c", broker_addrs={0: self.address})
            found = ClusterInfo(broker_addr_table={"b": broker}, cluster_addr_table={"c": ("b",)})
            return request.answer(ResponseCode.SUCCESS, body=found.encode())
        return super()._usual(request)


@pytest.mark.parametrize("name", CALLS)
def test_garbage_is_an_error_of_the_tree(name: str) -> None:
    async def scenario() -> None:
        async with Client(cluster.address, EAGER) as mq:
            with suppress(ClientError):  # Some of it is no garbage to some of them.
                await CALLS[name](mq.admin)

    for garbage in GARBAGE:

        def answer(request: Command, body: bytes = garbage) -> Command:
            return request.answer(ResponseCode.SUCCESS, body=body)

        cluster = Cluster(answer)
        with cluster.serve():
            on_loop("asyncio", scenario)


@pytest.mark.parametrize("topic", ["orders", None])
def test_a_message_that_cannot_be_looked_for_is_no_group_of_errors(topic: str | None) -> None:
    def answer(request: Command) -> Command:
        if request.code == RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
            body = TopicList(topic_list=("orders", "refunds")).encode()
            return request.answer(ResponseCode.SUCCESS, body=body)
        return request.answer(ResponseCode.SYSTEM_ERROR, remark="no index")

    cluster = Cluster(answer)

    async def scenario() -> None:
        async with Client(cluster.address, EAGER) as mq:
            with pytest.raises(RefusedError, match="no index"):
                await mq.admin.message(ID, topic=topic)

    with cluster.serve():
        on_loop("asyncio", scenario)


def test_a_message_at_a_place_where_there_is_none_is_a_violation() -> None:
    cluster = Cluster(lambda r: r.answer(ResponseCode.SUCCESS, body=b"no message"))

    async def scenario() -> None:
        async with Client(cluster.address, EAGER) as mq:
            port = int(cluster.address.partition(":")[2])
            with pytest.raises(ProtocolViolationError, match="record"):
                await mq.admin.message(f"7F000001{port:08X}{5:016X}")

    with cluster.serve():
        on_loop("asyncio", scenario)
