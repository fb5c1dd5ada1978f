"""POP consumption: the broker keeps who is working on what, the client holds a handle."""

from __future__ import annotations

from cometmq.proto.header import I32, I64, Header, wire


class PopMessage(Header):
    """200050 POP_MESSAGE: messages that stay hidden from others for a time."""

    consumer_group: str
    topic: str
    queue_id: I32  # -1: any.
    max_msg_nums: I32
    invisible_time: I64  # In ms, as all times here.
    poll_time: I64
    born_time: I64  # The client's clock: a request that waited too long is not served.
    init_mode: I32  # Of a group without an offset: 0 from the first message, 1 from the next.
    filter_type: str | None = wire("expType", default=None)  # TAG or SQL92.
    filter: str | None = wire("exp", default=None)
    order: bool = False
    attempt_id: str | None = None  # The same in a repetition of an ordered pop.


class PopMessageResponse(Header):
    """What makes handles of the messages: the answer of 200050 and 200052.

    The texts, which `pop_handle` reads, come with messages only.
    """

    pop_time: I64
    invisible_time: I64
    revive_qid: I32  # 999 in ordered mode.
    rest_num: I64  # Messages that are left.
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class PopMessageRefusal(Header):
    """What a pop without messages is told: zeros, if it came far enough to be told anything.

    One that waited in vain (POLLING_TIMEOUT) is told the times, and texts that are empty.
    """

    pop_time: I64 | None = None
    invisible_time: I64 | None = None
    revive_qid: I32 | None = None
    rest_num: I64 | None = None
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class PeekMessage(Header):
    """200052 PEEK_MESSAGE: look, and hide nothing."""

    topic: str
    queue_id: I32  # -1: all.
    max_msg_nums: I32
    consumer_group: str


class AckMessage(Header):
    """200051 ACK_MESSAGE: done with it."""

    consumer_group: str
    topic: str
    queue_id: I32
    extra_info: str  # The handle: see `pop_handle`.
    offset: I64
    lite_topic: str | None = None


class ChangeMessageInvisibleTime(Header):
    """200053 CHANGE_MESSAGE_INVISIBLETIME: hide it for this long from now on."""

    consumer_group: str
    topic: str
    queue_id: I32
    extra_info: str  # The handle: see `pop_handle`.
    offset: I64
    invisible_time: I64
    lite_topic: str | None = None
    suspend: bool | None = None


class ChangeMessageInvisibleTimeResponse(Header):
    """What makes the message's new handle."""

    pop_time: I64
    invisible_time: I64
    revive_qid: I32


class Notification(Header):
    """200054 NOTIFICATION: tell me when there is something to pop."""

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
    """Whether there is something, or too many wait already."""

    has_msg: bool
    polling_full: bool = False


class PollingInfo(Header):
    """200055 POLLING_INFO: how many requests are held?"""

    consumer_group: str
    topic: str
    queue_id: I32


class PollingInfoResponse(Header):
    """How many requests are held."""

    polling_num: I32
