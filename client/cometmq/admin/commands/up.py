"""`cometmq up`: a name server and a broker in one process."""

from __future__ import annotations

import logging
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cometmq.admin.daemons import (
    METRICS_PORT,
    MIB,
    PORT,
    begin_logs,
    broker_config,
    failures_told,
    gathered,
    host_option,
    metrics_url,
    nameserver_config,
    new_exposition,
    open_metrics,
    say_ready,
    shared_options,
    store_folder_option,
    store_options,
)
from cometmq.admin.open_files import raised_limit, within_limit
from cometmq.admin.sources import BROKER, NAMESERVER

if TYPE_CHECKING:
    import socket

    from cometmq.broker.config import BrokerConfig
    from cometmq.nameserver import NameServerConfig
    from cometmq.proto.host import Host

log = logging.getLogger("cometmq")

SEGMENT_SIZE = 64 * MIB
"""Smaller than a broker's default, as many stores come and go on a developer's disk."""


@click.command(
    short_help="Start a name server and a broker in one process.",
    epilog="""\b
Examples:
  cometmq up                                 everything on 127.0.0.1, store in ./cometmq-data
  cometmq up --dir /tmp/t --broker-port 0 --nameserver-port 0 --metrics-port 0
  cometmq up --flush async --set auto_create_topic_enable=false
  cometmq up --config broker.conf            settings of ours (TOML), or Apache's

Settings are looked for in flags and --set, then in the environment (COMETMQ_FLUSH=async,
COMETMQ_NAMESERVER_SCAN_INTERVAL_MS=1000), then in the file. docs/settings.md lists them.
""",
)
@store_folder_option
@host_option
@click.option(
    "--broker-port", type=PORT, help="The broker's port; 0 for any free one.  [default: 10911]"
)
@click.option(
    "--nameserver-port",
    type=PORT,
    help="The name server's port; 0 for any free one.  [default: 9876]",
)
@store_options
@shared_options
def up(
    folder: str | None,
    host: str | None,
    broker_port: int | None,
    nameserver_port: int | None,
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
    """Start a name server and a broker in one process, on 127.0.0.1.

    Any RocketMQ client finds it with the name server 127.0.0.1:9876. When sends are accepted, a
    line that begins with `cometmq ready` goes to stdout. Ctrl-C stops it; what was acknowledged
    stays in the store.
    """
    from cometmq.broker.config import BrokerConfig
    from cometmq.nameserver import NameServerConfig
    from cometmq.store.config import StoreConfig
    from cometmq.store.disk.filesystem import RealFileSystem
    from cometmq.store.starting.folder import check_root

    flags: dict[str, dict[str, object]] = {
        BROKER: {
            "store_path": folder,
            "bind_address": host,
            "listen_port": broker_port,
            "flush": flush,
            "segment_size": segment_size,
            "advertise_address": advertise,
            "metrics_port": metrics_port,
            "insecure": insecure,
        },
        NAMESERVER: {"bind_address": host, "listen_port": nameserver_port, "insecure": insecure},
    }
    settings = gathered(BROKER, flags, file=file, pairs=pairs, tls=tls)
    base = BrokerConfig(store=StoreConfig(segment_size=SEGMENT_SIZE), metrics_port=METRICS_PORT)
    broker = broker_config(base, settings)
    kv_config_path = f"{Path(broker.store_path).absolute()}/nameserver/kvConfig.json"
    nameserver = nameserver_config(NameServerConfig(kv_config_path=kv_config_path), settings)
    is_there = nameserver.bind_address == broker.bind_address and nameserver.listen_port > 0
    if is_there and nameserver.listen_port in (broker.listen_port, broker.vip_port):
        raise click.UsageError(
            f"--nameserver-port {nameserver.listen_port}: the broker listens there, at its own"
            f" port {broker.listen_port} and at {broker.vip_port}, as old clients expect; choose"
            " another"
        )
    begin_logs(settings, level=log_level, form=log_format)
    broker = within_limit(broker, raised_limit())
    may_differ = "metrics_port" not in settings.of[BROKER]
    with failures_told():
        # Before the name server looks for its table there, as its error would name a missing file.
        check_root(RealFileSystem(), broker.store_path)
        run(nameserver, broker, open_metrics(broker, may_differ=may_differ))


def run(nameserver: NameServerConfig, broker: BrokerConfig, metrics: socket.socket | None) -> None:
    """Run both until a signal ends them."""
    import trio

    from cometmq.admin.together import serve_both
    from cometmq.net import guest

    def ready(names: Host, address: Host) -> None:
        say_ready(nameserver=names, broker=address, metrics=metrics_url(metrics))
        click.echo(_what_next(str(names), broker.store_path), err=True)

    async def main(stop: trio.Event) -> None:
        exposition = new_exposition(metrics, guest.repeat_on_loop)
        async with trio.open_nursery() as nursery:
            if exposition is not None:
                await nursery.start(exposition.serve, metrics)
            await serve_both(nameserver, broker, stop=stop, ready=ready, exposition=exposition)
            nursery.cancel_scope.cancel()

    guest.run(main)


def _what_next(names: str, store_path: str) -> str:
    # With `make run` it is in .venv/bin, where most shells don't look.
    program = "cometmq" if shutil.which("cometmq") else sys.argv[0]
    if program.endswith(".py"):  # Run as a module.
        program = f"{sys.executable} -m cometmq.admin"
    return (
        f"Clients of RocketMQ, in any language, find it with the name server {names}.\n"
        f"In another terminal:  {program} send greetings hello -n {names}\n"
        f"                      {program} consume greetings -n {names}\n"
        f"Ctrl-C stops it; what was acknowledged stays in the store, {Path(store_path).absolute()}."
    )
