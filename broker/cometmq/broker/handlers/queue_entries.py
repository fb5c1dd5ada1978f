"""The raw entries of a queue, and what a group's filter makes of them (321)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from cometmq.broker.errors import RequestError
from cometmq.proto.bodies import ConsumeQueueData, ConsumeQueueEntries
from cometmq.proto.codes import ResponseCode
from cometmq.proto.commands.query import QueryConsumeQueue
from cometmq.store.queues.consume_queue_ext import ADDRESS_MAX

if TYPE_CHECKING:
    from cometmq.broker.session import Session, State
    from cometmq.proto.bodies import SubscriptionData
    from cometmq.proto.command import Command

ENTRIES_MAX: Final = 10_000
"""Of one answer, some 1 MB; who wants more asks again behind them."""


def query_consume_queue(request: Command, session: Session) -> Command:
    """321: entries of a queue from an offset on; an operator looks at few of them."""
    header = request.read(QueryConsumeQueue)
    state = session.state
    topic, queue_id = header.topic, header.queue_id
    count = min(max(header.count, 0), ENTRIES_MAX)
    entries = state.store.queues.entries(topic, queue_id, header.index, count)
    if entries is None:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!")
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
    """What a group wants of the topic: as text, and as it said."""
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
