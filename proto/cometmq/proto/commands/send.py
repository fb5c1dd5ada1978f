"""Sending: a message, a batch, a reply, or a message that a consumer sends back."""

from __future__ import annotations

from cometmq.proto.codes import ResponseCode
from cometmq.proto.header import I32, I64, Header, wire


class SendMessage(Header):
    """10 SEND_MESSAGE and 324 SEND_REPLY_MESSAGE: a message; its fields have their long names."""

    producer_group: str
    topic: str
    default_topic: str  # The template of a topic that does not exist yet.
    default_topic_queue_nums: I32
    queue_id: I32  # Below 0: the broker picks a write queue.
    sys_flag: I32  # The message's own bits: compression, half message.
    born_timestamp: I64
    flag: I32  # The user's; it has no meaning for a broker.
    properties: str | None = None
    reconsume_times: I32 = 0
    unit_mode: bool = False
    max_reconsume_times: I32 | None = None
    batch: bool = False  # The body is a batch.
    broker_name: str | None = wire("bname", default=None)


class SendMessageV2(SendMessage):
    """310 SEND_MESSAGE_V2, 320, 325 and 31005: each field has a name of one letter.

    It is a `SendMessage` with other names on the wire, to save bytes.
    """

    producer_group: str = wire("a")
    topic: str = wire("b")
    default_topic: str = wire("c")
    default_topic_queue_nums: I32 = wire("d")
    queue_id: I32 = wire("e")
    sys_flag: I32 = wire("f")
    born_timestamp: I64 = wire("g")
    flag: I32 = wire("h")
    properties: str | None = wire("i", default=None)
    reconsume_times: I32 = wire("j", default=0)
    unit_mode: bool = wire("k", default=False)
    max_reconsume_times: I32 | None = wire("l", default=None)
    batch: bool = wire("m", default=False)
    broker_name: str | None = wire("n", default=None)


# A send answered with one of these is stored; the answer's header is a `SendMessageResponse`.
STORED_CODES = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    }
)


class SendMessageResponse(Header):
    """Where the message is stored: the answer to all five sends, with one of `STORED_CODES`."""

    msg_id: str  # The offset message id; for a batch, that of each message, joined by commas.
    queue_id: I32
    queue_offset: I64  # Of the first message; for a half message, its place in the half queue.
    transaction_id: str | None = None  # The message's unique key.
    batch_uniq_id: str | None = None
    recall_handle: str | None = None  # For a message with a delivery time.
    region_id: str | None = wire("MSG_REGION", default=None)
    trace_on: bool | None = wire("TRACE_ON", default=None)  # False: leave this send out of traces.


class SendBatchOnceResponse(Header):
    """31005 SEND_BATCH_ONCE: the result for a batch of which each message is stored once."""

    queue_id: I32  # Where the new messages went.
    stored_count: I32  # The number of new messages; the others were stored before.
    count: I32  # The number of all messages.


class SendMessageRefusal(Header):
    """The fields in the answer to a refused send.

    A reply that could not be handed over may still be stored: the three fields after the second say
    where.
    """

    region_id: str | None = wire("MSG_REGION", default=None)
    trace_on: bool | None = wire("TRACE_ON", default=None)
    msg_id: str | None = None
    queue_id: I32 | None = None
    queue_offset: I64 | None = None
    may_be_stored: bool | None = None  # True: it is written, and nobody knows if it is on the disk.


class ConsumerSendMsgBack(Header):
    """36 CONSUMER_SEND_MSG_BACK: deliver a message again later, or give it up."""

    offset: I64  # Physical.
    group: str
    delay_level: I32  # 0: the broker chooses; below 0: straight to the dead-letter topic.
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: I32 | None = None


class PushReplyMessageToClient(Header):
    """326 PUSH_REPLY_MESSAGE_TO_CLIENT: the broker hands a reply to the requester."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: I32
    queue_id: I32
    sys_flag: I32
    born_timestamp: I64
    flag: I32
    born_host: str  # ip:port, like `store_host`.
    store_host: str
    store_timestamp: I64
    properties: str | None = None
    reconsume_times: I32 | None = None
    unit_mode: bool = False
