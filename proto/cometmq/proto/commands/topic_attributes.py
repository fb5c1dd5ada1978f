"""The `attributes` text of a topic change: attributes to set and attributes to delete.

::

    +message.type=FIFO,+reserve.time=-1,-cleanup.policy

Plus sets, minus deletes, and commas separate. The broker decides which keys exist and which may
change. There is no escape: a key or a value cannot contain a comma.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.proto.errors import FieldError, LocalProtocolError

if TYPE_CHECKING:
    from collections.abc import Mapping


def encode_attributes(changes: Mapping[str, str | None]) -> str:
    """Write changes: a key's new value, or None to delete the key."""
    items: list[str] = []
    for key, value in changes.items():
        if not key or "," in key or "=" in key or value == "" or "," in (value or ""):
            raise LocalProtocolError(
                f"the topic attribute {key!r}: {value!r} cannot be written as text"
            )
        items.append(f"-{key}" if value is None else f"+{key}={value}")
    return ",".join(items)


def decode_attributes(text: str) -> dict[str, str | None]:
    """Read changes: a key's new value, or None to delete the key.

    Commas at the end are ignored, as Java's `split` does.
    """
    changes: dict[str, str | None] = {}
    stripped = text.rstrip(",")
    for item in stripped.split(",") if stripped else ():
        key, equals, value = item.partition("=")
        if equals and (key[:1] != "+" or len(key) == 1 or not value):
            raise _wrong(f"add/alter attribute format is wrong: {key}")
        if not equals and (key[:1] != "-" or len(key) == 1):
            raise _wrong(f"delete attribute format is wrong: {key}")
        if key[1:] in changes:
            raise _wrong(f"key duplication: {key[1:]}")
        changes[key[1:]] = value if equals else None
    return changes


def _wrong(problem: str) -> FieldError:
    return FieldError("UPDATE_AND_CREATE_TOPIC", "attributes", problem)
