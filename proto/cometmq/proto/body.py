"""Typed bodies: one frozen class for each JSON body, declared as a table of its members.

A class reads like the JSON it stands for, with its members in the order in which Apache writes
them, that of their names::

    class QueueData(Body):
        broker_name: str
        perm: I32 = preset(0)
        read_queue_nums: I32 = preset(0)

A member's name on the wire is its own in camel case, or what `wire("name")` says. A missing member
takes Apache's default: `preset(value)`, or `None` for one that Apache leaves null and does not
write. A member without a default is one without which the body makes no sense.

Reading is as lenient as Apache's: members in any order, unknown ones ignored, `null` as missing,
numbers and booleans given as strings or the other way round, `7.0` for an integer, enums by name
or ordinal. (But member names only in their own letter case: no client writes another.) A `null` in
a list is left out, where Apache goes on with it and fails later. A sound body is decoded in one
call of msgspec, if need be after its integer keys are put in quotes. Only a body that msgspec
refuses is parsed by hand (`fastjson`) and bent into shape.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final, Self, dataclass_transform

import msgspec
from msgspec import inspect

from cometmq.proto.errors import BodyError
from cometmq.proto.fastjson import (
    SIZE_MAX,
    ObjectKey,
    check_members,
    check_size,
    dumps,
    loads,
    quote_integer_keys,
)

if TYPE_CHECKING:
    import enum

    from cometmq.proto.buffer import Buffer

__all__ = ["BY_HAND_SIZE_MAX", "F64", "Body", "empty_table", "preset", "wire"]

F64 = Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
"""A number; neither infinite nor NaN, which JSON cannot express."""

BY_HAND_SIZE_MAX: Final = 256 * 1024
"""The largest body that may be nonstandard JSON although nothing in its class calls for that."""

# A member equal to its *default* is left out of the text, which is right only for None. A default
# made by a factory is always written.


def preset(value: Any, name: str | None = None) -> Any:
    """Declare a member that is always written, and reads as `value` if it is missing."""
    return msgspec.field(default_factory=lambda: value, name=name)


def _empty_table() -> dict[Any, Any]:
    return {}


def empty_table(name: str | None = None) -> Any:
    """Declare a map that is always written, `{}` if empty, and reads as empty if it is missing."""
    return msgspec.field(default_factory=_empty_table, name=name)


def wire(name: str, *, default: Any = msgspec.NODEFAULT) -> Any:
    """Declare a member with its name on the wire; without a default it is required."""
    return msgspec.field(name=name, default=default)


class _BodyMeta(msgspec.StructMeta):
    """Makes members keyword-only, because required ones stand between the others."""

    def __new__(
        mcs, name: str, bases: tuple[type, ...], members: dict[str, Any], **settings: Any
    ) -> Any:
        settings.setdefault("kw_only", True)
        return super().__new__(mcs, name, bases, members, **settings)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(wire,))
class Body(
    msgspec.Struct,
    metaclass=_BodyMeta,
    frozen=True,
    gc=False,
    omit_defaults=True,
    rename="camel",
):
    """One JSON body, or a part of one."""

    @classmethod
    def decode(cls, data: Buffer | None) -> Self:
        """Read a body; a `BodyError` names the member, or the character, that is wrong.

        None, the body of a command without one, is refused like an empty body.

        Even for a hostile body the time is linear in its size: up to 0.03 s a MiB plus 0.2 s; with
        integers as keys 0.2 s a MiB, with objects as keys 0.8. See `SIZE_MAX`.
        """
        data = check_members(check_size(data))
        decode = _decoder(cls).decode
        try:
            return decode(data)  # type: ignore[no-any-return]  # Of this class.
        except (msgspec.MsgspecError, RecursionError, ValueError):
            pass
        quoted = quote_integer_keys(data) if _has_odd_keys(cls, inspect.IntType) else None
        try:
            if quoted is not None:
                return decode(quoted)  # type: ignore[no-any-return]  # Of this class.
        except (msgspec.MsgspecError, RecursionError, ValueError):
            pass
        # Large bodies are in fastjson's dialect proper only if objects are keys.
        by_hand = SIZE_MAX if _has_odd_keys(cls, inspect.StructType) else BY_HAND_SIZE_MAX
        return cls.from_tree(loads(data, by_hand_size_max=by_hand))

    @classmethod
    def from_tree(cls, tree: Any) -> Self:
        """Make a body from a result of `fastjson.loads`; a `BodyError` names the wrong member."""
        try:
            return msgspec.convert(tree, cls, strict=False)
        except msgspec.ValidationError:
            pass
        try:
            return msgspec.convert(_bent(tree, _type_of(cls)), cls, strict=False)
        except msgspec.ValidationError as error:
            raise BodyError(f"{cls.__name__}: {error}") from None

    def encode(self) -> bytes:
        """Write the body as Apache writes it.

        Raises a LocalProtocolError for what JSON cannot express: an object that is not part of a
        body, half a surrogate pair. The types of members and the ranges of numbers are left to a
        type checker. A required member that is None is left out like any None.
        """
        return dumps(self)


@cache
def _type_of(body: type[Body]) -> inspect.Type:
    return inspect.type_info(body)  # Takes 140 µs.


@cache
def _has_odd_keys(body: type[Body], kind: type[inspect.Type]) -> bool:
    """Whether this class contains a map whose keys are of that kind, and not strings."""
    return kind in _key_kinds(_type_of(body))


def _key_kinds(kind: inspect.Type) -> set[type[inspect.Type]]:
    match kind:
        case inspect.DictType(key_type=key, value_type=value):
            return {type(key)} | _key_kinds(value)
        case inspect.StructType(fields=fields):
            return set[type[inspect.Type]]().union(*(_key_kinds(each.type) for each in fields))
        case inspect.UnionType(types=types):
            return set[type[inspect.Type]]().union(*map(_key_kinds, types))
        case inspect.VarTupleType(item_type=item):
            return _key_kinds(item)
        case _:
            return set()


@cache
def _decoder(body: type[Body]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(body, strict=False)


def _bent(value: Any, kind: inspect.Type) -> Any:
    """Bend a value of a tree towards a type, as fastjson would; a later check refuses the rest.

    The recursion is no deeper than the nesting of the types of a body.
    """
    match kind:
        case inspect.UnionType(types=types):
            return next(_bent(value, t) for t in types if not isinstance(t, inspect.NoneType))
        case inspect.StructType() if isinstance(value, Mapping):
            return _bent_struct(value, kind)  # pyright: ignore[reportUnknownArgumentType]  # A tree.
        case inspect.DictType(key_type=key, value_type=item) if isinstance(value, dict):
            return _bent_map(value, key, item)  # pyright: ignore[reportUnknownArgumentType]  # A tree.
        case inspect.VarTupleType(item_type=item) if isinstance(value, list):
            return _bent_list(value, item)  # pyright: ignore[reportUnknownArgumentType]  # A tree.
        case inspect.StrType() if isinstance(value, bool | int | float):
            return msgspec.json.encode(value).decode()
        case inspect.IntType() if isinstance(value, float) and value.is_integer():
            return int(value)
        case inspect.EnumType(cls=names):
            return _bent_enum(value, names)
        case _:
            return value


def _bent_struct(value: Mapping[str, Any], kind: inspect.StructType) -> dict[str, Any]:
    bent = {
        field.encode_name: _bent(value[field.encode_name], field.type)
        for field in kind.fields
        if field.encode_name in value
    }
    return {name: member for name, member in bent.items() if member is not None}


def _bent_list(value: list[Any], item: inspect.Type) -> list[Any]:
    return [bent for each in value if (bent := _bent(each, item)) is not None]


def _bent_map(value: dict[Any, Any], key: inspect.Type, item: inspect.Type) -> dict[Any, Any]:
    return {
        _bent_key(k, key): _bent(member, item) for k, member in value.items() if member is not None
    }


def _bent_key(value: Any, kind: inspect.Type) -> Any:
    if isinstance(value, ObjectKey) and isinstance(kind, inspect.StructType):
        return ObjectKey(_bent_struct(value, kind))
    return _bent(value, kind)


def _bent_enum(value: Any, names: type[enum.Enum]) -> Any:
    """Return the enum of a name or ordinal; as with Apache, an unknown name reads as null."""
    members = list(names)
    if isinstance(value, str) and value.isdecimal() and value.isascii():
        value = int(value[:9])
    if isinstance(value, int) and not isinstance(value, bool):
        return members[value].value if 0 <= value < len(members) else None
    if isinstance(value, str):
        return value if value in names.__members__ else None
    return value
