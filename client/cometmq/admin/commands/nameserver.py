"""`cometmq nameserver`: a name server daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cometmq.admin.daemons import (
    NAMESERVER_METRICS_PORT,
    PORT,
    begin_logs,
    failures_told,
    gathered,
    host_option,
    nameserver_config,
    open_metrics,
    run_one,
    shared_options,
)
from cometmq.admin.open_files import raised_limit
from cometmq.admin.sources import NAMESERVER

if TYPE_CHECKING:
    import socket

    import trio

    from cometmq.nameserver import NameServerConfig


@click.command(
    short_help="Start a name server.",
    epilog="""\b
Examples:
  cometmq nameserver
  cometmq nameserver --host 0.0.0.0 --insecure --dir /var/lib/cometmq/names
  cometmq nameserver --config /opt/rocketmq/conf/namesrv.conf

Run two or three: they know nothing of one another, and every broker registers with all of them.
Settings are looked for in flags and --set, then in the environment
(COMETMQ_NAMESERVER_LISTEN_PORT=9876), then in the file, of ours (TOML) or Apache's.
docs/settings.md lists them.
""",
)
@click.option(
    "--dir", "folder", metavar="DIR", help="The folder of its KV table.  [default: cometmq-data]"
)
@host_option
@click.option(
    "--port", type=PORT, help="The port to listen on; 0 for any free one.  [default: 9876]"
)
@shared_options
def nameserver(
    folder: str | None,
    host: str | None,
    port: int | None,
    metrics_port: int | str | None,
    insecure: bool,
    tls: str,
    file: str | None,
    pairs: tuple[str, ...],
    log_level: str,
    log_format: str,
) -> None:
    """Start a name server: brokers register with it, and clients ask it where topics are.

    When it listens, a line that begins with `cometmq ready` goes to stdout; logs go to stderr.
    SIGTERM and Ctrl-C stop it cleanly, a second one at once.
    """
    from cometmq.nameserver import NameServerConfig

    flags: dict[str, object] = {
        "kv_config_path": None if folder is None else f"{folder}/kvConfig.json",
        "bind_address": host,
        "listen_port": port,
        "metrics_port": metrics_port,
        "insecure": insecure,
    }
    settings = gathered(NAMESERVER, {NAMESERVER: flags}, file=file, pairs=pairs, tls=tls)
    config = nameserver_config(NameServerConfig(metrics_port=NAMESERVER_METRICS_PORT), settings)
    begin_logs(settings, level=log_level, form=log_format)
    raised_limit()
    with failures_told():
        run(config, open_metrics(config))


def run(config: NameServerConfig, metrics: socket.socket | None) -> None:
    """Run it until a signal ends it."""
    from cometmq.nameserver import daemon
    from cometmq.net import alone

    async def main(stop: trio.Event) -> None:
        await run_one("nameserver", daemon.serve_alone, config, metrics, alone.repeat, stop)

    alone.run(main)
