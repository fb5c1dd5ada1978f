"""Rows made messages: what each column means to the sink, and who tells a row from another.

====================  ===============  ==========================================================
column                type             meaning
====================  ===============  ==========================================================
`body`                string, binary   what is sent; required, and not empty
`to_topic`            string           where to, where the option `topic` does not say it
`topic`               string           the same, when nothing else says it; else a coordinate
`key`                 string           keys, a space between two
`tag`                 string
`properties`          map of strings   properties; those that brokers and clients set are left out
`flag`                int              the user's number
`sharding_key`        string           equal ones go to one queue
`delay_level`         int              delivered later, by Apache's levels
`deliver_time`        timestamp        delivered then, by brokers that know how
`source_topic`, …     see below        coordinates
other columns of the  any              where a message was, as the source gives it: taken, and not
source                                 sent, so that what was read can be written as it is
====================  ===============  ==========================================================

A row has an **identity** when it says which message it was made of: by `source_topic`,
`source_broker`, `source_queue_id` and `source_offset`, or, where the destination is said otherwise,
by the source's own `topic`, `broker`, `queue_id` and `queue_offset`; or by the column that the
option `dedupKey` names. What is sent again with the same identity is stored once: a broker of
CometMQ knows it by its id, which is made from the identity and nothing else.

An id's last twelve characters count, the others name who counts (see decision 7). For a
source's messages that is a stretch of 4,096 offsets of one queue, counted by the offset: a broker
remembers more than that of each. With `dedupKey` every value is its own producer.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cometmq.pipeline.columns import COLUMNS
from cometmq.pipeline.errors import OptionError, SinkError
from cometmq.pipeline.planning import STRETCH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from cometmq.pipeline.options import WriteOptions

OWN_COLUMNS: Final = (
    "body",
    "to_topic",
    "topic",
    "key",
    "tag",
    "properties",
    "flag",
    "sharding_key",
    "delay_level",
    "deliver_time",
    "source_topic",
    "source_broker",
    "source_queue_id",
    "source_offset",
)
"""Those that mean something to the sink."""

_COORDINATES: Final = ("source_topic", "source_broker", "source_queue_id", "source_offset")
_READ_COORDINATES: Final = ("topic", "broker", "queue_id", "queue_offset")
_STRINGS: Final = ("string",)
_TYPES: Final = {
    "body": ("string", "binary"),
    "to_topic": _STRINGS,
    "topic": _STRINGS,
    "key": _STRINGS,
    "tag": _STRINGS,
    "properties": ("map<string,string>",),
    "flag": ("int", "smallint", "tinyint"),
    "sharding_key": _STRINGS,
    "delay_level": ("int", "smallint", "tinyint"),
    "deliver_time": ("timestamp",),
    "source_topic": _STRINGS,
    "source_broker": _STRINGS,
    "source_queue_id": ("int",),
    "source_offset": ("bigint",),
}
KEPT_RESERVED: Final = ("KEYS", "TAGS")
"""Properties that have columns; they are taken from the map where the columns are not there."""
RESERVED: Final = frozenset(
    [
        "1ST_POP_TIME",
        "ARRIVE_TIME",
        "BORN_TIMESTAMP",
        "BUYER_ID",
        "CLUSTER",
        "CONSUME_START_TIME",
        "CORRECTION_FLAG",
        "CORRELATION_ID",
        "DELAY",
        "DLQ_ORIGIN_MESSAGE_ID",
        "DLQ_ORIGIN_TOPIC",
        "DUP_INFO",
        "EXTEND_UNIQ_INFO",
        "IDEMPOTENT",
        "INNER_BASE",
        "INNER_MULTI_DISPATCH",
        "INNER_MULTI_QUEUE_OFFSET",
        "INNER_NUM",
        "INSTANCE_ID",
        "KEYS",
        "MAX_OFFSET",
        "MAX_RECONSUME_TIMES",
        "MIN_OFFSET",
        "MQ2_FLAG",
        "MSG_REGION",
        "MSG_TYPE",
        "ORIGIN_GROUP",
        "ORIGIN_MESSAGE_ID",
        "PGROUP",
        "POP_CK",
        "POP_CK_OFFSET",
        "PROPERTY_FORWARD_QUEUE_ID",
        "PUSH_REPLY_TIME",
        "REAL_QID",
        "REAL_TOPIC",
        "RECONSUME_TIME",
        "REDIRECT",
        "REDRIVEN_FROM",
        "REPLY_TO_CLIENT",
        "RETRY_TOPIC",
        "SENT_ONCE",
        "TAGS",
        "TIMER_DELAY_LEVEL",
        "TIMER_DELAY_MS",
        "TIMER_DELAY_SEC",
        "TIMER_DELIVER_MS",
        "TIMER_DEL_UNIQKEY",
        "TIMER_DEQUEUE_MS",
        "TIMER_ENQUEUE_MS",
        "TIMER_OUT_MS",
        "TIMER_ROLL_LABEL",
        "TIMER_ROLL_TIMES",
        "TRACE_CONTEXT",
        "TRACE_ON",
        "TRANSACTION_CHECK_TIMES",
        "TRANSFER_FLAG",
        "TRANS_OFFSET",
        "TRAN_MSG",
        "TRAN_PREPARED_QUEUE_OFFSET",
        "TTL",
        "UNIQ_KEY",
        "WAIT",
        "_SYS_MSG_PRIORITY_",
        "__BORNHOST",
        "__CRC32#",
        "__LITE_TOPIC",
        "__transactionId__",
    ]
)
"""Properties that brokers and clients set: of a message that is sent on they would be lies."""


class Row(NamedTuple):
    """One message to be."""

    topic: str
    body: bytes
    properties: str
    """As a send carries them, without the id."""
    flag: int
    spread: int | None
    """What chooses the queue, modulo their number; `None` for any."""
    unique_id: str | None
    """Made from the row's identity; `None` without one."""
    stretch: str | None
    """The stretch of a source's queue that it is of: what its id begins with."""
    is_delayed: bool


