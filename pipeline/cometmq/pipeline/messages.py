"""Turning rows into messages, a record batch at a time, without a Python object per message."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cometmq.pipeline.columns import BINARY, PROPERTIES, STRING
from cometmq.pipeline.errors import SinkError
from cometmq.pipeline.identities import CoordinateIds, KeyIds, spread_of
from cometmq.pipeline.records.slices import matrix_rows
from cometmq.pipeline.rows import KEPT_RESERVED, RESERVED, SHARDING_KEY

if TYPE_CHECKING:
    from collections.abc import Iterator, Set

    from cometmq.pipeline.identities import Identities, Spreads
    from cometmq.pipeline.records.layout import Bytes, Longs, Truths
    from cometmq.pipeline.rows import RowForm

PROPERTIES_SIZE_MAX: Final = 32767
_UNIQUE_KEY: Final = b"UNIQ_KEY\x01"
_HEAD: Final = np.dtype([("size", ">u4"), ("unused", ">u8"), ("flag", ">i4"), ("body_size", ">u4")])
"""The head of a message in a batch; see `cometmq.proto.batch`."""
assert _HEAD.itemsize == 20


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages to send, one per row."""

    topics: str | pa.DictionaryArray
    bodies: pa.Array
    properties: pa.Array
    """The properties, without the id."""
    flags: Longs
    spreads: Spreads
    """A number per message that, modulo the number of queues, chooses its queue."""
    placed: Truths
    """For which messages that applies; the others may go anywhere."""
    delayed: Truths
    ids: Bytes | None
    """Ids made from the rows' identities; `None` if they have none."""
    untimed_ids: Bytes | None
    """Ids under which earlier runs, which did not know store times, may have sent them."""
    stored_ms: Longs | None
    """The store times of the source messages, if there are such ids."""
    twins: SinkError | None
    """Why they must not go to a broker that stores each once: two look like one sent again."""

    def __len__(self) -> int:
        return len(self.bodies)

    @property
    def size(self) -> int:
        """The size of the bodies in bytes."""
        return int(pc.sum(pc.binary_length(self.bodies)).as_py() or 0)

    def rows(self, chosen: Truths) -> Messages:
        """Return some of the messages."""
        if chosen.all():
            return self
        mask = pa.array(chosen)
        return replace(
            self,
            topics=self.topics if isinstance(self.topics, str) else self.topics.filter(mask),
            bodies=self.bodies.filter(mask),
            properties=self.properties.filter(mask),
            flags=self.flags[chosen],
            spreads=self.spreads[chosen],
            placed=self.placed[chosen],
            delayed=self.delayed[chosen],
            ids=None if self.ids is None else self.ids[chosen],
            untimed_ids=None if self.untimed_ids is None else self.untimed_ids[chosen],
            stored_ms=None if self.stored_ms is None else self.stored_ms[chosen],
        )

    def by_topic(self) -> Iterator[tuple[str, Messages]]:
        """Yield each topic with its messages."""
        if isinstance(self.topics, str):
            yield self.topics, self
            return
        codes = self.topics.indices.to_numpy()
        for code, topic in enumerate(self.topics.dictionary.to_pylist()):
            chosen = codes == code
            if chosen.any():
                yield topic, self.rows(chosen)

    def item_sizes(self, id_size: int) -> Longs:
        """Return the size of each in the body of a batch, with an id of that size."""
        bodies: Longs = pc.binary_length(self.bodies).to_numpy()
        properties: Longs = pc.binary_length(self.properties).to_numpy()
        return bodies + properties.astype(np.int64) + (_HEAD.itemsize + 2 + _front_size(id_size))

    def items(self, ids: Bytes) -> pa.Array:
        """Encode each message as in the body of a batch, with these ids."""
        count, id_size = ids.shape
        body_sizes = pc.binary_length(self.bodies).to_numpy()
        front = _front_size(id_size)
        sizes = pc.binary_length(self.properties).to_numpy().astype(np.int64) + front
        if int(sizes.max(initial=0)) > PROPERTIES_SIZE_MAX:
            raise too_many_properties(int(sizes.max()))
        heads = np.zeros(count, _HEAD)
        heads["size"] = sizes + body_sizes + (_HEAD.itemsize + 2)
        heads["flag"] = self.flags
        heads["body_size"] = body_sizes
        middles = np.empty((count, 2 + front), np.uint8)
        middles[:, :2] = sizes.astype(">u2").view(np.uint8).reshape(-1, 2)
        middles[:, 2 : 2 + len(_UNIQUE_KEY)] = np.frombuffer(_UNIQUE_KEY, np.uint8)
        middles[:, 2 + len(_UNIQUE_KEY) : -1] = ids
        middles[:, -1] = 2
        items: pa.Array = pc.binary_join_element_wise(
            matrix_rows(heads.view(np.uint8).reshape(count, _HEAD.itemsize)),
            self.bodies,
            matrix_rows(middles),
            self.properties,
            pa.scalar(b"", BINARY),
        )
        return items


