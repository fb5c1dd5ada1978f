"""Filters in SQL92: an expression is compiled once, and then applied to each message's properties.

The dialect is exactly Apache's, because programs were written for it: see `sql.lark` for the
grammar and `sql_nodes` for the meaning. One rule is surprising: parsing stops at the first token
that cannot continue the expression, and everything from there on is ignored.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from lark import Lark, Token, Transformer
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from cometmq.broker import filter as filter_package
from cometmq.broker.filter import sql_comparisons as comparisons, sql_nodes as nodes
from cometmq.broker.filter.errors import FilterSyntaxError
from cometmq.broker.filter.java_values import UnfitValueError
from cometmq.broker.filter.sql_nodes import Kind, Node
from cometmq.proto.java import text_of
from cometmq.proto.properties import decode_properties, property_finder

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.broker.filter.sql_nodes import Evaluate, Properties
    from cometmq.proto.message import StoredMessage

    Parts: TypeAlias = list[Node | Token]

LENGTH_CACHED_MAX: Final = 1024
"""Longer expressions are compiled each time, so that a peer cannot fill the cache."""

_NAMES_FOUND_MAX: Final = 4
"""With more properties than this in an expression, it is faster to decode all of them."""

_KEYWORDS: Final = {
    word: f"_{word}"
    for word in (
        *("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"),
        *("CONTAINS", "STARTSWITH", "ENDSWITH"),
    )
}
"""The keywords of the language, and their tokens."""


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """A compiled expression."""

    terms: int
    """How many values it looks at, at most: its cost."""
    evaluate: Evaluate
    properties_of: Callable[[bytes], Properties]

    def matches(self, message: StoredMessage) -> bool:
        """Whether a consumer with this filter gets the message."""
        return self.takes(self.properties_of(message.properties_raw))

    def takes(self, properties: Properties) -> bool:
        """Whether the expression is true for these properties."""
        try:
            return self.evaluate(properties) is True
        except UnfitValueError:
            return False


def compile_sql(expression: str, depth_max: int) -> SqlFilter:
    """Compile an expression; a `FilterSyntaxError` says what is wrong with it, and where."""
    found = (_cached if len(expression) <= LENGTH_CACHED_MAX else _compiled)(expression)
    if isinstance(found, str):
        raise FilterSyntaxError(found)
    node, compiled = found
    if node.depth > depth_max:
        raise FilterSyntaxError(
            f"the expression is {node.depth} levels deep, filter_depth_max allows {depth_max}"
        )
    return compiled


def _compiled(expression: str) -> tuple[Node, SqlFilter] | str:
    """Compile, or return what is wrong: both results are worth caching."""
    try:
        node = nodes.condition(_parse(expression))
    except FilterSyntaxError as error:
        return str(error)
    return node, SqlFilter(node.terms, node.evaluate, _picker(node.names))


_cached = lru_cache(maxsize=1024)(_compiled)


def _picker(names: frozenset[str]) -> Callable[[bytes], Properties]:
    """Return a function that extracts the named properties from those of a record."""
    if len(names) > _NAMES_FOUND_MAX:
        return decode_properties
    finders = [(name, property_finder(name.encode())) for name in sorted(names)]

    def pick(raw: bytes) -> Properties:
        found: dict[str, str] = {}
        for name, find in finders:
            value = find(raw)
            if value is not None:
                found[name] = text_of(value)
        return found

    return pick


def _parse(expression: str) -> Node:
    """Parse an expression as far as Apache's parser does."""
    parser: Any = _parser().parse_interactive(expression)  # pyright: ignore[reportUnknownMemberType]  # lark's
    try:
        parser.exhaust_lexer()
        node: Node = parser.feed_eof()
    except UnexpectedToken as error:
        try:
            node = parser.feed_eof()
        except UnexpectedToken:
            raise FilterSyntaxError(_problem(error)) from None
    except UnexpectedCharacters as error:
        at: Any = error.pos_in_stream
        raise FilterSyntaxError(_unread(error, expression[at])) from None
    return node


def _problem(error: UnexpectedToken) -> str:
    token: Token = error.token
    if token.type == "$END":
        return "the expression cannot be read: something is missing at its end"
    return _unread(error, str(token)[:40])


