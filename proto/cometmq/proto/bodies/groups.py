"""Consumer groups: their configuration (200, 201, 225, 352), and forbidden topics (353)."""

from __future__ import annotations

from cometmq.proto.bodies.data_version import DataVersion
from cometmq.proto.bodies.enums import GroupRetryPolicyType
from cometmq.proto.body import Body, empty_table, preset
from cometmq.proto.header import I32, I64


class ExponentialRetryPolicy(Body):
    """Each delay is the previous one times `multiplier`; in ms."""

    initial: I64 = preset(5_000)
    max: I64 = preset(7_200_000)
    multiplier: I64 = preset(2)


class CustomizedRetryPolicy(Body):
    """The delays one by one, in ms."""

    next: tuple[I64, ...] = preset(())


class GroupRetryPolicy(Body):
    """How long POP waits before it delivers a message again."""

    customized_retry_policy: CustomizedRetryPolicy | None = None
    exponential_retry_policy: ExponentialRetryPolicy | None = None
    type: GroupRetryPolicyType = preset(GroupRetryPolicyType.CUSTOMIZED)


class SimpleSubscriptionData(Body):
    """A subscription in the configuration of a group."""

    expression: str | None = None
    expression_type: str | None = None
    topic: str
    version: I64 = preset(0)


class SubscriptionGroupConfig(Body):
    """200 and the answer to 352: the configuration of one group on one broker."""

    attributes: dict[str, str] = empty_table()
    broker_id: I64 = preset(0)
    consume_broadcast_enable: bool = preset(True)
    consume_enable: bool = preset(True)
    consume_from_min_enable: bool = preset(True)
    consume_message_orderly: bool = preset(False)
    consume_timeout_minute: I32 = preset(15)
    group_name: str
    group_retry_policy: GroupRetryPolicy = preset(GroupRetryPolicy())
    group_sys_flag: I32 = preset(0)
    notify_consumer_ids_changed_enable: bool = preset(True)
    retry_max_times: I32 = preset(16)
    retry_queue_nums: I32 = preset(1)
    subscription_data_set: tuple[SimpleSubscriptionData, ...] | None = None
    which_broker_when_consume_slowly: I64 = preset(1)


class SubscriptionGroupTable(Body):
    """The answer to 201: all groups of a broker."""

    data_version: DataVersion = preset(DataVersion())
    forbidden_table: dict[str, dict[str, I32]] = empty_table()
    """What is forbidden, as a bit set by group and topic."""

    subscription_group_table: dict[str, SubscriptionGroupConfig] = empty_table()


class SubscriptionGroupList(Body):
    """225: groups to create or change."""

    group_config_list: tuple[SubscriptionGroupConfig, ...] = preset(())


class GroupForbidden(Body):
    """The answer to 353: whether the group may read the topic."""

    group: str | None = None
    readable: bool | None = None
    topic: str | None = None
