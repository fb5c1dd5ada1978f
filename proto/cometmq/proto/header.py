"""Typed command headers: one frozen class for each command, declared as a table of its fields.

On the wire the fields are a map of strings (`extFields`) or, in the MessagePack codec, an array in
the order of the class. A class is that table::

    class QueryConsumerOffset(Header):
        consumer_group: str
        topic: str
        queue_id: I32
        set_zero_if_not_found: bool | None = None

A field's wire name is its own name in camel case, or what `wire("name")` says. Its type is `str`,
`I32`, `I64`, `float` or `bool`, or one of these `| None` with the default None. Classes are frozen.
Because of the array, new fields are added only at the end of a class.

How a received field is read (as Apache's Java does, unless noted):

* a JSON number, boolean or object counts as its text; `null` counts as missing
* missing: the default; without one, a `FieldError` (Java goes on with null and fails later)
* number: decimal text within its range, also `+7` and `007`; blank text counts as missing. Java
  refuses `7.0` and `7e0`, which are 7 here; the text `null` counts as missing
* boolean: `true` in any case is true, anything else is false; the text `null` counts as missing if
  the field may be None
* unknown fields are ignored; of duplicates the last one wins

To declare a header class you need `Header`, `wire`, `I32` and `I64`; to handle fields by name,
`to_texts` and `from_texts`. The rest is for the codecs.

There are two readers. The fast one leaves everything to msgspec; whatever msgspec refuses goes to
the slow one, `header_rules.py`, which defines the rules. A test checks that their results agree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeVar, dataclass_transform

import msgspec
from msgspec import structs

from cometmq.proto.errors import LocalProtocolError
from cometmq.proto.header_plan import REFUSALS, HeaderPlan, json_problem, texts_from_json
from cometmq.proto.header_rules import HeaderField

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


__all__ = [
    "I32",
    "I64",
    "REFUSALS",
    "H",
    "Header",
    "HeaderField",
    "fields_of",
    "from_array",
    "from_json",
    "from_texts",
    "json_problem",
    "plan_of",
    "refuse_unsayable",
    "text_writers",
    "texts_from_json",
    "to_array",
    "to_json_object",
    "to_texts",
    "wire",
]

# The integers of fields, and the range of each.
I32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
I64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

H = TypeVar("H", bound="Header")
"""A header class."""


def wire(name: str, *, default: Any = msgspec.NODEFAULT) -> Any:
    """Declare a field with its name on the wire; without a default it is required."""
    return msgspec.field(name=name, default=default)


# Tells type checkers that `wire` declares a field; otherwise each would seem to have a default.
@dataclass_transform(frozen_default=True, field_specifiers=(wire,))
class Header(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The fields of one command."""


text_writers: dict[object, Callable[[Any], msgspec.Struct]] = {}
"""`to_json_object` for the classes that have been used. A lookup here is the fastest way to tell a
header from other fields: an `isinstance` with a struct takes 50 ns."""


class _Plans(dict[type[Header], HeaderPlan[Any]]):
    """Plans by class, made when first needed: annotations resolve only after the import."""

    def __missing__(self, cls: type[Header]) -> HeaderPlan[Any]:
        plan = self[cls] = HeaderPlan(cls)
        text_writers[cls] = plan.to_text_struct
        return plan


_PLANS = _Plans()
plan_of = _PLANS.__getitem__
"""Return the plan of a header class."""


def fields_of(cls: type[Header]) -> Sequence[HeaderField]:
    """List the fields of a header class, in the order of the class."""
    return _PLANS[cls].fields


def from_json(cls: type[H], raw: bytes | msgspec.Raw) -> H:
    """Read a header from the JSON text of its `extFields`."""
    return _PLANS[cls].read_json(raw)  # type: ignore[no-any-return]  # the plan of that class


def from_texts(cls: type[H], texts: Mapping[str, str]) -> H:
    """Read a header from a map of strings."""
    return _PLANS[cls].read_texts(texts)  # type: ignore[no-any-return]  # the plan of that class


def from_array(cls: type[H], items: Sequence[Any] | None) -> H:
    """Read a header from typed values in the order of the class, as MessagePack carries them.

    Values missing at the end take their defaults, as does nil, even for the whole array; surplus
    values are ignored.
    """
    return _PLANS[cls].read_array(items)  # type: ignore[no-any-return]  # the plan of that class


def to_texts(header: Header) -> dict[str, str]:
    """Return the fields as the map of strings that travels as `extFields`; None is left out."""
    plan = _PLANS[type(header)]
    values = structs.astuple(plan.to_text_struct(header))
    return {
        field.wire_name: value
        for field, value in zip(plan.fields, values, strict=True)
        if value is not None
    }


def to_json_object(header: Header) -> msgspec.Struct:
    """Return a struct of strings that msgspec writes as the JSON text of `extFields`.

    It is a struct with `omit_defaults`, because building and encoding a dict takes twice the time.
    """
    return _PLANS[type(header)].to_text_struct(header)


def to_array(header: Header) -> tuple[Any, ...]:
    """Return the values in the order of the class, for a MessagePack array."""
    return structs.astuple(header)


def refuse_unsayable(error: Exception) -> LocalProtocolError:
    """Make the error for a value that cannot be encoded: a lone surrogate, a wrong type."""
    return LocalProtocolError(f"a header that cannot be written: {error}")
