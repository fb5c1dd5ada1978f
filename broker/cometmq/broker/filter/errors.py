"""What can be wrong with a subscription.

::

    FilterError               theirs: what they want cannot be found out
    ├── FilterSyntaxError     the expression cannot be compiled
    └── FilterTypeError       expressions of this type are not served
"""

from __future__ import annotations


class FilterError(ValueError):
    """A subscription that no message can be compared with; the text says why."""


class FilterSyntaxError(FilterError):
    """An expression that cannot be compiled; the text says what is wrong, and where."""


class FilterTypeError(FilterError):
    """A type of expression that this broker does not serve, or not as it is set."""

    def __init__(self, expression_type: str) -> None:
        """Say it in Apache's words."""
        super().__init__(
            f"The broker does not support consumer to filter message by {expression_type}"
        )
