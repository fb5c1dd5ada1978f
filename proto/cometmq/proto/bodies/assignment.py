"""Queues assigned by the broker (400), and whether a group pulls or pops (401, 402)."""

from __future__ import annotations

from cometmq.proto.bodies.enums import MessageModel, MessageRequestMode
from cometmq.proto.bodies.message_queue import MessageQueue
from cometmq.proto.body import Body, empty_table, preset
from cometmq.proto.header import I32


class QueryAssignment(Body):
    """400: ask which queues of a topic are assigned to a client."""

    client_id: str
    consumer_group: str
    message_model: MessageModel = preset(MessageModel.CLUSTERING)
    strategy_name: str | None = None
    """`AVG` or `AVG_BY_CIRCLE`."""

    topic: str


class MessageQueueAssignment(Body):
    """One queue of the answer; queue id -1 means all queues of the broker."""

    attachments: dict[str, str] | None = None
    message_queue: MessageQueue
    mode: MessageRequestMode = preset(MessageRequestMode.PULL)


class MessageQueueAssignments(Body):
    """The answer to 400; without a list the client keeps what it has."""

    message_queue_assignments: tuple[MessageQueueAssignment, ...] | None = None


class SetMessageRequestMode(Body):
    """401, and one entry of the answer to 402."""

    consumer_group: str
    mode: MessageRequestMode = preset(MessageRequestMode.PULL)
    pop_share_queue_num: I32 = preset(0)
    topic: str


class MessageRequestModes(Body):
    """The answer to 402: by topic and group."""

    message_request_mode_map: dict[str, dict[str, SetMessageRequestMode]] = empty_table()
