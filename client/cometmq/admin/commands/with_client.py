"""Shared by the commands that talk to a cluster: name server, JSON, a client, clear errors."""

from __future__ import annotations

import asyncio
import base64
import logging
import re
import threading
from contextlib import asynccontextmanager, contextmanager
from difflib import get_close_matches
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import anyio
import click

from cometmq.admin.commands.access import access_options, take_config
from cometmq.admin.commands.wording import in_options
from cometmq.admin.options import options
from cometmq.admin.render import BODY_SHOWN_MAX, body_text, one_line, show_json
from cometmq.client import Client, ClientError, NetworkError, Sql, UsageError
from cometmq.client._routes import NoRouteError
from cometmq.net.ending_signals import Requests, heeded_signals

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping, Sequence
    from datetime import datetime

    from cometmq.client import ReceivedMessage
    from cometmq.client.admin import Change

Function = TypeVar("Function", bound="Callable[..., Any]")

_CHANGES = {"made": "made on", "changed": "changed on", "kept": "is there, and stays as it is, on"}

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
"""Python's stand-in for a byte that cannot be decoded."""

NO_BROKER = "no broker is registered with {}: is one running, and told of that name server?"


def client_command(function: Function) -> Function:
    """Make a command of a coroutine function whose first argument is an open client.

    It also gets `-n`, `--timeout` and the options for a guarded cluster.
    """

    @wraps(function)
    def run(nameserver: str, timeout: float, **arguments: Any) -> None:
        _check_texts(nameserver, arguments)

        async def main() -> None:
            config = take_config(arguments, timeout=timeout)
            failed: BaseException | None = None
            async with Client(nameserver, config) as mq:
                try:
                    await function(mq, **arguments)
                except* NoRouteError as group:
                    failed = group  # Raised in here, the error would be in a group again.
                if failed is not None:
                    raise await explain(mq, failed) from None

        run_async(main())

    return cast("Function", _CLIENT_OPTIONS(run))


_CLIENT_OPTIONS: Final = options(
    click.option(
        "-n",
        "--nameserver",
        default="127.0.0.1:9876",
        show_default=True,
        envvar="NAMESRV_ADDR",
        metavar="HOST:PORT[;...]",
        help="The cluster's name servers; also from NAMESRV_ADDR.",
    ),
    click.option("--timeout", default=5.0, show_default=True, help="Seconds to wait for a server."),
    access_options,
)


