"""`cometmq up`, `cometmq broker` and `cometmq nameserver`: what the daemons share.

These are the options, the sources of settings, the ready line, and how daemons end. Each daemon's
code is imported only when it runs: a daemon is ready in half a second.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cometmq.admin.logs import FORMATS, LEVELS, set_up_logs
from cometmq.admin.options import options
from cometmq.admin.sources import BROKER, NAMESERVER, Settings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Mapping

    import trio

    from cometmq.broker.config import BrokerConfig
    from cometmq.nameserver import NameServerConfig
    from cometmq.net.exposition import Exposition

MIB: Final = 1 << 20
METRICS_PORT: Final = 5557
NAMESERVER_METRICS_PORT: Final = 5558


PORT: Final = click.IntRange(0, 65535)


class PortOrOff(click.ParamType):  # type: ignore[type-arg]  # Generic only in newer ones.
    """A port, or `off` for none, as in the setting."""

    name = "port"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        """Parse one of the two."""
        if value == "off":
            return "off"
        if not str(value).isdecimal():
            self.fail(f"{value!r} is neither a port nor off.", param, ctx)
        return PORT.convert(value, param, ctx)


store_folder_option = click.option(
    "--dir", "folder", metavar="DIR", help="The folder of the store.  [default: cometmq-data]"
)
host_option = click.option(
    "--host", metavar="ADDRESS", help="The address to listen on.  [default: 127.0.0.1]"
)

shared_options = options(
    click.option(
        "--metrics-port",
        type=PortOrOff(),
        help="The port of the metrics page; 0 for any free port, off for no page.",
    ),
    click.option(
        "--insecure",
        is_flag=True,
        help="Listen where others can connect, although anybody may then read and write.",
    ),
    click.option(
        "--tls",
        type=click.Choice(["off", "permissive", "enforcing"]),
        default="off",
        show_default=True,
        help="Only off is supported so far.",
    ),
    click.option("--config", "file", metavar="FILE", help="A file with settings; see below."),
    click.option(
        "--set",
        "pairs",
        multiple=True,
        metavar="KEY=VALUE",
        help="Set any setting; repeatable.",
    ),
    click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True),
    click.option("--log-format", type=click.Choice(FORMATS), default="text", show_default=True),
)
"""The options of all three daemons."""

store_options = options(
    click.option(
        "--flush",
        type=click.Choice(["sync", "async"]),
        help="When a send is answered: sync, the default, once it survives a power cut; async,"
        " once it is written.",
    ),
    click.option(
        "--segment-size",
        metavar="BYTES",
        help="The length of the log's files, for a new store.  [default: 1GiB; of up 64MiB]",
    ),
    click.option(
        "--advertise",
        metavar="ADDRESS",
        help="The address or host name that clients are told to connect to.",
    ),
)
"""The options of commands that run a broker."""


def gathered(
    main: str,
    flags: Mapping[str, Mapping[str, object]],
    *,
    file: str | None,
    pairs: tuple[str, ...],
    tls: str,
) -> Settings:
    """Gather settings from all sources: flags override the environment, which overrides a file."""
    from cometmq.broker.settings import PART_OF
    from cometmq.nameserver.config import SETTINGS

    if tls != "off":
        raise click.UsageError(f"--tls {tls}: TLS is not supported yet; only --tls off works")
    settings = Settings(main)
    if file is not None:
        settings.add_file(file)
    settings.add_environment(os.environ, {BROKER: PART_OF, NAMESERVER: SETTINGS})
    settings.add_pairs(pairs)
    for daemon, given in flags.items():
        settings.add(daemon, {k: v for k, v in given.items() if v is not None and v is not False})
    return settings


def broker_config(base: BrokerConfig, settings: Settings) -> BrokerConfig:
    """Make a broker's config from its settings; a `UsageError` says what is wrong with them."""
    from cometmq.broker.errors import ConfigError
    from cometmq.broker.settings import MAPPED, configured

    own_names = {key: same.name for key, same in MAPPED.items()}
    _advertise(settings)
    try:
        config, warnings = configured(base, settings.of[BROKER])
    except ConfigError as error:
        raise settings.refusal(BROKER, error, own_names) from error
    _check_which_store(config, settings)
    settings.warnings += warnings
    return config


def _check_which_store(config: BrokerConfig, settings: Settings) -> None:
    """Refuse to begin a new store if an Apache broker's file does not say where its store is."""
    said = settings.of[BROKER].keys() & {"store_path", "storePathRootDir"}
    path = config.store_path
    if settings.broker_conf is None or said or Path(path, "commitlog").exists():
        return
    raise click.UsageError(
        f"--config {settings.broker_conf}: has no storePathRootDir, and {path} holds no store. To"
        " Apache's broker that means the folder store in the home of its user: --dir ~/store opens"
        f" that one, --dir {path} begins a new one"
    )


def nameserver_config(base: NameServerConfig, settings: Settings) -> NameServerConfig:
    """Make a name server's config from its settings, in the same way."""
    from cometmq.nameserver import ConfigError, configured
    from cometmq.nameserver.config import APACHE_KEYS

    try:
        config, warnings = configured(base, settings.of[NAMESERVER])
    except ConfigError as error:
        raise settings.refusal(NAMESERVER, error, APACHE_KEYS) from error
    settings.warnings += warnings
    return config


