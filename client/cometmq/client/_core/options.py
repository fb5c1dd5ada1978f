"""The options of a consumer: its group and filters, where it starts, how many at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from cometmq.client._core.checking import check_time, check_whole
from cometmq.client._core.filters import ALL, Filter, Sql, parse_filter
from cometmq.client._core.names import check_group, check_topic, retry_topic
from cometmq.client._core.rebalance import check_strategy
from cometmq.client.errors import UsageError

if TYPE_CHECKING:
    from cometmq.client._core.rebalance import Strategy

GIVE_UP_LEVEL: Final = -1
"""The delay level of a send-back that means the dead letters."""

Start = Literal["last", "first"] | datetime
OnError = Literal["retry", "raise"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeOptions:
    """The settings of one consumer."""

    group: str
    filters: Mapping[str, Filter]
    start: Start
    is_broadcast: bool
    is_ordered: bool
    concurrency: int
    prefetch: int
    prefetch_bytes: int
    max_retries: int
    strategy: Strategy
    on_error: OnError

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        check_group(self.group)
        for topic in self.filters:
            check_topic(topic)
        if not self.filters:
            raise UsageError("topics: must not be empty")
        for name in ("concurrency", "prefetch", "prefetch_bytes"):
            check_whole(name, getattr(self, name), 1)
        check_whole("max_retries", self.max_retries, 0)
        check_start(self.start)
        check_strategy(self.strategy)
        if self.is_ordered and self.is_broadcast:
            raise UsageError(
                "ordered and broadcast: give one of them; broadcast consumers have no locks"
            )
        if self.on_error not in ("retry", "raise"):
            raise UsageError(f"on_error={self.on_error!r}: must be 'retry' or 'raise'")

    @property
    def all_filters(self) -> dict[str, Filter]:
        """The filters of all topics, including the retry topic."""
        if self.is_broadcast:
            return dict(self.filters)
        return {**self.filters, retry_topic(self.group): Filter(ALL)}


def check_start(start: object) -> None:
    """Refuse a value that is no starting position."""
    if isinstance(start, datetime):
        check_time("start", start)
    elif start not in ("last", "first"):
        raise UsageError(f"start={start!r}: must be 'last', 'first' or a datetime")


def read_topics(topics: object, filter: str | Sql) -> dict[str, Filter]:
    """Parse a consumer's topics and the filter of each."""
    if isinstance(topics, str):
        return {topics: parse_filter(filter)}
    if not isinstance(topics, Mapping):
        raise UsageError(
            f'topics={topics!r}: must be a name, or several with filters: {{"orders": "*"}}'
        )
    if filter != ALL:
        raise UsageError('filter: with several topics, give each its own: {"orders": "paid"}')
    filters = cast("Mapping[Any, object]", topics)
    return {check_topic(topic): parse_filter(each) for topic, each in filters.items()}
