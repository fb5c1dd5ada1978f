"""Requests and replies: send a message and wait for an answer from its consumer.

How it works. The request is an ordinary message with a correlation id and the name of its sender.
Its consumer sends the reply to the broker that has the request, and the broker pushes the reply
over the sender's connection. Replies are not stored: if the sender is gone, the reply is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.client._connections import elapsed_ms
from cometmq.client._core.names import check_topic_to_send
from cometmq.client._core.outgoing import AT_ONCE, NewMessage, check_body
from cometmq.client._life import Life
from cometmq.client.errors import UsageError
from cometmq.proto import property_names as names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cometmq.client._parts import Parts
    from cometmq.client.messages import ReceivedMessage, Reply
    from cometmq.proto.buffer import Buffer


class RequestVerbs(Life):
    """`request` of a `Client`."""

    async def request(
        self,
        topic: str,
        body: Buffer,
        *,
        key: str | None = None,
        keys: Sequence[str] = (),
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        timeout: float | None = None,
    ) -> Reply:
        """Send a message and wait for its consumer's reply.

        ::

            reply = await mq.request("quotes", b"CHF", timeout=2)

        Consumers reply with `Message.reply`. If no reply comes within `timeout` seconds, a
        `DeadlineError` is raised; the request may still be in a queue, or already handled. If
        several consumers reply, the first reply counts.
        """
        self._check_here()
        topic = self._named(check_topic_to_send(topic))
        seconds = self._seconds(timeout)
        message = NewMessage(body=body, key=key, keys=keys, tag=tag, properties=properties)
        checked = check_body(body, self.config.body_size_max)
        deadline_ms = elapsed_ms() + seconds * 1000
        parts = self._parts
        more = self._requests.begin(parts.identity.client_id, seconds)
        correlation_id = more[names.CORRELATION_ID]
        try:
            parcel = parts.packing.pack(topic, message, checked, AT_ONCE, sharding_key, more)
            await parts.producer.send(
                topic, parcel, queue=None, sharding_key=sharding_key, timeout=seconds
            )
            return await self._requests.reply(correlation_id, (deadline_ms - elapsed_ms()) / 1000)
        finally:
            self._requests.end(correlation_id)


async def send_reply(
    parts: Parts,
    request: ReceivedMessage,
    body: Buffer,
    properties: Mapping[str, str] | None,
) -> None:
    """Send the reply to a request."""
    asked = request.properties
    cluster, correlation_id = asked.get(names.CLUSTER), asked.get(names.CORRELATION_ID)
    reply_to = asked.get(names.REPLY_TO_CLIENT)
    if not cluster or not correlation_id or not reply_to:
        raise UsageError(f"{request!r} is not a request: nobody waits for a reply")
    more = {
        names.MSG_TYPE: "reply",
        names.CORRELATION_ID: correlation_id,
        names.REPLY_TO_CLIENT: reply_to,
    }
    if ttl := asked.get(names.TTL):
        more[names.TTL] = ttl
    checked = check_body(body, parts.config.body_size_max)
    message = NewMessage(body=checked, properties=properties)
    topic = f"{cluster}_REPLY_TOPIC"
    parcel = parts.packing.pack(topic, message, checked, AT_ONCE, None, more)
    await parts.producer.send_reply(request.queue, topic, parcel)
