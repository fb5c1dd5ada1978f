"""Rewording of the SDK's errors about arguments for the options of a command."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import click

_PHRASES: Final = (
    (r"use the argument key or keys", "use --key"),
    (r"use the argument tag\b", "use --tag"),
    (r"use the argument (?:delay_level|deliver_at|delay)\b", "use --delay"),
    (r"for several, use keys=", "--key may be repeated"),
    (r'give one, Client\("127.0.0.1:9876"\),', "give one, -n HOST:PORT,"),
    (r"more than body_size_max (\d+)", r"more than \1, the most that is sent"),
    (r"; a larger setting helps .*", ""),
    (r"filter=Sql\((.*)\)$", r"--sql \1"),
    (r"use Sql\((.*)\)$", r"use --sql \1"),
    (r"^properties: ", "--property: "),
)
"""Regular expressions and their replacements."""


def in_options(text: str, command: click.Command) -> str:
    """Turn `max_retries=-1: at least 0` into `--max-retries=-1: at least 0`, and so on."""
    for phrase, instead in _PHRASES:
        text = re.sub(phrase, instead, text)
    options = {option for each in command.params for option in each.opts}
    name = re.match(r"\w*", text)
    assert name is not None
    option = f"--{name[0].replace('_', '-')}"
    return option + text[name.end() :] if option in options else text
