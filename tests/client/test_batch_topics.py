"""Batches that a broker stores as one record reach consumers message by message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.client import NewMessage

if TYPE_CHECKING:
    from cometmq.testing import Cluster

BODIES = [b"%d" % number for number in range(5)]


def test_of_a_batch_topic_each_message_is_sent_pulled_and_consumed(rocketmq: Cluster) -> None:
    rocketmq.admin.create_topic("B", queues=1, attributes={"queue.type": "BatchCQ"})
    mq = rocketmq.client
    receipts = mq.send_batch("B", [NewMessage(body=body, tag="t") for body in BODIES])
    assert [receipt.offset for receipt in receipts] == [0, 1, 2, 3, 4]
    mq.send("B", b"alone")
    (queue,) = mq.queues("B")
    assert mq.end_offset(queue) == 6
    pulled = mq.pull(queue, 0).messages
    assert [message.body for message in pulled] == [*BODIES, b"alone"]
    assert [message.offset for message in pulled] == [0, 1, 2, 3, 4, 5]
    with mq.consume("B", group="g", start="first") as consumer:
        consumed: list[bytes] = []
        while len(consumed) < 6:
            with next(consumer) as message:
                consumed.append(message.body)
    assert consumed == [*BODIES, b"alone"]
    assert len(rocketmq.sent("B", count=6)) == 6
