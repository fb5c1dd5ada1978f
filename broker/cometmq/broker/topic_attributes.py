"""The attributes that topics and groups may have, and how a request changes them.

A change comes as `{"+message.type": "FIFO", "-reserve.time": ""}`: plus sets a key, minus deletes
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.broker.errors import RequestError
from cometmq.proto.codes import ResponseCode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_I64_MAX: Final = 9223372036854775807
_MINUTES_OF_30_DAYS: Final = 43_200

MESSAGE_TYPES: Final = (
    "UNSPECIFIED",
    "NORMAL",
    "FIFO",
    "DELAY",
    "TRANSACTION",
    "MIXED",
    "PRIORITY",
    "LITE",
)


class _Attribute(NamedTuple):
    may_change: bool
    problem: Callable[[str], str | None]
    """Returns what is wrong with a value, or None."""


def _one_of(*values: str) -> Callable[[str], str | None]:
    said = f"value is not in set: [{', '.join(values)}]"
    return lambda value: None if value in values else said


def _between(low: int, high: int) -> Callable[[str], str | None]:
    def problem(value: str) -> str | None:
        try:
            number = int(value)
        except ValueError:
            return f'For input string: "{value}"'
        return None if low <= number <= high else f"value is not in range({low}, {high})"

    return problem


ATTRIBUTES: Final[Mapping[str, _Attribute]] = {
    "queue.type": _Attribute(False, _one_of("BatchCQ", "SimpleCQ")),
    "cleanup.policy": _Attribute(False, _one_of("DELETE", "COMPACTION")),
    "message.type": _Attribute(True, _one_of(*MESSAGE_TYPES)),
    "reserve.time": _Attribute(True, _between(-1, _I64_MAX)),
    "lite.topic.expiration": _Attribute(True, _between(-1, _MINUTES_OF_30_DAYS)),
}
"""The attributes of topics by key, as in Apache 5.5.0."""

GROUP_ATTRIBUTES: Final[Mapping[str, _Attribute]] = {
    "priority.factor": _Attribute(True, _between(0, 100)),
}
"""The attributes of groups by key."""


def altered(
    current: Mapping[str, str] | None,
    changes: Mapping[str, str],
    known: Mapping[str, _Attribute] = ATTRIBUTES,
) -> dict[str, str]:
    """Return attributes after a change; `current` is None for a new topic or group.

    Raises a `RequestError` in Apache's words if the change is not allowed.
    """
    result = dict(current or {})
    seen: set[str] = set()
    for signed, value in changes.items():
        sign, key = signed[:1], signed[1:]
        if not key or "+" in key or "-" in key:
            raise _wrong("kv string format wrong.")
        if key in seen:
            raise _wrong(f"alter duplication key. key: {key}")
        seen.add(key)
        if sign == "+":
            _check(known, key, value, is_new=current is None)
            result[key] = value
        elif current is None:
            raise _wrong(f"only add attribute is supported while creating topic. key: {key}")
        elif sign != "-":
            raise _wrong(f"wrong format key: {key}")
        elif key not in current:
            raise _wrong(f"attempt to delete a nonexistent key: {key}")
        else:
            _check(known, key, None, is_new=False)
            del result[key]
    return result


def _check(known: Mapping[str, _Attribute], key: str, value: str | None, *, is_new: bool) -> None:
    attribute = known.get(key)
    if attribute is None:
        raise _wrong(f"unsupported key: {key}")
    if not is_new and not attribute.may_change:
        raise _wrong(f"attempt to update an unchangeable attribute. key: {key}")
    if value is not None and (problem := attribute.problem(value)) is not None:
        raise _wrong(problem)


def _wrong(problem: str) -> RequestError:
    return RequestError(ResponseCode.SYSTEM_ERROR, problem)
