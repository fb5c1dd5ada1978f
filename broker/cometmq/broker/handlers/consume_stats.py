"""How far groups are behind: one group (208), all groups (317), and in time (303)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from cometmq.broker.errors import RequestError
from cometmq.broker.handlers.reading import StoreTimes, answered
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
    from collections.abc import Iterable, Iterator, Sequence

    from cometmq.broker.cold_reads import Fetched
    from cometmq.broker.session import Session, State
    from cometmq.net import Later
    from cometmq.proto.command import Command
    from cometmq.store.commit_log import Cold


def get_consume_stats(request: Command, session: Session) -> Command | Later:
    """208: how far a group is in each queue of its topics, or of those that are named."""
    header = request.read(GetConsumeStats)
    state = session.state
    group = header.consumer_group
    named = [name for name in (header.topic_list or "").split(";") if name.strip()]
    topics: Iterable[str] = named
    if not named:
        is_given = header.topic is not None and bool(header.topic.strip())
        asked = (header.topic or "",) if is_given else state.offsets.topics_of(group)
        topics = [topic for topic in asked if _may_want(group, topic, state)]

    def look(fetched: Fetched) -> Command | Sequence[Cold]:
        times = StoreTimes(state.store, fetched)
        table: dict[MessageQueue, OffsetWrapper] = {}
        rate = 0.0
        for topic in topics:
            table |= _reached(group, topic, state, times)
            rate += _rate(group, topic, state)
        body = ConsumeStats(consume_tps=rate, offset_table=table)
        return times.cold or request.answer(ResponseCode.SUCCESS, body=body.encode())

    return answered(request, session, look)


def get_broker_consume_stats(request: Command, session: Session) -> Command | Later:
    """317: how far every group is, topic by topic."""
    is_order = request.read(GetBrokerConsumeStats).is_order
    state = session.state

    def look(fetched: Fetched) -> Command | Sequence[Cold]:
        times = StoreTimes(state.store, fetched)
        stats = {
            group: tuple(_stats_of(group, state, times, is_order=is_order))
            for group in state.groups.configs()
        }
        reached = [
            offset
            for each in stats.values()
            for of_topic in each
            for offset in of_topic.offset_table.values()
        ]
        body = BrokerConsumeStats(
            broker_addr=str(state.address),
            consume_stats_list=tuple({group: each} for group, each in stats.items()),
            total_diff=sum(each.broker_offset - each.consumer_offset for each in reached),
            total_inflight_diff=sum(each.pull_offset - each.consumer_offset for each in reached),
        )
        return times.cold or request.answer(ResponseCode.SUCCESS, body=body.encode())

    return answered(request, session, look)


def _stats_of(
    group: str, state: State, times: StoreTimes, *, is_order: bool
) -> Iterator[ConsumeStats]:
    """How far a group is in each of its topics, or in those that are ordered."""
    for name in state.offsets.topics_of(group):
        topic = state.topics.find(name)
        if topic is None or (is_order and not topic.config.order):
            continue
        if _may_want(group, name, state):
            table = _reached(group, name, state, times)
            yield ConsumeStats(consume_tps=_rate(group, name, state), offset_table=table)


def _may_want(group: str, topic: str, state: State) -> bool:
    """Whether a group subscribes to a topic, as far as it is there to say so."""
    found = state.consumers.find(group)
    return found is None or not found.subscriptions or topic in found.subscriptions


def _rate(group: str, topic: str, state: State) -> float:
    flow = state.traffic.got.get((topic, group))
    if flow is None:
        return 0.0
    return flow.rate(Window.MINUTE, state.elapsed_ms()).messages_per_second


def _reached(
    group: str, topic_name: str, state: State, times: StoreTimes
) -> dict[MessageQueue, OffsetWrapper]:
    """How far a group is in each queue of a topic that it may read."""
    topic = state.topics.find(topic_name)
    if topic is None:
        return {}
    table: dict[MessageQueue, OffsetWrapper] = {}
    for queue_id in range(topic.read_queue_count):
        consumed = state.offsets.find(group, topic_name, queue_id) or 0
        pulled = state.offsets.pulled(group, topic_name, queue_id) or 0
        table[_queue(topic_name, queue_id, state)] = OffsetWrapper(
            broker_offset=state.store.max_offset(topic_name, queue_id),
            consumer_offset=consumed,
            last_timestamp=max(times.at(topic_name, queue_id, consumed - 1), 0),
            pull_offset=max(consumed, pulled),
        )
    return table


def query_consume_time_span(request: Command, session: Session) -> Command | Later:
    """303: from when to when the messages of each queue are, and where a group is in that."""
    header = request.read(QueryConsumeTimeSpan)
    state = session.state
    topic = state.topics.find(header.topic)
    if topic is None:
        raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist")
    queue_count = topic.config.write_queue_nums

    def look(fetched: Fetched) -> Command | Sequence[Cold]:
        times = StoreTimes(state.store, fetched)
        spans = tuple(_span(header, each, state, times) for each in range(queue_count))
        body = ConsumeTimeSpans(consume_time_span_set=spans)
        return times.cold or request.answer(ResponseCode.SUCCESS, body=body.encode())

    return answered(request, session, look)


def _span(
    header: QueryConsumeTimeSpan, queue_id: int, state: State, times: StoreTimes
) -> QueueTimeSpan:
    topic = header.topic
    end = state.store.max_offset(topic, queue_id)
    begin = state.store.min_offset(topic, queue_id)
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
    """A time as Apache's tools print it, in the broker's zone."""
    seconds, milliseconds = divmod(time_ms, 1000)
    return f"{time.strftime('%Y-%m-%d#%H:%M:%S', time.localtime(seconds))}:{milliseconds:03d}"


def _queue(topic: str, queue_id: int, state: State) -> MessageQueue:
    return MessageQueue(broker_name=state.config.broker_name, queue_id=queue_id, topic=topic)
