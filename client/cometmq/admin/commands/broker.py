"""`cometmq broker`: a broker daemon."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import click

from cometmq.admin.daemons import (
    METRICS_PORT,
    PORT,
    begin_logs,
    broker_config,
    failures_told,
    gathered,
    host_option,
    open_metrics,
    run_one,
    shared_options,
    store_folder_option,
    store_options,
)
from cometmq.admin.open_files import raised_limit, within_limit
from cometmq.admin.sources import BROKER

if TYPE_CHECKING:
    import socket

    import trio

    from cometmq.broker.config import BrokerConfig

log = logging.getLogger("cometmq")


@click.command(
    epilog="""\b
Examples:
  cometmq broker -n 127.0.0.1:9876 --dir /var/lib/cometmq
  cometmq broker -n 'ns1:9876;ns2:9876' --host 0.0.0.0 --advertise 10.0.0.5 --insecure
  cometmq broker --config /opt/rocketmq/conf/broker.conf --set flush=sync

A file is TOML when its name ends with .toml, and a broker.conf of Apache's otherwise; that one
keeps its own meaning: without flushDiskType its flush is asynchronous. Settings are looked for in
flags and --set, then in the environment (COMETMQ_FLUSH=async), then in the file.
docs/settings.md lists them.
"""
)
@store_folder_option
@host_option
@click.option(
    "--port", type=PORT, help="The port to listen on; 0 for any free one.  [default: 10911]"
)
@click.option(
    "-n",
    "--nameserver",
    "nameservers",
    metavar="HOST:PORT[;HOST:PORT]",
    help="The name servers to register with; clients find the broker through them.",
)
@click.option("--name", help="The broker's name.  [default: broker-a]")
@click.option("--cluster", help="The name of its cluster.  [default: DefaultCluster]")
@store_options
@shared_options
def broker(
    folder: str | None,
    host: str | None,
    port: int | None,
    nameservers: str | None,
    name: str | None,
    cluster: str | None,
    flush: str | None,
    segment_size: str | None,
    advertise: str | None,
    metrics_port: int | str | None,
    insecure: bool,
    tls: str,
    file: str | None,
    pairs: tuple[str, ...],
    log_level: str,
    log_format: str,
) -> None:
    """Start a broker.

    When sends are accepted, a line that begins with `cometmq ready` goes to stdout; logs go to
    stderr. SIGTERM and Ctrl-C stop it cleanly, a second one at once.
    """
    from cometmq.broker.config import BrokerConfig

    flags: dict[str, object] = {
        "store_path": folder,
        "bind_address": host,
        "listen_port": port,
        "nameservers": nameservers,
        "broker_name": name,
        "cluster_name": cluster,
        "flush": flush,
        "segment_size": segment_size,
        "advertise_address": advertise,
        "metrics_port": metrics_port,
        "insecure": insecure,
    }
    settings = gathered(BROKER, {BROKER: flags}, file=file, pairs=pairs, tls=tls)
    config = broker_config(BrokerConfig(metrics_port=METRICS_PORT), settings)
    begin_logs(settings, level=log_level, form=log_format)
    config = within_limit(config, raised_limit())
    if not config.nameservers:
        log.warning("no name server (-n): clients will not find this broker")
    with failures_told():
        run(config, open_metrics(config))


def run(config: BrokerConfig, metrics: socket.socket | None) -> None:
    """Run it until a signal ends it."""
    from cometmq.broker import daemon
    from cometmq.net import guest

    async def main(stop: trio.Event) -> None:
        await run_one("broker", daemon.serve, config, metrics, guest.repeat_on_loop, stop)

    guest.run(main)
