"""The end of a transaction (37), and another chance for one that was given up (323)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.broker.errors import RequestError
from cometmq.broker.handlers.reading import with_message
from cometmq.broker.transaction_records import (
    GIVEN_UP_TOPIC,
    HALF_TOPIC,
    Outcome,
    alike,
    committed,
    group_of,
    immunity_ms,
    resumed_properties,
)
from cometmq.broker.transaction_table import Place
from cometmq.net import LATER
from cometmq.proto.codes import ResponseCode
from cometmq.proto.command import ONEWAY_FLAG
from cometmq.proto.commands.transaction import (
    EndTransaction,
    ResumeCheckHalfMessage,
    TransactionEnd,
)
from cometmq.proto.errors import MessageError
from cometmq.proto.header_typed import TypedFields
from cometmq.proto.message_id import decode_offset_id
from cometmq.proto.sysflag import SysFlag, TransactionType, with_transaction_type
from cometmq.store.log.turn import Origin

if TYPE_CHECKING:
    from cometmq.broker.session import Session, State
    from cometmq.broker.transaction_table import Open
    from cometmq.net import Later
    from cometmq.proto.command import Command
    from cometmq.proto.message import StoredMessage

_COMMITTED: Final = int(SysFlag.TRANSACTION_COMMITTED)
# Globals are faster to look up.
_OPEN: Final = Outcome.OPEN
_COMMITS: Final = Outcome.COMMITTED
_OUTCOMES: Final = {
    int(TransactionEnd.COMMIT): Outcome.COMMITTED,
    int(TransactionEnd.ROLLBACK): Outcome.ROLLED_BACK,
}
_WORDS: Final = {
    Outcome.COMMITTED: "it was committed",
    Outcome.ROLLED_BACK: "it was rolled back",
    Outcome.GIVEN_UP: "no producer said how it ends, and it was given up",
    Outcome.MOVED: "how is no longer known",
    Outcome.OVER: "how is no longer known",
}


def end_transaction(request: Command, session: Session) -> Command | Later:
    """37: a producer commits or rolls back a half message."""
    fields = request.fields
    header = fields.header if type(fields) is TypedFields else None
    if type(header) is not EndTransaction:  # Otherwise `read` would just return it.
        header = request.read(EndTransaction)
    outcome = _OUTCOMES.get(header.commit_or_rollback)
    if outcome is None:  # The producer does not know yet, and is asked again.
        return request.answer(ResponseCode.SUCCESS)
    session.state.transactions.check_works()
    if end_kept(header, outcome, session.state):
        acknowledgements = session.state.acknowledgements
        if request.flag & ONEWAY_FLAG:  # Java's producers wait for few of these.
            acknowledgements.add(session.peer, request, None, waits=True)
        else:
            done = session.state.send_answers.done[request.codec](request.opaque)
            acknowledgements.frames[session.peer].append(done)
        return LATER

    def end(half: StoredMessage) -> Later:
        opened = _checked(header, half, outcome, session.state)
        if opened is not None and opened.end is Outcome.OPEN:
            if outcome is Outcome.COMMITTED:
                _commit(half, opened, session.state)
            session.state.transactions.end(opened, outcome)
        # An earlier end may still wait for the disk: then so does this one.
        session.state.acknowledgements.add(
            session.peer, request, request.answer(ResponseCode.SUCCESS), waits=True
        )
        return LATER

    missing = "Find prepared transaction message failed"
    return with_message(request, session, header.commit_log_offset, missing, end)


def end_kept(header: EndTransaction, outcome: Outcome, state: State) -> bool:
    """End an ordinary transaction that is entirely in memory; False if it is not such a one.

    Then the caller reads the half message, and makes all checks.
    """
    transactions, store = state.transactions, state.store
    physical_offset = header.commit_log_offset
    opened = transactions.table.find(header.tran_state_table_offset)
    if (
        opened is None
        or (kept := opened.kept) is None
        or opened.end is not _OPEN
        or opened.physical_offset != physical_offset
        or opened.group != header.producer_group
        or not store.first_offset <= physical_offset < store.readable_offset
    ):
        return False
    acknowledgements = state.acknowledgements
    now_ms = acknowledgements.turn_ms or acknowledgements.begin()
    if outcome is _COMMITS:
        name = kept.topic
        topic = state.topics.find(name)
        if topic is None:
            return False
        put = store.put_quick(
            name,
            kept.queue_id,
            kept.body,
            kept.half_properties[: kept.properties_size],
            kept.tail,
            now_ms,
            opened.born_ms,
            kept.born_host,
            kept.sys_flag | _COMMITTED,
            0,
            physical_offset,
            kept.flag,
        )
        if put is None:
            return False
        flow = topic.flow
        flow.messages += 1
        flow.size += put[2]
    transactions.end(opened, outcome)
    return True


def _checked(
    header: EndTransaction, half: StoredMessage, outcome: Outcome, state: State
) -> Open | None:
    """Check that this producer may end this transaction with this outcome.

    Returns None if it has ended like this before. The checks come in Apache's order, with its
    words.
    """
    properties = half.properties_raw
    immune_ms = immunity_ms(properties)
    if immune_ms and not header.from_transaction_check:
        immune_ms = max(immune_ms, state.config.transaction_timeout_ms)
        if state.now_ms() - half.born_timestamp > immune_ms:
            raise RequestError(
                ResponseCode.ILLEGAL_OPERATION,
                f"[{half.unique_id}] should be checked: its CHECK_IMMUNITY_TIME_IN_SECONDS is over",
            )
    table = state.transactions.table
    opened = table.find(half.queue_offset)
    # A body may contain bytes that look like a record, and say anything.
    is_forged = opened is not None and not _is_of(half, opened)
    group = group_of(properties) if opened is None or is_forged else opened.group
    if group != header.producer_group:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
    is_there = half.queue_offset == header.tran_state_table_offset and half.topic == HALF_TOPIC
    if is_forged or not is_there:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
    found = table.outcome(half.queue_offset) if opened is None else opened.end
    if found not in (Outcome.OPEN, outcome):
        raise RequestError(
            ResponseCode.ILLEGAL_OPERATION,
            f"the transaction of half message {half.queue_offset} is over: {_WORDS[found]}",
        )
    return opened


def _is_of(half: StoredMessage, opened: Open) -> bool:
    """Whether a half message belongs to a transaction."""
    if half.physical_offset == opened.physical_offset:
        return half.queue_offset == opened.offset
    return Place(half.queue_offset, half.physical_offset) in opened.aliases


def _commit(half: StoredMessage, opened: Open, state: State) -> None:
    """Put the message that a half message becomes."""
    try:
        name, queue_id, properties = committed(half.properties_raw)
    except ValueError as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"the half message: {error}") from error
    topic = state.topics.find(name)
    if topic is None:
        raise RequestError(
            ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] was deleted: the half message stays open"
        )
    store, acknowledgements = state.store, state.acknowledgements
    now_ms = acknowledgements.turn_ms or acknowledgements.begin()
    sys_flag = with_transaction_type(half.sys_flag, TransactionType.COMMITTED)
    common = alike(properties)
    if common is not None:
        put = store.put_quick(
            name,
            queue_id,
            half.body,
            properties,
            common.partition(b"\x02")[2],
            now_ms,
            half.born_timestamp,
            half.born_host,
            sys_flag,
            half.reconsume_times,
            opened.physical_offset,
            half.flag,
        )
        if put is not None:
            topic.flow.take(1, put[2])
            return
        store.note_alike(common)
    origin = Origin(
        now_ms,
        half.born_timestamp,
        half.born_host,
        sys_flag,
        half.reconsume_times,
        opened.physical_offset,
    )
    size = store.put(name, queue_id, half.body, properties, origin, half.flag).size
    topic.flow.take(1, size)


def resume_check_half_message(request: Command, session: Session) -> Command | Later:
    """323: ask again about a transaction that was given up."""
    header = request.read(ResumeCheckHalfMessage)
    state = session.state
    try:
        offset = decode_offset_id(header.msg_id).physical_offset
    except MessageError as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"msgId: {error}") from error
    failed = f"Put message back to {HALF_TOPIC} failed."

    def resume(half: StoredMessage) -> Later:
        _check_given_up(half, failed, state)
        if not _is_resumed(half, state):
            _resume(half, state)
        # An earlier request may still wait for the disk: then so does this one.
        response = request.answer(ResponseCode.SUCCESS)
        state.acknowledgements.add(session.peer, request, response, waits=True)
        return LATER

    return with_message(request, session, offset, failed, resume)


def _check_given_up(half: StoredMessage, failed: str, state: State) -> None:
    """Refuse a message that is not a given-up half message, or that could not be committed."""
    is_given_up = half.topic == GIVEN_UP_TOPIC or (
        half.topic == HALF_TOPIC
        and state.transactions.table.outcome(half.queue_offset) is Outcome.GIVEN_UP
    )
    if not is_given_up:
        raise RequestError(ResponseCode.SYSTEM_ERROR, failed)
    try:
        committed(half.properties_raw)
    except ValueError as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, failed) from error


def _resume(half: StoredMessage, state: State) -> None:
    """Put a given-up half message as a new one."""
    state.transactions.check_room()
    properties = resumed_properties(half.properties_raw, half.physical_offset)
    put = state.store.put(
        HALF_TOPIC,
        0,
        half.body,
        properties,
        Origin(
            state.acknowledgements.turn_ms or state.acknowledgements.begin(),
            half.born_timestamp,
            half.born_host,
            half.sys_flag,
            half.reconsume_times,
        ),
        half.flag,
    )
    state.transactions.begin(
        Place(put.queue_offset, put.physical_offset),
        put.store_timestamp,
        half.born_timestamp,
        group_of(properties),
        immunity_ms(properties),
        half.physical_offset,
    )


def _is_resumed(half: StoredMessage, state: State) -> bool:
    """Whether a given-up half message was resumed before; refuses if that one is over."""
    table = state.transactions.table
    offset = table.resumed.get(half.physical_offset)
    if offset is None:
        return False
    if table.find(offset) is None:
        raise RequestError(
            ResponseCode.ILLEGAL_OPERATION,
            f"it was resumed before, and is over: {_WORDS[table.outcome(offset)]}",
        )
    return True
