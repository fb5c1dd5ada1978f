"""The order of fields is the MessagePack protocol: `field_order.txt` pins it, a line a class."""

from __future__ import annotations

from pathlib import Path

import msgspec
from tests.proto.commands.header_strategies import CLASSES

from cometmq.proto.header import Header, HeaderField, fields_of

PINNED = (Path(__file__).parent / "field_order.txt").read_text().splitlines()


def kind_of(field: HeaderField) -> str:
    if field.kind is int:
        return f"i{field.bounds[1].bit_length() + 1}"
    return field.kind.__name__


def line_of(cls: type[Header]) -> str:
    fields = [
        f"{field.wire_name}:{kind_of(field)}{'' if field.default is msgspec.NODEFAULT else '?'}"
        for field in fields_of(cls)
    ]
    return " ".join([cls.__name__, *fields])


def test_fields_stand_where_they_always_stood() -> None:
    """Only change a pinned line by adding an optional field at its end."""
    assert [line_of(cls) for cls in CLASSES] == PINNED
