"""Bodies of each class: one with every member set, and a strategy for all."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.proto.body import Body

B = TypeVar("B", bound="Body")

NASTY = "é中😀 \"'\\/\n\t\x7f<&>"
# Members that are text on the wire, but not any text: an enum of Apache's, and a bit set.
NOT_ANY_TEXT = {"language": "PYTHON", "b": "CQI="}


def sample(body: type[B]) -> B:
    """Return a body with all members set, distinct numbers, and texts that are hard to escape."""
    tree = _value(inspect.type_info(body), count(1))
    return msgspec.convert(tree, body)


def _value(kind: inspect.Type, numbers: Iterator[int]) -> Any:
    match kind:
        case inspect.StructType(cls=cls, fields=fields):
            members = {
                field.encode_name: NOT_ANY_TEXT.get(field.encode_name)
                or _value(field.type, numbers)
                for field in fields
            }
            return msgspec.convert(members, cls)
        case inspect.DictType(key_type=key, value_type=item):
            return {_value(key, numbers): _value(item, numbers) for _ in range(2)}
        case inspect.VarTupleType(item_type=item):
            return [_value(item, numbers) for _ in range(2)]
        case inspect.UnionType(types=types):
            return _value(_not_none(types), numbers)
        case inspect.EnumType(cls=names):
            return list(names)[-1]
        case inspect.IntType(le=most):
            # Beyond a double's exact range, if the field has room.
            return next(numbers) + (2**53 if most != 2**31 - 1 else 0)
        case inspect.FloatType():
            return next(numbers) + 0.25
        case inspect.BoolType():
            return True
        case _:
            assert isinstance(kind, inspect.StrType)
            return f"{next(numbers)}{NASTY}"


def any_body(body: type[B]) -> st.SearchStrategy[B]:
    """Return a strategy for all bodies of a class."""
    return _values(inspect.type_info(body))


def _values(kind: inspect.Type) -> st.SearchStrategy[Any]:
    match kind:
        case inspect.StructType(cls=cls, fields=fields):
            return st.builds(cls, **{field.name: _values(field.type) for field in fields})
        case inspect.DictType(key_type=key, value_type=item):
            return st.dictionaries(_values(key), _values(item), max_size=3)
        case inspect.VarTupleType(item_type=item):
            return st.lists(_values(item), max_size=3).map(tuple)
        case inspect.UnionType(types=types):
            return st.none() | _values(
                next(t for t in types if not isinstance(t, inspect.NoneType))
            )
        case inspect.EnumType(cls=names):
            return st.sampled_from(names)
        case inspect.IntType(ge=least, le=most):
            return st.integers(least, most)
        case inspect.FloatType():
            return st.floats(allow_nan=False, allow_infinity=False)
        case inspect.BoolType():
            return st.booleans()
        case _:
            assert isinstance(kind, inspect.StrType)
            return st.text(max_size=8)


def _not_none(types: tuple[inspect.Type, ...]) -> inspect.Type:
    return next(kind for kind in types if not isinstance(kind, inspect.NoneType))
