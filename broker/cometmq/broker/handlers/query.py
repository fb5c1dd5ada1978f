"""Finding messages: by their place (33) and by key (12)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.broker.errors import RequestError
from cometmq.broker.handlers.reading import answered
from cometmq.proto.codes import ResponseCode
from cometmq.proto.commands.query import QueryMessage, QueryMessageResponse, ViewMessageById
from cometmq.proto.message import read_message
from cometmq.store.log.commit_log import Cold

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cometmq.broker.cold_reads import Fetched
    from cometmq.broker.session import Session, State
    from cometmq.net import Later
    from cometmq.proto.buffer import Buffer
    from cometmq.proto.command import Command

QUERY_COUNT_MAX: Final = 64
UNIQUE_QUERY_COUNT: Final = 32


def view_message_by_id(request: Command, session: Session) -> Command | Later:
    """33: the message at a physical offset."""
    offset = request.read(ViewMessageById).offset

    def answer(records: list[Buffer]) -> Command:
        if records:
            return request.answer(ResponseCode.SUCCESS, parts=records)
        remark = f"can not find message by the offset, {offset}"
        return request.answer(ResponseCode.SYSTEM_ERROR, remark=remark)

    return _read(request, session, [offset], answer, is_indexed=False)


def check_indexed(state: State) -> None:
    """Refuse to say what is stored without an index: "nothing" would have it sent once more."""
    if not state.config.store.index:
        remark = "messages are not found by key: the index of this broker is off (index=false)"
        raise RequestError(ResponseCode.SYSTEM_ERROR, remark)


def query_message(request: Command, session: Session) -> Command | Later:
    """12: the messages that may have a key, newest first: only hashes are compared."""
    header = request.read(QueryMessage)
    check_indexed(session.state)
    count = UNIQUE_QUERY_COUNT if header.unique_key_query else min(header.max_num, QUERY_COUNT_MAX)
    store = session.state.store
    offsets = store.query(
        header.topic,
        header.key,
        max(count, 0),
        begin_ms=header.begin_timestamp,
        end_ms=header.end_timestamp,
        now_ms=session.state.now_ms(),
        kind="T" if header.index_type == "T" else "",
    )

    def answer(records: list[Buffer]) -> Command:
        if not records:
            return request.answer(
                ResponseCode.QUERY_NOT_FOUND,
                QueryMessageResponse(0, 0),
                remark="can not find message, maybe time range not correct",
            )
        newest = read_message(bytes(records[0]))
        fields = QueryMessageResponse(newest.store_timestamp, newest.physical_offset)
        return request.answer(ResponseCode.SUCCESS, fields, parts=records)

    return _read(request, session, offsets, answer, is_indexed=True)


def _read(
    request: Command,
    session: Session,
    offsets: Sequence[int],
    answer: Callable[[list[Buffer]], Command],
    *,
    is_indexed: bool,
) -> Command | Later:
    """Read the records at these places, from the disk if need be, and answer with them.

    What the index names is looked at for damage; a peer may name any place, also one in a body.
    """
    state = session.state

    def attempt(fetched: Fetched) -> Command | Sequence[Cold]:
        found = [state.store.find_record(offset, fetched) for offset in offsets]
        cold = [each for each in found if isinstance(each, Cold)]
        if cold:
            return cold
        records = {
            offset: each
            for offset, each in zip(offsets, found, strict=True)
            if each is not None and not isinstance(each, Cold)
        }
        if is_indexed:
            for offset, record in records.items():
                state.damage.check(offset, record)
        return answer(list(records.values()))

    return answered(request, session, attempt)
