"""A property that a job adds to each message that it sends: `--mark NAME=VALUE`."""

from __future__ import annotations

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.rows import RESERVED


def read_mark(text: str) -> tuple[str, str]:
    """Parse its name and value; refuse a property that no message can have."""
    name, _, value = text.partition("=")
    if not name or not value:  # Apache's clients do not see a property with an empty value.
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