def _front_size(id_size: int) -> int:
    """Return how much an id takes at the front of the properties."""
    return len(_UNIQUE_KEY) + id_size + 1


def items_by_id(raw: bytes) -> dict[str, bytes]:
    """Return the messages of a batch that `items` made, by their ids."""
    found: dict[str, bytes] = {}
    at = 0
    while at < len(raw):
        head = np.frombuffer(raw, _HEAD, 1, at)
        end = at + int(head["size"][0])
        first = at + _HEAD.itemsize + int(head["body_size"][0]) + 2 + len(_UNIQUE_KEY)
        found[raw[first : raw.index(2, first)].decode()] = raw[at:end]
        at = end
    return found


def too_many_properties(size: int) -> SinkError:
    """Make the error for a message with too many properties."""
    return SinkError(
        f"properties of {size} bytes: a message can have at most {PROPERTIES_SIZE_MAX}"
    )


def split_item(raw: bytes) -> tuple[int, bytes, bytes]:
    """Return flag, body and properties of a message in the body of a batch."""
    head = np.frombuffer(raw, _HEAD, 1)
    behind = _HEAD.itemsize + int(head["body_size"][0])
    return int(head["flag"][0]), raw[_HEAD.itemsize : behind], raw[behind + 2 :]


class Forming:
    """Makes messages from the rows of one task; `sink` names the writer across runs."""

    def __init__(
        self, form: RowForm, sink: str, *, sends_empty: bool = False, finds_twins: bool = True
    ) -> None:
        self._form = form
        self._sends_empty = sends_empty
        self._keys = KeyIds(sink)
        self._coordinates = CoordinateIds(sink, finds_twins=finds_twins)

    def messages(self, batch: pa.RecordBatch) -> Messages:
        """Make messages from a record batch; raise `SinkError` for a row that cannot be one."""
        form = self._form
        columns = dict(zip(form.columns, map(_of_usual_size, batch.columns), strict=True))
        count = batch.num_rows
        bodies = columns["body"].cast(BINARY)
        if (row := self._without_body(bodies)) >= 0:
            what, others = "null or empty", "length(body) > 0"
            if self._sends_empty:
                what, others = "null", "body IS NOT NULL"
            raise SinkError(
                f"column body: is {what}, which is not a message{self._of(columns, row)};"
                f" leave such rows out with {others}"
            )
        flags = columns.get("flag", pa.nulls(count, pa.int32()))
        to = form.topic or _topics(form.topic_column, columns[form.topic_column])
        found = self._identities(columns, to)
        spreads, placed = self._placed(columns, found, count)
        return Messages(
            to,
            bodies,
            _properties(columns, count).cast(BINARY),
            pc.fill_null(flags, 0).to_numpy().astype(np.int64),
            spreads,
            placed,
            _delayed(columns, count),
            None if found is None else found.ids,
            None if found is None or form.always_timed else found.untimed,
            None if found is None else found.stored_ms,
            None if found is None else found.twins,
        )

    def _without_body(self, bodies: pa.Array) -> int:
        """Return the first row without a valid body, or -1. Brokers accept empty bodies."""
        empty = pc.equal(pc.fill_null(pc.binary_length(bodies), 0), 0)
        row: int = pc.index(bodies.is_null() if self._sends_empty else empty, True).as_py()
        return row

    def _of(self, columns: dict[str, pa.Array], row: int) -> str:
        """Say from which message a row was made, if the row says so."""
        if not self._form.coordinates:
            return ""
        topic, broker, queue, offset = (columns[name][row] for name in self._form.coordinates)
        return f", in the row of {topic}, {broker}, queue {queue}, offset {offset}"

    def _identities(
        self, columns: dict[str, pa.Array], to: str | pa.DictionaryArray
    ) -> Identities | None:
        form = self._form
        if form.dedup_key:
            return self._keys.of(form.dedup_key, columns[form.dedup_key], to)
        if not form.coordinates:
            return None
        places = [columns[name] for name in form.coordinates]
        if any(each.null_count for each in places):
            raise SinkError(f"columns {', '.join(form.coordinates)}: one of them is null")
        return self._coordinates.of(places, to, _times(columns), columns.get("source_host"))

    def _placed(
        self, columns: dict[str, pa.Array], found: Identities | None, count: int
    ) -> tuple[Spreads, Truths]:
        """Return the numbers that choose the queues, and for which rows they do."""
        spreads = np.zeros(count, np.uint64) if found is None else found.spreads
        placed = np.full(count, found is not None)
        if "sharding_key" in columns:
            encoded = columns["sharding_key"].dictionary_encode()
            sharded = encoded.is_valid().to_numpy(zero_copy_only=False)
            codes = encoded.indices.fill_null(0).to_numpy()[sharded]
            keys = encoded.dictionary.to_pylist()
            # With an explicit type: NumPy would turn numbers of more than 63 bits into floats.
            shards = np.array([spread_of(each.encode()) for each in keys], np.uint64)
            spreads, placed = spreads.copy(), placed | sharded
            spreads[sharded] = shards[codes]
        return spreads, placed


