"""Receipts for stored messages, made from the answers of brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.client._core.queues import Queue
from cometmq.client.messages import Receipt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cometmq.proto.commands import SendMessageResponse


def receipt_of(message_id: str, queue: Queue, answer: SendMessageResponse, code: int) -> Receipt:
    """Make the receipt of one message."""
    if answer.queue_id != queue.id:
        queue = Queue(queue.topic, queue.broker, answer.queue_id)
    return Receipt(
        message_id, queue, answer.queue_offset, answer.msg_id, code, answer.recall_handle
    )


def receipts_of(
    ids: Sequence[str], queue: Queue, answer: SendMessageResponse, code: int
) -> list[Receipt]:
    """Make the receipts of a batch, whose messages have consecutive offsets.

    In a topic of batch queues, the whole batch has one place in the log, and so one offset id.
    """
    queue = Queue(queue.topic, queue.broker, answer.queue_id)
    places = answer.msg_id.split(",")
    if len(places) != len(ids):
        places = places[:1] * len(ids)
    return [
        Receipt(message_id, queue, answer.queue_offset + index, place, code)
        for index, (message_id, place) in enumerate(zip(ids, places, strict=True))
    ]
