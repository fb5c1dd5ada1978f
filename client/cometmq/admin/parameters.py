"""Parameter types of the command line: numbers, times and places."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Any, Final

import click

from cometmq.client._core.checking import time_ms


class NumberParameter(click.FloatRange):
    """A number with or without a lower limit; `nan` and `inf` are not numbers."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number."""
        number = super().convert(value, param, ctx)
        if not isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS_DIGITS_MIN: Final = 12
_MS_DIGITS_MAX: Final = 15
_NOW_LIKE: Final = "1763719200000 for 2025-11-21T10:00:00Z"


class TimeParameter(click.ParamType):  # type: ignore[type-arg]  # Generic only in newer ones.
    """A time on the command line: ISO 8601, or milliseconds since 1970, which have 13 digits.

    Fewer digits are refused: they would be seconds, an offset, or a time long ago. Times after the
    year 9999 are refused, too: they would be microseconds or nanoseconds.
    """

    name = "time"
    words: tuple[str, ...] = ()
    """Other accepted words; `convert` returns them unchanged."""

    def __init__(self, instead: str = "") -> None:
        """Set `instead`, which an error suggests to a user who gives a bare number."""
        self._instead = instead

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a datetime; a time without a zone is UTC, as are all printed times."""
        if value in self.words or isinstance(value, datetime):
            return value
        text = str(value)
        if text.isdecimal():
            if _MS_DIGITS_MIN <= len(text) <= _MS_DIGITS_MAX and (found := _time_of(int(text))):
                return found
            self.fail(
                f"{text} is not a time: write one like 2026-11-21T10:00:00, or milliseconds"
                f" since 1970, such as {_NOW_LIKE}{self._instead}",
                param,
                ctx,
            )
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            at = None
        if at is not None and at.tzinfo is None:
            at = at.replace(tzinfo=UTC)
        found = None if at is None else _time_of(time_ms(at))
        if found is None:
            words = "".join(f"{word}, " for word in self.words)
            self.fail(
                f"{text!r} is neither {words}milliseconds since 1970 nor a time like"
                " 2026-11-21T10:00:00",
                param,
                ctx,
            )
        return found


class PlaceParameter(TimeParameter):
    """Where to continue in a queue: `first`, `last`, or at a time."""

    name = "first|last|TIME"
    words = ("first", "last")


def _time_of(milliseconds: int) -> datetime | None:
    """Convert milliseconds since 1970 to a time in UTC; None if Python cannot represent it."""
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None
