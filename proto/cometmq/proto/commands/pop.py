"""POP consumption: the broker tracks the messages being worked on, the client has a handle."""

from __future__ import annotations

from cometmq.proto.header import I32, I64, Header, wire


class PopMessage(Header):
    """200050 POP_MESSAGE: take messages, which stay hidden from others for a time."""

    consumer_group: str
    topic: str
    queue_id: I32  # -1: any.
    max_msg_nums: I32
    invisible_time: I64  # In ms, like all times here.
    poll_time: I64
    born_time: I64  # By the client's clock: a request that waited too long is not served.
    init_mode: I32  # For a group without an offset: 0 from the first message, 1 from the next.
    filter_type: str | None = wire("expType", default=None)  # TAG or SQL92.
    filter: str | None = wire("exp", default=None)
    order: bool = False
    attempt_id: str | None = None  # The same when an ordered pop is repeated.


class PopMessageResponse(Header):
    """The answer to 200050 and 200052, from which the handles of the messages are made.

    The texts, which `pop_handle` reads, come only with messages.
    """

    pop_time: I64
    invisible_time: I64
    revive_qid: I32  # 999 in ordered mode.
    rest_num: I64  # Remaining messages.
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class PopMessageRefusal(Header):
    """The answer to a pop without messages: zeros, if it got far enough to have fields at all.

    After waiting in vain (POLLING_TIMEOUT), it has the times, and empty texts.
    """

    pop_time: I64 | None = None
    invisible_time: I64 | None = None
    revive_qid: I32 | None = None
    rest_num: I64 | None = None
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class PeekMessage(Header):
    """200052 PEEK_MESSAGE: look at messages without hiding them."""

    topic: str
    queue_id: I32  # -1: all.
    max_msg_nums: I32
    consumer_group: str


class AckMessage(Header):
    """200051 ACK_MESSAGE: a message is done."""

    consumer_group: str
    topic: str
    queue_id: I32
    extra_info: str  # The handle: see `pop_handle`.
    offset: I64
    lite_topic: str | None = None


class ChangeMessageInvisibleTime(Header):
    """200053 CHANGE_MESSAGE_INVISIBLETIME: hide a message for this long from now on."""

    consumer_group: str
    topic: str
    queue_id: I32
    extra_info: str  # The handle: see `pop_handle`.
    offset: I64
    invisible_time: I64
    lite_topic: str | None = None
    suspend: bool | None = None


class ChangeMessageInvisibleTimeResponse(Header):
    """The parts of the message's new handle."""

    pop_time: I64
    invisible_time: I64
    revive_qid: I32


class Notification(Header):
    """200054 NOTIFICATION: ask to be told when there is something to pop."""

    consumer_group: str
    topic: str
    queue_id: I32
    poll_time: I64
    born_time: I64
    order: bool = False
    attempt_id: str | None = None
    filter_type: str | None = wire("expType", default=None)
    filter: str | None = wire("exp", default=None)


class NotificationResponse(Header):
    """Whether there is something to pop, or too many requests are waiting already."""

    has_msg: bool
    polling_full: bool = False


class PollingInfo(Header):
    """200055 POLLING_INFO: ask how many requests are held."""

    consumer_group: str
    topic: str
    queue_id: I32


class PollingInfoResponse(Header):
    """The number of held requests."""

    polling_num: I32
