"""What the store accepts: the limits of names, properties and inner batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cometmq.proto.properties import remove_property
from cometmq.proto.record import HEAD_SIZE, RECORD_CRC_NAME, TOPIC_SIZE_V1_MAX, topic_part
from cometmq.store.disk.names import is_folder_name
from cometmq.store.errors import MessageIllegalError, PropertiesTooLongError
from cometmq.store.messages.dispatch import BATCH_COUNT_MAX, SCHEDULE_TOPIC

if TYPE_CHECKING:
    from cometmq.store.queues.consume_queue import ConsumeQueue

TOPIC_SIZE_MAX: Final = 127
RETRY_TOPIC_SIZE_MAX: Final = 255
"""For topics that begin with `%RETRY%`: Apache's retry topics of POP contain two names."""
_DIGITS_MAX: Final = 40
"""Digits of a number in a property, leading zeros included: Python refuses to parse thousands."""

RETRY_PREFIX: Final = "%RETRY%"


@dataclass(slots=True)
class Topic:
    """What puts need to know about a topic."""

    raw: bytes
    part: bytes
    """The topic's bytes in a record."""
    is_batch: bool
    is_plain: bool
    """Whether its records are of version 1 and have ordinary entries."""
    record_size: int
    """The size of a record without body and properties, with two IPv4 hosts."""
    queues: dict[int, ConsumeQueue]
    """Queues that a quick put may use: none if the topic is not plain."""


def admit_topic(topic: str, *, is_batch: bool) -> Topic:
    """Check a topic's name."""
    try:
        raw = topic.encode()
    except UnicodeEncodeError:
        raise MessageIllegalError(f"topic that is not UTF-8 text: {topic!r:.200}") from None
    size_max = RETRY_TOPIC_SIZE_MAX if topic.startswith(RETRY_PREFIX) else TOPIC_SIZE_MAX
    if len(raw) > size_max:
        raise MessageIllegalError(f"topic of {len(raw)} bytes, of at most {size_max}: {topic!r}")
    if not raw or not is_folder_name(topic):
        raise MessageIllegalError(f"topic that cannot be the name of a folder: {topic!r}")
    part = topic_part(raw)
    is_plain = not is_batch and topic != SCHEDULE_TOPIC and len(raw) <= TOPIC_SIZE_V1_MAX
    return Topic(raw, part, is_batch, is_plain, HEAD_SIZE + len(part) + 2, {})


def admit_properties(properties: bytes, size_max: int) -> bytes:
    """Return the properties without any record checksum that the sender made up."""
    properties = remove_property(properties, RECORD_CRC_NAME)
    if len(properties) > size_max:
        raise PropertiesTooLongError(f"properties of {len(properties)} bytes, over {size_max}")
    return properties


def admit_batch(topic: str, number: bytes | None, *, is_batch: bool, is_inner: bool) -> int:
    """Return how many messages a record of a batch topic has, by its INNER_NUM."""
    if not is_batch or is_inner != bool(number):
        raise MessageIllegalError(
            f"{topic}: a batch in one record needs its flag, INNER_NUM and a batch topic"
        )
    if number is None:
        return 1
    is_number = number.isdigit() and len(number) <= _DIGITS_MAX
    batch_size = int(number) if is_number else 0
    if not 1 <= batch_size <= BATCH_COUNT_MAX:
        raise MessageIllegalError(f"{topic}: INNER_NUM is {number!r:.40}")
    return batch_size
