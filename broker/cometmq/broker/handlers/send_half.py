"""The first half of a transaction: a send (10, 310) that is put aside until it is ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.refusals import send_refusal
from cometmq.broker.transaction_records import COPY_ROOM, HALF_TOPIC, half_properties
from cometmq.net import LATER
from cometmq.proto.codes import ResponseCode
from cometmq.proto.properties import PROPERTIES_SIZE_MAX, property_finder, set_property
from cometmq.proto.record import RECORD_CRC_SIZE
from cometmq.proto.sysflag import TRANSACTION_MASK
from cometmq.store.errors import PropertiesTooLongError
from cometmq.store.turn import Origin

if TYPE_CHECKING:
    from cometmq.broker.handlers.sent_properties import Sent
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
"""Of a half message: it must be possible to put it again, and to ask about it."""


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
    """Put the first half of a transaction aside; its place is what ends it.

    `once` is what was found of it if it is to be stored once.
    """
    state = session.state
    raw, unique_id, _, _ = sent
    _check_half(raw, topic, state)
    if unique_id is None:
        unique_id = state.unique_ids.make(state.now_ms()).encode()
        raw = set_property(raw, b"UNIQ_KEY", unique_id)
    raw = half_properties(header.topic, queue_id, raw + state.stored_properties, unique_id)
    if len(raw) > _PROPERTIES_SIZE_MAX:
        raise PropertiesTooLongError(
            f"properties of {len(raw)} bytes, over {_PROPERTIES_SIZE_MAX} for a half message"
        )
    acknowledgements = state.acknowledgements
    origin = Origin(
        acknowledgements.turn_ms or acknowledgements.begin(),
        header.born_timestamp,
        session.born_host,
        header.sys_flag & ~TRANSACTION_MASK,
        header.reconsume_times,
    )
    put = state.store.put(HALF_TOPIC, 0, body, raw, origin, header.flag)
    state.transactions.begin(put, header.born_timestamp, raw)
    if once is not None:
        state.idempotence.note(once, (put.physical_offset, queue_id, put.queue_offset))
    response = state.send_answers.answer(
        request, [put.physical_offset], queue_id, put.queue_offset, unique_id
    )
    # Whoever has no answer cannot end it: it always waits for what was promised.
    acknowledgements.add(session.peer, request, response, waits=True)
    return LATER


def _check_half(properties: bytes, topic: Topic, state: State) -> None:
    """Refuse a half message that could not become what it says."""
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
