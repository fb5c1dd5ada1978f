"""Topics on a broker: creating, changing, deleting and describing them."""

from __future__ import annotations

from enum import IntFlag

from cometmq.proto.header import I32, Header


class Permission(IntFlag):
    """What may be done with a topic or a broker: the bits of `perm`.

    Use them to compose or show a `perm`. To test one, use `may_read` and `may_write`: `&` with a
    member of an `IntFlag` takes fifty times as long as with an integer.
    """

    INHERIT = 1  # Other topics may be created from this one as a template.
    WRITE = 2
    READ = 4
    PRIORITY = 8


_WRITE = int(Permission.WRITE)
_READ = int(Permission.READ)


def may_read(perm: int) -> bool:
    """Return whether consumers may read there."""
    return perm & _READ != 0


def may_write(perm: int) -> bool:
    """Return whether producers may send there."""
    return perm & _WRITE != 0


class UpdateAndCreateTopic(Header):
    """17 UPDATE_AND_CREATE_TOPIC and 513 UPDATE_AND_CREATE_STATIC_TOPIC."""

    topic: str
    default_topic: str  # Of no use to the broker.
    read_queue_nums: I32
    write_queue_nums: I32
    perm: I32
    topic_filter_type: str  # SINGLE_TAG or MULTI_TAG.
    topic_sys_flag: I32 = 0  # Bit 0 unit, bit 1 unit subscription.
    order: bool = False
    attributes: str | None = None  # See `topic_attributes`.
    force: bool = False


class DeleteTopicInBroker(Header):
    """215 DELETE_TOPIC_IN_BROKER."""

    topic: str


class GetAllTopicConfig(Header):
    """21 GET_ALL_TOPIC_CONFIG: all topics, or from 5.3 on a page of them."""

    topic_seq: I32 | None = None
    data_version: str | None = None  # JSON.
    max_topic_num: I32 | None = None


class GetAllTopicConfigResponse(Header):
    """The number of topics; without it the body is complete."""

    total_topic_num: I32 | None = None


class GetTopicConfig(Header):
    """351 GET_TOPIC_CONFIG."""

    topic: str


class GetTopicStatsInfo(Header):
    """202 GET_TOPIC_STATS_INFO: the offsets of a topic's queues."""

    topic: str


class QueryTopicConsumeByWho(Header):
    """300 QUERY_TOPIC_CONSUME_BY_WHO: the groups of a topic."""

    topic: str


class QueryConsumeTimeSpan(Header):
    """303 QUERY_CONSUME_TIME_SPAN: store times and delays of a group on a topic."""

    topic: str
    group: str
