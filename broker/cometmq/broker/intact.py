"""Reads of stored messages that the broker puts again, checked so that none of them is damaged.

A delayed message, a half message or one that is sent back is put into another queue with a new
checksum: if the disk had damaged it, it would look sound there.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from cometmq.proto.errors import MessageError
from cometmq.proto.message import read_message
from cometmq.proto.message_list import MessageList

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.proto.buffer import Buffer
    from cometmq.proto.message import StoredMessage
    from cometmq.store.message_store import MessageStore
    from cometmq.store.messages.reading import Fetched, ReadResult

log = logging.getLogger(__name__)


class Damage(NamedTuple):
    """A message that cannot be put again, by its queue offset, and the reason."""

    queue_offset: int
    reason: MessageError


def read_intact(record: Buffer) -> StoredMessage:
    """Read the message of a record; raise a `MessageError` if it is damaged."""
    return _checked(read_message(bytes(record)))


def intact_messages(
    result: ReadResult, queue_offset: int
) -> tuple[list[StoredMessage], Damage | None]:
    """Return the messages read from a queue offset on, up to the first damaged one."""
    messages: list[StoredMessage] = []
    behind = queue_offset
    try:
        for piece in result.slices:
            for message in MessageList(piece):
                if not behind <= message.queue_offset < result.next_begin_offset:
                    raise MessageError(
                        f"the message at {message.physical_offset} of the log is damaged: it says"
                        f" that it is message {message.queue_offset} of its queue, not {behind}"
                    )
                messages.append(_checked(message))
                behind = message.queue_offset + 1
    except MessageError as error:
        return messages, Damage(behind, error)
    return messages, None


def messages_from(
    store: MessageStore, topic: str, queue_id: int, queue_offset: int, count_max: int
) -> Iterator[StoredMessage]:
    """Yield the messages of a queue from an offset on. Waits for the disk, so only for a start.

    A damaged message is skipped, and logged.
    """
    end = queue_offset + count_max
    fetched: Fetched = ()
    while queue_offset < end:
        result = store.read(topic, queue_id, queue_offset, end - queue_offset, fetched=fetched)
        if result.cold:
            fetched = [store.fetch(cold) for cold in result.cold]
            continue
        fetched = ()
        messages, damage = intact_messages(result, queue_offset)
        yield from messages
        if damage is not None:
            log.error(
                "message %d of %s is passed over: %s", damage.queue_offset, topic, damage.reason
            )
            queue_offset = damage.queue_offset + 1
            continue
        if result.next_begin_offset <= queue_offset or result.next_begin_offset >= max(
            result.max_offset, 1
        ):
            return
        queue_offset = result.next_begin_offset


def _checked(message: StoredMessage) -> StoredMessage:
    if not message.is_body_intact():
        raise MessageError(
            f"the message at {message.physical_offset} of the log is damaged: the checksum of"
            " its body differs from the stored one"
        )
    return message
