"""The verbs of a client that send."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from cometmq.client._connections import elapsed_ms
from cometmq.client._core.checking import check_time
from cometmq.client._core.names import check_topic_to_send
from cometmq.client._core.outgoing import (
    AT_ONCE,
    NewMessage,
    Timing,
    bare_properties,
    check_body,
    check_queue_of,
    check_sharding_key,
    properties_text,
    split,
)
from cometmq.client._life import Life
from cometmq.client._receipts import receipt_of, receipts_of
from cometmq.client.errors import ClientError, DeadlineError, UsageError, with_stored
from cometmq.proto.batch import BatchItem

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from cometmq.client._core.queues import Queue
    from cometmq.client.messages import Receipt
    from cometmq.proto.buffer import Buffer


_ONE: Final = (bytes, bytearray, memoryview, str)
"""Sequence types that are one message, and not several."""


class SendVerbs(Life):
    """`send`, `send_oneway` and `send_batch` of a `Client`."""

    async def send(
        self,
        topic: str,
        body: Buffer,
        *,
        key: str | None = None,
        keys: Sequence[str] = (),
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        delay: float | None = None,
        deliver_at: datetime | None = None,
        delay_level: int | None = None,
        sharding_key: str | None = None,
        queue: Queue | None = None,
        flag: int = 0,
        timeout: float | None = None,
    ) -> Receipt:
        """Send one message and wait until a broker has stored it.

        ::

            receipt = await mq.send("orders", b"...", key="o-17", tag="paid", delay=5.0)

        `key` and `keys` let you find the message later. Consumers filter by `tag`, and with SQL by
        `properties`. To deliver it later, give `delay` (seconds), `deliver_at`, or the broker's
        `delay_level` (1 to 18: 1 s, 5 s, 10 s, 30 s, 1 min, ... 2 h). All brokers know the levels,
        and a `delay` that equals one of them; Apache's know other times from 5.0 on. Messages with
        the same `sharding_key` go to the same queue, so they are consumed in order; `queue` names
        the queue outright.

        A failed send is retried within `timeout` seconds, on other brokers first. A CometMQ broker
        stores the message once, however often it is sent there, and after a lost answer it is
        retried only there. Other brokers may store it twice, with the same `id`. If the call is
        cancelled, the message may have been stored.
        """
        message = NewMessage(
            body=body, key=key, keys=keys, tag=tag, properties=properties, flag=flag
        )
        self._check_here()
        topic = self._named(check_topic_to_send(topic))
        if queue is not None:
            check_queue_of(topic, queue)
        parcel = self._parts.packing.pack(
            topic,
            message,
            check_body(body, self.config.body_size_max),
            _timing(delay, deliver_at, delay_level),
            sharding_key,
        )
        return receipt_of(
            parcel.id,
            *await self._parts.producer.send(
                topic,
                parcel,
                queue=queue,
                sharding_key=sharding_key,
                timeout=self._seconds(timeout),
            ),
        )

    async def send_oneway(
        self,
        topic: str,
        body: Buffer,
        *,
        key: str | None = None,
        keys: Sequence[str] = (),
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        queue: Queue | None = None,
    ) -> None:
        """Send one message without waiting for an answer: fast, but it may be lost unnoticed.

        ::

            await mq.send_oneway("metrics", b"...")

        Only the first send has to wait, for the route and the connection.
        """
        message = NewMessage(body=body, key=key, keys=keys, tag=tag, properties=properties)
        self._check_here()
        topic = self._named(check_topic_to_send(topic))
        if queue is not None:
            check_queue_of(topic, queue)
        checked = check_body(body, self.config.body_size_max)
        parcel = self._parts.packing.pack(topic, message, checked, AT_ONCE, sharding_key)
        await self._parts.producer.send_oneway(
            topic, parcel, queue=queue, sharding_key=sharding_key
        )

    async def send_batch(
        self,
        topic: str,
        messages: Sequence[NewMessage | Buffer],
        *,
        sharding_key: str | None = None,
        queue: Queue | None = None,
        timeout: float | None = None,
    ) -> list[Receipt]:
        """Send many messages at once and wait until a broker has stored all of them.

        ::

            await mq.send_batch("orders", [b"one", NewMessage(body=b"two", tag="paid")])

        They go to one queue, in order, in as few requests as `body_size_max` allows. When a request
        fails, the messages of earlier requests are stored, and the error has their receipts
        (`stored`). Batches cannot be delayed.
        """
        self._check_here()
        topic = self._named(check_topic_to_send(topic))
        if queue is not None:
            check_queue_of(topic, queue)
        remaining = self._seconds(timeout)
        if sharding_key is not None:
            check_sharding_key(sharding_key)
        ids, items = self._batch_items(messages)
        parts = split(items, self.config.body_size_max)
        deadline_ms = elapsed_ms() + remaining * 1000
        receipts: list[Receipt] = []
        for part in parts:
            if receipts:
                remaining = (deadline_ms - elapsed_ms()) / 1000
            try:
                if remaining <= 0:
                    raise DeadlineError(f"topic {topic!r}: the time for the batch is over")
                parcel = self._parts.packing.pack_batch(topic, part)
                target, answer, code = await self._parts.producer.send(
                    topic, parcel, queue=queue, sharding_key=sharding_key, timeout=remaining
                )
            except ClientError as error:
                if receipts:
                    raise with_stored(error, receipts) from error
                raise
            queue = target if sharding_key is None else queue
            part_ids = ids[len(receipts) : len(receipts) + len(part)]
            receipts += receipts_of(part_ids, target, answer, code)
        return receipts

    def _batch_items(
        self, messages: Sequence[NewMessage | Buffer]
    ) -> tuple[list[str], list[BatchItem]]:
        _check_list(messages)
        ids = self._parts.identity.new_message_ids(len(messages))
        size_max = self.config.body_size_max
        items: list[BatchItem] = []
        for each, message_id in zip(messages, ids, strict=True):
            if isinstance(each, NewMessage):
                body, text = each.body, properties_text(each, message_id)
                items.append(BatchItem(check_body(body, size_max), text.encode(), each.flag))
            else:
                text = bare_properties(message_id)
                items.append(BatchItem(check_body(each, size_max), text.encode()))
        if not items:
            raise UsageError("messages: must not be empty")
        return ids, items


def _check_list(messages: object) -> None:
    if isinstance(messages, _ONE) or not isinstance(messages, Sequence):
        raise UsageError("messages: must be a list; for a single one, use `send`")


def _timing(delay: float | None, deliver_at: datetime | None, delay_level: int | None) -> Timing:
    if delay is None and deliver_at is None and delay_level is None:
        return AT_ONCE
    at_ms = None
    if deliver_at is not None:
        at_ms = check_time("deliver_at", deliver_at, "datetime.now(UTC) + ...")
    return Timing(delay=delay, deliver_at_ms=at_ms, delay_level=delay_level)
