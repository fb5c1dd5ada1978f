"""Open transactions are passed on, from our broker to a live Apache 5.5.0 and from it to ours."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, cast

import pytest
from tests.broker.running import config_of
from tests.broker.test_transactions import COMMIT, INTERVAL, SHOP, TIMEOUT, Shop
from tests.client.running import on_loop
from tests.interop.apache_broker import ApacheBroker
from tests.interop.store_content import APACHE_SETTINGS, store_config
from tests.interop.store_sessions import now_ms

from cometmq.client import Client, ClientConfig, ReceivedMessage
from cometmq.store.disk.filesystem import RealFileSystem

if TYPE_CHECKING:
    from pathlib import Path

    from tests.crash.disk import SimulatedFileSystem

pytestmark = [pytest.mark.slow, pytest.mark.long]

SETTINGS = {
    **APACHE_SETTINGS,
    "transactionTimeOut": "2000",
    "transactionCheckInterval": "5000",
    # Otherwise Apache asks again about a decided transaction, and stores it twice.
    "transactionOpBatchInterval": "300",
}
PATIENT = ClientConfig(timeout=15, producer_group=SHOP)


def shop_on(folder: Path) -> Shop:
    """Return our broker on the store that Apache's uses too."""
    config = replace(config_of(folder), store_path=str(folder / "store"), store=store_config())
    # It uses only what a real disk has, too.
    return Shop(cast("SimulatedFileSystem", RealFileSystem()), config)


def test_what_is_open_here_is_asked_about_by_apache_and_the_other_way_round(
    tmp_path: Path,
) -> None:
    ours = shop_on(tmp_path)
    ours.now_ms = ours.wired.now_ms = now_ms()
    done, _ = ours.half(b"done"), ours.half(b"open here")
    ours.end(done, COMMIT)
    ours.wired.close()
    asked: list[bytes] = []

    async def on_apache() -> None:
        async def check(message: ReceivedMessage) -> Literal["commit", "rollback", "unknown"]:
            asked.append(message.body)
            return "commit" if message.body == b"open here" else "unknown"

        async with Client(broker.nameserver, PATIENT) as mq:
            mq.on_transaction_check(check)
            await mq.transaction("BenchmarkTest", b"open there").__aenter__()
            async with mq.consume("BenchmarkTest", group="g", start="first") as consumer:
                found: list[bytes] = []
                async for message in consumer:
                    async with message:
                        found.append(message.body)
                    if len(found) == 2:
                        break
            assert sorted(found) == [b"done", b"open here"]

    with ApacheBroker(tmp_path, SETTINGS) as broker:
        on_loop("asyncio", on_apache)
        broker.stop()
    assert b"done" not in asked
    assert b"open here" in asked
    ours = shop_on(tmp_path)
    ours.now_ms = now_ms()
    ours.pass_time(0)
    producer = ours.join()
    queues = {0}
    for wait in (TIMEOUT, INTERVAL):
        ours.pass_time(wait)
        for half, message in ours.asked(producer):
            assert message.body == b"open there"
            queues.add(message.queue_id)
            assert ours.end(half, COMMIT, is_answer=True) == 0
    bodies = [m.body for queue in queues for m in ours.messages(queue_id=queue)]
    assert sorted(bodies) == [b"done", b"open here", b"open there"]
    assert ours.open_count == 0
    ours.wired.close()
