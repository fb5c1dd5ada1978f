"""Locking queues for consumption in order (41), and giving them back (42)."""

from __future__ import annotations

from cometmq.proto.bodies.message_queue import MessageQueue
from cometmq.proto.body import Body, preset


class LockBatch(Body):
    """41 and 42: the queues that a client wants to lock, or to give back."""

    client_id: str
    consumer_group: str
    mq_set: tuple[MessageQueue, ...] = preset(())
    only_this_broker: bool = preset(False)


class LockedQueues(Body):
    """The answer to 41: the queues that the client holds now."""

    lock_ok_mq_set: tuple[MessageQueue, ...] = preset((), "lockOKMQSet")