def _unread(error: UnexpectedInput, found: str) -> str:
    return (
        f"the expression cannot be read at line {error.line}, column {error.column}: {found!r}"
        " is not allowed there"
    )


@cache
def _parser() -> Lark:
    """Read the grammar, once."""
    return Lark(
        files(filter_package).joinpath("sql.lark").read_text("utf-8"),
        parser="lalr",
        lexer="basic",
        transformer=_Nodes(),
        lexer_callbacks={"ID": _keyword},
        propagate_positions=False,
        maybe_placeholders=False,
    )


def _keyword(token: Token) -> Token:
    keyword = _KEYWORDS.get(token.upper())
    return token if keyword is None else token.update(type=keyword)


def _text(token: Node | Token) -> str:
    """Return the text of a string literal: two quotes in it stand for one."""
    return str(token)[1:-1].replace("''", "'")


def _node(part: Node | Token) -> Node:
    assert isinstance(part, Node)
    return part


def _ordered(compare: comparisons.Compare) -> Callable[[_Nodes, Parts], Node]:
    return lambda _, parts: comparisons.ordered(compare, _node(parts[0]), _node(parts[1]))


def _with_text(
    test: Callable[[str, str], bool], *, is_not: bool = False
) -> Callable[[_Nodes, Parts], Node]:
    return lambda _, parts: comparisons.with_text(
        test, _node(parts[0]), _text(parts[1]), is_not=is_not
    )


class _Nodes(Transformer[Token, Node]):
    """Makes the nodes while parsing; each method is named after a rule of the grammar."""

    greater = _ordered(operator.gt)
    greater_or_equal = _ordered(operator.ge)
    less = _ordered(operator.lt)
    less_or_equal = _ordered(operator.le)
    contains = _with_text(operator.contains)
    not_contains = _with_text(operator.contains, is_not=True)
    starts_with = _with_text(str.startswith)
    not_starts_with = _with_text(str.startswith, is_not=True)
    ends_with = _with_text(str.endswith)
    not_ends_with = _with_text(str.endswith, is_not=True)

    def disjunction(self, parts: Parts) -> Node:
        return nodes.any_of([_node(part) for part in parts])

    def conjunction(self, parts: Parts) -> Node:
        return nodes.all_of([_node(part) for part in parts])

    def equal(self, parts: Parts) -> Node:
        return comparisons.equal(_node(parts[0]), _node(parts[1]))

    def not_equal(self, parts: Parts) -> Node:
        return nodes.negation(self.equal(parts))

    def is_null(self, parts: Parts) -> Node:
        return comparisons.is_null(_node(parts[0]))

    def is_not_null(self, parts: Parts) -> Node:
        return nodes.negation(self.is_null(parts))

    def between(self, parts: Parts) -> Node:
        return comparisons.between(*map(_node, parts))

    def not_between(self, parts: Parts) -> Node:
        return comparisons.not_between(*map(_node, parts))

    def is_in(self, parts: Parts) -> Node:
        return comparisons.is_in(_node(parts[0]), [_text(part) for part in parts[1:]])

    def is_not_in(self, parts: Parts) -> Node:
        return nodes.negation(self.is_in(parts))

    def negative(self, parts: Parts) -> Node:
        return nodes.negative(_node(parts[0]))

    def negation(self, parts: Parts) -> Node:
        return nodes.negation(_node(parts[0]))

    def string(self, parts: Parts) -> Node:
        return nodes.literal(Kind.STRING, _text(parts[0]))

    def integer(self, parts: Parts) -> Node:
        return nodes.integer(str(parts[0]))

    def real(self, parts: Parts) -> Node:
        return nodes.real(str(parts[0]))

    def named(self, parts: Parts) -> Node:
        return nodes.named(str(parts[0]))

    def true(self, _: Parts) -> Node:
        return nodes.literal(Kind.BOOLEAN, True)

    def false(self, _: Parts) -> Node:
        return nodes.literal(Kind.BOOLEAN, False)

    def null(self, _: Parts) -> Node:
        return nodes.literal(Kind.NULL, None)
