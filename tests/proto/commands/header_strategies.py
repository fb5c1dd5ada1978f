"""Hypothesis strategies for header classes, made from their own fields."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st

from cometmq.proto import commands
from cometmq.proto.header import Header, HeaderField, fields_of

CLASSES: list[type[Header]] = sorted(
    {
        value
        for value in vars(commands).values()
        if isinstance(value, type) and issubclass(value, Header) and value is not Header
    },
    key=lambda cls: cls.__name__,
)

TEXTS = st.text(st.characters(codec="utf-8"))


def values_of(field: HeaderField) -> st.SearchStrategy[Any]:
    """Return a strategy for all values of a field."""
    kinds: dict[type, st.SearchStrategy[Any]] = {
        str: TEXTS,
        bool: st.booleans(),
        int: st.integers(*field.bounds),
    }
    values = kinds[field.kind]
    return values | st.none() if field.optional else values


def headers_of(cls: type[Header]) -> st.SearchStrategy[Header]:
    """Return a strategy for all headers of a class."""
    return st.tuples(*map(values_of, fields_of(cls))).map(lambda values: cls(*values))


def required_fields(cls: type[Header]) -> list[HeaderField]:
    """Return the fields of a class that have no default."""
    return [field for field in fields_of(cls) if field.default is msgspec.NODEFAULT]


def full_texts(cls: type[Header]) -> dict[str, str]:
    """Return valid texts for all fields of a class."""
    texts = {str: "x", bool: "true", int: "7"}
    return {field.wire_name: texts[field.kind] for field in fields_of(cls)}
