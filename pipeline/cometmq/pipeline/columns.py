"""The columns of messages for all sources of the pipeline: one table, in the order of the schema.

A source may be asked for any of them, in any order. In Spark's schema each may be null; this table
says which ones ever are, and when. This module and those in `records` run in executors: they import
only the standard library, numpy and pyarrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from cometmq.pipeline.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

STRING: Final = pa.string()
INT: Final = pa.int32()
BIGINT: Final = pa.int64()
TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
BINARY: Final = pa.binary()
PROPERTIES: Final = pa.map_(pa.string(), pa.string())

_SPARK_TYPES: Final = (
    (STRING, "STRING"),
    (INT, "INT"),
    (BIGINT, "BIGINT"),
    (TIMESTAMP, "TIMESTAMP"),
    (BINARY, "BINARY"),
    (PROPERTIES, "MAP<STRING, STRING>"),
    (pa.bool_(), "BOOLEAN"),
)


class Column(NamedTuple):
    """One column."""

    name: str
    type: pa.DataType
    meaning: str

    @property
    def spark_type(self) -> str:
        """Its type in Spark's DDL."""
        return next(name for kind, name in _SPARK_TYPES if kind == self.type)


COLUMNS: Final[Mapping[str, Column]] = {
    column.name: column
    for column in (
        Column("topic", STRING, "The topic that it is stored under."),
        Column("broker", STRING, "The name of its broker; null of a store that nobody named."),
        Column("queue_id", INT, "Its queue of the topic."),
        Column("queue_offset", BIGINT, "The how-manieth message of its queue."),
        Column("physical_offset", BIGINT, "Where its record begins in the broker's log."),
        Column("size", INT, "Bytes of its record."),
        Column("message_id", STRING, "`unique_key`, or `offset_id` if it is null: the SDK's id."),
        Column("unique_key", STRING, "The id that its producer gave it; null without."),
        Column("offset_id", STRING, "The id by which its broker finds it."),
        Column("key", STRING, "The keys it can be found by, a space between two; null without."),
        Column("tag", STRING, "What consumers filter by; null without."),
        Column("flag", INT, "The user's number."),
        Column("sys_flag", INT, "The system flags, as they are stored."),
        Column("born_time", TIMESTAMP, "When it was sent; null if not in the years 1 to 9999."),
        Column("store_time", TIMESTAMP, "When it was stored; null if not in the years 1 to 9999."),
        Column("born_host", STRING, "The address and port that it was sent from."),
        Column("store_host", STRING, "The address and port of its broker."),
        Column("reconsume_times", INT, "How often it was delivered again."),
        Column("prepared_offset", BIGINT, "Where the half message is that it commits; else 0."),
        Column("body_crc", INT, "The checksum of the body of its record as it is stored."),
        Column("body_size", INT, "Bytes of the body as it is stored, compressed or not."),
        Column("properties", PROPERTIES, "All properties: of its user, its client, its broker."),
        Column("body", BINARY, "What was sent; null if compressed in a way that cannot be undone."),
    )
}
"""The columns by name, in the order of the schema."""

ALL_COLUMNS: Final = tuple(COLUMNS)
"""The names of all columns, in that order."""

DEFAULT_COLUMNS: Final = (
    "topic",
    "broker",
    "queue_id",
    "queue_offset",
    "physical_offset",
    "message_id",
    "key",
    "tag",
    "flag",
    "born_time",
    "store_time",
    "reconsume_times",
    "properties",
    "body",
)
"""The columns if none are named: everything that a message says, and its place.

The others are about its record. They would cost a quarter of the work of a read, as Spark does not
tell a source which columns a query uses.
"""

STORED: Final = "cometmq.stored"
"""The metadata key of a column of bodies that are as stored, and so may be compressed."""
ALWAYS_TIMED: Final = "cometmq.always-timed"
"""The metadata key of `store_time` if no earlier run can have sent the rows without that column."""

