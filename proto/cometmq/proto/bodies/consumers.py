"""The members of a consumer group: their ids (38), and the state of one (307, 309)."""

from __future__ import annotations

from cometmq.proto.bodies.enums import ConsumeResult
from cometmq.proto.bodies.heartbeat import SubscriptionData
from cometmq.proto.bodies.message_queue import MessageQueue
from cometmq.proto.body import F64, Body, empty_table, preset
from cometmq.proto.header import I32, I64


class ConsumerList(Body):
    """The answer to 38: the client ids of a group's members."""

    consumer_id_list: tuple[str, ...] = preset(())


class ProcessQueueInfo(Body):
    """A queue as a push consumer sees it. `droped` is spelt like this on the wire."""

    cached_msg_count: I32 = preset(0)
    cached_msg_max_offset: I64 = preset(0)
    cached_msg_min_offset: I64 = preset(0)
    cached_msg_size_in_mib: I32 = preset(0, "cachedMsgSizeInMiB")
    commit_offset: I64 = preset(0)
    dropped: bool = preset(False, "droped")
    last_consume_timestamp: I64 = preset(0)
    last_lock_timestamp: I64 = preset(0)
    last_pull_timestamp: I64 = preset(0)
    locked: bool = preset(False)
    transaction_msg_count: I32 = preset(0)
    transaction_msg_max_offset: I64 = preset(0)
    transaction_msg_min_offset: I64 = preset(0)
    try_unlock_times: I64 = preset(0)


class PopProcessQueueInfo(Body):
    """A queue as a POP consumer sees it."""

    dropped: bool = preset(False, "droped")
    last_pop_timestamp: I64 = preset(0)
    wait_ack_count: I32 = preset(0)


class ConsumeStatus(Body):
    """Consumption of a topic: times in ms, rates per second over the last minute."""

    consume_failed_msgs: I64 = preset(0)
    consume_failed_tps: F64 = preset(0.0, "consumeFailedTPS")
    consume_ok_tps: F64 = preset(0.0, "consumeOKTPS")
    consume_rt: F64 = preset(0.0, "consumeRT")
    pull_rt: F64 = preset(0.0, "pullRT")
    pull_tps: F64 = preset(0.0, "pullTPS")


class ConsumerRunningInfo(Body):
    """The answer to 307: everything that a consumer reports about itself."""

    jstack: str | None = None
    mq_pop_table: dict[MessageQueue, PopProcessQueueInfo] = empty_table()
    mq_table: dict[MessageQueue, ProcessQueueInfo] = empty_table()
    properties: dict[str, str] = empty_table()
    """All settings as text, and `PROP_…` about the client itself."""

    status_table: dict[str, ConsumeStatus] = empty_table()
    subscription_set: tuple[SubscriptionData, ...] = preset(())
    user_consumer_info: dict[str, str] = empty_table()


class ConsumeMessageDirectlyResult(Body):
    """The answer to 309: the listener's result for the message."""

    auto_commit: bool = preset(True)
    consume_result: ConsumeResult | None = None
    order: bool = preset(False)
    remark: str | None = None
    spent_time_ms: I64 = preset(0, "spentTimeMills")
