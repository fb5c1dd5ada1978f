"""Compilation of a subscription's expression, of any type, into a filter for the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.broker.filter.compiler import compiler
from cometmq.broker.filter.errors import FilterSyntaxError, FilterTypeError
from cometmq.broker.filter.tags import tag_filter
from cometmq.store.messages.reading import Filter

if TYPE_CHECKING:
    from cometmq.broker.config import BrokerConfig

_TERMS_MAX: Final = 1024
_ENTRIES_MIN: Final = 8


def is_tag_type(expression_type: str | None) -> bool:
    """Whether a subscription is by tag, which is the default."""
    return expression_type in (None, "", "TAG")


def filter_of(
    expression_type: str | None, expression: str | None, config: BrokerConfig
) -> Filter | None:
    """Compile a subscription; None takes everything. A `FilterError` says what is wrong with it.

    Raises a `CompilerLoadingError` while the compiler is being loaded: the caller has to ask again.
    """
    if is_tag_type(expression_type):
        _check_length(expression, "tag_expression_length_max", config.tag_expression_length_max)
        return tag_filter(expression)
    _check_length(expression, "filter_expression_length_max", config.filter_expression_length_max)
    if expression_type != "SQL92" or not config.enable_property_filter:
        raise FilterTypeError(str(expression_type))
    if not expression:
        raise FilterSyntaxError("the expression is empty")
    found = compiler()(expression, config.filter_depth_max)
    # One read may hold up the loop for a millisecond or two, whatever it looks for.
    entries_max = max(_ENTRIES_MIN, _TERMS_MAX // max(found.terms, 4))
    return Filter(matches=found.matches, entries_max=entries_max)


def _check_length(expression: str | None, setting: str, length_max: int) -> None:
    if expression is not None and len(expression) > length_max:
        raise FilterSyntaxError(
            f"the expression has {len(expression)} characters, {setting} allows {length_max}"
        )
