"""Requests and replies: how they are matched, and mistakes that are refused before a send."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING
from unittest.mock import ANY

import anyio
import pytest
from tests.client.running import Servers, on_every_loop, on_loop, play_on

from cometmq.client import Client, DeadlineError, OutcomeUnknownError, Reply, UsageError
from cometmq.client._requests import Requests
from cometmq.proto import property_names as names
from cometmq.proto.codes import ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands import PushReplyMessageToClient
from cometmq.proto.compression import Compression, compress
from cometmq.proto.properties import encode_properties

if TYPE_CHECKING:
    from pathlib import Path


def pushed(correlation_id: str, body: bytes, sys_flag: int = 0, born_ms: int = 1) -> Command:
    properties = encode_properties({names.CORRELATION_ID: correlation_id, "rate": "today's"})
    header = PushReplyMessageToClient(
        "g", "C_REPLY_TOPIC", "TBW102", 4, 0, sys_flag, born_ms, 0, "127.0.0.1:1", "127.0.0.1:2", 1,
        properties.decode(),
    )  # fmt: skip
    return Command.request(326, header, body=body)


@on_every_loop
def test_each_reply_goes_to_its_request(loop: str) -> None:
    async def scenario() -> None:
        requests = Requests()
        first, second = (requests.begin("c", 5)[names.CORRELATION_ID] for _ in range(2))
        packed, flag = compress(b"two" * 100, Compression.ZLIB)
        assert requests.came(pushed(second, packed, flag), 1000).code == ResponseCode.SUCCESS
        requests.came(pushed(first, b"one"), 1000)
        requests.came(pushed(first, b"late"), 1000)
        requests.came(pushed("unknown", b"lost"), 1000)
        assert (await requests.reply(second, 1)).body == b"two" * 100
        reply = await requests.reply(first, 1)
        assert (reply.body, reply.user_properties) == (b"one", {"rate": "today's"})
        requests.end(first)
        requests.end(second)
        assert len(requests) == 0

    on_loop(loop, scenario)


@pytest.mark.parametrize("born_ms", [10**18, -(10**18), 1 << 62])
async def test_a_reply_of_one_whose_clock_is_wrong_is_a_reply(born_ms: int) -> None:
    requests = Requests()
    mine = requests.begin("c", 5)[names.CORRELATION_ID]
    requests.came(pushed(mine, b"one", born_ms=born_ms), 1000)
    assert await requests.reply(mine, 1) == Reply(b"one", ANY, datetime.fromtimestamp(0, UTC))


@on_every_loop
def test_a_request_without_a_reply_ends_at_its_deadline_and_leaves_nothing(
    loop: str, tmp_path: Path
) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            with pytest.raises(DeadlineError, match="no reply came") as late:
                await mq.request("quotes", b"CHF", timeout=0.3)
            assert isinstance(late.value, OutcomeUnknownError)
            with anyio.move_on_after(0.05):
                await mq.request("quotes", b"CHF")
            assert len(mq._requests) == 0  # pyright: ignore[reportPrivateUsage]  # What is left.

    play_on(loop, tmp_path, scenario)


@on_every_loop
def test_what_is_no_request_cannot_be_replied_to(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await mq.send("quotes", b"CHF")
            async with mq.consume("quotes", group="bank") as consumer:
                message = await anext(consumer)
                assert not message.wants_reply
                with pytest.raises(UsageError, match="is not a request"):
                    await message.reply(b"1.07")
                message.ack()
            with pytest.raises(UsageError, match="not str"):
                await mq.request("quotes", "CHF")  # type: ignore[arg-type]  # The mistake.

    play_on(loop, tmp_path, scenario)
