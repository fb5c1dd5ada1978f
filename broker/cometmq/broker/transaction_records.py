"""The layouts of the messages of transactions in the log: Apache's, and our additions.

==================  =============================================  ===============================
message             where                                          what marks it
==================  =============================================  ===============================
half message        `RMQ_SYS_TRANS_HALF_TOPIC`, queue 0            `REAL_TOPIC`, `REAL_QID`
its copy            the same, once it was asked about or moved     `TRAN_PREPARED_QUEUE_OFFSET`,
                                                                   of the first, and
                                                                   `TRANSACTION_CHECK_TIMES`
committed message   its real topic and queue                       type committed, and the physical
                                                                   offset of its half message
op message          `RMQ_SYS_TRANS_OP_HALF_TOPIC`, queue 0         tag `d`; its body lists offsets
                                                                   in the half queue that are over:
                                                                   `12,13,15,`
given up            `TRANS_CHECK_MAX_TIME_TOPIC`, queue 0          a copy of the half message
resumed             as a half message                              `RESUMED_FROM`, where it was
                                                                   given up in the log: ours
==================  =============================================  ===============================

In our op messages the property `ENDS` says how each of the offsets ended, by a letter each. Apache
ignores it; op messages written by Apache do not have it.
"""

from __future__ import annotations

import re
from enum import IntEnum
from sys import intern
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.proto.codes import RequestCode
from cometmq.proto.command import Command
from cometmq.proto.commands.transaction import CheckTransactionState
from cometmq.proto.message_id import encode_offset_id
from cometmq.proto.properties import property_finder, remove_property, set_property
from cometmq.proto.record import encode_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cometmq.broker.config import BrokerConfig
    from cometmq.proto.message import StoredMessage
    from cometmq.store.log.turn import Appended

HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
GIVEN_UP_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
GROUP: Final = "CID_RMQ_SYS_TRANS"
"""The group under which the progress of both queues is kept, as in Apache's stores."""
OP_BODY_MAX: Final = 4096
"""Bytes of an op message's body: Apache's `transactionOpMsgMaxSize`."""
OFFSET_DIGITS: Final = 19

_OFFSET: Final = re.compile(rb"\d{1,18}")
_REAL: Final = re.compile(rb"\x02REAL_TOPIC\x01([^\x01\x02]+)\x02REAL_QID\x01(\d{1,9})\x02\Z")
_TRANSACTION_ID: Final = b"__transactionId__\x01"
_ROOT: Final = b"TRAN_PREPARED_QUEUE_OFFSET"
_CHECKS: Final = b"TRANSACTION_CHECK_TIMES"
_RESUMED: Final = b"RESUMED_FROM"
COPY_ROOM: Final = sum(len(name) + 2 + OFFSET_DIGITS for name in (_ROOT, _CHECKS, _RESUMED))
"""Bytes that a copy's properties may need in addition to those of the half message."""
_find_prepared: Final = property_finder(b"TRAN_MSG")
_find_delay: Final = property_finder(b"DELAY")
_find_root: Final = property_finder(_ROOT)
_find_checks: Final = property_finder(_CHECKS)
_find_resumed: Final = property_finder(_RESUMED)
_find_immunity: Final = property_finder(b"CHECK_IMMUNITY_TIME_IN_SECONDS")
_find_topic: Final = property_finder(b"REAL_TOPIC")
_find_queue: Final = property_finder(b"REAL_QID")
_find_ends: Final = property_finder(b"ENDS")
_find_group: Final = property_finder(b"PGROUP")
find_unique_id: Final = property_finder(b"UNIQ_KEY")


class Outcome(IntEnum):
    """The outcome of a half message; the values are the letters in `ENDS`."""

    OPEN = 0
    COMMITTED = ord("c")
    ROLLED_BACK = ord("r")
    MOVED = ord("m")
    """Put again, at the end of the queue, as another half message."""
    GIVEN_UP = ord("g")
    OVER = ord("?")
    """Over, but it is not known how: Apache's op messages do not say."""


def is_half(properties: bytes, reconsume_times: int) -> bool:
    """Whether a send is the first half of a transaction, by Apache's rule.

    A committed message that its consumer sends back has the same mark, but is none.
    """
    if (_find_prepared(properties) or b"").lower() != b"true":
        return False
    return not (reconsume_times > 0 and (_find_delay(properties) or b"0") not in (b"0", b""))


def is_unmarked(properties: bytes) -> bool:
    """Whether properties have nothing that `half_properties` or `committed` would remove."""
    return not any(properties.find(name) >= 0 for name in (_ROOT, _CHECKS, _RESUMED, b"REAL_"))


def half_properties(topic: str, queue_id: int, properties: bytes, unique_id: bytes) -> bytes:
    """Return the properties of a half message while it waits."""
    for name in (_ROOT, _CHECKS, _RESUMED):  # These are not the producer's to set.
        if name in properties:
            properties = remove_property(properties, name)
    return b"%b__transactionId__\x01%b\x02REAL_TOPIC\x01%b\x02REAL_QID\x01%d\x02" % (
        properties,
        unique_id,
        topic.encode(),
        queue_id,
    )


def half_part(topic: str) -> bytes:
    """Return the end of the properties of a topic's half messages, up to the queue id."""
    return b"REAL_TOPIC\x01%b\x02REAL_QID\x01" % topic.encode()


def quick_half_properties(
    pair: bytes, tail: bytes, unique_id: bytes, part: bytes, queue_id: int
) -> bytes:
    """Return `half_properties` of a unique id's pair and a tail that has nothing to be removed.

    `part` is the topic's `half_part`; before it are the properties of the message it becomes.
    """
    return b"%b\x02%b__transactionId__\x01%b\x02%b%d\x02" % (
        pair,
        tail,
        unique_id,
        part,
        queue_id,
    )


