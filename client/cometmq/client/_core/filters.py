"""Filters of subscriptions: a tag expression or SQL92; and the client's own check of tags.

Brokers compare only the hashes of tags, so two tags with the same hash look alike to them; the
client compares the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cometmq.client.errors import UsageError
from cometmq.proto.bodies import SubscriptionData
from cometmq.proto.java import string_hash

if TYPE_CHECKING:
    from cometmq.proto.message import StoredMessage

ALL: Final = "*"
_LOOKS_LIKE_SQL: Final = re.compile(r"[=<>()']")
_NO_TAG: Final = re.compile(r"[\s|&!*,;]")


@dataclass(frozen=True, slots=True)
class Sql:
    """A filter in SQL92 over the properties of messages.

    ::

        mq.consume("orders", group="billing", filter=Sql("amount > 100 AND country IN ('AT')"))
    """

    expression: str


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter as it is sent, and the tags that a message may have; no tags means any."""

    expression: str
    kind: str = "TAG"
    tags: frozenset[str] = field(default_factory=frozenset[str])

    def passes(self, message: StoredMessage) -> bool:
        """Whether a message that the broker sent really matches."""
        return not self.tags or message.tags in self.tags

    def subscription(self, topic: str, version: int) -> SubscriptionData:
        """Return it as heartbeats have it."""
        tags = tuple(sorted(self.tags))
        return SubscriptionData(
            topic=topic,
            sub_string=self.expression,
            expression_type=self.kind,
            tags_set=tags,
            code_set=tuple(map(string_hash, tags)),
            sub_version=version,
        )


_EVERYTHING: Final = Filter(ALL)


def _check_expression(expression: object) -> None:
    if not isinstance(expression, str) or not expression.strip():
        raise UsageError("filter: the SQL expression must be a str that is not empty")


def parse_filter(given: object) -> Filter:
    """Parse a filter of the caller: `*`, `paid || refunded`, or `Sql(...)`.

    A tag may have any name, but one that contains a blank, a comma or half an operator is nearly
    always a mistake, with which nothing would ever be consumed.
    """
    if given is ALL:  # The most common filter of a pull.
        return _EVERYTHING
    if isinstance(given, Sql):
        _check_expression(given.expression)
        return Filter(given.expression, "SQL92")
    if given is None:
        return _EVERYTHING
    if not isinstance(given, str):
        raise UsageError(f'filter={given!r}: must be tags, like "paid || refunded", or Sql(...)')
    if given.strip() in ("", ALL):
        return _EVERYTHING
    if _LOOKS_LIKE_SQL.search(given):
        raise UsageError(f"filter {given!r}: if this is SQL92, give it as filter=Sql({given!r})")
    tags = [tag.strip() for tag in given.split("||")]
    if not all(tags):
        raise UsageError(
            f'filter {given!r}: a tag is empty; join tags by ||, like "paid || refunded"'
        )
    for tag in tags:
        if _NO_TAG.search(tag):
            raise UsageError(
                f"filter {given!r}: {tag!r} is not a tag; join tags by ||, the only operator, like"
                ' "paid || refunded"; for a tag that really has this name, use'
                f""" Sql("TAGS = '{tag}'")"""
            )
    return Filter(" || ".join(tags), tags=frozenset(tags))
