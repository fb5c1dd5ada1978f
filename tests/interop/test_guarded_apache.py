"""The client and the commands with a live Apache RocketMQ that answers only clients that sign."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from tests.interop.apache_broker import ApacheBroker
from tests.interop.guarded_apache import GUARDED, SECRET, USER

from cometmq.admin.program import program
from cometmq.client import Client, ClientConfig, ForbiddenError

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

SIGNING = ClientConfig(access_key=USER, secret_key=SECRET, timeout=15.0)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheBroker]:
    with ApacheBroker(tmp_path_factory.mktemp("apache"), GUARDED, known_by=SIGNING) as found:
        yield found


def test_who_signs_sends_consumes_and_administers(broker: ApacheBroker) -> None:
    async def scenario() -> list[bytes]:
        async with Client(broker.nameserver, SIGNING) as mq:
            await mq.admin.create_topic("guarded", queues=1)
            await mq.send("guarded", b"one", key="k", tag="paid")
            async with mq.transaction("guarded", b"half"):
                pass  # Left without an error, it is committed.
            found: list[bytes] = []
            async with mq.consume("guarded", group="guarding", start="first") as messages:
                async for message in messages:
                    async with message:
                        found.append(message.body)
                    if len(found) == 2:
                        return found
        raise AssertionError

    assert sorted(asyncio.run(scenario())) == [b"half", b"one"]


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (ClientConfig(), "username cannot be null"),
        (ClientConfig(access_key=USER, secret_key="another"), "check signature failed"),
        (ClientConfig(access_key="nobody", secret_key=SECRET), "not found"),
    ],
)
def test_who_signs_otherwise_is_told_why(
    broker: ApacheBroker, config: ClientConfig, why: str
) -> None:
    async def scenario() -> None:
        async with Client(broker.nameserver, config) as mq:
            await mq.send("guarded-not", b"one")

    with pytest.raises(ForbiddenError, match=why):
        asyncio.run(scenario())


def test_commands_sign(broker: ApacheBroker) -> None:
    environment = {
        "NAMESRV_ADDR": broker.nameserver,
        "COMETMQ_ACCESS_KEY": USER,
        "COMETMQ_SECRET_KEY": SECRET,
    }

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(program, [*arguments, "--timeout", "15"], env=environment)
        assert result.exit_code == 0, (result.output, result.exception)
        return result.output

    run("topic", "create", "commanded")
    run("send", "commanded", "o-17 paid", "--key", "o-17")
    assert "o-17 paid" in run("consume", "commanded", "--start", "first", "-c", "1")
    assert "commanded" in run("topic", "list").split()
    assert "1 message" in run("topic", "status", "commanded")
    assert "o-17 paid" in run("message", "find", "commanded", "o-17")