def _of_usual_size(column: pa.Array) -> pa.Array:
    """Return a column with 32-bit offsets, even if Spark is configured to use larger ones."""
    kind = str(column.type)
    if kind == "large_string":
        return column.cast(STRING)
    if kind.startswith("map<large_string"):
        return column.cast(PROPERTIES)
    return column


def _times(columns: dict[str, pa.Array]) -> pa.Array | None:
    """Return the store times, in µs, of the messages that rows were made from, if known."""
    stored = columns.get("store_time")
    if stored is None or not str(stored.type).startswith("timestamp[us"):
        return None
    return stored.cast(pa.int64())


def _topics(name: str, column: pa.Array) -> pa.DictionaryArray:
    encoded = column.dictionary_encode()
    if column.null_count or "" in encoded.dictionary.to_pylist():
        raise SinkError(f"column {name}: is null or empty, but must name a topic")
    return encoded


def _delayed(columns: dict[str, pa.Array], count: int) -> Truths:
    delayed = np.zeros(count, np.bool_)
    if "delay_level" in columns:
        levels = pc.fill_null(columns["delay_level"], 0).to_numpy()
        if (least := int(levels.min(initial=0))) < 0:
            raise SinkError(
                f"column delay_level: {least}; write a level of 1 or more, or 0 for none"
            )
        delayed |= levels != 0
    if "deliver_time" in columns:
        delayed |= columns["deliver_time"].is_valid().to_numpy(zero_copy_only=False)
    return delayed


