"""Administration of messages: finding them by id and by key."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import anyio

from cometmq.client._admin_topics import TopicAdmin
from cometmq.client._core.checking import check_time, check_whole
from cometmq.client._core.names import check_topic
from cometmq.client._core.queues import Queue
from cometmq.client._core.trace_format import TRACE_TOPIC, TraceStep, steps_of
from cometmq.client.errors import (
    ClientError,
    NotFoundError,
    ProtocolViolationError,
    UsageError,
)
from cometmq.client.messages import ReceivedMessage
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.commands import QueryMessage, ViewMessageById
from cometmq.proto.errors import MessageError, RemoteProtocolError
from cometmq.proto.message import read_message
from cometmq.proto.message_id import decode_offset_id

if TYPE_CHECKING:
    from datetime import datetime

    from cometmq.proto.message import StoredMessage

_FAR_MS: Final = (1 << 63) - 1
_INDEX_GRAIN_MS: Final = 1000
_ID: Final = re.compile(r"[0-9A-Fa-f]{32,64}", re.ASCII)
_TOPICS_AT_ONCE: Final = 16
FIND_COUNT: Final = 32
TRACE_COUNT: Final = 256
"""How many trace messages of each broker are read for one message."""


class MessageAdmin(TopicAdmin):
    """The calls about messages; see `Admin`."""

    async def message(self, identifier: str, *, topic: str | None = None) -> ReceivedMessage:
        """Return a message by its id or its offset id; `NotFoundError` if it is gone.

        ::

            message = await mq.admin.message(receipt.id)

        `Receipt.offset_id` names its place, which is quickest. `Receipt.id` is looked up in the
        indexes of `topic`, or of all topics if none is given, which may take a while if there are
        thousands. A broker's index lags some moments behind its log.
        """
        if topic is None:
            place = await self._place(identifier)
            if place is not None:
                return await self._at(*place)
        topics = [check_topic(topic)] if topic is not None else await self._not_the_systems()
        found: list[ReceivedMessage] = []
        failed: list[ClientError] = []
        limiter = anyio.CapacityLimiter(_TOPICS_AT_ONCE)

        async def look_into(name: str) -> None:
            async with limiter:
                if not found and not failed:
                    try:
                        found.extend(await self.find_messages(name, identifier, count=1))
                    except ClientError as error:
                        failed.append(error)

        async with anyio.create_task_group() as tasks:
            for name in topics:
                tasks.start_soon(look_into, name)
        if found:
            return found[0]
        if failed:
            raise failed[0]
        where = topic if topic is not None else f"any of {len(topics)} topics"
        raise NotFoundError(
            ResponseCode.QUERY_NOT_FOUND,
            f"no message with the id {identifier} in {where}",
            "the cluster",
        )

    async def _not_the_systems(self) -> list[str]:
        return [each.name for each in await self.topics() if each.kind != "system"]

    async def _place(self, identifier: object) -> tuple[str, str, int] | None:
        """Decode an offset id into broker, address and offset; None if it is no offset id.

        An id made by a client may be as long, but begins with the client's address, not a broker's.
        """
        if not isinstance(identifier, str) or _ID.fullmatch(identifier) is None:
            raise UsageError(
                f"id {identifier!r}: must be 32 hexadecimal digits or more, as `send` returns them"
            )
        try:
            place = decode_offset_id(identifier)
        except RemoteProtocolError:
            return None
        address = str(place.address)
        for broker in await self.brokers():
            if address in broker.addresses.values():
                return broker.name, address, place.physical_offset
        return None

    async def _at(self, broker: str, address: str, physical_offset: int) -> ReceivedMessage:
        header = ViewMessageById(physical_offset)
        response = await self._ask(address, RequestCode.VIEW_MESSAGE_BY_ID, header)
        try:
            stored = read_message(bytes(response.body or b""))
        except MessageError as error:
            raise ProtocolViolationError(response.code, str(error), address) from None
        return self._received(stored, broker)

    async def find_messages(
        self,
        topic: str,
        key: str,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        count: int = FIND_COUNT,
    ) -> list[ReceivedMessage]:
        """Return the messages of a topic with a key, or with the id that `send` returned.

        ::

            for message in await mq.admin.find_messages("orders", "o-17"):
                print(message.stored_at, message.body)

        It returns up to `count` messages of each broker, newest first, that were stored at or after
        `since` and before `until`. A broker's index lags some moments behind its log.
        """
        check_whole("count", count, 1)
        if not key:
            raise UsageError(
                "key: must not be empty; give one that messages were sent with, or an id"
            )
        begin_ms = 0 if since is None else check_time("since", since)
        end_ms = _FAR_MS if until is None else check_time("until", until)
        if begin_ms >= end_ms:
            raise UsageError("since: must be before until")
        # An index has times in seconds, and Apache's broker compares with these.
        asked_ms = max(0, begin_ms - _INDEX_GRAIN_MS)
        header = QueryMessage(check_topic(topic), key, count, asked_ms, end_ms - 1)
        found: list[ReceivedMessage] = []
        for broker, address in (await self._masters(None)).items():
            try:
                response = await self._ask(address, RequestCode.QUERY_MESSAGE, header)
            except NotFoundError:
                continue
            for stored in self._read_messages(address, response):
                message = self._received(stored, broker)
                is_of_key = key in message.keys or key == message.id  # The index knows hashes only.
                if is_of_key and begin_ms <= stored.store_timestamp < end_ms:
                    found.append(message)
        return sorted(found, key=lambda each: each.stored_at, reverse=True)

    async def message_trace(self, message_id: str, topic: str = TRACE_TOPIC) -> list[TraceStep]:
        """Return the steps that clients have traced for a message, by the id that `send` returned.

        ::

            for step in await mq.admin.message_trace(receipt.id):
                print(step.at, step.kind, step.group, step.result)

        Clients in any language trace if told to (`ClientConfig.trace`, Java's `enableMsgTrace`);
        they write their traces some times a second.
        """
        found = await self.find_messages(topic, message_id, count=TRACE_COUNT)
        return steps_of(message_id, (each.body.decode(errors="replace") for each in found))

    def _received(self, stored: StoredMessage, broker: str) -> ReceivedMessage:
        config = self._get_parts().config
        queue = Queue(stored.topic, broker, stored.queue_id)
        return ReceivedMessage(stored, queue, config.inflated_size_max)
