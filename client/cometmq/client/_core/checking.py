"""Argument checks with clear errors for wrong types: text for a number, a number for a time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Any, Final

from cometmq.client.errors import UsageError

_EPOCH: Final = datetime.fromtimestamp(0, UTC)


def check_seconds(name: str, value: Any, *, above_zero: bool = False) -> float:
    """Return a number of seconds, 0 or more, or say what is wrong with it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{name}={value!r}: must be a number of seconds, such as 5 or 0.5")
    if not isfinite(value * 1000) or value < 0 or (above_zero and not value):
        least = "more than 0" if above_zero else "0 or more"
        raise UsageError(f"{name}={value}: must be a number of seconds, {least}")
    return value


def check_whole(name: str, value: Any, least: int, most: int | None = None) -> int:
    """Return a whole number within its limits, or say what they are."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{name}={value!r}: must be a whole number, {_limits(least, most)}")
    if value < least or (most is not None and value > most):
        raise UsageError(f"{name}={value}: must be {_limits(least, most)}")
    return value


def _limits(least: int, most: int | None) -> str:
    return f"at least {least}" if most is None else f"from {least} to {most}"


def check_time(name: str, value: Any, example: str = "datetime.now(UTC) - ...") -> int:
    """Return a time in milliseconds since 1970, or say what is wrong with it."""
    if not isinstance(value, datetime):
        raise UsageError(f"{name}={value!r}: must be a datetime, such as {example}")
    if value.tzinfo is None:
        raise UsageError(f"{name}: must be a datetime with a time zone, such as {example}")
    return time_ms(value)


def time_ms(time: datetime) -> int:
    """Return a time in milliseconds since 1970, exactly; via float seconds it could be one less."""
    return (time - _EPOCH) // timedelta(milliseconds=1)


def time_at(milliseconds: int) -> datetime:
    """Return a time from the wire; 1970 for one that cannot be, as senders set their clocks."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return _EPOCH
