"""A queue of a topic on a broker, which clients lock, assign, pull from and keep offsets of."""

from __future__ import annotations

from cometmq.proto.body import Body
from cometmq.proto.header import I32


class MessageQueue(Body):
    """One queue; hashable, and ordered by topic, broker and queue as Java's `compareTo` orders.

    The order matters: every member of a group sorts the queues and takes its share, and all
    members, Java's and ours, must get the same order. Java compares UTF-16 code units.
    """

    broker_name: str
    queue_id: I32
    topic: str

    def _order(self) -> tuple[bytes, bytes, int]:
        return self.topic.encode("utf-16-be"), self.broker_name.encode("utf-16-be"), self.queue_id

    def __lt__(self, other: MessageQueue) -> bool:
        return self._order() < other._order()

    def __le__(self, other: MessageQueue) -> bool:
        return self._order() <= other._order()

    def __gt__(self, other: MessageQueue) -> bool:
        return self._order() > other._order()

    def __ge__(self, other: MessageQueue) -> bool:
        return self._order() >= other._order()
