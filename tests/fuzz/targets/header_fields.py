"""Typed headers of several classes: strings and numbers from JSON, strings, and arrays.

The first byte chooses the class, the second the form.
"""

from __future__ import annotations

from typing import Any

import msgpack
import msgspec

from cometmq.proto import commands
from cometmq.proto.errors import FieldError, RemoteProtocolError
from cometmq.proto.header import (
    Header,
    from_array,
    from_json,
    from_texts,
    texts_from_json,
    to_array,
    to_texts,
)

CLASSES: list[type[Header]] = [
    commands.SendMessageV2,
    commands.PullMessage,
    commands.SendMessageResponse,
    commands.GetConsumeStats,
    commands.PopMessage,
    commands.QueryConsumerOffset,
]


def check(data: bytes) -> None:
    """Read the fields, and check that they survive a round trip."""
    if len(data) < 2:
        raise RemoteProtocolError("no class")
    cls, raw = CLASSES[data[0] % len(CLASSES)], data[2:]
    if data[1] % 2:
        header = from_array(cls, _items(raw))
        assert from_array(cls, msgpack.unpackb(msgpack.packb(to_array(header)))) == header
        return
    texts = texts_from_json(raw)
    try:
        header = from_json(cls, raw)
    except FieldError:
        _must_refuse(cls, texts)
        raise
    assert from_texts(cls, texts) == header
    assert from_texts(cls, to_texts(header)) == header


def _items(raw: bytes) -> list[Any]:
    try:
        return msgspec.convert(msgpack.unpackb(raw), list[Any])
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise RemoteProtocolError(f"not an array: {error}") from None


def _must_refuse(cls: type[Header], texts: dict[str, str]) -> None:
    try:
        from_texts(cls, texts)
    except FieldError:
        return
    raise AssertionError("JSON refused, strings accepted")
