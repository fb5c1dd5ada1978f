"""An operator moves a group to other offsets while its members are at work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.client.running import Servers, on_every_loop, play_on
from tests.client.test_ordered import (
    GROUP,
    in_order,
    join_in_vain,
    nothing_more,
    owned,
    take,
    two_queues,
    until,
)

from cometmq.client import Client

if TYPE_CHECKING:
    from pathlib import Path


@on_every_loop
def test_what_an_operator_skips_is_not_handed_out_any_more(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await mq.admin.create_topic("orders", queues=1)
            await mq.send_batch("orders", [b"%d" % number for number in range(9)])
            async with mq.consume("orders", group=GROUP, start="first") as consumer:
                held = await anext(consumer)
                await mq.admin.reset_offsets(GROUP, "orders", to="last")
                await until(lambda: held.process_queue.is_dropped)
                held.ack()
                await mq.send("orders", b"new")
                async with await anext(consumer) as message:
                    assert message.body == b"new"
            assert not any(each.lag for each in await mq.admin.group_progress(GROUP))

    play_on(loop, tmp_path, scenario)


@on_every_loop
def test_a_reset_queue_goes_to_no_other_member_before_its_message_is_done_with(
    loop: str, tmp_path: Path
) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq, Client(servers.nameserver) as other:
            await two_queues(mq)
            consumer, following = in_order(mq), in_order(other)
            held = await take(consumer, 2)
            await mq.admin.reset_offsets(GROUP, "orders", to="first")
            await until(lambda: owned(consumer) == 0)
            await join_in_vain(following)
            await nothing_more(following)
            for message in held.values():
                message.ack()
            assert (await take(consumer, 1)).keys() | (await take(following, 1)).keys() == {
                b"a0",
                b"b0",
            }
            await consumer.drain(timeout=0)
            await following.drain(timeout=0)

    play_on(loop, tmp_path, scenario)
