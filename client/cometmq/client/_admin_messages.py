"""Administration of messages: finding them by id and by key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.client._admin_asking import AdminAsking
from cometmq.client._core.names import check_topic
from cometmq.client._core.queues import Queue
from cometmq.client.errors import NotFoundError, UsageError
from cometmq.client.messages import ReceivedMessage
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.commands import QueryMessage, ViewMessageById
from cometmq.proto.errors import RemoteProtocolError
from cometmq.proto.message import read_message
from cometmq.proto.message_id import decode_offset_id
from cometmq.proto.message_list import MessageList

if TYPE_CHECKING:
    from datetime import datetime

    from cometmq.proto.message import StoredMessage

_FAR_MS: Final = (1 << 63) - 1
FIND_COUNT: Final = 32


class MessageAdmin(AdminAsking):
    """The calls about messages; see `Admin`."""

    async def message(self, offset_id: str) -> ReceivedMessage:
        """Return a message by the id that says where it lies; a `NotFoundError` if it is gone.

        ::

            message = await mq.admin.message(receipt.offset_id)
        """
        try:
            place = decode_offset_id(offset_id)
        except RemoteProtocolError as error:
            raise UsageError(
                f"{error}; it is `Receipt.offset_id` that says where it lies"
            ) from None
        address = str(place.address)
        names = {
            each: broker.name
            for broker in await self.brokers()
            for each in broker.addresses.values()
        }
        if address not in names:
            raise NotFoundError(
                ResponseCode.BROKER_NOT_EXIST, f"no broker is at {address}", "the name server"
            )
        header = ViewMessageById(place.physical_offset)
        response = await self._ask(address, RequestCode.VIEW_MESSAGE_BY_ID, header)
        return self._received(read_message(bytes(response.body or b"")), names[address])

    async def find_messages(
        self,
        topic: str,
        key: str,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        count: int = FIND_COUNT,
    ) -> list[ReceivedMessage]:
        """Return the messages of a topic that have a key, or the id that `send` gave; maybe none.

        ::

            for message in await mq.admin.find_messages("orders", "o-17"):
                print(message.stored_at, message.body)

        Up to `count` of each broker, the newest first; `since` and `until` are when they were
        stored. A broker's index is some moments behind its log.
        """
        if count < 1:
            raise UsageError(f"count={count}: at least 1")
        begin_ms = 0 if since is None else int(since.timestamp() * 1000)
        end_ms = _FAR_MS if until is None else int(until.timestamp() * 1000)
        header = QueryMessage(check_topic(topic), key, count, begin_ms, end_ms)
        found: list[ReceivedMessage] = []
        for broker, address in (await self._masters(None)).items():
            try:
                response = await self._ask(address, RequestCode.QUERY_MESSAGE, header)
            except NotFoundError:
                continue
            for stored in MessageList(bytes(response.body or b"")):
                message = self._received(stored, broker)
                if key in message.keys or key == message.id:  # The index knows hashes only.
                    found.append(message)
        return sorted(found, key=lambda each: each.stored_at, reverse=True)

    def _received(self, stored: StoredMessage, broker: str) -> ReceivedMessage:
        config = self._get_parts().config
        queue = Queue(stored.topic, broker, stored.queue_id)
        return ReceivedMessage(stored, queue, config.inflated_size_max)