@dataclass(frozen=True, slots=True)
class RowForm:
    """How the rows of one frame become messages; made once, in the driver."""

    columns: tuple[str, ...]
    topic: str
    """Of all rows; else the column `topic_column` says it."""
    topic_column: str
    coordinates: tuple[str, ...]
    dedup_key: str

    @property
    def has_identity(self) -> bool:
        """Whether a row that is sent again can be known."""
        return bool(self.coordinates or self.dedup_key)


def row_form(schema: Any, options: WriteOptions) -> RowForm:
    """Look at the columns of what is to be written; an `OptionError` for what cannot be."""
    names = tuple(each.name for each in schema.fields)
    types = {each.name: each.dataType.simpleString().lower() for each in schema.fields}
    dedup_key = options.dedup_key
    unknown = [
        name
        for name in names
        if name not in OWN_COLUMNS and name not in COLUMNS and name != dedup_key
    ]
    if unknown:
        raise OptionError(
            f"column {', '.join(unknown)}: not known to the sink, which takes"
            f" {', '.join(OWN_COLUMNS)} and the columns of the source; drop it, or put it into"
            " `properties`"
        )
    if "body" not in names:
        raise OptionError(f"column body: is required; there are {', '.join(names)}")
    for name, wanted in _TYPES.items():
        if name in types and types[name] not in wanted:
            raise OptionError(f"column {name}: is {types[name]}, must be {' or '.join(wanted)}")
    if dedup_key and types.get(dedup_key) not in ("string", "binary", "int", "bigint"):
        raise OptionError(
            f"dedupKey: {dedup_key!r} must be a column of type string, binary, int or bigint"
        )
    topic_column = ""
    if not options.topic:
        topic_column = "to_topic" if "to_topic" in names else "topic"
        if topic_column not in names:
            raise OptionError("topic: say where to, by this option or a column `to_topic`")
    return RowForm(names, options.topic, topic_column, _coordinates(names, topic_column), dedup_key)


def _coordinates(names: Sequence[str], topic_column: str) -> tuple[str, ...]:
    if set(_COORDINATES) <= set(names):
        return _COORDINATES
    if topic_column != "topic" and set(_READ_COORDINATES) <= set(names):
        return _READ_COORDINATES
    return ()


