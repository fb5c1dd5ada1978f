"""The metrics page of a broker and a name server after some work."""

from __future__ import annotations

import urllib.request
from typing import TYPE_CHECKING

import trio
from tests.broker.running import Client, config_of, pull_request

from cometmq.broker import daemon as broker_daemon
from cometmq.nameserver import NameServerConfig, daemon as nameserver_daemon
from cometmq.net import address_of, guest, listen_on
from cometmq.net.exposition import Exposition
from cometmq.proto.bodies import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from cometmq.proto.bodies.enums import ConsumeType, MessageModel
from cometmq.proto.codes import RequestCode
from cometmq.proto.host import Host

if TYPE_CHECKING:
    from pathlib import Path


def scrape_of_all(folder: Path) -> str:
    """Make everything happen that some metric family reports, and scrape."""
    pages: list[str] = []

    async def main(_: trio.Event) -> None:
        (listening,) = listen_on([Host("127.0.0.1", 0)])
        url = f"http://{address_of(listening)}/metrics"
        exposition = Exposition(guest.repeat_on_loop)
        names = NameServerConfig(listen_port=0, kv_config_path=f"{folder}/names/kvConfig.json")
        async with trio.open_nursery() as nursery:
            await nursery.start(exposition.serve, listening)
            nameserver = await nursery.start(nameserver_daemon.serve, names, exposition)
            config = config_of(folder, nameservers=str(nameserver))
            address = await nursery.start(broker_daemon.serve, config, exposition)
            await keep_busy(await Client().connect(address))
            pages.append(await trio.to_thread.run_sync(scrape, url))
            nursery.cancel_scope.cancel()

    guest.run(main)
    return pages[0]


async def keep_busy(client: Client) -> None:
    """Send, pull, leave a lag, send a heartbeat, and be refused."""
    subscription = SubscriptionData(topic="T", sub_string="*")
    beat = HeartbeatData(
        client_id="c",
        producer_data_set=(ProducerData(group_name="p"),),
        consumer_data_set=(
            ConsumerData(
                group_name="g",
                subscription_data_set=(subscription,),
                consume_type=ConsumeType.CONSUME_PASSIVELY,
                message_model=MessageModel.CLUSTERING,
            ),
        ),
    )
    assert (await client.ask(RequestCode.HEART_BEAT, body=beat.encode())).code == 0
    for _ in range(5):
        await client.send("T", b"x" * 100)
    await client.pull("T", commit_offset=2, sys_flag=5)
    assert (await client.call(pull_request("nowhere"))).code == 17


def scrape(url: str) -> str:
    """Get a page."""
    with urllib.request.urlopen(url, timeout=20) as answer:
        return str(answer.read().decode())
