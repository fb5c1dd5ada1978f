"""Reading a broker in bulk, by our own requests (31001 to 31004).

None of them holds up the loop for more than a few ms: data that is not in memory is read in a
thread, and anything that a request could make long has a limit, after which the client asks again.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from cometmq.broker.errors import RequestError
from cometmq.broker.filter.errors import FilterError
from cometmq.broker.filter.subscriptions import filter_of
from cometmq.broker.handlers.pull_checks import forbidden
from cometmq.broker.handlers.query import go_on_with, indexed
from cometmq.broker.handlers.reading import (
    answered,
    answered_in_slices,
    answered_of_queues,
)
from cometmq.broker.refusals import no_topic
from cometmq.broker.topics import READ
from cometmq.proto.bodies import (
    FoundMessage,
    FoundMessages,
    QueueRange,
    QueueRanges,
    UniqueKeys,
)
from cometmq.proto.codes import ResponseCode
from cometmq.proto.commands.bulk import (
    BulkPullMessage,
    BulkPullMessageResponse,
    FindUniqueKeys,
    GetQueueRanges,
    GetRangeSize,
    GetRangeSizeResponse,
)
from cometmq.proto.commands.pull import ForbiddenType
from cometmq.proto.errors import MessageError
from cometmq.proto.message import read_message
from cometmq.store.disk.cold import Cold
from cometmq.store.errors import CorruptionError
from cometmq.store.messages.reading import ReadStatus

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from cometmq.broker.cold_reads import Fetched
    from cometmq.broker.session import Session, State
    from cometmq.broker.topics import Topic
    from cometmq.net import Later
    from cometmq.proto.command import Command
    from cometmq.proto.message import StoredMessage
    from cometmq.store.index.key_search import KeySearch
    from cometmq.store.messages.reading import Filter

log = logging.getLogger(__name__)

ALIKE_MAX: Final = 32
"""Records looked at for one unique key: all but one have another key with the same hash, or are
copies of the message."""

_NOT_FOUND: Final = {ReadStatus.OFFSET_OVERFLOW_ONE, ReadStatus.OFFSET_FOUND_NULL}
_TO_REPEAT: Final = {ReadStatus.NO_MATCHED_MESSAGE, ReadStatus.MESSAGE_WAS_REMOVING}
_NO_LIMIT: Final = 1 << 62
"""A number of bytes, or a time in ms, that nothing reaches."""


def get_queue_ranges(request: Command, session: Session) -> Command | Later:
    """31001: both ends of every readable queue of a topic, and of the others that have messages.

    All or none: a bulk reader must not mistake the sound queues for all there is. But a damaged
    queue that cannot be read anyway is left out.
    """
    name = request.read(GetQueueRanges).topic
    state = session.state
    topic = _topic(name, state)
    readable, store = range(topic.read_queue_count), state.store
    others = sorted(store.queues.ids(name).difference(readable))

    def answer(_: Fetched) -> Command:
        ranges = [
            QueueRange(
                queue_id=queue_id,
                min_offset=store.min_offset(name, queue_id),
                max_offset=store.max_offset(name, queue_id),
            )
            for queue_id in readable
        ]
        spans = {queue_id: store.queues.span(name, queue_id) for queue_id in others}
        unread = [
            QueueRange(queue_id=queue_id, min_offset=span.min_offset, max_offset=span.max_offset)
            for queue_id, span in spans.items()
            if span is not None and span.min_offset < span.max_offset
        ]
        body = QueueRanges(queues=tuple(ranges), unread=tuple(unread)).encode()
        return request.answer(ResponseCode.SUCCESS, body=body)

    asked = [(name, each) for each in (*readable, *others)]
    return answered_of_queues(request, session, asked, answer)


def bulk_pull_message(request: Command, session: Session) -> Command | Later:
    """31002: messages of a range of a queue, as many as fit; never held.

    It is not told of resets: many ranges may be read at once, each from its own place.
    """
    header = request.read(BulkPullMessage)
    state = session.state
    topic = _topic(header.topic, state)
    _check_queue(header.queue_id, topic)
    _check_group(header, state)
    if state.offsets.resets:
        state.offsets.end_reset(
            header.consumer_group, header.topic, header.queue_id, header.queue_offset
        )
    wanted = _wanted(header, state)
    reader = state.store.reader.in_bulk
    end = min(header.end_offset, state.store.max_offset(header.topic, header.queue_id))
    size_max = min(max(header.max_msg_bytes, 1), state.config.bulk_pull_bytes_max)

    def read(fetched: Fetched) -> Command | Sequence[Cold]:
        try:
            result = reader.read(
                header.topic,
                header.queue_id,
                header.queue_offset,
                max(end, header.queue_offset + 1),
                size_max,
                wanted=wanted,
                fetched=fetched or None,
            )
        except CorruptionError as error:
            log.error("a bulk pull of %r from %s: %s", header.topic, session.peer.host, error)
            return request.answer(ResponseCode.SYSTEM_ERROR, remark=str(error))
        if result.cold:
            return result.cold
        if result.record_count:
            flow = state.traffic.got_flow(header.topic, header.consumer_group)
            flow.take(result.record_count, result.size)
        fields = BulkPullMessageResponse(
            result.next_begin_offset, result.min_offset, result.max_offset, result.record_count
        )
        code = _code(result.status, header.queue_offset)
        return request.answer(code, fields, remark=result.status.name, parts=result.slices)

    return answered(request, session, read)


def get_range_size(request: Command, session: Session) -> Command | Later:
    """31003: the size in bytes of the messages of a range, as far as one look goes."""
    header = request.read(GetRangeSize)
    state = session.state
    _check_queue(header.queue_id, _topic(header.topic, state))
    reader = state.store.reader.in_bulk
    size_max = _NO_LIMIT if header.max_bytes is None else max(header.max_bytes, 0)

    def count(fetched: Fetched) -> Command | Sequence[Cold]:
        found = reader.size_of(
            header.topic,
            header.queue_id,
            header.queue_offset,
            header.end_offset,
            size_max,
            fetched=fetched,
        )
        if isinstance(found, Cold):
            return [found]
        return request.answer(
            ResponseCode.SUCCESS, GetRangeSizeResponse(found.end_offset, found.size)
        )

    return answered(request, session, count)


def find_unique_keys(request: Command, session: Session) -> Command | Later:
    """31004: which of these unique keys are stored, by the index; even those of the last second."""
    header = request.read(FindUniqueKeys)
    keys = UniqueKeys.decode(request.body).keys
    state = session.state
    most = state.config.unique_keys_max
    if len(keys) > most:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, f"{len(keys)} keys are more than unique_keys_max, {most}"
        )
    if state.topics.find(header.topic) is None:  # It need not be readable: writers ask, too.
        raise no_topic(header.topic)
    begun = {key: _begin(key, header, state) for key in keys}
    topic, deletions = header.topic.encode(), state.store.deletions

    def look(fetched: Fetched) -> Generator[None, None, Command | Sequence[Cold]]:
        cold = yield from go_on_with(begun.values())
        if cold:
            return cold
        found: list[FoundMessage] = []
        for key, places in begun.items():
            yield
            for record in _records(places.found[::-1], state, fetched, cold):
                if (
                    record.unique_id == key
                    and record.topic_raw == topic
                    and not deletions.covers(record)
                ):
                    found.append(_found(key, record))
                    break
        body = FoundMessages(messages=tuple(found)).encode()
        return cold or request.answer(ResponseCode.SUCCESS, body=body)

    return answered_in_slices(request, session, look)


def _begin(key: str, header: FindUniqueKeys, state: State) -> KeySearch:
    return indexed(
        state.store.search(
            header.topic,
            key,
            ALIKE_MAX,
            begin_ms=header.begin_timestamp or 0,
            end_ms=_NO_LIMIT,
            now_ms=state.now_ms(),
        )
    )


def _records(
    offsets: Sequence[int], state: State, fetched: Fetched, cold: list[Cold]
) -> Iterator[StoredMessage]:
    """Yield the records at these places; add the data to be fetched to `cold`."""
    for offset in offsets:
        record = state.store.find_record(offset, fetched)
        if isinstance(record, Cold):
            cold.append(record)
        elif record is not None:
            with suppress(MessageError):  # The index names a place, whatever is there.
                yield read_message(bytes(record))


def _found(key: str, record: StoredMessage) -> FoundMessage:
    return FoundMessage(
        key=key,
        physical_offset=record.physical_offset,
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        store_timestamp=record.store_timestamp,
    )


def _code(status: ReadStatus, queue_offset: int) -> ResponseCode:
    """Return the code that a pull would be answered with."""
    if status is ReadStatus.FOUND:
        return ResponseCode.SUCCESS
    if status in _TO_REPEAT:
        return ResponseCode.PULL_RETRY_IMMEDIATELY
    is_new = status is ReadStatus.NO_MESSAGE_IN_QUEUE and queue_offset == 0
    return (
        ResponseCode.PULL_NOT_FOUND
        if is_new or status in _NOT_FOUND
        else ResponseCode.PULL_OFFSET_MOVED
    )


def _topic(name: str, state: State) -> Topic:
    topic = state.topics.find(name)
    if topic is None:
        raise no_topic(name)
    if not topic.config.perm & READ:
        raise forbidden(ForbiddenType.TOPIC, f"the topic[{name}] pulling message is forbidden")
    return topic


def _check_queue(queue_id: int, topic: Topic) -> None:
    if not 0 <= queue_id < topic.read_queue_count:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"queueId[{queue_id}] is illegal, topic:[{topic.config.topic_name}]"
            f" topicConfig.readQueueNums:[{topic.read_queue_count}]",
        )


def _check_group(header: BulkPullMessage, state: State) -> None:
    """Refuse a group that may not consume; a group that does not exist may."""
    group = state.groups.find(header.consumer_group)
    if group is not None and not group.consume_enable:
        raise forbidden(
            ForbiddenType.GROUP, f"subscription group no permission, {header.consumer_group}"
        )
    if not state.groups.may_read(header.consumer_group, header.topic):
        raise forbidden(
            ForbiddenType.SUBSCRIPTION,
            f"the consumer group[{header.consumer_group}] is forbidden for topic[{header.topic}]",
        )


def _wanted(header: BulkPullMessage, state: State) -> Filter | None:
    try:
        return filter_of(header.expression_type, header.subscription, state.config)
    except FilterError as error:
        raise RequestError(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"parse the subscription failed: {error}"
        ) from None
