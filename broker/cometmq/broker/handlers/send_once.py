"""Sending a batch of which each message is stored once, however often it is sent (31005; our own).

The unique id of each message names its producer and its number, as that of a single message with
`IDEMPOTENT` does (see `idempotence`). Messages that came before, in any batch, are left out; the
others are put together, or none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.broker.errors import RequestError
from cometmq.broker.handlers.send import body_of, check_batch_topic, checked_target
from cometmq.broker.handlers.send_origin import origin_of
from cometmq.broker.handlers.sent_properties import UNIQUE_ID
from cometmq.broker.idempotence import MARKS, STORED
from cometmq.broker.refusals import send_refusal
from cometmq.net import LATER
from cometmq.proto.batch import batch_properties, split_batch
from cometmq.proto.codes import ResponseCode
from cometmq.proto.command import ONEWAY_FLAG
from cometmq.proto.commands.send import SendBatchOnceResponse, SendMessageV2
from cometmq.proto.errors import MessageError
from cometmq.proto.properties import join_properties, property_finder, remove_property

if TYPE_CHECKING:
    from cometmq.broker.session import Session, State
    from cometmq.net import Later
    from cometmq.proto.command import Command

_find_unique_id: Final = property_finder(b"UNIQ_KEY")
_find_not_stored: Final = property_finder(b"NOT_STORED")
"""The property of a request whose sender has asked (31004), after a 604: no message is stored."""


def send_batch_once(request: Command, session: Session) -> Later:
    """31005: store the messages of a batch, except those already stored."""
    header = request.read(SendMessageV2)
    state, name, body = session.state, header.topic, body_of(request)
    topic, queue_id = checked_target(request, header, session)
    check_batch_topic(name, state)
    if topic.is_batch:
        raise send_refusal(
            state.config,
            ResponseCode.MESSAGE_ILLEGAL,
            f"{name}: its batches are one record each, of which no part can be left out",
        )
    properties = _properties_of(body)
    is_not_stored = _find_not_stored((header.properties or "").encode()) == b"1"
    ids = [_unique_id_of(each) for each in properties]
    found = state.idempotence.find_all(ids, name, else_new=is_not_stored)
    count = len(found[0])
    new = count - found[0].count(None)
    if new:
        origin = origin_of(header, session, header.sys_flag)
        # A start takes the lowest number that it finds marked for the lowest that it knows.
        more = state.stored_properties if is_not_stored else STORED + state.stored_properties
        is_plain = new == count and not _are_marked(properties)
        put = state.store.put_raw_batch(name, queue_id, body, more, origin) if is_plain else None
        if put is None:
            kept = [
                (flag, one, join_properties(_unmarked(raw), more))
                for (flag, one, raw), producer in zip(split_batch(body), found[0], strict=True)
                if producer is not None
            ]
            put = state.store.put_batch(name, queue_id, kept, origin)
        state.idempotence.note_all(found, put.physical_offsets, queue_id, put.queue_offset)
        topic.flow.take(new, put.size)
    _answer(request, header, session, SendBatchOnceResponse(queue_id, new, count))
    return LATER


def _properties_of(body: bytes) -> list[bytes]:
    try:
        return batch_properties(body)
    except MessageError as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from error


def _unique_id_of(properties: bytes) -> bytes:
    """Return the unique id of a message; it nearly always comes first."""
    pair = properties.partition(b"\x02")[0]
    if pair.startswith(UNIQUE_ID):
        return pair[len(UNIQUE_ID) :]
    return _find_unique_id(properties) or b""


def _are_marked(properties: list[bytes]) -> bool:
    """Whether any message has a property about being stored once; most have the same properties."""
    tails = {each.partition(b"\x02")[2] for each in properties}
    return any(mark in each for mark in MARKS for each in tails)


def _unmarked(properties: bytes) -> bytes:
    """Return properties without those about being stored once."""
    for mark in MARKS:
        properties = remove_property(properties, mark)
    return properties


def _answer(
    request: Command, header: SendMessageV2, session: Session, response: SendBatchOnceResponse
) -> None:
    """Answer once the turn is as durable as promised; then so are the messages left out."""
    state: State = session.state
    _, _, waits, _ = state.sent_properties.read(header.properties)
    answer = None
    if not request.flag & ONEWAY_FLAG:
        answer = request.answer(ResponseCode.SUCCESS, response)
    state.acknowledgements.add(session.peer, request, answer, waits)
