"""Sending: one message (10, 310) or a batch (320).

The checks come in Apache's order, with its codes and words, so that a client with two mistakes in
one send hears of the same one. A send is put into the store's turn here; `acknowledgements` answers
it once the turn is written, and synced if that is promised.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from cometmq.broker.errors import RequestError
from cometmq.broker.handlers.retry_sends import dead_letters
from cometmq.broker.handlers.send_half import send_half, send_half_alike
from cometmq.broker.handlers.send_origin import identified, origin_of
from cometmq.broker.handlers.sent_properties import HALF_MARK, ONCE, SPECIAL
from cometmq.broker.idempotence import MARKS
from cometmq.broker.refusals import FAQ, send_refusal
from cometmq.broker.setting_aside import delay_level, set_aside
from cometmq.broker.topic_names import (
    CLOSED_TOPICS,
    RETRY_PREFIX,
    TOPIC_LENGTH_MAX,
    topic_problem,
)
from cometmq.broker.topics import described
from cometmq.broker.transaction_records import is_half
from cometmq.net import LATER
from cometmq.proto.batch import split_batch, without_property
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.commands.send import SendMessage, SendMessageV2
from cometmq.proto.errors import MessageError
from cometmq.proto.header_typed import TypedFields
from cometmq.proto.properties import (
    join_properties,
    property_finder,
    remove_property,
    set_property,
)
from cometmq.proto.sysflag import TRANSACTION_MASK, SysFlag
from cometmq.store.messages.dispatch import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from cometmq.broker.handlers.sent_properties import Sent
    from cometmq.broker.idempotence import Place
    from cometmq.broker.session import Session, State
    from cometmq.broker.topics import Topic
    from cometmq.net import Later
    from cometmq.proto.command import Command

_V2_CODE: Final = int(RequestCode.SEND_MESSAGE_V2)
_BATCH_CODE: Final = int(RequestCode.SEND_BATCH_MESSAGE)
_PLAIN_FLAGS: Final = ~int(TRANSACTION_MASK)
"""Without the transaction flags: only the property makes a message part of a transaction."""
_UNIQUE_ID_SIZE: Final = len("UNIQ_KEY") + 2 + 56
"""The largest size of the property given to a message that has no unique id."""
_INNER_BATCH: Final = int(SysFlag.INNER_BATCH | SysFlag.NEEDS_UNWRAP)
"""Flags of a batch that stays one record; without both, consumers get it as one message."""

_find_times = [
    property_finder(name) for name in (b"TIMER_DELAY_MS", b"TIMER_DELAY_SEC", b"TIMER_DELIVER_MS")
]


def send_message(request: Command, session: Session) -> Command | Later:
    """10: a message; its fields have their long names."""
    return _send(request, request.read(SendMessage), session)


def send_message_v2(request: Command, session: Session) -> Command | Later:
    """310 and 320: a message or a batch; its fields have names of one letter.

    This is the fast path of nearly all sends: a single message to a known topic, with properties
    seen before except for the unique id. It is one function, because each call costs a tenth of a
    microsecond. A send that is wrong or different in any way goes through all checks in `_send`.
    """
    fields = request.fields
    header = fields.header if type(fields) is TypedFields else None
    if type(header) is not SendMessageV2:  # Otherwise `read` would just return it.
        header = request.read(SendMessageV2)
    state = session.state
    body = request.body
    queue_id = header.queue_id
    topic = state.topics.find(header.topic)
    raw = (header.properties or "").encode()
    pair, _, rest = raw.partition(b"\x02")
    if pair == HALF_MARK:  # As in `id_first`.
        pair, _, rest = rest.partition(b"\x02")
        rest = b"%b\x02%b" % (HALF_MARK, rest)
    name, _, unique_id = pair.partition(b"\x01")
    tail = state.sent_properties.tails.get(rest)
    once = None if tail is not None else state.sent_properties.once.get(rest)
    if once is not None:
        raw, tail = pair + once[0], once[1]
    if (
        topic is None
        or not 0 <= queue_id < topic.plain_queue_count
        or name != b"UNIQ_KEY"
        or not unique_id.isalnum()
        or request.code != _V2_CODE
        or header.batch
        or request.flag  # One-way.
        or type(body) is not bytes
    ):
        return _send(request, header, session)
    if tail is None:
        half = state.sent_properties.halves.get(rest)
        taken = half and send_half_alike(request, header, body, session, topic, pair, half)
        return _send(request, header, session) if taken is None else taken
    found = None if once is None else state.idempotence.find(unique_id, header.topic)
    if found is not None and found[2] is not None:
        return _send(request, header, session)
    acknowledgements = state.acknowledgements
    put = state.store.put_quick(
        header.topic,
        queue_id,
        body,
        raw + state.stored_properties,
        tail,
        acknowledgements.turn_ms or acknowledgements.begin(),
        header.born_timestamp,
        session.born_host,
        header.sys_flag & _PLAIN_FLAGS,
        header.reconsume_times,
        0,
        header.flag,
    )
    if put is None:
        return _send(request, header, session)
    physical_offset, queue_offset, size = put
    if found is not None:
        state.idempotence.note(found, (physical_offset, queue_id, queue_offset))
    flow = topic.flow
    flow.messages += 1
    flow.size += size
    make = state.send_answers.frames[request.codec]
    frame = make(physical_offset, queue_id, queue_offset, unique_id, request.opaque)
    acknowledgements.frames[session.peer].append(frame)
    return LATER


def _send(request: Command, header: SendMessage, session: Session) -> Command | Later:
    state = session.state
    body = body_of(request)
    name = header.topic
    topic = state.topics.find(name)
    queue_id = header.queue_id
    if topic is None or topic.is_closed or not 0 <= queue_id < topic.queue_count:
        topic, queue_id = checked_target(request, header, session)
    raw, unique_id, waits, kind = state.sent_properties.read(header.properties)
    if header.batch or request.code == _BATCH_CODE:
        sent = raw, unique_id, waits, kind
        return _send_batch(request, header, body, session, topic, queue_id, sent)
    stored_topic, stored_queue = name, queue_id
    sent, once = (raw, unique_id, waits, kind), None
    if kind & ONCE:
        once = state.idempotence.find(unique_id or b"", name)
        if once[2] is not None:
            return _as_before(request, once[2], session, sent)
    if topic.is_retry and (dead := dead_letters(request, header, state)) is not None:
        topic, stored_topic, stored_queue = dead, dead.config.topic_name, 0
        raw = set_property(raw, b"DELAY", b"-1")
    elif kind & SPECIAL:
        if is_half(raw, header.reconsume_times):
            return send_half(request, header, body, session, topic, queue_id, sent, once)
        stored_topic, stored_queue, raw = _set_aside(name, queue_id, raw, state)
    raw, unique_id = identified(raw, unique_id, state)
    put = state.store.put(
        stored_topic,
        stored_queue,
        body,
        raw + state.stored_properties,
        origin_of(header, session, header.sys_flag & _PLAIN_FLAGS),
        header.flag,
    )
    if once is not None:
        state.idempotence.note(once, (put.physical_offset, queue_id, put.queue_offset))
    flow = topic.flow
    flow.messages += 1
    flow.size += put.size
    response = state.send_answers.answer(
        request, [put.physical_offset], queue_id, put.queue_offset, unique_id
    )
    state.acknowledgements.add(session.peer, request, response, waits)
    return LATER


def _as_before(request: Command, place: Place, session: Session, sent: Sent) -> Later:
    """Answer a repeated message as the first one was, or will be."""
    _, unique_id, waits, _ = sent
    physical_offset, queue_id, queue_offset = place
    state = session.state
    response = state.send_answers.answer(
        request, [physical_offset], queue_id, queue_offset, unique_id
    )
    state.acknowledgements.add(session.peer, request, response, waits)
    return LATER


def _send_batch(
    request: Command,
    header: SendMessage,
    body: bytes,
    session: Session,
    topic: Topic,
    queue_id: int,
    sent: Sent,
) -> Command | Later:
    """Put the messages of a batch: each as a record, or all as one if the topic is for batches."""
    state = session.state
    name = header.topic
    check_batch_topic(name, state)
    if sent[3] & SPECIAL:
        _check_batch_delay(sent[0], state)
    origin = origin_of(header, session, header.sys_flag)
    more = b"" if topic.is_batch else state.stored_properties
    put = state.store.put_raw_batch(name, queue_id, body, more, origin) if more else None
    if put is None:
        try:
            for mark in MARKS:  # Nothing of the kind is promised for a batch.
                body = without_property(body, mark)
            messages = split_batch(body, more)
        except MessageError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        if topic.is_batch:
            count = len(messages)
            return _send_inner_batch(request, header, body, session, topic, queue_id, sent, count)
        put = state.store.put_batch(name, queue_id, messages, origin)
    _, unique_id, waits, _ = sent
    topic.flow.take(len(put.physical_offsets), put.size)
    response = state.send_answers.answer(
        request, put.physical_offsets, queue_id, put.queue_offset, unique_id
    )
    state.acknowledgements.add(session.peer, request, response, waits)
    return LATER


def _send_inner_batch(
    request: Command,
    header: SendMessage,
    body: bytes,
    session: Session,
    topic: Topic,
    queue_id: int,
    sent: Sent,
    count: int,
) -> Command | Later:
    state = session.state
    raw, unique_id, waits, _ = sent
    properties = set_property(remove_property(raw, b"SENT_ONCE"), b"INNER_NUM", b"%d" % count)
    put = state.store.put(
        header.topic,
        queue_id,
        body,
        join_properties(properties, state.stored_properties),
        origin_of(header, session, header.sys_flag | _INNER_BATCH),
        header.flag,
    )
    topic.flow.take(count, put.size)
    response = state.send_answers.answer(
        request, [put.physical_offset], queue_id, put.queue_offset, unique_id, unique_id
    )
    state.acknowledgements.add(session.peer, request, response, waits)
    return LATER


# Checks that most sends do not need.


def checked_target(request: Command, header: SendMessage, session: Session) -> tuple[Topic, int]:
    """Find or create the topic of a send, and choose a queue if that is left to the broker."""
    topic = session.state.topics.find(header.topic)
    if topic is None or topic.is_closed:
        topic = _admitted(header, session.state)
        session.state.acknowledgements.made_topic(request)
    queue_id = header.queue_id
    if not 0 <= queue_id < topic.queue_count:
        queue_id = _chosen_queue(header, topic, session)
    return topic, queue_id


def check_batch_topic(name: str, state: State) -> None:
    """Refuse a topic that takes no batch."""
    if name.startswith(RETRY_PREFIX):
        raise _refusal(
            state,
            ResponseCode.MESSAGE_ILLEGAL,
            f"batch request does not support retry group {name}",
        )
    if len(name) > TOPIC_LENGTH_MAX:
        raise _refusal(
            state, ResponseCode.MESSAGE_ILLEGAL, f"message topic length too long {len(name)}"
        )


def _admitted(header: SendMessage, state: State) -> Topic:
    """Check a topic that is closed or does not exist, and create it if that is allowed."""
    name = header.topic
    if (problem := topic_problem(name)) is not None:
        raise _refusal(state, ResponseCode.INVALID_PARAMETER, problem)
    if name in CLOSED_TOPICS:
        raise _refusal(
            state, ResponseCode.NO_PERMISSION, f"Sending message to topic[{name}] is forbidden."
        )
    now_ms = state.now_ms()
    if name.startswith(RETRY_PREFIX):
        topic = state.topics.make_derived(name, 1, now_ms)
    else:
        topic = state.topics.make_like(
            header.default_topic,
            name,
            header.default_topic_queue_nums,
            is_unit=header.unit_mode,
            now_ms=now_ms,
        )
    if topic is None:
        raise _refusal(
            state,
            ResponseCode.TOPIC_NOT_EXIST,
            f"topic[{name}] not exist, apply first please!{FAQ}",
        )
    return topic


def body_of(request: Command) -> bytes:
    """Return the body of a request as `bytes`; refuse a message without one."""
    if type(request.body) is bytes:
        return request.body
    if request.body is None:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, "no body: a message needs at least one byte of it"
        )
    return bytes(request.body)


def _chosen_queue(header: SendMessage, topic: Topic, session: Session) -> int:
    """Choose a queue if that is left to the broker; refuse a queue that does not exist."""
    if header.queue_id >= topic.queue_count:
        raise _refusal(
            session.state,
            ResponseCode.INVALID_PARAMETER,
            f"request queueId[{header.queue_id}] is illegal, {described(topic.config)}"
            f" Producer: {session.peer.host}",
        )
    return random.randrange(max(topic.config.write_queue_nums, 1))


def _set_aside(
    topic: str, queue_id: int, properties: bytes, state: State
) -> tuple[str, int, bytes]:
    """Return where a message with a delay waits, and its properties there.

    Refuses a delivery time, which this broker cannot keep: the message would be delivered at once.
    """
    try:
        level = delay_level(properties)
    except ValueError as error:
        raise _refusal(state, ResponseCode.SYSTEM_ERROR, f"property DELAY: {error}") from error
    if level:
        levels = len(state.config.store.delay_levels_ms)
        more = len(state.stored_properties) + _UNIQUE_ID_SIZE
        waits = set_aside(topic, queue_id, properties, level, levels, more=more)
        return SCHEDULE_TOPIC, waits.queue_id, waits.properties
    if any((find(properties) or b"0") != b"0" for find in _find_times):
        seconds = ", ".join(f"{level / 1000:g}" for level in state.config.store.delay_levels_ms)
        raise _refusal(
            state,
            ResponseCode.MESSAGE_ILLEGAL,
            "this broker delivers by delay level (property DELAY), not at a given time yet;"
            f" its levels are {seconds} seconds",
        )
    return topic, queue_id, properties


def _check_batch_delay(properties: bytes, state: State) -> None:
    """Refuse a delay for a whole batch, as Apache does: none of its messages would wait."""
    try:
        waits = delay_level(properties) > 0
    except ValueError as error:
        raise _refusal(state, ResponseCode.SYSTEM_ERROR, f"property DELAY: {error}") from error
    if waits or any((find(properties) or b"0") != b"0" for find in _find_times):
        raise _refusal(state, ResponseCode.MESSAGE_ILLEGAL, "a batch cannot be delayed")


def _refusal(state: State, code: ResponseCode, remark: str) -> RequestError:
    return send_refusal(state.config, code, remark)
