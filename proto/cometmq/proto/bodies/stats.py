"""Progress of topics and groups (202, 208, 303, 317, 321), consumers (300, 345), rates (315)."""

from __future__ import annotations

from cometmq.proto.bodies.heartbeat import SubscriptionData
from cometmq.proto.bodies.message_queue import MessageQueue
from cometmq.proto.body import F64, Body, empty_table, preset
from cometmq.proto.header import I32, I64


class TopicOffset(Body):
    """The ends of one queue."""

    last_update_timestamp: I64 = preset(0)
    max_offset: I64 = preset(0)
    min_offset: I64 = preset(0)


class TopicStats(Body):
    """The answer to 202."""

    offset_table: dict[MessageQueue, TopicOffset] = empty_table()
    topic_put_tps: F64 = preset(0.0)


class OffsetWrapper(Body):
    """The progress of a group in one queue."""

    broker_offset: I64 = preset(0)
    consumer_offset: I64 = preset(0)
    last_timestamp: I64 = preset(0)
    """When the message before the consumer's offset was stored; 0 if there is none."""

    pull_offset: I64 = preset(0)


class ConsumeStats(Body):
    """The answer to 208."""

    consume_tps: F64 = preset(0.0)
    offset_table: dict[MessageQueue, OffsetWrapper] = empty_table()


class BrokerConsumeStats(Body):
    """The answer to 317: a list of maps, each of a single group."""

    broker_addr: str | None = None
    consume_stats_list: tuple[dict[str, tuple[ConsumeStats, ...]], ...] = preset(())
    total_diff: I64 = preset(0)
    total_inflight_diff: I64 = preset(0)


class QueueTimeSpan(Body):
    """The times of one queue's messages, in ms; the texts are the same in the broker's zone."""

    consume_time_stamp: I64 = preset(0)
    consume_time_stamp_str: str | None = None
    delay_time: I64 = preset(0)
    max_time_stamp: I64 = preset(0)
    max_time_stamp_str: str | None = None
    message_queue: MessageQueue | None = None
    min_time_stamp: I64 = preset(0)
    min_time_stamp_str: str | None = None


class ConsumeTimeSpans(Body):
    """The answer to 303."""

    consume_time_span_set: tuple[QueueTimeSpan, ...] = preset(())


class GroupList(Body):
    """The answer to 300: the groups that consume a topic."""

    group_list: tuple[str, ...] = preset(())


class GroupSubscription(Body):
    """The answer to 345: a group's subscription to a topic; unknown while the group is offline."""

    group: str | None = None
    subscription_data: SubscriptionData | None = None
    topic: str | None = None


class BrokerStatsItem(Body):
    """A sum over a window, per second and per call."""

    average_per_call: F64 = preset(0.0, "avgpt")
    sum: I64 = preset(0)
    tps: F64 = preset(0.0)


class BrokerStats(Body):
    """The answer to 315. Readers index into all three."""

    stats_day: BrokerStatsItem = preset(BrokerStatsItem())
    stats_hour: BrokerStatsItem = preset(BrokerStatsItem())
    stats_minute: BrokerStatsItem = preset(BrokerStatsItem())


class ConsumeQueueData(Body):
    """One entry of a consume queue, and whether it passes the group's filter."""

    bit_map: str | None = None
    eval: bool = preset(False)
    extend_data_json: str | None = None
    msg: str | None = None
    physical_offset: I64 = preset(0, "physicOffset")
    physical_size: I32 = preset(0, "physicSize")
    tags_code: I64 = preset(0)


class ConsumeQueueEntries(Body):
    """The answer to 321."""

    filter_data: str | None = None
    max_queue_index: I64 = preset(0)
    min_queue_index: I64 = preset(0)
    queue_data: tuple[ConsumeQueueData, ...] | None = None
    subscription_data: SubscriptionData | None = None


class ConsumeQueueWriteProgress(Body):
    """The answer to 354: 0 the same, 1 different, 2 still comparing, 3 failed."""

    check_result: str | None = None
    check_status: I32 = preset(0)