HEADER_COLUMNS: Final = tuple(name for name in COLUMNS if name not in ("properties", "body"))
"""All columns but the two most expensive ones."""

SELDOM_TWICE: Final = (
    "queue_offset",
    "physical_offset",
    "message_id",
    "unique_key",
    "offset_id",
    "key",
    "born_time",
    "store_time",
    "body_crc",
    "body",
    "properties.key_value.value",
)
"""Columns, as Parquet names them, whose values seldom repeat, so a dictionary is of no use."""


def chosen_columns(text: str | None, table: Mapping[str, Column] = COLUMNS) -> tuple[str, ...]:
    """Return the columns that an option names, as `a, b, c`, or all for `*`.

    Without a text, return the default columns of messages, or all columns of another table. Raise
    `OptionError` for an unknown name, and for a name that occurs twice.
    """
    text = (text or "").strip()
    if text == "*" or (not text and table is not COLUMNS):
        return tuple(table)
    if not text:
        return DEFAULT_COLUMNS
    return checked_columns([name.strip() for name in text.split(",")], table)


def checked_columns(names: Sequence[str], table: Mapping[str, Column] = COLUMNS) -> tuple[str, ...]:
    """Return the names, which must all be columns; `OptionError` as above, and for no names."""
    if not names:
        raise OptionError(f"no column is named; there are {', '.join(table)}")
    unknown = [name for name in names if name not in table]
    if unknown:
        raise OptionError(
            f"there is no column {', '.join(map(repr, unknown))}; there are {', '.join(table)}"
        )
    if len(set(names)) < len(names):
        raise OptionError(f"a column is named twice in {', '.join(names)}")
    return tuple(names)


def columns_of(
    schema: Any, table: Mapping[str, Column] = COLUMNS, *, are_stored: bool
) -> tuple[str, ...]:
    """Return the columns that a user's schema asks for; refuse types other than ours.

    Also refuse bodies that `are_stored`, if the schema does not mark them so: see `STORED`.
    """
    names = checked_columns([each.name for each in schema.fields], table)
    for field in schema.fields:
        said, ours = field.dataType.simpleString().lower(), table[field.name].spark_type.lower()
        if said != ours.replace(" ", ""):
            raise OptionError(
                f"schema: column {field.name} is {ours}, not {said}: cast it afterwards"
            )
        if not (field.nullable and getattr(field.dataType, "valueContainsNull", True)):
            raise OptionError(
                f"schema: column {field.name} is NOT NULL, which a source cannot promise:"
                " leave NOT NULL out"
            )
        if are_stored and field.name == "body" and STORED not in field.metadata:
            raise OptionError(
                "decompress: a schema of your own cannot say that some bodies are compressed, so"
                " whoever writes them would not know: name columns by the option `columns`"
            )
    return names


def ddl(names: Iterable[str], table: Mapping[str, Column] = COLUMNS) -> str:
    """Return the schema of these columns in a form that Spark's `DataSource.schema` may return.

    A setting of Spark (`spark.sql.timestampType`) decides what `TIMESTAMP` means.
    """
    kinds = {name: table[name].spark_type.replace("TIMESTAMP", "TIMESTAMP_LTZ") for name in names}
    return ", ".join(f"{name} {kind}" for name, kind in kinds.items())


def schema_of_stored_bodies(names: Iterable[str], table: Mapping[str, Column] = COLUMNS) -> Any:
    """Return the same with bodies as they are stored, which the column's metadata says.

    The sink needs that: otherwise it would send compressed bytes as if they were the message.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    schema = from_arrow_schema(schema_of(table, names))
    for each in schema.fields:
        if each.name == "body":
            each.metadata = {STORED: True}
    return schema


def schema_of(table: Mapping[str, Column], names: Iterable[str]) -> pa.Schema:
    """Return the same schema for Arrow, equal to what Spark expects of a record batch."""
    return pa.schema((name, table[name].type) for name in names)
