"""The `repr` of a command, for a log or a debugger: short, whatever a peer put into it.

It shows no secrets: of signatures, tokens and passwords only the names of the fields.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cometmq.proto.codes import request_name, response_name
from cometmq.proto.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cometmq.proto.command import Command

# Fields shown, and characters of each.
FIELDS_SHOWN_MAX: Final = 16
TEXT_SHOWN_MAX: Final = 64
_SECRET: Final = frozenset({"Signature", "SecurityToken", "password"})


def describe(command: Command) -> str:
    """Describe a command: `<request 30 GET_MAX_OFFSET, opaque 7, JSON, topic='T'>`."""
    parts = [_kind(command), f"opaque {command.opaque}"]
    if command.codec is not None:
        parts.append(command.codec.name)
    if command.remark is not None:
        parts.append(f"remark {_short(command.remark)}")
    parts += (_fields(command), _body(command))
    return f"<{', '.join(filter(None, parts))}>"


def _kind(command: Command) -> str:
    if command.is_response:
        return f"response {command.code} {response_name(command.code)}"
    oneway = "one-way " if command.is_oneway else ""
    return f"{oneway}request {command.code} {request_name(command.code)}"


def _fields(command: Command) -> str:
    # Only a received command has nameless fields, and only its codec's class knows them.
    items: Sequence[Any] = getattr(command.fields, "nameless", ())
    shown = [_short(item) for item in items[:FIELDS_SHOWN_MAX]]
    try:
        texts = command.ext_fields
    except (ProtocolError, TypeError, ValueError) as error:
        return f"fields unreadable: {_short(str(error))}"
    count = len(items) + len(texts)
    for name, text in list(texts.items())[: FIELDS_SHOWN_MAX - len(shown)]:
        value = "…" if name in _SECRET else _short(text)
        # A peer chose the name, too: it must not look like another line of a log.
        shown.append(f"{name if _is_plain(name) else _short(name)}={value}")
    if count > len(shown):
        shown.append(f"… {count} in all")
    return " ".join(shown)


def _is_plain(name: str) -> bool:
    return len(name) <= TEXT_SHOWN_MAX and name.isascii() and name.isidentifier()


def _short(value: object) -> str:
    if isinstance(value, str | bytes) and len(value) > TEXT_SHOWN_MAX:
        return f"{value[:TEXT_SHOWN_MAX]!r}…"
    if isinstance(value, list | dict):
        return f"<{type(value).__name__} of {len(value)}>"  # pyright: ignore[reportUnknownArgumentType]  # What a peer sent.
    return repr(value)


def _body(command: Command) -> str:
    if command.body is None and not command.parts:
        return ""
    size = sum(len(part) for part in (command.body or b"", *command.parts))
    return f"body of {size} bytes"
