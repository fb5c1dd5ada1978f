"""The figures of durations in the tables of `latency`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SHARES: Final = (0.5, 0.9, 0.99, 0.999)


def summed(frame: DataFrame, by: tuple[str, ...], *more: str) -> DataFrame:
    """Return the figures of durations, grouped by `by`, slowest first."""
    from pyspark.sql import functions

    shares = ", ".join(map(str, _SHARES))
    names = [each.rpartition(" ")[2] for each in by]
    summed: DataFrame = (
        frame.groupBy(*(functions.expr(each) for each in by))
        .agg(
            functions.expr("count(*) AS count"),
            functions.expr(f"percentile_approx(ms, array({shares})) AS p"),
            functions.expr("min(ms) AS min_ms"),
            functions.expr("max(ms) AS max_ms"),
            functions.expr("round(count_if(ms < 0) / count(*), 4) AS negative"),
            *(functions.expr(each) for each in more),
        )
        .selectExpr(
            *names,
            "count",
            "min_ms",
            *(
                f"p[{n}] AS p{str(share * 100).removesuffix('.0').replace('.', '_')}_ms"
                for n, share in enumerate(_SHARES)
            ),
            "max_ms",
            "negative",
            *(each.rpartition(" ")[2] for each in more),
        )
    )
    ordered: DataFrame = summed.orderBy(functions.desc("p99_ms"), *names)
    return ordered
