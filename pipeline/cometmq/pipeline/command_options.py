"""The options of a job's command, one for each field of its settings; and settings from options."""

from __future__ import annotations

import os
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any, Final

import click

from cometmq.client import UsageError
from cometmq.client.secret_files import read_secret
from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs.credentials import SUFFIX, Credentials
from cometmq.pipeline.jobs.job import metavar_of
from cometmq.pipeline.jobs.option_words import in_words_of_the_command
from cometmq.pipeline.option_reading import camel

if TYPE_CHECKING:
    from collections.abc import Mapping
    from dataclasses import Field

_MANY: Final = "tuple[str, ...]"
"""The type of a setting whose option is repeatable."""
_TYPES: Final = {"str": str, "int": int, "float": float}


def options_of(settings: type[Any]) -> list[click.Option]:
    """Make the options of a class of settings."""
    return [option for each in fields(settings) for option in _options(each)]


def settings_of(settings: type[Any], given: Mapping[str, Any]) -> Any:
    """Make settings from the values of these options."""
    found = dict(given)
    for name in (each.name for each in fields(settings) if each.name.endswith(SUFFIX)):
        prefix = name.removesuffix(SUFFIX)
        parts = {each.name: found.pop(f"{prefix}{each.name}") for each in fields(Credentials)}
        try:
            found[name] = Credentials(**parts)
        except OptionError as error:
            text = in_words_of_the_command(str(error), prefix)
            raise OptionError(_with_variables(text, prefix, parts)) from None
    return settings(**found)


def _with_variables(text: str, prefix: str, parts: Mapping[str, Any]) -> str:
    """Return an error that names environment variables where these gave the value, not options."""
    for each in fields(Credentials):
        variable = _variable(prefix, each)
        if parts[each.name] and os.environ.get(variable) == parts[each.name]:
            text = text.replace(in_words_of_the_command(f"`{camel(each.name)}`", prefix), variable)
    return text


def _options(declared: Field[Any]) -> list[click.Option]:
    """Make the options of a field: one, or those for the credentials of a cluster."""
    if not declared.name.endswith(SUFFIX):
        return [_option(declared)]
    prefix = declared.name.removesuffix(SUFFIX)
    return [
        (_secret if each.metadata["secret"] else _option)(each, prefix)
        for each in fields(Credentials)
    ]


def _option(declared: Field[Any], prefix: str = "") -> click.Option:
    is_flag = declared.type in ("bool", bool)
    is_many = declared.type == _MANY
    name = f"{prefix}{declared.name}".rstrip("_").replace("_", "-")  # `from_`: a Python keyword.
    if declared.name == "nameserver":
        return _nameserver(declared.metadata["meaning"])
    required = declared.default is MISSING
    # Click treats even None as a default.
    default: dict[str, Any] = {} if required else {"default": declared.default}
    spelt = f"--{name}/--no-{name}" if is_flag and declared.default is True else f"--{name}"
    return click.Option(
        [f"{prefix}{declared.name}", spelt],
        type=None if is_flag else str if is_many else _TYPES[str(declared.type).partition(" ")[0]],
        is_flag=is_flag or None,  # With False, a required option could do without its value.
        multiple=is_many,
        required=required,
        show_default=not required and declared.default not in ("", None, False, ()),
        envvar=_variable(prefix, declared) if declared.metadata.get("in_environment") else None,
        show_envvar=True,
        help=declared.metadata.get("meaning", ""),
        metavar=metavar_of(declared) or None,
        **default,
    )


def _secret(declared: Field[Any], prefix: str) -> click.Option:
    """Make the option for a secret's file: all users can see command lines."""
    name, variable = f"{prefix}{declared.name}", _variable(prefix, declared)

    def read(_ctx: click.Context, _param: click.Parameter, path: str | None) -> str:
        try:
            return read_secret(path, variable)
        except UsageError as error:
            raise click.BadParameter(str(error)) from None

    return click.Option(
        [name, f"--{name.replace('_', '-')}-file"],
        callback=read,
        metavar="FILE",
        help=f"{declared.metadata['meaning']}  [env var: {variable}, the secret itself]",
    )


def _variable(prefix: str, declared: Field[Any]) -> str:
    return f"COMETMQ_{prefix}{declared.name}".upper()


def _nameserver(meaning: str) -> click.Option:
    """Make the option that all commands of `cometmq` share."""
    return click.Option(
        ["-n", "--nameserver"],
        default="127.0.0.1:9876",
        show_default=True,
        envvar="NAMESRV_ADDR",
        metavar="HOST:PORT[;...]",
        help=meaning,
    )
