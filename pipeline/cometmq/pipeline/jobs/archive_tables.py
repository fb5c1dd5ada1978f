"""What archives that are tables have in common: their columns, and what is counted of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.pipeline.jobs.archive_writing import Archiving

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TYPES: Final = {"date": "date", "hour": "int"}
"""The types of partition columns: the same as when a Parquet archive is read."""


class ToTable(Archiving):
    """An archive that is a table of some format."""

    def observed(self, frame: DataFrame) -> DataFrame:
        """Count what Parquet's manifests say."""
        from pyspark.sql import functions

        counted = {"bytes": "coalesce(sum(length(body)), 0)"}
        if self.settings.schema:
            counted["misfits"] = "count_if(value IS NULL)"
        columns = [functions.expr(sql).alias(name) for name, sql in counted.items()]
        seen: DataFrame = frame.observe("archive", *columns)
        return seen

    def with_number(self, frame: DataFrame, number: int) -> DataFrame:
        """Return a batch with the table's columns."""
        body = "cast(body AS string)" if self.settings.body == "text" else "body"
        typed = {"body": body} | {
            part: f"{kind}({part})" for part, kind in _TYPES.items() if part in self.parts
        }
        # First, as Delta keeps minimum and maximum only of the first columns.
        columns = [f"{number} AS batch"]
        columns += [f"{typed.get(name, name)} AS {name}" for name in frame.columns]
        numbered: DataFrame = frame.selectExpr(*columns)
        return numbered
