"""The tags codes that entries of records should have: Java's hash of the tags."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame


def with_tag_codes(frame: DataFrame) -> DataFrame:
    """Return a frame with the column `tag` replaced by `tag_code`."""
    from pyspark.sql.types import LongType, StructField, StructType

    fields = [field for field in frame.schema.fields if field.name != "tag"]
    schema = StructType([*fields, StructField("tag_code", LongType())])
    found: DataFrame = frame.mapInArrow(_replace, schema)
    return found


def _replace(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        names = [name for name in batch.schema.names if name != "tag"]
        arrays: list[Any] = [batch.column(name) for name in names]
        fields = [(name, batch.schema.field(name).type) for name in names]
        schema = pa.schema([*fields, ("tag_code", pa.int64())])
        codes = tag_codes(batch.column("tag"))
        yield pa.RecordBatch.from_arrays([*arrays, codes], schema=schema)


def tag_codes(tags: pa.Array) -> pa.Array:
    """Return the code of each tag, 0 without a tag; each distinct tag is hashed once."""
    encoded = tags.dictionary_encode()
    codes = np.array([java_hash(each) for each in encoded.dictionary.to_pylist()] + [0], np.int64)
    rows = np.full(len(tags), -1, np.int64)
    known = ~tags.is_null().to_numpy(zero_copy_only=False)
    rows[known] = encoded.indices.filter(pa.array(known)).to_numpy()
    return pa.array(codes[rows])


def java_hash(text: str) -> int:
    """Return Java's `String.hashCode`, as a signed 32-bit number."""
    value = 0
    for unit in memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H"):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value
