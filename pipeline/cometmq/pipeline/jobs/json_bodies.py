"""JSON bodies read by a schema, and told apart from those that do not fit it.

A body fits when it is one JSON value of that shape: an object, each of whose fields is null, or not
there, or can be read as its type. Fields of which the schema says nothing are passed over, a STRING
takes any JSON, and of a name that is there twice the last one counts. Of all others the value is
null, as a whole: Spark would make a row of nulls of them, which nobody can tell from a body that
says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.pipeline.jobs.spark_errors import told_as

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MISFIT: Final = "misfit"


def with_text(frame: DataFrame) -> DataFrame:
    """Add the body as `text`; null of bytes that are no UTF-8, which is no error."""
    from pyspark.sql import functions

    found: DataFrame = frame.withColumn(
        "text", functions.expr("try_validate_utf8(cast(body AS string))")
    )
    return found


def with_value(frame: DataFrame, schema: str) -> DataFrame:
    """Add what is in `text` as `value`; null where that does not fit the schema.

    The text is put into an object, beside which Spark says what it could not read: it says so for
    fields that it sets to null, and there is no other place for a JSON that is no object. What
    follows the end of a text it does not look at: that is found by an array of one.
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
