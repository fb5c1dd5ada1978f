"""Whether SQL takes each message by itself, as `transform` must.

It sees the messages of one batch at a time. What puts messages together would do so with those that
happened to come in one batch: another trigger, or a start behind a kill, and other rows come out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cometmq.pipeline.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

_TOGETHER: Final = {
    "Aggregate": "GROUP BY or an aggregate function",
    "Deduplicate": "DISTINCT",
    "Distinct": "DISTINCT or UNION without ALL",
    "Except": "EXCEPT",
    "GlobalLimit": "LIMIT",
    "Intersect": "INTERSECT",
    "LocalLimit": "LIMIT",
    "Offset": "OFFSET",
    "Pivot": "PIVOT",
    "Tail": "LIMIT",
    "Window": "OVER",
}
"""Nodes of Spark's plans that put rows together, by the words of SQL for it."""
_JOIN: Final = "Join"


def require_stateless(selected: DataFrame) -> None:
    """Refuse what was selected from a stream, if messages are put together in it.

    Tables that do not stream may be: a join with one, or its maximum, is the same in each batch.
    """
    for words in _found(selected._jdf.queryExecution().analyzed()):  # PySpark shows no plan.
        raise OptionError(
            f"sql: {words} puts messages together, but sees only those of one batch: what comes"
            " out would depend on how the stream is cut; see the job `aggregate`"
        )


def _found(plan: Any) -> Iterator[str]:
    # Not in subqueries: that those are about a stream, Spark itself refuses.
    nodes = plan.children()
    children = [nodes.apply(number) for number in range(nodes.size())]
    streams = [child.isStreaming() for child in children]
    name = plan.nodeName()
    if name in _TOGETHER and any(streams):
        yield _TOGETHER[name]
    if name == _JOIN and all(streams):
        yield "a JOIN of messages with messages"
    for child in children:
        yield from _found(child)
