"""What archives that are tables have in common: their columns, and what is counted of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.pipeline.jobs.archive_writing import Archiving

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

PRECISE_TIMES: Final = ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
"""The setting for files whose times others read, too."""
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


def arrow_schema(frame: DataFrame) -> pa.Schema:
    """Return the schema for a table; its columns may be null in rows that others insert."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    fields: list[pa.Field] = list(to_arrow_schema(frame.schema, timezone="UTC"))
    return pa.schema([each.with_nullable(True) for each in fields])
