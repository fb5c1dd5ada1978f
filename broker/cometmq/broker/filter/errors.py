"""The errors of a subscription.

::

    FilterError               the client's: its subscription cannot be served
    ├── FilterSyntaxError     the expression cannot be compiled
    └── FilterTypeError       expressions of this type are not served
"""

from __future__ import annotations


class FilterError(ValueError):
    """A subscription to which no message can be compared; the text says why."""


class FilterSyntaxError(FilterError):
    """An expression that cannot be compiled; the text says what is wrong, and where."""


class FilterTypeError(FilterError):
    """A type of expression that this broker or its settings do not allow."""

    def __init__(self, expression_type: str) -> None:
        """Say it in Apache's words."""
        super().__init__(
            f"The broker does not support consumer to filter message by {expression_type}"
        )
