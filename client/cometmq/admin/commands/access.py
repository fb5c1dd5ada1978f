"""Access of commands to a guarded cluster: four options, spelt as those of the pipeline's jobs.

All users of a machine can read command lines, so a secret is never on one: it is in a file or in
the environment.
"""

from __future__ import annotations

import re
from typing import Any, Final

import click

from cometmq.admin.options import options
from cometmq.client import ClientConfig, UsageError
from cometmq.client.secret_files import read_secret

_SECRET_VARIABLE: Final = "COMETMQ_SECRET_KEY"
_OPTIONS: Final = {
    "access_key": "--access-key",
    "secret_key": "--secret-key-file",
    "tls_ca": "--tls-ca",
    "tls": "--tls",
}
"""The options, by the client setting that they give."""
_SETTING: Final = re.compile(rf"\b({'|'.join(_OPTIONS)})\b(?!\.)")


def _read_secret(_ctx: click.Context, _option: click.Parameter, path: str | None) -> str:
    try:
        return read_secret(path, _SECRET_VARIABLE)
    except UsageError as error:
        raise click.BadParameter(str(error)) from None


access_options = options(
    click.option(
        "--access-key",
        metavar="NAME",
        envvar="COMETMQ_ACCESS_KEY",
        show_envvar=True,
        help="The access key that requests are signed with.",
    ),
    click.option(
        "--secret-key-file",
        "secret_key",
        metavar="FILE",
        callback=_read_secret,
        help=f"A file that contains the secret key.  [env var: {_SECRET_VARIABLE}, the secret"
        " itself]",
    ),
    click.option("--tls", is_flag=True, help="Connect with TLS."),
    click.option(
        "--tls-ca", metavar="FILE", help="CA certificates to trust (PEM); else none is verified."
    ),
)
"""The options that a guarded cluster needs; `take_config` reads them."""


def take_config(arguments: dict[str, Any], *, timeout: float) -> ClientConfig:
    """Take the options out of a command's arguments, and make a client's settings from them."""
    given = {name: arguments.pop(name) for name in _OPTIONS}
    try:
        return ClientConfig(timeout=timeout, **{n: value for n, value in given.items() if value})
    except UsageError as error:
        raise UsageError(_SETTING.sub(lambda found: _OPTIONS[found[1]], str(error))) from None
