"""The comparisons of a SQL92 filter, each chosen by the types of its two sides."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Final

from cometmq.broker.filter.errors import FilterSyntaxError
from cometmq.broker.filter.java_values import (
    UnfitValueError,
    double_order,
    to_boolean,
    to_double,
    to_i32,
    to_i64,
)
from cometmq.broker.filter.sql_nodes import (
    NUMBERS,
    TRUTHS,
    Kind,
    Node,
    all_of,
    any_of,
    condition_over,
    number_of,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeAlias

    from cometmq.broker.filter.sql_nodes import Evaluate, Properties, Value

    Compare: TypeAlias = Callable[[float, float], bool]

_STRINGS: Final = frozenset({Kind.PROPERTY, Kind.STRING})


def is_null(node: Node) -> Node:
    """IS NULL: never unknown."""
    part = node.evaluate
    return condition_over(lambda properties: part(properties) is None, node)


def equal(left: Node, right: Node) -> Node:
    """`=`: true if both sides are missing; if only one is, unknown for the left, else false."""
    for each in (left, right):
        if each.kind is Kind.NULL and each.is_literal:
            raise FilterSyntaxError("NULL cannot be compared: write IS NULL")
    if (
        left.is_literal
        and left.kind is Kind.BOOLEAN
        and right.is_literal
        and (right.kind is not Kind.BOOLEAN)
    ):
        raise FilterSyntaxError(f"{shown(left)} cannot be compared with {shown(right)}")
    same = _sameness(left, right)
    if left.kind is Kind.PROPERTY and right.value is not None and right.kind is not Kind.PROPERTY:
        return condition_over(_is(str(left.value), same, right.value), left, right)
    first, second = left.evaluate, right.evaluate

    def evaluate(properties: Properties) -> bool | None:
        one, other = first(properties), second(properties)
        if one is None:
            return True if other is None else None
        return False if other is None else same(one, other)

    return condition_over(evaluate, left, right)


def _is(name: str, same: Callable[[Value, Value], bool], wanted: Value) -> Evaluate:
    """Compare a property with a value that is always there: the most common comparison."""

    def evaluate(properties: Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else same(text, wanted)

    return evaluate


def _sameness(left: Node, right: Node) -> Callable[[Value, Value], bool]:
    """Choose the comparison for two values that are not missing."""
    one, other = left.kind, right.kind
    if one in _STRINGS and other in NUMBERS:
        return _converted(other)
    if one in NUMBERS and other in _STRINGS:
        converted = _converted(one)
        return lambda a, b: converted(b, a)
    if one in _STRINGS and other in TRUTHS:
        return lambda a, b: to_boolean(str(a)) is b
    if one in TRUTHS and other in _STRINGS:
        return _unfit
    if (one in TRUTHS) is not (other in TRUTHS):
        return lambda _a, _b: False
    if one in NUMBERS and other in NUMBERS:
        truth = operator.eq(*_promoted(left, right))
        return lambda _a, _b: truth
    return operator.eq


def _converted(kind: Kind) -> Callable[[Value, Value], bool]:
    convert = _READERS[kind]
    return lambda text, number: convert(str(text)) == number


def _unfit(one: Value, other: Value) -> bool:
    raise UnfitValueError(f"{one} = {other}")


def ordered(compare: Compare, left: Node, right: Node) -> Node:
    """`<` and the like, of numbers and of properties read as numbers; unknown if one is missing.

    Two properties are compared as doubles.
    """
    for each in (left, right):
        if each.kind in TRUTHS or (each.is_literal and each.kind not in NUMBERS):
            raise FilterSyntaxError(f"{shown(each)} cannot be compared: only numbers have an order")
    if Kind.NULL in (left.kind, right.kind):
        return condition_over(_never_ordered(left.evaluate, right.evaluate), left, right)
    if left.kind in NUMBERS and right.kind in NUMBERS:
        truth = compare(*_promoted(left, right))
        return condition_over(lambda _: truth, left, right)
    return condition_over(_order(compare, left, right), left, right)


def _never_ordered(one: Evaluate, other: Evaluate) -> Evaluate:
    def evaluate(properties: Properties) -> None:
        if one(properties) is not None:
            other(properties)

    return evaluate


def _order(compare: Compare, left: Node, right: Node) -> Evaluate:
    """Compare two sides of which at least one is a property."""
    if left.kind in NUMBERS:
        return _order(_SWAPPED[compare], right, left)
    name = str(left.value)
    if right.kind is Kind.PROPERTY:
        return _order_of_properties(compare, name, str(right.value))
    convert, bound = _READERS[right.kind], number_of(right)

    def evaluate(properties: Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else compare(convert(text), bound)

    return evaluate


def _order_of_properties(compare: Compare, one: str, other: str) -> Evaluate:
    def evaluate(properties: Properties) -> bool | None:
        left, right = properties.get(one), properties.get(other)
        if left is None or right is None:
            return None
        a, b = double_order(to_double(left)), double_order(to_double(right))
        return compare((a > b) - (a < b), 0)

    return evaluate


def between(value: Node, low: Node, high: Node) -> Node:
    """BETWEEN, both ends included; literal bounds in the wrong order are refused."""
    least = ordered(operator.ge, value, low)
    most = ordered(operator.le, value, high)
    if low.is_literal and high.is_literal:
        first, last = _promoted(low, high)
        if last < first:
            raise FilterSyntaxError(
                f"BETWEEN {first} AND {last}: the first is greater than the second"
            )
    return all_of((least, most))


def not_between(value: Node, low: Node, high: Node) -> Node:
    """NOT BETWEEN."""
    return any_of((ordered(operator.lt, value, low), ordered(operator.gt, value, high)))


def is_in(node: Node, strings: Sequence[str]) -> Node:
    """IN: a property is one of these strings; unknown if it is missing."""
    if node.kind is not Kind.PROPERTY:
        raise FilterSyntaxError(f"IN looks for a property in strings, {shown(node)} is none")
    name, wanted = str(node.value), frozenset(strings)

    def evaluate(properties: Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else text in wanted

    return condition_over(evaluate, node)


def with_text(test: Callable[[str, str], bool], node: Node, wanted: str, *, is_not: bool) -> Node:
    """CONTAINS and the like, and their NOT forms: never unknown, and false for any non-string.

    Looking for the empty string is false, too.
    """
    part = node.evaluate

    def evaluate(properties: Properties) -> bool:
        text = part(properties)
        return isinstance(text, str) and test(text, wanted) is not is_not

    return condition_over(evaluate if wanted else (lambda _: False), node)


_SWAPPED: Final[Mapping[Compare, Compare]] = {
    operator.lt: operator.gt,
    operator.gt: operator.lt,
    operator.le: operator.ge,
    operator.ge: operator.le,
}


def _to_ordered_double(text: str) -> float:
    """Read a Double, NaN as infinity: no number that can be written in a filter is greater."""
    number = to_double(text)
    return math.inf if math.isnan(number) else number


_READERS: Final[Mapping[Kind, Callable[[str], float]]] = {
    Kind.I32: to_i32,
    Kind.I64: to_i64,
    Kind.DOUBLE: _to_ordered_double,
}


def _promoted(left: Node, right: Node) -> tuple[float, float]:
    one, other = number_of(left), number_of(right)
    if Kind.DOUBLE in (left.kind, right.kind):
        return float(one), float(other)  # As Java does; Python would compare exactly.
    return one, other
