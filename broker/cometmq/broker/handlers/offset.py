"""Offsets: where a group continues (14, 15), and where a queue begins and ends (29 to 32)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.errors import RequestError
from cometmq.broker.handlers.reading import StoreTimes, answered, answered_of_queues
from cometmq.proto.codes import ResponseCode
from cometmq.proto.commands.offset import (
    GetEarliestMsgStoretime,
    GetEarliestMsgStoretimeResponse,
    GetMaxOffset,
    GetMinOffset,
    OffsetResponse,
    QueryConsumerOffset,
    SearchOffsetByTimestamp,
    UpdateConsumerOffset,
)
from cometmq.proto.errors import FieldError
from cometmq.store.disk.cold import Cold
from cometmq.store.messages.reading import ReadStatus
from cometmq.store.queues.consume_queue import Boundary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cometmq.broker.cold_reads import Fetched
    from cometmq.broker.session import Session, State
    from cometmq.net import Later
    from cometmq.proto.command import Command


def query_consumer_offset(request: Command, session: Session) -> Command:
    """14: where a group continues.

    Without an offset the client decides itself (answer 22). But in a young queue a group begins at
    the first message whatever it wants, because clients rely on that. Apache's brokers do so once
    the queue has a message. This one does so before, too: otherwise a message might come between
    this request and the one for the queue's end.
    """
    header = request.read(QueryConsumerOffset)
    state = session.state
    offset = state.offsets.find(header.consumer_group, header.topic, header.queue_id)
    if offset is None:
        if header.set_zero_if_not_found is False:
            raise RequestError(
                ResponseCode.QUERY_NOT_FOUND,
                "Not found, do not set to zero, maybe this group boot first",
            )
        if not _is_young(header.topic, header.queue_id, state):
            raise RequestError(
                ResponseCode.QUERY_NOT_FOUND,
                "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first",
            )
        offset = 0
    return request.answer(ResponseCode.SUCCESS, OffsetResponse(offset))


def _is_young(topic: str, queue_id: int, state: State) -> bool:
    """Whether a queue still has its very first message in memory, or has yet to get it."""
    if not state.config.offset_from_zero_enable:
        return False
    found = state.topics.find(topic)
    is_there = found is not None and 0 <= queue_id < found.config.read_queue_nums
    if is_there and state.store.max_offset(topic, queue_id) == 0:
        return True
    result = state.store.read(topic, queue_id, 0, 1)
    return result.status is ReadStatus.FOUND and not result.cold


def update_consumer_offset(request: Command, session: Session) -> Command:
    """15: set where a group continues."""
    try:
        header = request.read(UpdateConsumerOffset)
    except FieldError as error:
        raise _null(request, error) from error
    state = session.state
    if state.groups.find(header.consumer_group) is None:
        raise RequestError(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.consumer_group} not exist!"
        )
    if state.topics.find(header.topic) is None:
        raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} not exist!")
    is_taken = state.offsets.commit(
        header.consumer_group, header.topic, header.queue_id, header.commit_offset
    )
    remark = None if is_taken else "Offset has been previously reset"
    return request.answer(ResponseCode.SUCCESS, remark=remark)


def _null(request: Command, error: FieldError) -> Exception:
    """Refuse a missing number as Apache does; any other error as it is."""
    fields = request.ext_fields
    for name, word in (("queueId", "QueueId"), ("commitOffset", "Offset")):
        if "topic" in fields and name not in fields:
            return RequestError(
                ResponseCode.INVALID_PARAMETER, f"{word} is null, topic is {fields['topic']}"
            )
    return error


def get_max_offset(request: Command, session: Session) -> Command:
    """30: the offset that the next message gets."""
    header = request.read(GetMaxOffset)
    offset = session.state.store.max_offset(header.topic, header.queue_id)
    return request.answer(ResponseCode.SUCCESS, OffsetResponse(offset))


def get_min_offset(request: Command, session: Session) -> Command | Later:
    """31: the smallest offset that can be read."""
    header = request.read(GetMinOffset)
    state = session.state

    def answer(_: Fetched) -> Command:
        offset = state.store.min_offset(header.topic, header.queue_id)
        if state.topics.is_batch(header.topic):
            # As with Apache, an empty batch queue begins at -1, and clients see that.
            has_any = state.store.max_offset(header.topic, header.queue_id) > 0
            offset = offset if has_any else -1
        return request.answer(ResponseCode.SUCCESS, OffsetResponse(offset))

    return answered_of_queues(request, session, [(header.topic, header.queue_id)], answer)


def search_offset_by_timestamp(request: Command, session: Session) -> Command | Later:
    """29: the offset for a store time."""
    header = request.read(SearchOffsetByTimestamp)
    is_upper = (header.boundary_type or "").upper() == "UPPER"
    boundary = Boundary.UPPER if is_upper else Boundary.LOWER
    store = session.state.store

    def search(fetched: Fetched) -> Command | Sequence[Cold]:
        found = store.offset_by_time(
            header.topic, header.queue_id, header.timestamp, boundary, fetched
        )
        if isinstance(found, Cold):
            return [found]
        return request.answer(ResponseCode.SUCCESS, OffsetResponse(found))

    return answered(request, session, search)


def get_earliest_store_time(request: Command, session: Session) -> Command | Later:
    """32: when the first message of a queue was stored."""
    header = request.read(GetEarliestMsgStoretime)

    def look(fetched: Fetched) -> Command | Sequence[Cold]:
        times = StoreTimes(session.state.store, fetched)
        time = times.earliest(header.topic, header.queue_id)
        return times.cold or request.answer(
            ResponseCode.SUCCESS, GetEarliestMsgStoretimeResponse(time)
        )

    return answered_of_queues(request, session, [(header.topic, header.queue_id)], look)
