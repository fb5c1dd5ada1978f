"""The first half of a transaction: a send (10, 310) that is set aside until it is ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.broker.handlers.send_origin import identified, origin_of
from cometmq.broker.handlers.sent_properties import UNIQUE_ID, id_first
from cometmq.broker.refusals import send_refusal
from cometmq.broker.transaction_records import (
    COPY_ROOM,
    HALF_TOPIC,
    group_of,
    half_properties,
    immunity_ms,
    is_unmarked,
    quick_half_properties,
)
from cometmq.broker.transaction_table import Kept, Open
from cometmq.net import LATER
from cometmq.proto.codes import ResponseCode
from cometmq.proto.properties import PROPERTIES_SIZE_MAX, property_finder
from cometmq.proto.record import RECORD_CRC_SIZE
from cometmq.proto.sysflag import TRANSACTION_MASK
from cometmq.store.errors import PropertiesTooLongError

if TYPE_CHECKING:
    from cometmq.broker.handlers.sent_properties import Half, Sent
    from cometmq.broker.idempotence import Found
    from cometmq.broker.session import Session, State
    from cometmq.broker.topics import Topic
    from cometmq.net import Later
    from cometmq.proto.command import Command
    from cometmq.proto.commands.send import SendMessage

_find_delays = [
    property_finder(name)
    for name in (b"DELAY", b"TIMER_DELAY_MS", b"TIMER_DELAY_SEC", b"TIMER_DELIVER_MS")
]

_PROPERTIES_SIZE_MAX = PROPERTIES_SIZE_MAX - COPY_ROOM - RECORD_CRC_SIZE - 1
"""The limit for a half message, which must leave room to put it again and to ask about it."""
_PLAIN_FLAGS: Final = ~int(TRANSACTION_MASK)
_ID_START: Final = len(UNIQUE_ID)
KEPT_SIZE_MAX: Final = 4096
"""The largest body kept in memory until the end, or until many other half messages have come."""


def send_half(
    request: Command,
    header: SendMessage,
    body: bytes,
    session: Session,
    topic: Topic,
    queue_id: int,
    sent: Sent,
    once: Found | None,
) -> Later:
    """Set the first half of a transaction aside; the producer ends it by its place.

    `once` is the result of the search if it is to be stored once.
    """
    state = session.state
    raw, unique_id, _, _ = sent
    _check_half(raw, topic, state)
    raw = id_first(raw)
    group, immune_ms = group_of(raw), immunity_ms(raw)
    if once is None and unique_id is not None and is_unmarked(raw):
        state.sent_properties.note_half(raw, group, immune_ms)
    raw, unique_id = identified(raw, unique_id, state)
    raw = half_properties(header.topic, queue_id, raw + state.stored_properties, unique_id)
    if len(raw) > _PROPERTIES_SIZE_MAX:
        raise PropertiesTooLongError(
            f"properties of {len(raw)} bytes, over {_PROPERTIES_SIZE_MAX} for a half message"
        )
    origin = origin_of(header, session, header.sys_flag & ~TRANSACTION_MASK)
    put = state.store.put(HALF_TOPIC, 0, body, raw, origin, header.flag)
    place = put.queue_offset, put.physical_offset
    state.transactions.begin(place, put.store_timestamp, header.born_timestamp, group, immune_ms)
    if once is not None:
        state.idempotence.note(once, (put.physical_offset, queue_id, put.queue_offset))
    response = state.send_answers.answer(
        request, [put.physical_offset], queue_id, put.queue_offset, unique_id
    )
    # Without the answer it cannot be ended, so it always waits for what was promised.
    state.acknowledgements.add(session.peer, request, response, waits=True)
    return LATER


def send_half_alike(
    request: Command,
    header: SendMessage,
    body: bytes,
    session: Session,
    topic: Topic,
    pair: bytes,
    half: Half,
) -> Later | None:
    """Put a half message that is like earlier ones; None if it is not, and `send_half` must do it.

    `pair` is its unique id, of letters and digits; the caller has checked the topic and the queue.
    """
    state = session.state
    if state.config.reject_transactions or header.reconsume_times:
        return None
    transactions = state.transactions
    transactions.check_room()
    unique_id = pair[_ID_START:]
    queue_id, tail, part = header.queue_id, half.tail, topic.half_part
    properties = quick_half_properties(pair, tail, unique_id, part, queue_id)
    sys_flag = header.sys_flag & _PLAIN_FLAGS
    born_timestamp, born_host, flag = header.born_timestamp, session.born_host, header.flag
    acknowledgements = state.acknowledgements
    now_ms = acknowledgements.turn_ms or acknowledgements.begin()
    put = state.store.put_quick(
        HALF_TOPIC,
        0,
        body,
        properties,
        tail,
        now_ms,
        born_timestamp,
        born_host,
        sys_flag,
        0,
        0,
        flag,
    )
    if put is None:
        state.store.note_alike(b"%b\x02%b" % (pair, tail))
        return None
    physical_offset, queue_offset, _ = put
    group = half.group
    if half.immune_ms or len(body) > KEPT_SIZE_MAX:
        place = queue_offset, physical_offset
        transactions.begin(place, now_ms, born_timestamp, group, half.immune_ms)
    else:
        size = len(properties) - len(part) - len(b"%d\x02" % queue_id)
        name = header.topic
        kept = Kept(name, queue_id, body, properties, size, tail, born_host, sys_flag, flag)
        transactions.begin_kept(
            Open(
                queue_offset,
                physical_offset,
                now_ms,
                group=group,
                born_ms=born_timestamp,
                kept=kept,
            )
        )
    make = state.send_answers.frames[request.codec]
    acknowledgements.frames[session.peer].append(
        make(physical_offset, queue_id, queue_offset, unique_id, request.opaque)
    )
    return LATER


def _check_half(properties: bytes, topic: Topic, state: State) -> None:
    """Refuse a half message that could not become the message it asks for."""
    if state.config.reject_transactions:
        raise send_refusal(
            state.config, ResponseCode.NO_PERMISSION, "sending transaction message is forbidden"
        )
    may_wait = properties.find(b"DELAY\x01") >= 0 or properties.find(b"TIMER_DEL") >= 0
    if topic.is_batch or (
        may_wait and any((find(properties) or b"0") != b"0" for find in _find_delays)
    ):
        raise send_refusal(
            state.config,
            ResponseCode.MESSAGE_ILLEGAL,
            "a message of a transaction can be neither delayed nor in a batch topic",
        )
    state.transactions.check_room()
