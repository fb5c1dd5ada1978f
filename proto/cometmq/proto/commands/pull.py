"""Pulling messages from a queue."""

from __future__ import annotations

from enum import IntEnum, IntFlag

from cometmq.proto.codes import ResponseCode
from cometmq.proto.header import I32, I64, Header, wire


class PullSysFlag(IntFlag):
    """What a pull asks for besides messages: the bits of its `sys_flag`.

    Use them to compose a `sys_flag`. To test one, use the properties of `PullMessage`: `&` with a
    member of an `IntFlag` takes fifty times as long as with an integer.
    """

    COMMIT_OFFSET = 1  # Store `commit_offset`.
    SUSPEND = 2  # Hold the request while there is nothing to answer.
    SUBSCRIPTION = 4  # `subscription` is in the request; otherwise the heartbeat's counts.
    CLASS_FILTER = 8  # Obsolete.
    LITE_PULL = 16


_COMMIT_OFFSET = int(PullSysFlag.COMMIT_OFFSET)
_SUSPEND = int(PullSysFlag.SUSPEND)
_SUBSCRIPTION = int(PullSysFlag.SUBSCRIPTION)
_LITE_PULL = int(PullSysFlag.LITE_PULL)


class PullMessage(Header):
    """11 PULL_MESSAGE and 361 LITE_PULL_MESSAGE: messages of one queue, from an offset on."""

    consumer_group: str
    topic: str
    queue_id: I32
    queue_offset: I64
    max_msg_nums: I32
    sys_flag: I32
    commit_offset: I64  # May be -1.
    suspend_timeout_millis: I64
    sub_version: I64  # Of the subscription that the client holds.
    subscription: str | None = None
    expression_type: str = "TAG"  # Or SQL92.
    max_msg_bytes: I32 | None = None
    request_source: I32 | None = None  # -1 an SDK; 0, 1, 2 a proxy: ordered, broadcast, stream.
    proxy_forward_client_id: str | None = wire("proxyFrowardClientId", default=None)
    lite_topic: str | None = None

    @property
    def commits_offset(self) -> bool:
        """Whether `commit_offset` is to be stored."""
        return self.sys_flag & _COMMIT_OFFSET != 0

    @property
    def may_suspend(self) -> bool:
        """Whether to hold the request while there is nothing to answer."""
        return self.sys_flag & _SUSPEND != 0

    @property
    def has_subscription(self) -> bool:
        """Whether `subscription` counts, and not that of the last heartbeat."""
        return self.sys_flag & _SUBSCRIPTION != 0

    @property
    def is_lite(self) -> bool:
        """Whether a lite pull consumer asks."""
        return self.sys_flag & _LITE_PULL != 0


# A pull answered with one of these was served; the answer's header is a `PullMessageResponse`.
PULLED_CODES = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)


class PullMessageResponse(Header):
    """Where the consumer stands after a pull answered with one of `PULLED_CODES`.

    Java unboxes the first four without checking: they are set even if there is no message.
    """

    suggest_which_broker_id: I64  # Pull from this one next; 0 is the master.
    next_begin_offset: I64
    min_offset: I64
    max_offset: I64
    offset_delta: I64 | None = None  # Static topics.
    topic_sys_flag: I32 | None = None
    group_sys_flag: I32 | None = None


class ForbiddenType(IntEnum):
    """What is forbidden if a pull is refused with NO_PERMISSION."""

    BROKER = 1
    GROUP = 2
    TOPIC = 3
    BROADCASTING = 4
    SUBSCRIPTION = 5  # The group on this topic.


class PullMessageRefusal(Header):
    """The field in the answer to a pull refused with NO_PERMISSION."""

    forbidden_type: I32 | None = None
