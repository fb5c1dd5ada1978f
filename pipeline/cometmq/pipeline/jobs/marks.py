"""A property that a job gives to each message that it sends: `--mark NAME=VALUE`."""

from __future__ import annotations

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.rows import RESERVED


def read_mark(text: str) -> tuple[str, str]:
    """Return its name and its value; refuse one that no message would have."""
    name, _, value = text.partition("=")
    if not name or not value:  # Of an empty value Apache's clients see no property.
        raise OptionError(f"mark: {text!r}: write NAME=VALUE")
    if name in RESERVED:
        raise OptionError(
            f"mark: {name} is a property that brokers and clients set themselves, and would not be"
            " sent; choose another name"
        )
    if "\x01" in name or "\x02" in text:
        raise OptionError(
            f"mark: {text!r}: U+0001 cannot be in the name of a property, nor U+0002 in either"
        )
    return name, value
