"""`cometmq up`: a name server and a broker in one process."""

from __future__ import annotations

import gc
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    import trio

    from cometmq.broker.config import BrokerConfig
    from cometmq.nameserver import NameServerConfig

_MIB = 1 << 20


@click.command()
@click.option("--dir", "folder", default="cometmq-data", show_default=True, help="The store.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--broker-port", default=10911, show_default=True, help="0 for any free one.")
@click.option("--nameserver-port", default=9876, show_default=True, help="0 for any free one.")
@click.option(
    "--flush",
    type=click.Choice(["sync", "async"]),
    default="sync",
    show_default=True,
    help="Whether a send is answered when it would survive a power cut, or when it is written.",
)
@click.option(
    "--segment-size",
    default=64 * _MIB,
    show_default=True,
    help="Bytes of a file of the log, of a new store.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
)
def up(
    folder: str,
    host: str,
    broker_port: int,
    nameserver_port: int,
    flush: str,
    segment_size: int,
    log_level: str,
) -> None:
    """Start a name server and a broker on an embedded store."""
    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.errors import BrokerError
    from cometmq.nameserver import NameServerConfig, NameServerError
    from cometmq.net import NetError
    from cometmq.store.config import Flush, StoreConfig
    from cometmq.store.errors import StoreFilesError

    _check_host(host)
    logging.basicConfig(
        stream=sys.stderr,
        level=log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    path = str(Path(folder).absolute())
    try:
        nameserver = NameServerConfig(
            bind_address=host,
            listen_port=nameserver_port,
            kv_config_path=f"{path}/nameserver/kvConfig.json",
        )
        broker = BrokerConfig(
            bind_address=host,
            advertise_address=host,
            listen_port=broker_port,
            store_path=path,
            store=StoreConfig(flush=Flush(flush), segment_size=segment_size),
        )
    except (BrokerError, NameServerError, StoreFilesError) as error:
        raise click.UsageError(str(error)) from error
    try:
        run(nameserver, broker)
    except* (BrokerError, NetError, StoreFilesError, OSError) as group:
        raise click.ClickException(_first_of(group)) from group


def run(nameserver: NameServerConfig, broker: BrokerConfig) -> None:
    """Run both until a signal ends it."""
    from dataclasses import replace

    import trio

    from cometmq.broker import daemon as broker_daemon
    from cometmq.nameserver import daemon as nameserver_daemon
    from cometmq.net import guest

    async def main(stop: trio.Event) -> None:
        # The broker takes leave of the name server, so it ends first.
        async with trio.open_nursery() as outer:
            names = await outer.start(nameserver_daemon.serve, nameserver)
            async with trio.open_nursery() as inner:
                config = replace(broker, nameservers=str(names))
                address = await inner.start(broker_daemon.serve, config)
                _settle_memory()
                print(f"cometmq ready nameserver={names} broker={address}", flush=True)
                click.echo(
                    f"RocketMQ clients find it with the name server {names}"
                    f" (NAMESRV_ADDR={names}). Ctrl-C stops it; what was acknowledged stays.",
                    err=True,
                )
                await stop.wait()
                inner.cancel_scope.cancel()
            outer.cancel_scope.cancel()

    guest.run(main)


def _settle_memory() -> None:
    """Have the collector leave alone what lives as long as the process, and look rarely."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def _check_host(host: str) -> None:
    import ipaddress

    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        raise click.UsageError(f"--host {host}: not a numeric address") from None
    if not address.is_loopback:
        raise click.UsageError(
            f"--host {host}: others could reach it, and there is no authentication yet;"
            " use an address of the loopback, 127.0.0.1"
        )


def _first_of(group: BaseExceptionGroup[Exception]) -> str:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error)
