"""The parts of a compiled SQL92 filter: each is a function of a message's properties.

The truth of a condition is True, False or None; None means unknown, because a property is missing.
Types are known at compile time, except that a property is a string or missing. So each comparison
is chosen once, and evaluation only calls closures: it checks no types and walks no tree.

What Apache's brokers refuse at compile time is refused here with a `FilterSyntaxError`. Where they
fail while evaluating a message (a property that is not a number is compared with one), the message
does not match, whatever the rest of the filter says: `UnfitValueError` ends the whole evaluation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, TypeAlias

from cometmq.broker.filter.errors import FilterSyntaxError
from cometmq.broker.filter.java_values import I32_MAX, I64_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Properties: TypeAlias = Mapping[str, str]
    Value: TypeAlias = str | float | bool | None
    Evaluate: TypeAlias = Callable[[Properties], Value]


class Kind(Enum):
    """The kind of a part of an expression; numbers have Java's types."""

    PROPERTY = auto()
    STRING = auto()
    I32 = auto()
    I64 = auto()
    DOUBLE = auto()
    BOOLEAN = auto()
    """`TRUE` or `FALSE`."""
    NULL = auto()
    """`NULL`, and anything that is always missing: the negative of something not a number."""
    CONDITION = auto()
    """Anything that has a truth."""


NUMBERS: Final = frozenset({Kind.I32, Kind.I64, Kind.DOUBLE})
TRUTHS: Final = frozenset({Kind.BOOLEAN, Kind.CONDITION})


@dataclass(frozen=True, slots=True)
class Node:
    """A part of an expression."""

    kind: Kind
    evaluate: Evaluate
    value: Value = None
    """The value, if it is the same for every message; for a property, its name."""
    is_literal: bool = False
    depth: int = 1
    terms: int = 1
    """The number of its leaves, which is its cost."""
    names: frozenset[str] = frozenset()
    """The properties that it reads."""


# Leaves.


def literal(kind: Kind, value: Value) -> Node:
    """Return a literal."""
    return Node(kind, lambda _: value, value, is_literal=True)


def integer(text: str) -> Node:
    """Return an integer literal, of 32 bits if it fits."""
    digits = text.rstrip("lL")
    number = int(digits) if len(digits) < 20 else I64_MAX + 1
    if number > I64_MAX:
        raise FilterSyntaxError(f"{digits[:40]} is greater than {I64_MAX}")
    return literal(Kind.I32 if number <= I32_MAX else Kind.I64, number)


def real(text: str) -> Node:
    """Return a real literal; 0.0 is refused, as it is below the least one in Apache's dialect."""
    number = float(text)
    if math.isinf(number) or number == 0:
        raise FilterSyntaxError(f"{text[:40]} is not between 4.9E-324 and 1.7976931348623157E308")
    return literal(Kind.DOUBLE, number)


def named(name: str) -> Node:
    """Return a property."""
    return Node(
        Kind.PROPERTY, lambda properties: properties.get(name), name, names=frozenset({name})
    )


def negative(operand: Node) -> Node:
    """Return the negative of a number; of anything else, a value that is always missing."""
    if operand.kind in NUMBERS:
        value = -number_of(operand)
        return Node(operand.kind, lambda _: value, value, depth=operand.depth + 1)
    part = operand.evaluate

    def evaluate(properties: Properties) -> None:
        part(properties)  # It may raise `UnfitValueError`.

    return replace(condition_over(evaluate, operand), kind=Kind.NULL)


# Logic.


def condition(node: Node) -> Node:
    """Return a node with a truth. A property, a string and no Java Boolean, is never true."""
    if node.kind is Kind.PROPERTY:
        evaluate = node.evaluate
        return condition_over(
            lambda properties: None if evaluate(properties) is None else False, node
        )
    if node.kind in TRUTHS or (node.kind is Kind.NULL and node.is_literal):
        return node
    raise FilterSyntaxError(f"{shown(node)} is not a condition")


def all_of(nodes: Sequence[Node]) -> Node:
    """AND: false if any part is false; otherwise unknown if any is unknown."""
    nodes = [condition(node) for node in nodes]
    parts = tuple(node.evaluate for node in nodes)

    def evaluate(properties: Properties) -> bool | None:
        found: bool | None = True
        for part in parts:
            truth = part(properties)
            if truth is False:
                return False
            if truth is None:
                found = None
        return found

    return condition_over(evaluate, *nodes)


def any_of(nodes: Sequence[Node]) -> Node:
    """OR: true if any part is true; otherwise unknown if any is unknown."""
    nodes = [condition(node) for node in nodes]
    parts = tuple(node.evaluate for node in nodes)

    def evaluate(properties: Properties) -> bool | None:
        found: bool | None = False
        for part in parts:
            truth = part(properties)
            if truth is True:
                return True
            if truth is None:
                found = None
        return found

    return condition_over(evaluate, *nodes)


def negation(node: Node) -> Node:
    """NOT: unknown stays unknown."""
    node = condition(node)
    part = node.evaluate

    def evaluate(properties: Properties) -> bool | None:
        truth = part(properties)
        return None if truth is None else not truth

    return condition_over(evaluate, node)


# Also used by the comparisons.


def condition_over(evaluate: Evaluate, *parts: Node) -> Node:
    """Return a condition over these parts."""
    return Node(
        Kind.CONDITION,
        evaluate,
        depth=1 + max(part.depth for part in parts),
        terms=sum(part.terms for part in parts),
        names=frozenset[str]().union(*(part.names for part in parts)),
    )


def shown(node: Node) -> str:
    """Return how an error message names a part."""
    if node.kind is Kind.PROPERTY:
        return f"the property {node.value}"
    return "a condition" if node.kind is Kind.CONDITION else repr(node.value)[:40]


def number_of(node: Node) -> float:
    """Return the value of a number literal."""
    assert isinstance(node.value, int | float)
    return node.value