def copy_properties(properties: bytes, root: int, checks: int) -> bytes:
    """Return the properties of a half message that is put again."""
    properties = set_property(properties, _CHECKS, b"%d" % checks)
    return set_property(properties, _ROOT, b"%d" % root)


def resumed_properties(properties: bytes, given_up_at: int) -> bytes:
    """Return the properties of a given-up half message for a new half message."""
    properties = set_property(remove_property(properties, _ROOT), _CHECKS, b"0")
    return set_property(properties, _RESUMED, b"%d" % given_up_at)


def alike(properties: bytes) -> bytes | None:
    """Return the part of a committed message's properties before its transaction id.

    None if anything may follow that id, as in messages written by Apache.
    """
    before, found, rest = properties.rpartition(_TRANSACTION_ID)
    is_last = found and rest.find(b"\x02") == len(rest) - 1 and 0 not in properties
    return before if is_last and before.startswith(b"UNIQ_KEY\x01") else None


class Committed(NamedTuple):
    """The target and the properties of the message that a half message becomes."""

    topic: str
    queue_id: int
    properties: bytes


def committed(properties: bytes) -> Committed:
    """Return what a half message with these properties becomes; `ValueError` if it cannot."""
    found = _REAL.search(properties)
    if found is not None and properties.find(b"REAL_", 0, found.start()) < 0:  # As we put it.
        return Committed(found[1].decode(), int(found[2]), properties[: found.start() + 1])
    topic, queue_id = (_find_topic(properties) or b"").decode(), int(_find_queue(properties) or b"")
    for name in (b"REAL_TOPIC", b"REAL_QID", _ROOT, _RESUMED):
        properties = remove_property(properties, name)
    return Committed(topic, queue_id, properties)


def group_of(properties: bytes) -> str:
    """Return the producer group of a half message, which is asked about it."""
    return intern((_find_group(properties) or b"").decode("utf-8", "replace"))


def root_of(message: StoredMessage, properties: bytes) -> int:
    """Return the offset of the half message of which this one is a copy, or its own offset."""
    return _number(_find_root(properties), message.queue_offset)


def resumed_from(properties: bytes) -> int:
    """Return where in the log a resumed half message was given up; -1 for any other."""
    return _number(_find_resumed(properties), -1)


def checks_of(properties: bytes) -> int:
    """Return how often a producer was asked about a half message."""
    return _number(_find_checks(properties), 0)


def immunity_ms(properties: bytes) -> int:
    """Return how long nobody is to be asked about a half message; 0 for the usual time."""
    return _number(_find_immunity(properties), 0) * 1000


def _number(raw: bytes | None, default: int) -> int:
    return default if raw is None or _OFFSET.fullmatch(raw) is None else int(raw)


def question_record(half: StoredMessage, put: Appended, checks: int) -> bytes:
    """Return the record by which its producer is shown a half message: with its real topic."""
    properties = set_property(half.properties_raw, _CHECKS, b"%d" % checks)
    return encode_record(
        topic=_find_topic(properties) or b"",
        body=half.body,
        properties=properties,
        queue_id=_number(_find_queue(properties), 0),
        queue_offset=put.queue_offset,
        physical_offset=put.physical_offset,
        born_timestamp=half.born_timestamp,
        born_host=half.born_host,
        store_timestamp=half.store_timestamp,
        store_host=half.store_host,
        sys_flag=half.sys_flag,
        flag=half.flag,
        reconsume_times=half.reconsume_times,
    )


def question(
    half: StoredMessage, put: Appended, checks: int, store_host: bytes, config: BrokerConfig
) -> Command:
    """Return the request by which a producer is asked about a half message."""
    key = find_unique_id(half.properties_raw)
    unique_id = None if key is None else key.decode("utf-8", "replace")
    header = CheckTransactionState(
        put.queue_offset,
        put.physical_offset,
        unique_id,
        unique_id,
        encode_offset_id(store_host, put.physical_offset),
        HALF_TOPIC,
    )
    return Command.request(
        RequestCode.CHECK_TRANSACTION_STATE,
        header,
        extras={"bname": config.broker_name},
        body=question_record(half, put, checks),
    )


def op_messages(ends: Iterable[tuple[int, Outcome]]) -> Iterator[tuple[bytes, bytes, int]]:
    """Yield the body, properties and highest offset of each op message for these ends."""
    offsets: list[int] = []
    outcomes: list[Outcome] = []
    for offset, outcome in ends:
        offsets.append(offset)
        outcomes.append(outcome)
    if not offsets:
        return
    most = OP_BODY_MAX // len(b"%d," % max(offsets))
    for first in range(0, len(offsets), most):
        some = offsets[first : first + most]
        letters = bytes(outcomes[first : first + most])
        body = b"%d," * len(some) % tuple(some)
        yield body, b"WAIT\x01true\x02TAGS\x01d\x02ENDS\x01%b\x02" % letters, max(some)


def read_op(message: StoredMessage) -> list[tuple[int, Outcome]]:
    """Return the offsets in an op message and how each ended; works for any message."""
    properties = message.properties_raw
    offsets = [int(part) for part in message.body.split(b",") if _OFFSET.fullmatch(part)]
    letters = _find_ends(properties) or b""
    if len(letters) != len(offsets):
        letters = b"?" * len(offsets)
    try:
        return [(offset, Outcome(letter)) for offset, letter in zip(offsets, letters, strict=True)]
    except ValueError:
        return [(offset, Outcome.OVER) for offset in offsets]
