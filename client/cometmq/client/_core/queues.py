"""A queue of a topic, and the order in which all members of a group see queues."""

from __future__ import annotations

from typing import NamedTuple

from cometmq.client.errors import UsageError
from cometmq.proto.bodies import MessageQueue


class Queue(NamedTuple):
    """One queue of a topic on a broker.

    ::

        for queue in await mq.queues("orders"):
            print(queue.broker, queue.id)
    """

    topic: str
    broker: str
    id: int

    def __str__(self) -> str:
        """Return it as people write it."""
        return f"{self.topic}@{self.broker}:{self.id}"


def share_order(queue: Queue) -> tuple[bytes, bytes, int]:
    """Return a sort key that orders queues as Java does, by UTF-16 units, for all members alike."""
    return queue.topic.encode("utf-16-be"), queue.broker.encode("utf-16-be"), queue.id


def to_wire(queue: Queue) -> MessageQueue:
    """Convert a queue to the form in bodies."""
    return MessageQueue(broker_name=queue.broker, queue_id=queue.id, topic=queue.topic)


def check_queue(queue: object) -> Queue:
    """Return a queue, or say that it is not one."""
    if not isinstance(queue, Queue):
        raise UsageError(f"queue={queue!r}: must be a Queue, as `Client.queues` and receipts have")
    return queue


def from_wire(queue: MessageQueue) -> Queue:
    """Convert a queue from the form in bodies."""
    return Queue(queue.topic, queue.broker_name, queue.queue_id)