def _check_texts(nameserver: str, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that are not valid text; only a body may have any bytes."""
    for name, value in {"nameserver": nameserver, **arguments}.items():
        for text in cast("tuple[object, ...]", value) if isinstance(value, tuple) else (value,):
            if isinstance(text, str) and name != "body" and _SURROGATE.search(text):
                raise click.UsageError(
                    f"{text!r} is not text in UTF-8, or LANG says another encoding"
                )


def run_async(main: Coroutine[Any, Any, None]) -> None:
    """Run a command's coroutine; if it fails, say why on one line."""
    failed: BaseException | None = None
    try:
        try:
            with _log_lines_once():
                asyncio.run(main)
        except* ClientError as group:
            failed = group  # Raised in here, the error would be in a group again.
        if failed is not None:
            raise _told(_first_of(failed)) from None
    except (OSError, BaseExceptionGroup) as error:
        problem = _first_of(error)
        # If the reader is gone (`| head`), click ends silently.
        if isinstance(problem, OSError) and not isinstance(problem, BrokenPipeError):
            why = problem.strerror or problem
            raise click.ClickException(f"standard input or output: {why}") from None
        raise


@contextmanager
def _log_lines_once() -> Generator[None, None, None]:
    """Show no line of the client's log twice, as retries repeat them."""
    said = set[str]()

    def is_new(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        is_first = text not in said
        said.add(text)
        return is_first

    handler = logging.lastResort
    assert handler is not None
    handler.addFilter(is_new)
    try:
        yield
    finally:
        handler.removeFilter(is_new)


async def explain(mq: Client, error: BaseException) -> BaseException:
    """For a topic without a route, say what is wrong: no broker at all, or a misspelt name."""
    error = _first_of(error)
    if not isinstance(error, NoRouteError):
        return error
    try:
        topics = [each.name for each in await mq.admin.topics()]
        if not topics and not await mq.admin.brokers():
            return click.ClickException(NO_BROKER.format(error.address))
    except ClientError:
        return error
    alike = get_close_matches(error.topic, topics, 1)
    hint = f"did you mean {alike[0]!r}?" if alike else "`cometmq topic list` shows all"
    return click.ClickException(f"no broker serves the topic {error.topic!r}; {hint}")


def _first_of(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error


def _told(error: BaseException) -> click.ClickException:
    if isinstance(error, UsageError):
        return click.UsageError(in_options(str(error), click.get_current_context().command))
    if isinstance(error, NetworkError):
        what_to_do = "Is it running? `cometmq up` starts a name server and a broker here."
        if "CERTIFICATE_VERIFY_FAILED" in str(error):  # With several name servers, no type says so.
            what_to_do = (
                "It answers, but --tls-ca does not vouch for it. A certificate must name the"
                " address that is connected to, which a broker registers: often an IP address."
            )
        elif "the connection begins with" in str(error):
            what_to_do = "Something else listens there; -n is the address of a name server."
        elif "the connection ended" in str(error):  # Several error types say so.
            what_to_do = (
                "It accepted the connection and closed it: has it reached its connections_max,"
                " is TLS on at one end only (--tls), or did it stop? Its log says which."
            )
        return click.ClickException(f"{error}\n{what_to_do}")
    return click.ClickException(str(error))


@asynccontextmanager
async def until_stopped() -> AsyncGenerator[anyio.CancelScope]:
    """Leave a block on SIGINT, SIGTERM or SIGHUP, without an error.

    A second signal, at least a second later (`ending_signals`), ends the process at once, even if
    the loop hangs in the write of a line that nobody reads.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    if threading.current_thread() is threading.main_thread():
        for number in heeded_signals():
            loop.add_signal_handler(number, stop.set)
        # Not by the loop, as it may hang in a write.
        Requests().heed_the_second()
    async with anyio.create_task_group() as tasks:

        async def listen() -> None:
            await stop.wait()
            tasks.cancel_scope.cancel()

        tasks.start_soon(listen)
        yield tasks.cancel_scope
        tasks.cancel_scope.cancel()


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


def filter_options(function: Function) -> Function:
    """Give a command `--filter` and `--sql`, of which at most one may be given, as `wanted`."""

    @wraps(function)
    def run(*args: Any, tags: str | None, sql: str | None, **arguments: Any) -> Any:
        if tags is not None and sql is not None:
            raise click.UsageError(
                "--filter and --sql: give one; in SQL, TAGS is the tag, as in \"TAGS = 'paid'\""
            )
        wanted = Sql(sql) if sql is not None else tags if tags is not None else "*"
        return function(*args, wanted=wanted, **arguments)

    return cast("Function", _FILTER_OPTIONS(run))


_FILTER_OPTIONS: Final = options(
    click.option("--filter", "tags", help="Tags: 'paid || refunded'."),
    click.option("--sql", help="Properties, in SQL92: \"amount > 100 AND country = 'AT'\"."),
)


def show_changes(what: dict[str, str], done: Mapping[str, Change], *, as_json: bool) -> None:
    """Print what happened to a topic or a group on each broker."""
    if as_json:
        show_json({**what, "brokers": dict(done)})
        return
    (name,) = what.values()
    for broker, change in done.items():
        click.echo(f"{name}: {_CHANGES[change]} {broker}")


def read_pairs(option: str, pairs: Sequence[str]) -> dict[str, str]:
    """Parse the values of an option of the form NAME=VALUE."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.UsageError(f"{option} {pair}: write NAME=VALUE")
        found[name] = value
    return found


def message_document(message: ReceivedMessage) -> dict[str, Any]:
    """Return a message as JSON; a body that is not text is in base64."""
    return {
        "topic": message.topic,
        "broker": message.queue.broker,
        "queue": message.queue.id,
        "offset": message.offset,
        "id": message.id,
        "keys": message.keys,
        "tag": message.tag,
        "properties": message.user_properties,
        "stored_at": message.stored_at.isoformat(timespec="milliseconds"),
        "attempt": message.attempt,
        **_body_of(message.body),
    }


cut_option = click.option(
    "--cut",
    type=click.IntRange(min=0),
    metavar="BYTES",
    help="Show at most this many bytes of a body; 0 for all, as --json does."
    f"  [default: {BODY_SHOWN_MAX} on a terminal, else 0]",
)


def message_line(message: ReceivedMessage, cut: int) -> str:
    """Return a message on one line, for people, with `cut` bytes of its body; 0 for all."""
    about = [f"{message.stored_at:%H:%M:%SZ}", f"{message.queue.broker}:{message.queue.id}"]
    about.append(f"@{message.offset}")
    if message.tag:
        about.append(f"[{message.tag}]")
    if message.keys:
        about.append(" ".join(message.keys))
    return f"{one_line('  '.join(about))}  {body_text(message.body, cut)}"


def iso_time(time: datetime | None) -> str | None:
    """Return a time in ISO 8601."""
    return None if time is None else time.isoformat(timespec="milliseconds")


def _body_of(body: bytes) -> dict[str, str]:
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}
