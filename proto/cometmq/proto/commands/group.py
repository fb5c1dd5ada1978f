"""Subscription groups on a broker: configuration, progress and offsets."""

from __future__ import annotations

from cometmq.proto.header import I32, Header


class GetAllSubscriptionGroupConfig(Header):
    """201 GET_ALL_SUBSCRIPTIONGROUP_CONFIG: all groups, or from 5.3 on a page of them."""

    group_seq: I32 | None = None
    data_version: str | None = None  # JSON.
    max_group_num: I32 | None = None


class GetAllSubscriptionGroupConfigResponse(Header):
    """The number of groups; without it the body is complete."""

    total_group_num: I32 | None = None


class DeleteSubscriptionGroup(Header):
    """207 DELETE_SUBSCRIPTIONGROUP."""

    group_name: str
    clean_offset: bool = False


class GetSubscriptionGroupConfig(Header):
    """352 GET_SUBSCRIPTIONGROUP_CONFIG."""

    group: str


class UpdateAndGetGroupForbidden(Header):
    """353 UPDATE_AND_GET_GROUP_FORBIDDEN: set, and ask, whether a group may read a topic."""

    group: str
    topic: str
    readable: bool | None = None  # Absent: only ask.


class GetConsumeStats(Header):
    """208 GET_CONSUME_STATS: the progress of a group, queue by queue."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None  # Names joined by semicolons.


class GetBrokerConsumeStats(Header):
    """317 GET_BROKER_CONSUME_STATS: the same for every group of a broker."""

    is_order: bool


class QueryTopicsByConsumer(Header):
    """343 QUERY_TOPICS_BY_CONSUMER: the topics of a group."""

    group: str


class QuerySubscriptionByConsumer(Header):
    """345 QUERY_SUBSCRIPTION_BY_CONSUMER: a group's subscription to a topic."""

    group: str
    topic: str


class QueryCorrectionOffset(Header):
    """308 QUERY_CORRECTION_OFFSET: the smallest offsets of other groups in a topic."""

    compare_group: str
    topic: str
    filter_groups: str | None = None  # Names joined by commas.


class CloneGroupOffset(Header):
    """314 CLONE_GROUP_OFFSET: have one group continue where another does."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False  # Also copy topics that the source group is not subscribed to.
