"""Conditions that Spark offers to a reader, as far as they can be checked before a row is made.

All are returned to Spark, which checks each row again. So only rows that fail are left out here,
and a condition that is not understood leaves out nothing.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

if TYPE_CHECKING:
    from collections.abc import Collection

_ALL: Final = (-(2**63), 2**63 - 1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def column_of(condition: Filter) -> str:
    """Return the name of the column that it is about; '' for a nested one."""
    path: tuple[str, ...] = getattr(condition, "attribute", ())  # Not every filter has one.
    return path[0] if len(path) == 1 else ""


def about(conditions: Collection[Filter], columns: Collection[str]) -> list[Filter]:
    """Return the conditions that are about some columns."""
    return [each for each in conditions if column_of(each) in columns]


def range_of(condition: Filter) -> tuple[int, int]:
    """Return the range, end excluded, in which a number or a time in microseconds can be."""
    match condition:
        case EqualTo(value=value) if (number := _number(value)) is not None:
            return number, number + 1
        case GreaterThan(value=value) if (number := _number(value)) is not None:
            return number + 1, _ALL[1]
        case GreaterThanOrEqual(value=value) if (number := _number(value)) is not None:
            return number, _ALL[1]
        case LessThan(value=value) if (number := _number(value)) is not None:
            return _ALL[0], number
        case LessThanOrEqual(value=value) if (number := _number(value)) is not None:
            return _ALL[0], number + 1
        case In(value=values):
            numbers = [each for each in map(_number, values) if each is not None]
            if numbers and len(numbers) == len(values):
                return min(numbers), max(numbers) + 1
        case _:
            pass
    return _ALL


def _number(value: object) -> int | None:
    if isinstance(value, datetime):
        time = value if value.tzinfo else value.replace(tzinfo=UTC)
        return (time - _EPOCH) // _MICROSECOND
    return value if isinstance(value, int) else None


def holds(condition: Filter, value: object) -> bool:
    """Whether a condition can hold for a value."""
    match condition:
        case EqualTo(value=wanted):
            return bool(value == wanted)
        case In(value=values):
            return value in values
        case _:
            return True
