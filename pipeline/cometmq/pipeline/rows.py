"""Turning rows into messages: what each column means to the sink, and what identifies a row.

====================  ===============  ==========================================================
column                type             meaning
====================  ===============  ==========================================================
`body`                string, binary   the body; required, and not empty except by `emptyBodies`
`to_topic`            string           the destination, if the option `topic` does not say it
`topic`               string           the same, if nothing else says it; otherwise a coordinate
`key`                 string           keys, separated by spaces
`tag`                 string
`properties`          map of strings   properties; those that brokers and clients set are left out
`flag`                int              the user's number
`sharding_key`        string           rows with equal keys go to one queue
`delay_level`         int              delivered later, by Apache's levels
`deliver_time`        timestamp        delivered then, by brokers that support it
`source_topic`, …     see below        coordinates
`source_host`         string           part of them: the address of the broker that stored it
other columns of the  any              where a message was, as the source has it: accepted and not
source                                 sent, so that what was read can be written unchanged
====================  ===============  ==========================================================

A row has an **identity** if it says which message it was made from: by `source_topic`,
`source_broker`, `source_queue_id` and `source_offset`; or, if the destination is given otherwise,
by the source's own `topic`, `broker`, `queue_id` and `queue_offset`; or by the column that the
option `dedupKey` names. `source_host` distinguishes messages of two clusters whose brokers have the
same names. A row that is sent to a topic again with the same identity is stored once: a CometMQ
broker knows it by its id, which is made from the identity, the topic and the writer.

`identities.py` makes these ids, and `messages.py` the messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cometmq.pipeline.columns import ALWAYS_TIMED, COLUMNS, STORED
from cometmq.pipeline.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
    "source_host",
)
"""The columns that mean something to the sink."""

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
    "source_host": _STRINGS,
}
_NUMBERS: Final = ("bigint", "int", "smallint", "tinyint")
_READ_TYPES: Final = {
    "broker": _STRINGS,
    "queue_id": _NUMBERS,
    "queue_offset": _NUMBERS,
    "store_time": ("timestamp", "timestamp_ntz"),
}
"""The types of the source's columns when they identify the message of a row."""
SHARDING_KEY: Final = "__SHARDINGKEY"
"""The property by which messages go to one queue."""
KEPT_RESERVED: Final = ("KEYS", "TAGS")
"""Properties that have columns; without the columns, they are taken from the map."""
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
        "DELAYED_AT",
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
"""Properties that brokers and clients set; they would be false for a message that is sent on."""


@dataclass(frozen=True, slots=True)
class RowForm:
    """How the rows of one frame become messages; made once, in the driver."""

    columns: tuple[str, ...]
    topic: str
    """The topic of all rows; if empty, it is in the column `topic_column`."""
    topic_column: str
    coordinates: tuple[str, ...]
    dedup_key: str
    always_timed: bool = False
    """Whether no earlier run can have sent these rows without `store_time`."""

    @property
    def has_identity(self) -> bool:
        """Whether a row that is sent again can be recognized."""
        return bool(self.coordinates or self.dedup_key)


def row_form(schema: Any, options: WriteOptions) -> RowForm:
    """Check the columns of a frame that is to be written; raise `OptionError` for invalid ones."""
    names = tuple(each.name for each in schema.fields)
    types = {each.name: each.dataType.simpleString().lower() for each in schema.fields}
    dedup_key = options.dedup_key
    unknown = [
        name
        for name in names
        if name not in OWN_COLUMNS and name not in COLUMNS and name != dedup_key
    ]
    if unknown:
        takes = {*OWN_COLUMNS, *COLUMNS}  # Case matters to the sink, though not to SQL.
        small = [each.lower() for each in unknown if each.lower() in takes]
        what_to_do = (
            f"write {', '.join(small)}" if small else "drop it, or put it into `properties`"
        )
        raise OptionError(
            f"column {', '.join(unknown)}: not known to the sink, which takes"
            f" {', '.join(OWN_COLUMNS)} and the columns of the source; {what_to_do}"
        )
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise OptionError(
            f"column {', '.join(twice)}: is there twice, as after a join; drop one, or give it"
            " another name"
        )
    if "body" not in names:
        raise OptionError(f"column body: is required; there are {', '.join(names)}")
    if any(STORED in each.metadata for each in schema.fields if each.name == "body"):
        raise OptionError(
            "column body: was read with decompress=false, so some bodies are compressed, and their"
            " readers could not tell; read it without that option"
        )
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
            raise OptionError("topic: name where to write, by this option or a column `to_topic`")
    coordinates = _coordinates(names, topic_column)
    _check_coordinates(() if dedup_key else coordinates, types)
    always_timed = any(ALWAYS_TIMED in each.metadata for each in schema.fields)
    return RowForm(names, options.topic, topic_column, coordinates, dedup_key, always_timed)


def _check_coordinates(coordinates: Sequence[str], types: Mapping[str, str]) -> None:
    """Refuse identifying columns whose types are not the source's."""
    named = {*coordinates, "store_time"} & types.keys() & _READ_TYPES.keys() if coordinates else ()
    for name in sorted(named):
        if types[name] not in (wanted := _READ_TYPES[name]):
            raise OptionError(
                f"column {name}: is {types[name]}, must be {' or '.join(wanted)}, as it helps to"
                " tell rows apart; cast it, or drop it"
            )


def _coordinates(names: Sequence[str], topic_column: str) -> tuple[str, ...]:
    if set(_COORDINATES) <= set(names):
        return _COORDINATES
    if topic_column != "topic" and set(_READ_COORDINATES) <= set(names):
        return _READ_COORDINATES
    return ()