def _advertise(settings: Settings) -> None:
    """Advertise the bound address unless told otherwise; replace host names by addresses."""
    given = settings.of[BROKER]
    for key in ("brokerIP1", "advertise_address"):
        if isinstance(name := given.get(key), str):
            place = settings.place_of(BROKER, key, {})
            given[key] = _resolved(name.strip(), f"{place}{key}" if place else "--advertise")
            return
    bound = given.get("bindAddress", given.get("bind_address"))
    if isinstance(bound, str):
        given["advertise_address"] = "127.0.0.1" if bound == "localhost" else bound.strip()


def _resolved(name: str, said_by: str) -> str:
    """Look up a host name; clients are told an address in four or sixteen bytes."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise click.UsageError(f"{said_by} {name}: {why}") from error
    found.sort(key=lambda each: each[0] != socket.AF_INET)
    return str(found[0][4][0])


def begin_logs(settings: Settings, *, level: str, form: str) -> None:
    """Set up logging, and log the warnings about the settings."""
    set_up_logs(level, form)
    for warning in settings.warnings:
        logging.getLogger("cometmq").warning("%s", warning)


@contextmanager
def failures_told() -> Generator[None, None, None]:
    """Turn errors that keep a daemon from starting or running into one line and exit status 1."""
    from cometmq.broker.errors import BrokerError
    from cometmq.nameserver import NameServerError
    from cometmq.net import NetError
    from cometmq.store.errors import StoreFilesError

    failed: BaseExceptionGroup[Exception] | None = None
    try:
        yield
    except* (BrokerError, NameServerError, NetError, StoreFilesError, OSError) as group:
        failed = group  # An error raised here would be wrapped in a group again.
    if failed is not None:
        from cometmq.admin.render import one_line

        raise click.ClickException(one_line(_first_of(failed))) from failed


def _first_of(group: BaseExceptionGroup[Exception]) -> str:
    from cometmq.store.errors import disk_error_text

    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, OSError):
        return disk_error_text(error)
    return f"{error}{_other_port(error)}"


def _other_port(error: BaseException) -> str:
    """If a port is in use, say which options of the command change it."""
    if getattr(error.__cause__, "errno", None) != errno.EADDRINUSE:
        return ""
    command = click.get_current_context().command
    names = [each.opts[0] for each in command.params if isinstance(each.type, click.IntRange)]
    ports = " or ".join(name for name in names if name.endswith("port"))
    return f"; stop that, or choose another port with {ports}"


def open_metrics(
    config: BrokerConfig | NameServerConfig, *, may_differ: bool = False
) -> socket.socket | None:
    """Open the socket of the metrics page; None if there is to be no page.

    If its port is in use and it `may_differ`, take any free port.
    """
    from cometmq.net import ListenError, listen_on
    from cometmq.proto.host import Host

    if config.metrics_port is None:
        return None
    try:
        (listening,) = listen_on([Host(config.bind_address, config.metrics_port)])
    except ListenError as error:
        if getattr(error.__cause__, "errno", None) == errno.EADDRNOTAVAIL:
            raise ListenError(f"{error}; give one that is with --host") from error
        if not may_differ:
            raise ListenError(
                f"metrics: {error}; choose another with --metrics-port, or 0 for any free one"
            ) from error
        logging.getLogger("cometmq").warning("metrics: %s; any free one is used instead", error)
        (listening,) = listen_on([Host(config.bind_address, 0)])
    return listening


def metrics_url(listening: socket.socket | None) -> str | None:
    """Return the address of the metrics page."""
    from cometmq.net import address_of

    return None if listening is None else f"http://{address_of(listening)}/metrics"


def new_exposition(
    listening: socket.socket | None, repeat: Callable[[Callable[[], float]], Awaitable[None]]
) -> Exposition | None:
    """Make the contents of the metrics page, if there is one."""
    if listening is None:
        return None
    # Importing it takes a third of a start, so it is only imported for a page.
    from cometmq.net.exposition import Exposition

    return Exposition(repeat)


def say_ready(**addresses: object) -> None:
    """Print the ready line: what this process runs, and on which addresses."""
    from cometmq.net.pulse import settle_memory

    settle_memory()
    parts = [f"{name}={address}" for name, address in addresses.items() if address is not None]
    try:
        print(" ".join(["cometmq ready", *parts]), flush=True)
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard output") from error


async def run_one(
    role: str,
    serve: Callable[..., Awaitable[None]],
    config: object,
    metrics: socket.socket | None,
    repeat: Callable[[Callable[[], float]], Awaitable[None]],
    stop: trio.Event,
) -> None:
    """Run one daemon and its metrics page until a signal comes, and print when it is ready.

    `role` is its name in the ready line; `repeat` is how its loop calls a function periodically.
    """
    import trio

    exposition = new_exposition(metrics, repeat)
    async with trio.open_nursery() as nursery:
        if exposition is not None:
            await nursery.start(exposition.serve, metrics)
        address: object = await nursery.start(serve, config, exposition)
        say_ready(**{role: address}, metrics=metrics_url(metrics))
        await stop.wait()
        nursery.cancel_scope.cancel()
