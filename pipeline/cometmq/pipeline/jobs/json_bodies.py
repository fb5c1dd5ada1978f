"""Parsing JSON bodies by a schema, and detecting those that do not fit it.

A body fits if it is one JSON value of that shape: an object in which each field is null, missing,
or valid for its type. Fields that are not in the schema are ignored, a STRING accepts any JSON, and
of a duplicate name the last one counts. For all other bodies, the value is null as a whole: Spark
would make a row of nulls, which nobody could tell from a body with nulls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.pipeline.jobs.spark_errors import told_as

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MISFIT: Final = "misfit"


def with_text(frame: DataFrame) -> DataFrame:
    """Add the body as `text`; null, without an error, if it is not UTF-8."""
    from pyspark.sql import functions

    found: DataFrame = frame.withColumn(
        "text", functions.expr("try_validate_utf8(cast(body AS string))")
    )
    return found


def with_value(frame: DataFrame, schema: str) -> DataFrame:
    """Add the contents of `text` as `value`; null if they do not fit the schema.

    The text is wrapped in an object, so that Spark reports what it could not read: it does so for
    fields that it sets to null, and this is the only way for JSON that is not an object. Spark
    ignores what follows the end of a text, so that is detected with an array of one element.
    """
    from pyspark.sql import functions
    from pyspark.sql.types import DataType, StringType, StructField, StructType

    with told_as("schema"):
        kind = DataType.fromDDL(schema)
    whole = StructType([StructField("value", kind), StructField(_MISFIT, StringType())])
    how = {
        "mode": "PERMISSIVE",
        "columnNameOfCorruptRecord": _MISFIT,
        "allowSingleQuotes": "false",
    }
    read = functions.from_json(functions.expr("concat('{\"value\":', text, '}')"), whole, how)
    fits = f"json_array_length(concat('[', text, ']')) = 1 AND read.{_MISFIT} IS NULL"
    with_read = frame.withColumn("read", read)
    value = functions.expr(f"CASE WHEN {fits} THEN read.value END")
    with_value: DataFrame = with_read.withColumn("value", value).drop("read")
    return with_value
