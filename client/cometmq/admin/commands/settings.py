"""`cometmq settings`: the settings of running brokers, CometMQ's or Apache's."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from cometmq.admin.commands.with_client import client_command, json_option, read_pairs
from cometmq.admin.render import show_facts, show_json, warn
from cometmq.client import ForbiddenError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from cometmq.client import Client

_FORGETS: Final = (
    "It holds until the broker stops; the next start goes by its file (--config), flags and"
    " environment, so write it there, too."
)
_WRITES: Final = (
    "An Apache broker writes it into the file that it was started with (-c), with all its other"
    " settings; one that was started without a file forgets it when it ends."
)
_FIXED: Final = (
    "Write it into the broker's file (--config) and start it again. `cometmq settings show` marks"
    " what changes while it runs."
)


class _Row(NamedTuple):
    """A broker's setting: CometMQ's with our name and notation, Apache's as the broker has it."""

    name: str
    key: str
    """The broker's name for it in the answer."""
    value: str
    is_changeable: bool | None
    """None if that is unknown."""


@click.group(short_help="Show and change settings of running brokers.")
def settings() -> None:
    """Show and change the settings of running brokers, on CometMQ or Apache RocketMQ.

    \b
      cometmq settings show                        all, of each broker
      cometmq settings show retention_hours
      cometmq settings set retention_hours=24      at once, without a restart

    docs/settings.md says what each of CometMQ's is. Apache's names for them are understood, too.
    """


@settings.command("show", short_help="Show the current settings, or those named.")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--broker", help="Only those of the broker with this name.")
@json_option
@client_command
async def show(mq: Client, *, names: tuple[str, ...], broker: str | None, as_json: bool) -> None:
    """Show the current settings: all, or those that are named.

    Those with a * can be changed while the broker runs, by `cometmq settings set`. Of an Apache
    broker nobody knows that but its black list, so none is marked.
    """
    found = {
        name: _wanted(name, told, names)
        for name, told in sorted((await mq.admin.settings(broker)).items())
    }
    if as_json:
        show_json([_document(name, row) for name, rows in found.items() for row in rows])
        return
    for name, rows in found.items():
        if len(found) > 1:
            click.echo(f"{name}:")
        show_facts((f"{'*' if row.is_changeable else ' '} {row.name}", row.value) for row in rows)


@settings.command("set", short_help="Change settings without a restart.")
@click.argument("pairs", nargs=-1, required=True, metavar="NAME=VALUE...")
@click.option("--broker", help="Only on the broker with this name.")
@json_option
@client_command
async def change(mq: Client, *, pairs: tuple[str, ...], broker: str | None, as_json: bool) -> None:
    """Change settings of all brokers, or of one, at once, without a restart.

    All are set, or none: what a broker does not know, or refuses, is said. A CometMQ broker has
    them until it ends: write what is to stay into its file, too. An Apache broker writes them into
    the file that it was started with.
    """
    asked = read_pairs("set", pairs)
    before = await mq.admin.settings(broker)
    wanted = {name: _wanted(name, told, tuple(asked)) for name, told in sorted(before.items())}
    documents: list[dict[str, Any]] = []
    for name, rows in wanted.items():
        try:
            await mq.admin.change_settings(asked, broker=name)
        except ForbiddenError as error:
            raise click.ClickException(f"{error}\n{_FIXED}") from None
        after = _rows((await mq.admin.settings(name))[name])
        told = {row.key: row.value for row in after}
        for row, text in zip(rows, asked.values(), strict=True):
            _check_taken(name, row, text, told[row.key])
            documents.append({"broker": name, "setting": row.name, "before": row.value})
            documents[-1] |= {"after": told[row.key], "survives_restart": _survives(before[name])}
    if as_json:
        show_json(documents)
        return
    for each in documents:
        was = f", was {each['before']}" if each["after"] != each["before"] else " already"
        click.echo(f"{each['broker']}: {each['setting']} is {each['after']}{was}")
    for survives in sorted({str(each["survives_restart"]) for each in documents}):
        warn(_WRITES if survives == "None" else _FORGETS)


def _check_taken(broker: str, row: _Row, asked: str, after: str) -> None:
    """Detect a value that Apache's broker cannot read: it changes nothing and reports success."""
    is_ours = row.is_changeable is not None
    if not is_ours and after == row.value and after.lower() != asked.strip().lower():
        raise click.ClickException(
            f"{broker}: {row.name} is still {after}: it ignored {asked!r}, which it cannot read,"
            " or does not change while it runs"
        )


def _wanted(broker: str, told: Mapping[str, str], names: Sequence[str]) -> list[_Row]:
    """Return the rows of these names, in their order; all rows if no names are given."""
    rows = _rows(told)
    if not names:
        return rows
    by_name = {name: row for row in rows for name in (row.key, row.name)}
    for name in names:
        if name not in by_name:
            raise click.ClickException(f"{broker}: {_unknown(name, by_name, told)}")
    return [by_name[name] for name in names]


def _unknown(name: str, known: Collection[str], told: Mapping[str, str]) -> str:
    from cometmq.broker.apache_keys import APACHE_KEYS
    from cometmq.broker.settings import MAPPED

    if _is_ours(told) and name in APACHE_KEYS:
        return f"{name}: a setting of Apache's that has no meaning in CometMQ"
    keys = [key for key, same in MAPPED.items() if same.name == name and key in known]
    alike = keys or get_close_matches(name, sorted(known), 1)
    hint = f"did you mean {alike[0]}?" if alike else "`cometmq settings show` has all"
    return f"{name}: it has no such setting; {hint}"


def _is_ours(told: Mapping[str, str]) -> bool:
    """Whether it is a CometMQ broker, whose answer has our names for settings Apache lacks."""
    from cometmq.broker.settings import PART_OF

    return not told.keys().isdisjoint(PART_OF)


def _survives(told: Mapping[str, str]) -> bool | None:
    """Whether a change survives a restart; None if that depends on how the broker was started."""
    return False if _is_ours(told) else None


def _rows(told: Mapping[str, str]) -> list[_Row]:
    from cometmq.broker.settings import CHANGEABLE, own_text

    if not _is_ours(told):
        return [_Row(key, key, told[key], None) for key in sorted(told)]
    owned = [(*own_text(key, text), key) for key, text in told.items()]
    return [_Row(name, key, text, name in CHANGEABLE) for name, text, key in sorted(owned)]


def _document(broker: str, row: _Row) -> dict[str, Any]:
    return {
        "broker": broker,
        "setting": row.name,
        "value": row.value,
        "apache_key": row.key if row.key != row.name or row.is_changeable is None else None,
        "changeable": row.is_changeable,
    }
