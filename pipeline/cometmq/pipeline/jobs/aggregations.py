"""What `aggregate` computes over a window, as the setting `aggregations` names it."""

from __future__ import annotations

import re
from typing import Any, Final

from cometmq.pipeline.errors import OptionError

_SIGN: Final = re.compile(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"|`[^`]*`|.", re.DOTALL)
"""A token of SQL: a text or name in quotes, or one character."""
_DISTINCT: Final = re.compile(r"\(\s*distinct\b(?!\s*\))", re.ASCII | re.IGNORECASE)
_AGGREGATION: Final = re.compile(r"(count|sum|avg|min|max|p[0-9]{1,2})(?:\((.+)\))?", re.ASCII)


def names(text: str) -> list[str]:
    """Return the names of their columns; an `OptionError` names an invalid aggregation."""
    return [_alias(*_read(each)) for each in _split(text)]


def columns(text: str) -> list[Any]:
    """Return them as columns."""
    return [_column(*_read(each)) for each in _split(text)]


def _split(text: str) -> list[str]:
    """Split at commas, except in parentheses and in quotes."""
    parts, depth = [""], 0
    for sign in _SIGN.findall(text):
        depth += (sign == "(") - (sign == ")")
        if sign == "," and not depth:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


def _read(text: str) -> tuple[str, str]:
    match = _AGGREGATION.fullmatch(text.strip())
    if match is None or (match[1] != "count" and not match[2]):
        raise OptionError(
            f"aggregations: {text.strip()!r} is not count, sum(x), avg(x), min(x), max(x) or p95(x)"
        )
    if _DISTINCT.search("".join(sign for sign in _SIGN.findall(text) if len(sign) == 1)):
        raise OptionError(
            f"aggregations: {text.strip()!r}: Spark has no DISTINCT in a stream; use it as --key to"
            " get a row for each of its values"
        )
    return match[1], match[2] or "*"


def _column(name: str, argument: str) -> Any:
    from pyspark.sql import functions

    if name.startswith("p"):
        call = f"percentile_approx({argument}, {int(name[1:]) / 100})"
    else:
        call = f"{name}({argument})"
    return functions.expr(call).alias(_alias(name, argument))


def _alias(name: str, argument: str) -> str:
    """Return the name of a column of results; Spark ignores case."""
    return name if argument == "*" else f"{name}_{re.sub(r'[^0-9A-Za-z]+', '_', argument)}"
