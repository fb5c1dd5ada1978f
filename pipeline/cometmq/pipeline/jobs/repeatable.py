"""Whether SQL chooses the same rows, and sends them to the same places, each time it runs.

A batch that is repeated after a crash sends its rows again, and rows that are there already are
recognized by the places of their messages. So the *contents* of a row may differ the second time,
such as a time or a random number in the body: the first row stays. But *which* rows there are, and
*where* they go, must be the same; otherwise a message would be in two topics, or in two queues.

The plan is walked from the tables upwards. A column is loose if it may differ the next time; loose
columns may be sent, but nothing may be chosen by them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cometmq.pipeline.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from pyspark.sql import DataFrame

_TIMES: Final = ("CurrentDate", "CurrentTime", "CurrentTimestamp", "LocalTimestamp", "Now")
"""Expressions that Spark considers constant, which they are only within one batch."""
_NOT_NOTED: Final = ("CurrentTime", "Now")
"""Those whose values in a batch a stream does not record, as it does for the others."""
_PLACED_BY: Final = ("topic", "broker", "queue_id", "queue_offset", "to_topic", "sharding_key")
"""Columns that identify a row, and say where it goes."""

_CHANGES: Final = "changes when a batch is repeated"
_INSTEAD: Final = "go by what the message says, such as store_time or crc32(key)"


def require_repeatable(selected: DataFrame) -> None:
    """Refuse a query if rows are chosen or placed by what may change."""
    plan = selected._jdf.queryExecution().analyzed()  # PySpark gives no access to plans.
    loose = _loose(plan)
    for column in _listed(plan.output()):
        if column.name() in _PLACED_BY and column.exprId().id() in loose:
            raise OptionError(
                f"sql: {column.name()} may be another when a batch is repeated, and its messages"
                f" would be there twice: {_say(loose[column.exprId().id()])}"
            )


def require_same(selected: DataFrame, option: str) -> None:
    """Refuse an option's expression, the only column of a stream, if it may change.

    It may use times such as `current_timestamp()`, which Spark records for each batch of a stream
    and repeats, but not `now()` and `current_time()`. An expression that makes rows is also
    refused: a message would count more than once, and what may change would not be seen here.
    """
    plan = selected._jdf.queryExecution().analyzed()  # As above.
    below = plan.children().apply(0)
    if below.nodeName() == "Generate":
        name = below.expressions().apply(0).prettyName()
        raise OptionError(
            f"{option}: {name}() makes rows, but must give one value for each message"
        )
    expressions = _listed(plan.expressions())
    if len(expressions) != 1:
        raise OptionError(
            f"{option}: these are {len(expressions)} columns, but it must be one value for each"
            " message"
        )
    if why := _why(expressions[0], {}, _NOT_NOTED):
        raise OptionError(
            f"{option}: {why} {_CHANGES}, and its results would be there twice; {_INSTEAD}"
        )


def require_same_rows(filtered: DataFrame, option: str) -> None:
    """Refuse the condition by which a frame was last filtered, if it chooses at random.

    It may use times: they are meant to choose other rows the next time.
    """
    condition = filtered._jdf.queryExecution().analyzed().expressions().apply(0)  # As above.
    if why := _why(condition, {}, ()):
        raise OptionError(
            f"{option}: {why} chooses other rows each time, and these are looked at more than once;"
            f" {_INSTEAD}"
        )


def _loose(plan: Any) -> dict[int, str]:
    """Return the ids of the loose columns of a node and below it, with what makes them loose."""
    loose: dict[int, str] = {}
    for child in _listed(plan.children()):
        loose |= _loose(child)
    kind = plan.nodeName()
    if kind == "Sample":
        raise _chosen("TABLESAMPLE")
    expressions = _listed(plan.expressions())
    if kind == "Project":
        for each in expressions:
            if why := _why(each, loose):
                loose[each.exprId().id()] = why
        return loose
    if kind == "Union":
        return loose | _united(plan, loose)
    for each in expressions:
        if why := _why(each, loose):
            raise _chosen(why)
    return loose


def _united(plan: Any, loose: dict[int, str]) -> dict[int, str]:
    """Return the columns of a union that are loose in some part; the ids are of the first part."""
    found: dict[int, str] = {}
    outputs = _listed(plan.output())
    for child in _listed(plan.children()):
        for column, own in zip(outputs, _listed(child.output()), strict=True):
            if why := loose.get(own.exprId().id()):
                found[column.exprId().id()] = why
    return found


def _why(expression: Any, loose: dict[int, str], times: Collection[str] = _TIMES) -> str:
    """Return what makes an expression loose; '' if it is not."""
    for column in _listed(expression.references().toSeq()):
        if why := loose.get(column.exprId().id()):
            return why
    for each in _within(expression):
        is_random = not each.deterministic() and all(
            child.deterministic() for child in _listed(each.children())
        )
        if is_random or each.getClass().getSimpleName() in times:
            return str(each.prettyName()) + "()"
    return ""


def _within(expression: Any) -> Iterator[Any]:
    yield expression
    for child in _listed(expression.children()):
        yield from _within(child)


def _chosen(why: str) -> OptionError:
    return OptionError(f"sql: rows are chosen by what may change: {_say(why)}")


def _say(why: str) -> str:
    return f"{why} {_CHANGES}; {_INSTEAD}, or put it into the body alone"


def _listed(sequence: Any) -> list[Any]:
    return [sequence.apply(number) for number in range(sequence.size())]