def rows_of(batch: pa.RecordBatch, form: RowForm, sink: str) -> Iterator[Row]:
    """Yield the rows of a record batch as messages; `sink` names who writes them for good."""
    count = batch.num_rows

    def column(name: str, *, is_wanted: bool = True) -> Sequence[Any]:
        if name in form.columns and is_wanted:
            return batch.column(form.columns.index(name)).to_pylist()
        return [None] * count

    bodies = column("body")
    topics = column(form.topic_column, is_wanted=not form.topic)
    properties = _properties(column, form.columns)
    flags, shards = column("flag"), column("sharding_key")
    delays = [any(each) for each in zip(column("delay_level"), column("deliver_time"), strict=True)]
    identities = _identities(column, form, sink)
    for index, body in enumerate(bodies):
        topic = form.topic or topics[index]
        if not topic:
            raise SinkError(f"column {form.topic_column}: null, where a topic must be")
        if not body:
            raise SinkError("column body: null or empty, which brokers refuse")
        spread, unique_id = next(identities)
        shard = shards[index]
        yield Row(
            topic,
            body.encode() if isinstance(body, str) else body,
            properties(index),
            flags[index] or 0,
            spread if shard is None else spread_of(shard.encode()),
            unique_id,
            unique_id[:-12] if unique_id and not form.dedup_key else None,
            delays[index],
        )


def _properties(
    column: Callable[[str], Sequence[Any]], columns: Sequence[str]
) -> Callable[[int], str]:
    """Return what makes the properties of a row, as text."""
    keys, tags, maps = column("key"), column("tag"), column("properties")
    shards, levels, times = column("sharding_key"), column("delay_level"), column("deliver_time")
    kept = tuple(
        name for name, own in zip(KEPT_RESERVED, ("key", "tag"), strict=True) if own not in columns
    )

    def made(index: int) -> str:
        parts: list[str] = []
        if keys[index]:
            parts += ("KEYS", "\x01", keys[index], "\x02")
        if tags[index]:
            parts += ("TAGS", "\x01", tags[index], "\x02")
        if shards[index] is not None:
            parts += ("__SHARDINGKEY", "\x01", shards[index], "\x02")
        if levels[index]:
            parts += ("DELAY", "\x01", str(levels[index]), "\x02")
        if times[index] is not None:
            at = str(int(times[index].timestamp() * 1000))
            parts += ("TIMER_DELIVER_MS", "\x01", at, "\x02")
        for name, value in maps[index] or ():
            if name not in RESERVED or name in kept:
                parts += (name, "\x01", _checked(name, value), "\x02")
        return "".join(parts)

    return made


def _checked(name: str, value: str | None) -> str:
    if value is None or "\x01" in value or "\x02" in value or "\x01" in name or "\x02" in name:
        raise SinkError(
            f"column properties: {name!r}: {value!r} is null, or has one of the characters U+0001"
            " and U+0002, which stand between properties"
        )
    return value


def _identities(
    column: Callable[[str], Sequence[Any]], form: RowForm, sink: str
) -> Iterator[tuple[int | None, str | None]]:
    """Yield of each row what spreads it over queues, and its id."""
    if form.dedup_key:
        for value in column(form.dedup_key):
            if value is None:
                raise SinkError(f"column {form.dedup_key}: null, where dedupKey needs a value")
            text = value if isinstance(value, bytes) else str(value).encode()
            yield spread_of(text), key_id(sink, text)
        return
    if not form.coordinates:
        while True:
            yield None, None
    ids = CoordinateIds(sink)
    for place in zip(*(column(name) for name in form.coordinates), strict=True):
        if None in place:
            raise SinkError(f"columns {', '.join(form.coordinates)}: null in one of them")
        yield ids.of(*place)


def key_id(sink: str, key: bytes) -> str:
    """Return the id of a message that is known by a key: its producer sends only this one."""
    return sha256(b"%b\0%b" % (sink.encode(), key)).hexdigest().upper()[:48] + "0" * 11 + "1"


class CoordinateIds:
    """Makes the ids of messages that are known by where they were."""

    def __init__(self, sink: str) -> None:
        self._sink = sink
        self._producers: dict[tuple[str, str, int, int], str] = {}
        self._spreads: dict[tuple[str, str], int] = {}

    def of(self, topic: str, broker: str, queue_id: int, offset: int) -> tuple[int, str]:
        """Return what chooses the queue of a message (the one that it was in), and its id.

        Messages of one queue stay together, and queues of the same number go apart.
        """
        stretch = (topic, broker, queue_id, offset // STRETCH)
        producer = self._producers.get(stretch)
        if producer is None:
            text = "\0".join((self._sink, *map(str, stretch)))
            producer = sha256(text.encode()).hexdigest().upper()[:32]
            self._producers[stretch] = producer
            self._spreads[topic, broker] = spread_of(f"{topic}/{broker}".encode())
        return self._spreads[topic, broker] + queue_id, f"{producer}{offset + 1:012X}"


def spread_of(text: bytes) -> int:
    """Return a number that is always the same for a text."""
    return int.from_bytes(sha256(text).digest()[:8], "big")
