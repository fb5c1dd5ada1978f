"""Turning rows into record batches, a column at a time, and only the columns asked for."""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from cometmq.pipeline.columns import ALL_COLUMNS, BINARY, COLUMNS, STRING, TIMESTAMP, schema_of
from cometmq.pipeline.records.hosts import born_hosts, hosts, offset_ids, store_hosts
from cometmq.pipeline.records.layout import (
    IPV6_HOSTS,
    RECORD_SIZE_MIN,
    answer_layout,
    int32s,
    int64s,
)
from cometmq.pipeline.records.properties import Properties
from cometmq.pipeline.records.rows import Reading, rows_of
from cometmq.pipeline.records.slices import gathered, merged, pieces, repeated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import TypeAlias

    import numpy.typing as npt

    from cometmq.pipeline.records.layout import Layout, Longs, Truths
    from cometmq.pipeline.records.rows import Rows

    Heads: TypeAlias = "npt.NDArray[np.void]"

_YEAR_1: Final = -62_135_596_800_000
_YEAR_10000: Final = 253_402_300_800_000
"""In milliseconds. Python cannot represent later times, and Spark cannot represent some."""


def record_batches(
    data: bytes | memoryview,
    columns: Sequence[str] = ALL_COLUMNS,
    how: Reading = Reading(),  # noqa: B008  # frozen
    *,
    broker: str | None = None,
    queue_offsets: tuple[int, int] | None = None,
    source: str = "answer",
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a pull answer, which consists of consecutive stored records.

    With `queue_offsets`, only those from the first to before the second: an answer may contain more
    than what is wanted. Raise `DamagedRecordError` for bytes that are no records.
    """
    yield from layout_batches(
        answer_layout(data, source), columns, how, broker=broker, queue_offsets=queue_offsets
    )


def layout_batches(
    layout: Layout,
    columns: Sequence[str],
    how: Reading,
    *,
    broker: str | None = None,
    queue_offsets: tuple[int, int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Do the same for records that have been laid out already."""
    schema = _schema(tuple(columns))
    for rows in rows_of(layout, how, wants_body="body" in columns):
        making = _Making(rows, broker)
        arrays = [_BUILDERS[name](making) for name in columns]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        chosen: Truths = np.ones(batch.num_rows, np.bool_)
        if queue_offsets is not None:
            offsets = making.heads["queue_offset"]
            chosen &= (offsets >= queue_offsets[0]) & (offsets < queue_offsets[1])
        if how.tags:
            tags = making.properties.find("TAGS").dictionary_encode()
            wanted = [tag in how.tags for tag in tags.dictionary.to_pylist()]
            chosen &= np.array([*wanted, False])[tags.indices.fill_null(-1).to_numpy()]
        if not chosen.all():
            batch = batch.filter(pa.array(chosen))
        if batch.num_rows:
            yield batch


@lru_cache(maxsize=8)
def _schema(columns: tuple[str, ...]) -> pa.Schema:
    return schema_of(COLUMNS, columns)


class _Making:
    """One record batch in the making; what several columns need is computed once."""

    def __init__(self, rows: Rows, broker: str | None) -> None:
        self.layout = rows.layout
        self.bodies = rows.bodies
        self.broker = broker

    @cached_property
    def properties(self) -> Properties:
        return Properties(self.layout)

    @cached_property
    def unique_keys(self) -> pa.Array:
        return self.properties.find("UNIQ_KEY")

    @cached_property
    def offset_ids(self) -> pa.Array:
        return offset_ids(self.layout)

    @cached_property
    def heads(self) -> Heads:
        """The fixed fields before the bodies, read with one access per record.

        If a host is IPv6, the fields after the first host are elsewhere.
        """
        found = gathered(self.layout.raw, self.layout.starts, _HEAD.itemsize)
        return found.view(_HEAD).reshape(len(found))

    @cached_property
    def is_short(self) -> bool:
        """Whether all hosts are IPv4."""
        return not (self.layout.sys_flags & IPV6_HOSTS).any()


_HEAD: Final = np.dtype(
    [
        ("size", ">i4"),
        ("magic", ">u4"),
        ("body_crc", ">i4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("physical_offset", ">i8"),
        ("sys_flag", ">i4"),
        ("born_time", ">i8"),
        ("born_host", "u8"),
        ("store_time", ">i8"),
        ("store_host", "u8"),
        ("reconsume_times", ">i4"),
        ("prepared_offset", ">i8"),
    ]
)
assert _HEAD.itemsize == 84 < RECORD_SIZE_MIN


def _int32(name: str) -> Callable[[_Making], pa.Array]:
    return lambda making: pa.array(making.heads[name].astype(np.int32))


def _int64(name: str) -> Callable[[_Making], pa.Array]:
    return lambda making: pa.array(making.heads[name].astype(np.int64))


def _property(name: str) -> Callable[[_Making], pa.Array]:
    return lambda making: making.properties.find(name)


def _sizes(sizes: Longs) -> pa.Array:
    return pa.array(sizes.astype(np.int32))


def _topic(making: _Making) -> pa.Array:
    layout = making.layout
    starts, ends = layout.topic_starts, layout.topic_ends
    return repeated(layout.raw, starts, ends, lambda raw: raw.decode("utf-8", "replace"))


def _broker(making: _Making) -> pa.Array:
    count = len(making.layout.starts)
    return pa.nulls(count, STRING) if making.broker is None else pa.repeat(making.broker, count)


def _message_id(making: _Making) -> pa.Array:
    unique = making.unique_keys
    if not unique.null_count:
        return unique
    chosen = np.arange(len(unique), dtype=np.int32)
    missing = unique.is_null().to_numpy(zero_copy_only=False)
    chosen[missing] += len(unique)
    return pa.concat_arrays([unique, making.offset_ids]).take(pa.array(chosen))


def _time(milliseconds: Longs) -> pa.Array:
    if not len(milliseconds) or (
        milliseconds.min() >= _YEAR_1 and milliseconds.max() < _YEAR_10000
    ):
        return pa.array(milliseconds * 1000).view(TIMESTAMP)
    unknown = (milliseconds < _YEAR_1) | (milliseconds >= _YEAR_10000)
    return pa.array(np.where(unknown, 0, milliseconds) * 1000, mask=unknown).view(TIMESTAMP)


def _store_time(making: _Making) -> pa.Array:
    if making.is_short:
        return _time(making.heads["store_time"].astype(np.int64))
    return _time(making.layout.store_times_ms)


def _born_host(making: _Making) -> pa.Array:
    return hosts(making.heads["born_host"]) if making.is_short else born_hosts(making.layout)


def _store_host(making: _Making) -> pa.Array:
    return hosts(making.heads["store_host"]) if making.is_short else store_hosts(making.layout)


def _reconsume_times(making: _Making) -> pa.Array:
    if making.is_short:
        return pa.array(making.heads["reconsume_times"].astype(np.int32))
    return pa.array(int32s(making.layout.raw, making.layout.body_starts - 16))


def _prepared_offset(making: _Making) -> pa.Array:
    if making.is_short:
        return pa.array(making.heads["prepared_offset"].astype(np.int64))
    return pa.array(int64s(making.layout.raw, making.layout.body_starts - 12))


def _body(making: _Making) -> pa.Array:
    layout, bodies = making.layout, making.bodies
    if not bodies:
        return pieces(layout.raw, layout.body_starts, layout.body_ends)
    plain = np.ones(len(layout.starts), np.bool_)
    others = np.fromiter(bodies, np.int64, len(bodies))
    plain[others] = False
    stored = pieces(layout.raw, layout.body_starts[plain], layout.body_ends[plain])
    return merged(stored, np.flatnonzero(plain), pa.array(list(bodies.values()), BINARY), others)


_BUILDERS: Final[Mapping[str, Callable[[_Making], pa.Array]]] = {
    "topic": _topic,
    "broker": _broker,
    "queue_id": _int32("queue_id"),
    "queue_offset": _int64("queue_offset"),
    "physical_offset": _int64("physical_offset"),
    "size": lambda making: _sizes(making.layout.sizes),
    "message_id": _message_id,
    "unique_key": lambda making: making.unique_keys,
    "offset_id": lambda making: making.offset_ids,
    "key": _property("KEYS"),
    "tag": _property("TAGS"),
    "flag": _int32("flag"),
    "sys_flag": _int32("sys_flag"),
    "born_time": lambda making: _time(making.heads["born_time"].astype(np.int64)),
    "store_time": _store_time,
    "born_host": _born_host,
    "store_host": _store_host,
    "reconsume_times": _reconsume_times,
    "prepared_offset": _prepared_offset,
    "body_crc": _int32("body_crc"),
    "body_size": lambda making: _sizes(making.layout.body_ends - making.layout.body_starts),
    "properties": lambda making: making.properties.map(),
    "body": _body,
}
assert tuple(_BUILDERS) == ALL_COLUMNS
