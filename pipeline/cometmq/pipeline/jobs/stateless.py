"""Whether SQL is a query that takes each message by itself, as `transform` must.

It sees the messages of one batch at a time. What puts messages together would do so with those that
happened to come in one batch: another trigger, or a start behind a kill, and other rows come out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cometmq.pipeline.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

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
_KEEPS: Final = {
    # By the kind of a join, whether the messages may be to its left, and to its right.
    "Cross": (True, True),
    "Inner": (True, True),
    "LeftAnti": (True, False),
    "LeftOuter": (True, False),
    "LeftSemi": (True, False),
    "RightOuter": (False, True),
}
"""Joins of messages with a table, each message by itself; of others rows of the table are kept, or
left out, by which messages there are."""

_PLANS: Final = "org.apache.spark.sql.catalyst.plans.logical"
_CHANGES: Final = (
    f"{_PLANS}.Command",
    f"{_PLANS}.ParsedStatement",  # INSERT INTO
    f"{_PLANS}.InsertIntoDir",
    f"{_PLANS}.Call",
    "org.apache.spark.sql.catalyst.analysis.UnresolvedExecuteImmediate",
)
"""What Spark's parser makes of statements that do something."""


def require_query(spark: SparkSession, sql: str) -> None:
    """Refuse a statement that is no query: Spark does what it says as soon as it is given it.

    An `AnalysisException` for what is no SQL.
    """
    # PySpark has neither a parser nor plans.
    plan = spark._jsparkSession.sessionState().sqlParser().parsePlan(sql)
    gateway: Any = spark.sparkContext._gateway
    if any(
        gateway.jvm.py4j.reflection.TypeUtil.isInstanceOf(kind, node)
        for node in _nodes(plan)
        for kind in _CHANGES
    ):
        raise OptionError("sql: a command, and no query; say a SELECT from `messages`")


def require_stateless(selected: DataFrame) -> None:
    """Refuse what was selected from a stream, if messages are put together in it.

    Tables that do not stream may be: a join with one, or its maximum, is the same in each batch.
    """
    for words in _found(selected._jdf.queryExecution().analyzed()):  # PySpark shows no plan.
        raise OptionError(
            f"sql: {words} puts messages together, but sees only those of one batch: what comes"
            " out would depend on how the stream is cut; see the job `aggregate`"
        )


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in _children(plan):
        yield from _nodes(child)


def _children(plan: Any) -> list[Any]:
    nodes = plan.children()
    return [nodes.apply(number) for number in range(nodes.size())]


def _found(plan: Any) -> Iterator[str]:
    # Not in subqueries: that those are about a stream, Spark itself refuses.
    children = _children(plan)
    streams = [child.isStreaming() for child in children]
    name = plan.nodeName().removesuffix(" All")
    if name in _TOGETHER and any(streams):
        yield _TOGETHER[name]
    if name == _JOIN and all(streams):
        yield "a JOIN of messages with messages"
    elif name == _JOIN and any(streams):
        kind = plan.joinType().toString()
        left, right = _KEEPS.get(kind, (False, False))
        if not ((streams[0] and left) or (streams[1] and right)):
            yield f"a JOIN ({kind}) that keeps rows of another table by the messages that there are"
    for child in children:
        yield from _found(child)
