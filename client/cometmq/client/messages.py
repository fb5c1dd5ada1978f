"""The results that a client returns: receipts of sends, received messages, results of pulls."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, Self, TypeVar

from cometmq.client._core.checking import time_at
from cometmq.client._core.names import without_namespace
from cometmq.client._core.queues import Queue
from cometmq.proto import property_names as names
from cometmq.proto.batch import unwrap_batch
from cometmq.proto.codes import ResponseCode
from cometmq.proto.java import text_of
from cometmq.proto.properties import decode_properties, find_property

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime

    from cometmq.proto.message import StoredMessage

__all__ = ["Pulled", "Queue", "Receipt", "ReceivedMessage", "Reply"]

_STATUS = {
    int(ResponseCode.SUCCESS): "ok",
    int(ResponseCode.FLUSH_DISK_TIMEOUT): "flush-timeout",
    int(ResponseCode.SLAVE_NOT_AVAILABLE): "no-replica",
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): "replica-timeout",
}


class Receipt(NamedTuple):
    """Where a message was stored; a failed `send` raises instead.

    ::

        receipt = await mq.send("orders", b"...")
        assert receipt.is_durable
        print(receipt.id, receipt.queue, receipt.offset)

    `id` is the message's own, made by this client; `offset_id` encodes its place on a broker.
    `is_durable` is false when the broker stored it but could not confirm in time what its settings
    promise; `status` says why ("flush-timeout", "no-replica", "replica-timeout").
    """

    id: str
    queue: Queue
    offset: int
    offset_id: str
    code: int = 0
    recall_handle: str | None = None

    @property
    def is_durable(self) -> bool:
        """Whether the broker kept all that its settings promise."""
        return self.code == 0

    @property
    def status(self) -> str:
        """The broker's status in one word: "ok", or what it could not confirm."""
        return _STATUS.get(self.code, str(self.code))


class ReceivedMessage:
    """A received message; its fields are decoded in place, when they are asked for.

    ::

        print(message.body, message.tag, message.key, message.properties["customer"])

    `topic` is the one that it was sent to, even if it is redelivered through a retry topic. `queue`
    and `offset` are its place. It holds the bytes of the whole answer in which it came: to keep it
    for long, keep `message.body` and not the message.
    """

    __slots__ = (
        "_body",
        "_inflated_size_max",
        "_namespace",
        "_raw_properties",
        "_stored",
        "offset",
        "queue",
    )

    def __init__(
        self, stored: StoredMessage, queue: Queue, inflated_size_max: int, namespace: str = ""
    ) -> None:
        self._stored = stored
        self._namespace = namespace
        self._inflated_size_max = inflated_size_max
        self._body: bytes | None = None
        self._raw_properties: bytes | None = None
        self.queue = queue
        self.offset = stored.queue_offset

    @property
    def body(self) -> bytes:
        """The body as it was sent, decompressed if necessary."""
        if self._body is None:
            stored = self._stored
            self._body = (
                stored.plain_body(size_max=self._inflated_size_max)
                if stored.sys_flag & 1
                else stored.body
            )
        return self._body

    @property
    def topic(self) -> str:
        """The topic that it was sent to."""
        return without_namespace(
            self._namespace, self._find(names.RETRY_TOPIC) or self._stored.topic
        )

    @property
    def id(self) -> str:
        """The id that its producer gave it; the same as `Receipt.id`."""
        return self._find(names.UNIQ_KEY) or self._stored.offset_id

    @property
    def offset_id(self) -> str:
        """The id by which a broker finds it: see `Admin.message`."""
        return self._stored.offset_id

    @property
    def tag(self) -> str | None:
        """The tag, by which consumers filter."""
        return self._find(names.TAGS)

    @property
    def keys(self) -> list[str]:
        """The keys by which it can be found."""
        return [key for key in (self._find(names.KEYS) or "").split(" ") if key]

    @property
    def key(self) -> str | None:
        """The first of its keys."""
        return next(iter(self.keys), None)

    @property
    def properties(self) -> dict[str, str]:
        """All properties: the user's and those added by clients and brokers."""
        return decode_properties(self._properties)

    @property
    def user_properties(self) -> dict[str, str]:
        """The properties that its producer passed to `send`."""
        return {
            name: value for name, value in self.properties.items() if name not in names.RESERVED
        }

    @property
    def flag(self) -> int:
        """The user's number, which brokers ignore."""
        return self._stored.flag

    @property
    def attempt(self) -> int:
        """The number of this delivery to the group: 1, or more for a redelivery."""
        return self._stored.reconsume_times + 1

    @property
    def wants_reply(self) -> bool:
        """Whether its sender waits for a reply, as with `Client.request`."""
        return self._find(names.REPLY_TO_CLIENT) is not None

    @property
    def physical_offset(self) -> int:
        """Its position in the broker's log."""
        return self._stored.physical_offset

    @property
    def sent_at(self) -> datetime:
        """When its producer sent it, by that machine's clock."""
        return time_at(self._stored.born_timestamp)

    @property
    def stored_at(self) -> datetime:
        """When the broker stored it."""
        return time_at(self._stored.store_timestamp)

    @property
    def sent_from(self) -> str:
        """The address that it was sent from."""
        return str(self._stored.born_address)

    @property
    def size(self) -> int:
        """The size of the whole record in bytes."""
        return self._stored.size

    def unwrapped(self) -> Iterator[Self]:
        """Yield the messages of a batch stored as one record; any other message yields itself.

        Pulls and consumers do this already; it is for other ways of reading records.
        """
        if not self._stored.is_inner_batch:
            yield self
            return
        for inner in unwrap_batch(self._stored, self.body):
            one = copy(self)
            one._body = inner.item.body
            one._raw_properties = inner.item.properties
            one.offset = inner.queue_offset
            yield one

    def copy_from(self, other: ReceivedMessage) -> None:
        """Become the same message as one of another class."""
        self._stored = other._stored
        self._inflated_size_max = other._inflated_size_max
        self._namespace = other._namespace
        self._body = other._body
        self._raw_properties = other._raw_properties
        self.queue = other.queue
        self.offset = other.offset

    @property
    def _properties(self) -> bytes:
        raw = self._raw_properties
        return self._stored.properties_raw if raw is None else raw

    def _find(self, name: str) -> str | None:
        raw = find_property(self._properties, name.encode())
        return None if raw is None else text_of(raw)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {self.topic!r}, {self.queue}, {self.offset}>"


M = TypeVar("M", bound=ReceivedMessage)


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply to a request.

    ::

        reply = await mq.request("quotes", b"CHF")
        print(reply.body, reply.user_properties)
    """

    body: bytes
    properties: Mapping[str, str]
    sent_at: datetime

    @property
    def user_properties(self) -> dict[str, str]:
        """The properties that the replier passed to `Message.reply`."""
        return {
            name: value for name, value in self.properties.items() if name not in names.RESERVED
        }


class Pulled(NamedTuple, Generic[M]):
    """The result of one pull from a queue.

    ::

        found = await mq.pull(queue, offset)
        for message in found.messages: ...
        offset = found.next_offset

    `moved` means that the requested offset is no longer, or not yet, in the queue; `next_offset`
    is then the nearest offset that is.
    """

    messages: list[M]
    next_offset: int
    first_offset: int
    end_offset: int
    moved: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether it found no messages."""
        return not self.messages
