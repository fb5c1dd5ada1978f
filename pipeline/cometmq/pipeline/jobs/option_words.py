"""Rewording of errors that name options of the data source, for the command line."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

from cometmq.pipeline.jobs.credentials import Credentials
from cometmq.pipeline.jobs.places import read_place
from cometmq.pipeline.option_reading import camel

if TYPE_CHECKING:
    from collections.abc import Mapping

OPTIONS: Final = {
    "topic": "topic",
    "topic_pattern": "topicPattern",
    "start": "startingOffsets",
    "filter": "filter",
    "group": "group",
    "max_rows": "maxOffsetsPerTrigger",
    "align_by_time": "alignByTime",
    "in_order": "inOrder",
    "fail_on_data_loss": "failOnDataLoss",
    "on_bad_body": "onBadBody",
}
"""Settings, and the options of the source that they become."""
_NAMES: Final = {
    **{option: name for name, option in OPTIONS.items()},
    **{camel(each.name): each.name for each in fields(Credentials)},
    "secretKey": "secret_key_file",
    "splitBytes": "split_size",
    "onDamage": "on_damage",
}
"""Options of sources, and the names of the settings for them."""
_CALLED: Final = re.compile(
    r"failOnDataLoss=false"
    # At the beginning, where settings have no dashes before them, or quoted as something to write.
    rf"|^({'|'.join(_NAMES)})(?=: )"
    # Not a column, as Spark names one, nor in a list of columns.
    rf"|(?<!\[)(?<!`, )(?<!column )(?<!name )`({'|'.join(_NAMES)})`"
    rf"|\b({'|'.join(each for each in _NAMES if not each.islower())})\b"
)

_FOLDERS: Final = (
    *("store", "archive", "from_", "from_dir", "left", "right"),
    *("to", "checkpoint", "findings", "tables"),
)
"""Settings that name a folder, or a place that is a folder."""
_OF_READERS: Final = ("path: ", "from: ")
"""Prefixes of errors about a folder that is read, whichever setting named it."""


def in_words_of_the_command(text: str, prefix: str = "") -> str:
    """Return an error in terms of the command's options; `prefix` is that of a second cluster."""

    def name(found: re.Match[str]) -> str:
        if found[0] == "failOnDataLoss=false":
            return "--no-fail-on-data-loss"
        dashes = "" if found[1] else "--"
        setting = _NAMES[found[1] or found[2] or found[3]]
        return dashes + f"{prefix}{setting}".replace("_", "-")

    return _CALLED.sub(name, text)


def with_the_option_of_a_folder(text: str, given: Mapping[str, Any]) -> str:
    """Return an error about a folder with the given option that named it."""
    if not text.startswith(_OF_READERS):
        return text
    about = text.partition(": ")[2]
    said = {name: str(given.get(name) or "") for name in _FOLDERS}
    folders = {name: [text, _folder(text)] for name, text in said.items() if text}
    # One folder may be in another: the longest name is meant.
    named = max(
        (
            (len(folder), name)
            for name, both in folders.items()
            for folder in both
            if about.startswith(folder)
        ),
        key=lambda each: each[0],
        default=None,
    )
    return text if named is None else f"{named[1].rstrip('_').replace('_', '-')}: {about}"


def _folder(text: str) -> str:
    place = read_place(text)
    return text if place is None else place.path
