"""The slow reader of header fields, one by one, which defines the rules described in `header.py`.

It is used when msgspec, the fast reader, refuses; its errors name the field.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
from msgspec import inspect

from cometmq.proto.errors import FieldError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_INTEGER = re.compile(r"[+-]?[0-9]{1,40}", re.ASCII)
_DECIMAL = re.compile(r"-?[0-9]{1,40}(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,3})?", re.ASCII)
_SHOWN_MAX = 40
_KINDS: dict[type, type] = {
    inspect.StrType: str,
    inspect.IntType: int,
    inspect.FloatType: float,
    inspect.BoolType: bool,
}


class HeaderField(NamedTuple):
    """One field of a header class: its names, and how to read its text."""

    command: str  # The name of the class.
    name: str
    wire_name: str
    kind: type  # str, int, float or bool
    bounds: tuple[int, int]  # Of an int.
    default: Any  # msgspec.NODEFAULT: required.
    optional: bool  # May be None.

    @property
    def annotation(self) -> Any:
        """The field's type as msgspec reads it."""
        kind: Any = self.kind
        if kind is int:
            kind = Annotated[int, msgspec.Meta(ge=self.bounds[0], le=self.bounds[1])]
        return kind | None if self.optional else kind

    def problem(self, problem: str) -> FieldError:
        """Make the error that names this field."""
        return FieldError(self.command, self.wire_name, problem)


def header_fields(cls: type[msgspec.Struct]) -> list[HeaderField]:
    """List the fields of a header class; assert that a header can carry each."""
    info = inspect.type_info(cls)
    assert isinstance(info, inspect.StructType)
    return [_field(cls.__name__, field) for field in info.fields]


def _field(command: str, field: inspect.Field) -> HeaderField:
    found = field.type
    where = f"{command}.{field.name}"
    optional = False
    if isinstance(found, inspect.UnionType) and found.includes_none and len(found.types) == 2:
        optional = True
        found = next(t for t in found.types if not isinstance(t, inspect.NoneType))
        # The fast reader reads null as None, the slow one as the default.
        assert field.default is None, f"{where}: say `= None`"
    assert type(found) in _KINDS, f"{where}: no header field is a {found}"
    bounds = (0, 0)
    if isinstance(found, inspect.IntType):
        assert found.ge is not None, f"{where}: say I32 or I64"
        assert found.le is not None, f"{where}: say I32 or I64"
        bounds = (int(found.ge), int(found.le))
    kind = _KINDS[type(found)]
    return HeaderField(
        command, field.name, field.encode_name, kind, bounds, field.default, optional
    )


def read_texts(fields: Sequence[HeaderField], texts: Mapping[str, str]) -> list[Any]:
    """Read the values of a header class from a map of strings, in the order of the class."""
    values: list[Any] = []
    for field in fields:
        text = texts.get(field.wire_name)
        value = None if text is None else _value(field, text)
        values.append(_default(field) if value is None else value)
    return values


def read_items(fields: Sequence[HeaderField], items: Sequence[Any]) -> list[Any]:
    """Read the values of a header class from an array of typed values."""
    values: list[Any] = []
    for index, field in enumerate(fields):
        item = items[index] if index < len(items) else None
        values.append(_default(field) if item is None else _checked(field, item))
    return values


def _default(field: HeaderField) -> Any:
    if field.default is msgspec.NODEFAULT:
        raise field.problem("is missing")
    return field.default


def _value(field: HeaderField, text: str) -> Any:
    """Read one text; return None if it counts as missing."""
    if field.kind is str:
        return text
    word = text.strip().lower()
    if field.kind is bool:
        return None if word == "null" and field.optional else text.lower() == "true"
    if word in ("", "null"):
        return None
    number = _integer(text) if field.kind is int else _float(text)
    if number is None:
        raise field.problem(f"is {_shown(text)}, not a number")
    low, high = field.bounds
    if field.kind is int and not low <= number <= high:
        raise field.problem(f"is {_shown(text)}, not within {low} to {high}")
    return number


def _integer(text: str) -> int | None:
    if _INTEGER.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text) and (number := float(text)).is_integer():
        return int(number)
    return None


def _float(text: str) -> float | None:
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def _shown(text: str) -> str:
    return repr(text) if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]!r}…"


def _checked(field: HeaderField, item: Any) -> Any:
    try:
        return msgspec.convert(item, field.annotation)
    except msgspec.ValidationError as error:
        raise field.problem(f"is wrong: {error}") from None
