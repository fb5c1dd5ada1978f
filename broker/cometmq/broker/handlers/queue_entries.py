"""The raw entries of a queue, and a group's filter for them (321)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from cometmq.broker.errors import RequestError
from cometmq.broker.handlers.reading import answered
from cometmq.proto.bodies import ConsumeQueueData, ConsumeQueueEntries
from cometmq.proto.codes import ResponseCode
from cometmq.proto.commands.query import QueryConsumeQueue
from cometmq.store.disk.cold import Cold
from cometmq.store.queues.consume_queue_ext import ADDRESS_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cometmq.broker.cold_reads import Fetched
    from cometmq.broker.session import Session, State
    from cometmq.net import Later
    from cometmq.proto.bodies import SubscriptionData
    from cometmq.proto.command import Command

ENTRIES_MAX: Final = 10_000
"""Entries of one answer, some 1 MB; a client that wants more asks again from there."""


def query_consume_queue(request: Command, session: Session) -> Command | Later:
    """321: entries of a queue, from an offset on, for an operator."""
    header = request.read(QueryConsumeQueue)
    topic, queue_id = header.topic, header.queue_id
    queues = session.state.store.queues
    count = min(max(header.count, 0), ENTRIES_MAX)

    def look(fetched: Fetched) -> Command | Sequence[Cold]:
        queue = queues.find(topic, queue_id)
        if queue is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!")
        entries = queue.without_waiting(
            lambda: queues.entries(topic, queue_id, header.index, count) or [], fetched
        )
        if isinstance(entries, Cold):
            return [entries]
        return _answer(request, header, session.state, entries)

    return answered(request, session, look)


def _answer(
    request: Command,
    header: QueryConsumeQueue,
    state: State,
    entries: list[tuple[int, int, int]],
) -> Command:
    topic, queue_id = header.topic, header.queue_id
    low, high = state.store.min_offset(topic, queue_id), state.store.max_offset(topic, queue_id)
    if not low <= header.index < high:
        return request.answer(
            ResponseCode.SUCCESS,
            remark=f"Index {header.index} of {queue_id}@{topic} is not exist!",
        )
    filter_data, subscription = _filter_of(header, state)
    body = ConsumeQueueEntries(
        filter_data=filter_data,
        max_queue_index=high,
        min_queue_index=low,
        queue_data=tuple(_said(*entry) for entry in entries),
        subscription_data=subscription,
    )
    return request.answer(ResponseCode.SUCCESS, body=body.encode())


def _said(physical_offset: int, size: int, code: int) -> ConsumeQueueData:
    is_address = code <= ADDRESS_MAX
    return ConsumeQueueData(
        physical_offset=physical_offset,
        physical_size=size,
        tags_code=code,
        msg=f"Cq extend not exist!addr: {code}" if is_address else None,
    )


def _filter_of(
    header: QueryConsumeQueue, state: State
) -> tuple[str | None, SubscriptionData | None]:
    """Return a group's filter as text, and its subscription to the topic."""
    group = header.consumer_group
    if group is None:
        return None, None
    wanted = state.consumers.subscription(group, header.topic)
    if wanted is None:
        return f"{group}@{header.topic} is not online!", None
    if wanted.expression_type in ("", "TAG"):
        return "null", wanted
    data = {
        "clientVersion": wanted.sub_version,
        "consumerGroup": group,
        "expression": wanted.sub_string,
        "expressionType": wanted.expression_type,
        "topic": header.topic,
    }
    return json.dumps(data, indent="\t"), wanted
