"""Filters by tag: `*`, or tags joined by `||`."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from cometmq.broker.filter.errors import FilterSyntaxError
from cometmq.proto.java import string_hash
from cometmq.store.messages.reading import Filter

EXPRESSION_LENGTH_CACHED_MAX: Final = 1024
"""Longer expressions are compiled each time, so that a peer cannot fill the cache."""


def tag_filter(expression: str | None) -> Filter | None:
    """Compile an expression; None takes everything. `FilterSyntaxError` if it names no tag.

    Brokers compare only the hash codes of tags: the client compares the tags themselves.
    """
    if expression is None or len(expression) > EXPRESSION_LENGTH_CACHED_MAX:
        return _compile(expression or "")
    return _compile_cached(expression)


def _compile(expression: str) -> Filter | None:
    if expression in ("", "*"):
        return None
    tags = [tag for part in expression.split("||") if (tag := part.strip())]
    if not tags:
        raise FilterSyntaxError(f"{expression[:40]!r} names no tag")
    return Filter(frozenset(map(string_hash, tags)))


_compile_cached = lru_cache(maxsize=4096)(_compile)
