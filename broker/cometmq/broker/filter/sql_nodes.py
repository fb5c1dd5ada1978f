"""The parts of a compiled SQL92 filter: each a function of a message's properties.

The truth of a condition is True, False or None, which is unknown: what it asks for is missing.
Types are known when a filter is compiled, but for a property, that is a string or missing. So a
comparison is chosen once, and a message meets nothing but closures: no look at a type, no tree.

What Apache's brokers refuse when they compile is refused here with `FilterSyntaxError`; where they
fail while they look at a message (a property that is no number is compared with one), the message
does not match, whatever else the filter says: `UnfitValueError` goes through all of it.
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
    """What a part of an expression is; the numbers are Java's types."""

    PROPERTY = auto()
    STRING = auto()
    I32 = auto()
    I64 = auto()
    DOUBLE = auto()
    BOOLEAN = auto()
    """`TRUE` or `FALSE`."""
    NULL = auto()
    """`NULL`, and what is always missing: the negative of what is no number."""
    CONDITION = auto()
    """Anything with a truth."""


NUMBERS: Final = frozenset({Kind.I32, Kind.I64, Kind.DOUBLE})
TRUTHS: Final = frozenset({Kind.BOOLEAN, Kind.CONDITION})


@dataclass(frozen=True, slots=True)
class Node:
    """A part of an expression."""

    kind: Kind
    evaluate: Evaluate
    value: Value = None
    """The value where it is the same for every message; the name of a property."""
    is_literal: bool = False
    depth: int = 1
    terms: int = 1
    """How many leaves it has: what it costs."""
    names: frozenset[str] = frozenset()
    """The properties that it looks at."""


# Leaves.


def literal(kind: Kind, value: Value) -> Node:
    """Return a value as it is written."""
    return Node(kind, lambda _: value, value, is_literal=True)


def integer(text: str) -> Node:
    """Return a whole number: of 32 bits where it fits."""
    digits = text.rstrip("lL")
    number = int(digits) if len(digits) < 20 else I64_MAX + 1
    if number > I64_MAX:
        raise FilterSyntaxError(f"{digits[:40]} is greater than {I64_MAX}")
    return literal(Kind.I32 if number <= I32_MAX else Kind.I64, number)


def real(text: str) -> Node:
    """Return a real number; 0.0 is none: it is below the least that Apache's dialect has."""
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
    """Return the negative of a number; of anything else it is missing."""
    if operand.kind in NUMBERS:
        value = -number_of(operand)
        return Node(operand.kind, lambda _: value, value, depth=operand.depth + 1)
    part = operand.evaluate

    def evaluate(properties: Properties) -> None:
        part(properties)  # Its values may be unfit.

    return replace(condition_over(evaluate, operand), kind=Kind.NULL)


# Logic.


def condition(node: Node) -> Node:
    """Return what has a truth; a property has that of a Java Boolean, and a string is none."""
    if node.kind is Kind.PROPERTY:
        evaluate = node.evaluate
        return condition_over(
            lambda properties: None if evaluate(properties) is None else False, node
        )
    if node.kind in TRUTHS or (node.kind is Kind.NULL and node.is_literal):
        return node
    raise FilterSyntaxError(f"{shown(node)} is no condition")


def all_of(nodes: Sequence[Node]) -> Node:
    """AND: false as soon as one is; unknown when one is unknown."""
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
    """OR: true as soon as one is; unknown when one is unknown."""
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


# What the comparisons are made with, too.


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
    """Return how a refusal names a part."""
    if node.kind is Kind.PROPERTY:
        return f"the property {node.value}"
    return "a condition" if node.kind is Kind.CONDITION else repr(node.value)[:40]


def number_of(node: Node) -> float:
    """Return the value of a number."""
    assert isinstance(node.value, int | float)
    return node.value
