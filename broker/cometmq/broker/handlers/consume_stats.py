"""The lag of groups: of one group (208), of all groups (317), and in time (303)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from msgspec.json import encode as encode_text

from cometmq.broker.errors import RequestError
from cometmq.broker.handlers.reading import StoreTimes, answered_in_slices
from cometmq.broker.traffic import Window
from cometmq.proto.bodies import (
    BrokerConsumeStats,
    ConsumeStats,
    ConsumeTimeSpans,
    MessageQueue,
    OffsetWrapper,
    QueueTimeSpan,
)
from cometmq.proto.codes import ResponseCode
from cometmq.proto.commands.group import GetBrokerConsumeStats, GetConsumeStats
from cometmq.proto.commands.topic import QueryConsumeTimeSpan

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence

    from cometmq.broker.cold_reads import Fetched
    from cometmq.broker.session import Session, State
    from cometmq.net import Later
    from cometmq.proto.command import Command
    from cometmq.store.disk.cold import Cold
    from cometmq.store.queues.consume_queues import Span


def get_consume_stats(request: Command, session: Session) -> Command | Later:
    """208: the progress of a group in each queue of its topics, or of the named topics."""
    header = request.read(GetConsumeStats)
    state = session.state
    group = header.consumer_group
    named = [name for name in (header.topic_list or "").split(";") if name.strip()]
    topics: Iterable[str] = named
    if not named:
        is_given = header.topic is not None and bool(header.topic.strip())
        asked = (header.topic or "",) if is_given else state.offsets.topics_of(group)
        topics = [topic for topic in asked if _may_want(group, topic, state)]

    def look(fetched: Fetched) -> Generator[None, None, Command | Sequence[Cold]]:
        times = StoreTimes(state.store, fetched)
        table: dict[MessageQueue, OffsetWrapper] = {}
        rate = 0.0
        for topic in topics:
            for queue, offset in _reached(group, topic, state, times):
                table[queue] = offset
                yield
            rate += _rate(group, topic, state)
        body = ConsumeStats(consume_tps=rate, offset_table=table)
        return times.cold or request.answer(
            ResponseCode.SUCCESS, body=body.encode(), remark=times.left_out()
        )

    return answered_in_slices(request, session, look)


def get_broker_consume_stats(request: Command, session: Session) -> Command | Later:
    """317: the progress of every group, topic by topic."""
    is_order = request.read(GetBrokerConsumeStats).is_order
    state = session.state

    def look(fetched: Fetched) -> Generator[None, None, Command | Sequence[Cold]]:
        times = StoreTimes(state.store, fetched)
        groups: list[bytes] = []
        behind = in_flight = 0
        for group in tuple(state.groups.configs()):
            stats: list[bytes] = []
            for name in _topics_of(group, state, is_order=is_order):
                table: dict[MessageQueue, OffsetWrapper] = {}
                for queue, offset in _reached(group, name, state, times):
                    table[queue] = offset
                    behind += offset.broker_offset - offset.consumer_offset
                    in_flight += offset.pull_offset - offset.consumer_offset
                    yield
                rate = _rate(group, name, state)
                stats.append(ConsumeStats(consume_tps=rate, offset_table=table).encode())
            groups.append(b"{%b:[%b]}" % (encode_text(group), b",".join(stats)))
            yield
        return times.cold or request.answer(
            ResponseCode.SUCCESS,
            body=_broker_stats(groups, behind, in_flight, state),
            remark=times.left_out(),
        )

    return answered_in_slices(request, session, look)


def _broker_stats(groups: Sequence[bytes], behind: int, in_flight: int, state: State) -> bytes:
    """Encode the answer to 317 around its encoded parts: encoding all at once takes 0.1 s."""
    body = BrokerConsumeStats(
        broker_addr=str(state.address), total_diff=behind, total_inflight_diff=in_flight
    )
    before, found, after = body.encode().partition(b'"consumeStatsList":[')
    assert found
    return b"".join((before, found, b",".join(groups), after))


def _topics_of(group: str, state: State, *, is_order: bool) -> Iterator[str]:
    """Yield the topics in which a group has offsets; with `is_order`, only the ordered ones."""
    for name in state.offsets.topics_of(group):
        topic = state.topics.find(name)
        is_meant = topic is not None and (topic.config.order or not is_order)
        if is_meant and _may_want(group, name, state):
            yield name


def _may_want(group: str, topic: str, state: State) -> bool:
    """Whether a group subscribes to a topic; true if it has no members that say so."""
    found = state.consumers.find(group)
    return found is None or not found.subscriptions or topic in found.subscriptions


def _rate(group: str, topic: str, state: State) -> float:
    flow = state.traffic.got.get((topic, group))
    if flow is None:
        return 0.0
    return flow.rate(Window.MINUTE, state.elapsed_ms()).messages_per_second


def _reached(
    group: str,
    topic_name: str,
    state: State,
    times: StoreTimes,
) -> Iterator[tuple[MessageQueue, OffsetWrapper]]:
    """Yield each readable queue of a topic with the progress of a group.

    Damaged queues are left out, and noted in `times`.
    """
    topic = state.topics.find(topic_name)
    for queue_id in range(0 if topic is None else topic.read_queue_count):
        if (span := times.span(topic_name, queue_id)) is None:
            continue
        consumed = state.offsets.find(group, topic_name, queue_id) or 0
        pulled = state.offsets.pulled(group, topic_name, queue_id) or 0
        yield (
            _queue(topic_name, queue_id, state),
            OffsetWrapper(
                broker_offset=span.max_offset,
                consumer_offset=consumed,
                last_timestamp=max(times.at(topic_name, queue_id, consumed - 1), 0),
                pull_offset=max(consumed, pulled),
            ),
        )


def query_consume_time_span(request: Command, session: Session) -> Command | Later:
    """303: the time span of the messages in each queue, and where a group is in it."""
    header = request.read(QueryConsumeTimeSpan)
    state = session.state
    topic = state.topics.find(header.topic)
    if topic is None:
        raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist")
    queue_count = topic.config.write_queue_nums

    def look(fetched: Fetched) -> Generator[None, None, Command | Sequence[Cold]]:
        times = StoreTimes(state.store, fetched)
        spans: list[QueueTimeSpan] = []
        for queue_id in range(queue_count):
            if (span := times.span(header.topic, queue_id)) is not None:
                spans.append(_time_span(header, queue_id, span, state, times))
            yield
        body = ConsumeTimeSpans(consume_time_span_set=tuple(spans))
        return times.cold or request.answer(
            ResponseCode.SUCCESS, body=body.encode(), remark=times.left_out()
        )

    return answered_in_slices(request, session, look)


def _time_span(
    header: QueryConsumeTimeSpan, queue_id: int, span: Span, state: State, times: StoreTimes
) -> QueueTimeSpan:
    topic = header.topic
    begin, end = span
    at = max(state.offsets.find(header.group, topic, queue_id) or 0, begin)
    min_ms = times.at(topic, queue_id, begin)
    max_ms = times.at(topic, queue_id, end - 1)
    consumed_ms = times.at(topic, queue_id, at - 1) if at > begin else min_ms
    delay_ms = state.now_ms() - times.at(topic, queue_id, at) if at < end else 0
    return QueueTimeSpan(
        consume_time_stamp=consumed_ms,
        consume_time_stamp_str=_said(consumed_ms),
        delay_time=delay_ms,
        max_time_stamp=max_ms,
        max_time_stamp_str=_said(max_ms),
        message_queue=_queue(topic, queue_id, state),
        min_time_stamp=min_ms,
        min_time_stamp_str=_said(min_ms),
    )


def _said(time_ms: int) -> str:
    """Return a time as Apache's tools print it, in the broker's time zone."""
    seconds, milliseconds = divmod(time_ms, 1000)
    return f"{time.strftime('%Y-%m-%d#%H:%M:%S', time.localtime(seconds))}:{milliseconds:03d}"


def _queue(topic: str, queue_id: int, state: State) -> MessageQueue:
    return MessageQueue(broker_name=state.config.broker_name, queue_id=queue_id, topic=topic)