def _properties(columns: dict[str, pa.Array], count: int) -> pa.Array:
    """Return the properties of rows, encoded as in a send."""
    parts: list[Any] = []
    for column, name in (("key", "KEYS"), ("tag", "TAGS")):
        if column in columns:
            values = pc.fill_null(columns[column], "")
            parts.append(_pairs(column, name, values, pc.not_equal(values, "")))
    if "sharding_key" in columns:
        keys = columns["sharding_key"]
        values = pc.fill_null(keys, "")
        parts.append(_pairs("sharding_key", SHARDING_KEY, values, keys.is_valid()))
    if "delay_level" in columns:
        levels = pc.fill_null(columns["delay_level"], 0)
        parts.append(_pairs("", "DELAY", levels.cast(STRING), pc.not_equal(levels, 0)))
    if "deliver_time" in columns:
        times = columns["deliver_time"]
        ms = pa.array(times.cast(pa.int64()).fill_null(0).to_numpy() // 1000)
        parts.append(_pairs("", "TIMER_DELIVER_MS", ms.cast(STRING), times.is_valid()))
    if "properties" in columns:
        kept = {
            name
            for name, own in zip(KEPT_RESERVED, ("key", "tag"), strict=True)
            if own not in columns
        }
        left_out = RESERVED - kept
        if "sharding_key" in columns:  # Readers would take the last of two: the old one.
            left_out |= {SHARDING_KEY}
        maps = columns["properties"]
        assert isinstance(maps, pa.MapArray)
        parts.append(_of_maps(maps, left_out))
    if not parts:
        return pa.repeat("", count)
    joined: pa.Array = pc.binary_join_element_wise(*parts, "")
    return joined


def _pairs(column: str, name: str, values: pa.Array, present: pa.Array) -> pa.Array:
    """Return a property of each row for which it is present."""
    if column and (bad := _first_with(values, "\x02")) is not None:
        raise SinkError(f"column {column}: {bad!r} {_ENDED}")
    joined = pc.binary_join_element_wise(f"{name}\x01", values, "\x02", "")
    chosen: pa.Array = pc.if_else(present, joined, "")
    return chosen


_ENDED: Final = "contains the character U+0002, which ends a property"
_NAMED: Final = "contains the character U+0001, which ends a property's name"


def _first_with(values: pa.Array, mark: str) -> str | None:
    """Return the first text that contains a separator of properties."""
    first: int = pc.index(pc.match_substring(values, mark), True).as_py()
    if first < 0:
        return None
    bad: str = values[first].as_py()
    return bad


def _of_maps(maps: pa.MapArray, left_out: Set[str]) -> pa.Array:
    """Return the properties in maps, except for some."""
    count = len(maps)
    borders = maps.offsets.to_numpy()
    names = maps.keys.slice(borders[0], borders[-1] - borders[0])
    values = maps.items.slice(borders[0], borders[-1] - borders[0])
    rows = np.repeat(np.arange(count), np.diff(borders))
    chosen = pc.invert(pc.is_in(names, pa.array(sorted(left_out), STRING)))
    if maps.null_count:
        chosen = pc.and_(chosen, maps.is_valid().take(pa.array(rows)))
    names, values = names.filter(chosen), values.filter(chosen)
    rows = rows[chosen.to_numpy(zero_copy_only=False)]
    if values.null_count:
        at: int = pc.index(values.is_null(), True).as_py()
        raise SinkError(f"column properties: {names[at].as_py()!r}: is null, but must be a text")
    if pc.any(pc.equal(names, "")).as_py():
        raise SinkError("column properties: a property without a name")
    # A value may contain U+0001, which is read as a part of it.
    for each, mark, said in (
        (names, "\x01", _NAMED),
        (names, "\x02", _ENDED),
        (values, "\x02", _ENDED),
    ):
        if (bad := _first_with(each, mark)) is not None:
            at = int(pc.index(each, bad).as_py())
            raise SinkError(
                f"column properties: {names[at].as_py()!r}: {values[at].as_py()!r} {said}"
            )
    ends = np.searchsorted(rows, np.arange(count + 1)).astype(np.int32)
    lists = pa.ListArray.from_arrays(
        pa.array(ends), pc.binary_join_element_wise(names, "\x01", values, "\x02", "")
    )
    joined: pa.Array = pc.binary_join(lists, "")
    return joined
