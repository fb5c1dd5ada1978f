"""Options of the data source, as errors name them, in the words of the command line."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Final

from cometmq.pipeline.jobs.credentials import Credentials
from cometmq.pipeline.jobs.streams import OPTIONS
from cometmq.pipeline.option_reading import camel

_NAMES: Final = {
    **{option: name for name, option in OPTIONS.items()},
    **{camel(each.name): each.name for each in fields(Credentials)},
    "secretKey": "secret_key_file",
    "splitBytes": "split_size",
    "onDamage": "on_damage",
}
"""Names of settings by the option of a source that they become."""
_CALLED: Final = re.compile(
    r"failOnDataLoss=false"
    # At the beginning, where settings have no dashes in front, or marked as what is to be written.
    rf"|^({'|'.join(_NAMES)})(?=: )"
    # Not in a list of columns, as Spark gives them.
    rf"|(?<!\[)(?<!`, )`({'|'.join(_NAMES)})`"
    rf"|\b({'|'.join(each for each in _NAMES if not each.islower())})\b"
)


def in_words_of_the_command(text: str, prefix: str = "") -> str:
    """Return an error with options that the command has; `prefix` is that of a second cluster."""

    def name(found: re.Match[str]) -> str:
        if found[0] == "failOnDataLoss=false":
            return "--no-fail-on-data-loss"
        dashes = "" if found[1] else "--"
        setting = _NAMES[found[1] or found[2] or found[3]]
        return dashes + f"{prefix}{setting}".replace("_", "-")

    return _CALLED.sub(name, text)
