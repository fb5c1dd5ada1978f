"""Finding messages by place (33) and by key (12)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.broker.errors import RequestError
from cometmq.broker.handlers.reading import answered, answered_in_slices
from cometmq.proto.codes import ResponseCode
from cometmq.proto.commands.query import QueryMessage, QueryMessageResponse, ViewMessageById
from cometmq.proto.message import read_message
from cometmq.store.disk.cold import Cold

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

    from cometmq.broker.cold_reads import Fetched
    from cometmq.broker.session import Session
    from cometmq.net import Later
    from cometmq.proto.buffer import Buffer
    from cometmq.proto.command import Command
    from cometmq.store.index.key_search import KeySearch

QUERY_COUNT_MAX: Final = 64
UNIQUE_QUERY_COUNT: Final = 32


def view_message_by_id(request: Command, session: Session) -> Command | Later:
    """33: the message at a physical offset. A peer may name any place, even within a body."""
    offset = request.read(ViewMessageById).offset

    def attempt(fetched: Fetched) -> Command | Sequence[Cold]:
        record = session.state.store.find_record(offset, fetched)
        if isinstance(record, Cold):
            return [record]
        if record is not None:
            return request.answer(ResponseCode.SUCCESS, parts=[record])
        remark = f"can not find message by the offset, {offset}"
        return request.answer(ResponseCode.SYSTEM_ERROR, remark=remark)

    return answered(request, session, attempt)


def indexed(begun: KeySearch | None) -> KeySearch:
    """Refuse a search without an index: "nothing found" would make the client send it again."""
    if begun is None:
        remark = "messages are not found by key: the index of this broker is off (index=false)"
        raise RequestError(ResponseCode.SYSTEM_ERROR, remark)
    return begun


def go_on_with(searches: Iterable[KeySearch]) -> Generator[None, None, list[Cold]]:
    """Advance searches as far as they go, in slices; return the data to fetch for the rest."""
    cold: list[Cold] = []
    for each in searches:
        for needs in each:
            if needs is not None:
                cold.append(needs)
                break
            yield
    return cold


def query_message(request: Command, session: Session) -> Command | Later:
    """12: the messages that may have a key, newest first; only hashes are compared."""
    header = request.read(QueryMessage)
    state = session.state
    count = UNIQUE_QUERY_COUNT if header.unique_key_query else min(header.max_num, QUERY_COUNT_MAX)
    begun = indexed(
        state.store.search(
            header.topic,
            header.key,
            max(count, 0),
            begin_ms=header.begin_timestamp,
            end_ms=header.end_timestamp,
            now_ms=state.now_ms(),
            kind="T" if header.index_type == "T" else "",
        )
    )

    def attempt(fetched: Fetched) -> Generator[None, None, Command | Sequence[Cold]]:
        if cold := (yield from go_on_with([begun])):
            return cold
        looked_at = {each: state.store.find_record(each, fetched) for each in begun.found}
        if cold := [each for each in looked_at.values() if isinstance(each, Cold)]:
            return cold
        records: list[Buffer] = []
        for offset, record in looked_at.items():
            if record is not None and not isinstance(record, Cold):
                state.damage.check(offset, record)
                records.append(record)
        if not records:
            return request.answer(
                ResponseCode.QUERY_NOT_FOUND,
                QueryMessageResponse(0, 0),
                remark="can not find message, maybe time range not correct",
            )
        newest = read_message(bytes(records[0]))
        fields = QueryMessageResponse(newest.store_timestamp, newest.physical_offset)
        return request.answer(ResponseCode.SUCCESS, fields, parts=records)

    return answered_in_slices(request, session, attempt)
