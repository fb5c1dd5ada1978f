"""New groups begin where `start` says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import anyio
import pytest
from tests.client.running import Servers, on_every_loop, play_on
from tests.client.starting import begun, check_starts

from cometmq.client import Client, ClientConfig, NotFoundError
from cometmq.client._core.names import RETRY_PREFIX
from cometmq.proto.codes import ResponseCode

if TYPE_CHECKING:
    from pathlib import Path

    from cometmq.client._core.options import Start
    from cometmq.client._core.routes import Route


@on_every_loop
@pytest.mark.parametrize("is_young", [True, False])
def test_a_new_group_begins_where_it_is_told_to(loop: str, is_young: bool, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await check_starts(mq, is_young=is_young)

    play_on(loop, tmp_path, scenario, offset_from_zero_enable=is_young)


@on_every_loop
@pytest.mark.parametrize("is_young", [True, False])
def test_what_fails_comes_again_wherever_a_new_group_has_begun(
    loop: str, is_young: bool, tmp_path: Path
) -> None:
    a_day_ago = datetime.now(UTC) - timedelta(days=1)
    starts: list[Start] = ["first", "last", a_day_ago]

    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            for number, start in enumerate(starts):
                topic = f"orders-{number}"
                await mq.admin.create_topic(topic, queues=1)
                async with mq.consume(topic, group=f"g{number}", start=start) as consumer:
                    await begun(consumer, topic)
                    await mq.send(topic, b"x")
                    await (await anext(consumer)).retry(delay_level=3)
                    async with await anext(consumer) as message:
                        assert message.attempt == 2

    play_on(loop, tmp_path, scenario, offset_from_zero_enable=is_young)


def test_a_retry_topic_that_comes_a_moment_late_is_read_a_moment_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker makes it at the first heartbeat, and the name servers learn of it after that."""

    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            routes = mq._open_parts().routes  # pyright: ignore[reportPrivateUsage]  # To delay it.
            get, looks = routes.get, 0

            async def late(topic: str, *, timeout: float) -> Route:  # noqa: ASYNC109  # As it is.
                nonlocal looks
                looks += topic.startswith(RETRY_PREFIX)
                if topic.startswith(RETRY_PREFIX) and looks <= 2:
                    raise NotFoundError(ResponseCode.TOPIC_NOT_EXIST, "not yet", servers.nameserver)
                return await get(topic, timeout=timeout)

            monkeypatch.setattr(routes, "get", late)
            await mq.send("orders", b"x")
            async with mq.consume("orders", group="g", start="first") as consumer:
                await (await anext(consumer)).retry(delay_level=1)
                with anyio.fail_after(15):
                    async with await anext(consumer) as message:
                        assert message.attempt == 2

    play_on("asyncio", tmp_path, scenario)


def test_a_broadcast_begins_where_it_is_told_to_and_goes_by_its_file_then(tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        config = ClientConfig(broadcast_folder=str(tmp_path / "offsets"), instance="here")
        async with Client(servers.nameserver, config) as mq:
            await mq.admin.create_topic("prices", queues=1)
            await mq.send("prices", b"old")
            begins: list[tuple[Start, bytes]] = [("last", b"next"), ("first", b"after")]
            for start, sent in begins:
                async with mq.consume(
                    "prices", group="screens", start=start, broadcast=True
                ) as consumer:
                    await begun(consumer, "prices")
                    await mq.send("prices", sent)
                    async with await anext(consumer) as message:
                        assert message.body == sent

    play_on("asyncio", tmp_path, scenario)
