"""Typed command headers: one frozen class a command, declared as a table of its wire fields.

On the wire the fields are a map of strings (`extFields`), or in the MessagePack codec an array
in the order of the class. A class is that table::

    class QueryConsumerOffset(Header):
        consumer_group: str
        topic: str
        queue_id: I32
        set_zero_if_not_found: bool | None = None

A field's wire name is its own name in camel case, or what `wire("name")` says. Classes are frozen.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar, dataclass_transform

import msgspec

I32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
I64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

H = TypeVar("H", bound="Header")


def wire(name: str, *, default: Any = msgspec.NODEFAULT) -> Any:
    """Give a field the name that it has on the wire; without a default it is required."""
    return msgspec.field(name=name, default=default)


# Tells type checkers that `wire` declares a field, or each would seem to have a default.
@dataclass_transform(frozen_default=True, field_specifiers=(wire,))
class Header(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The fields of one command."""
