"""Whether SQL is a query that handles each message separately, as `transform` must.

It sees the messages of one batch at a time. SQL that combines messages would combine those that
happen to be in one batch: with another trigger, or a start after a kill, other rows would result.
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
"""Nodes of Spark's plans that combine rows, and the SQL words for them."""
_JOIN: Final = "Join"
_KEEPS: Final = {
    # By the kind of join, whether the messages may be on its left side, and on its right side.
    "Cross": (True, True),
    "Inner": (True, True),
    "LeftAnti": (True, False),
    "LeftOuter": (True, False),
    "LeftSemi": (True, False),
    "RightOuter": (False, True),
}
"""Joins of messages with a table that handle each message separately; in other joins, the messages
that there are decide which rows of the table are kept."""

_PLANS: Final = "org.apache.spark.sql.catalyst.plans.logical"
_CHANGES: Final = (
    f"{_PLANS}.Command",
    f"{_PLANS}.ParsedStatement",  # INSERT INTO
    f"{_PLANS}.InsertIntoDir",
    f"{_PLANS}.Call",
    "org.apache.spark.sql.catalyst.analysis.UnresolvedExecuteImmediate",
)
"""Spark's parsed statements that do something."""


def require_query(spark: SparkSession, sql: str) -> None:
    """Refuse a statement that is not a query: Spark would execute it at once.

    Raise an `AnalysisException` for invalid SQL.
    """
    # PySpark gives no access to the parser or to plans.
    plan = spark._jsparkSession.sessionState().sqlParser().parsePlan(sql)
    gateway: Any = spark.sparkContext._gateway
    if any(
        gateway.jvm.py4j.reflection.TypeUtil.isInstanceOf(kind, node)
        for node in _nodes(plan)
        for kind in _CHANGES
    ):
        raise OptionError("sql: is a command, not a query; write a SELECT from `messages`")


def require_stateless(selected: DataFrame) -> None:
    """Refuse a query of a stream that combines messages.

    Rows of static tables may be combined: a join with one, or its maximum, is the same in each
    batch.
    """
    for words in _found(selected._jdf.queryExecution().analyzed()):  # PySpark has no such access.
        raise OptionError(
            f"sql: {words} combines messages, but sees only those of one batch: the result would"
            " depend on how the stream is divided; see the job `aggregate`"
        )


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in _children(plan):
        yield from _nodes(child)


def _children(plan: Any) -> list[Any]:
    nodes = plan.children()
    return [nodes.apply(number) for number in range(nodes.size())]


def _found(plan: Any) -> Iterator[str]:
    # Not in subqueries: Spark itself refuses subqueries of a stream.
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
