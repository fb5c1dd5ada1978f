"""The ends of a topic's queues (202)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.errors import RequestError
from cometmq.broker.handlers.reading import StoreTimes, answered_in_slices
from cometmq.proto.bodies import MessageQueue, TopicOffset, TopicStats
from cometmq.proto.codes import ResponseCode
from cometmq.proto.commands.topic import GetTopicStatsInfo

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from cometmq.broker.cold_reads import Fetched
    from cometmq.broker.session import Session
    from cometmq.net import Later
    from cometmq.proto.command import Command
    from cometmq.store.disk.cold import Cold


def get_topic_stats_info(request: Command, session: Session) -> Command | Later:
    """202: both ends of each queue of a topic, even of empty ones: tools wait for all of them.

    Damaged queues are left out, and the remark names them.
    """
    name = request.read(GetTopicStatsInfo).topic
    state = session.state
    topic = state.topics.find(name)
    if topic is None:
        raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
    queue_count = topic.queue_count

    def look(fetched: Fetched) -> Generator[None, None, Command | Sequence[Cold]]:
        times = StoreTimes(state.store, fetched)
        table: dict[MessageQueue, TopicOffset] = {}
        for queue_id in range(queue_count):
            if (span := times.span(name, queue_id)) is None:
                continue
            end = span.max_offset
            time = times.at(name, queue_id, end - 1) if end > 0 else 0
            queue = MessageQueue(
                broker_name=state.config.broker_name, queue_id=queue_id, topic=name
            )
            table[queue] = TopicOffset(
                last_update_timestamp=time,
                max_offset=end,
                min_offset=max(span.min_offset, 0),
            )
            yield
        return times.cold or request.answer(
            ResponseCode.SUCCESS,
            body=TopicStats(offset_table=table).encode(),
            remark=times.left_out(),
        )

    return answered_in_slices(request, session, look)
