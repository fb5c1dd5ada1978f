"""The new message that a dead letter becomes when it is sent again."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, get_args

from cometmq.client._core.names import retry_topic
from cometmq.proto import property_names as names

if TYPE_CHECKING:
    from cometmq.client.messages import ReceivedMessage

RedriveTo = Literal["group", "topic"]

_NUMBER_DIGITS: Final = 12
_NOT_AGAIN: Final = frozenset(
    {
        *(names.UNIQ_KEY, names.WAIT, names.DELAY, names.ORIGIN_MESSAGE_ID, names.SENT_ONCE),
        *(names.TRAN_MSG, names.PGROUP, names.TRANSACTION_ID, names.TRANSACTION_CHECK_TIMES),
        *(names.RECONSUME_TIME, names.MAX_RECONSUME_TIMES, names.CONSUME_START_TIME),
        *(names.MIN_OFFSET, names.MAX_OFFSET, names.CLUSTER, names.MSG_REGION, names.TRACE_ON),
        *(names.REDRIVEN_FROM, names.CRC32),
    }
)
"""Properties that record a message's history; the new message starts without them."""
_TIMERS: Final = "TIMER_"
"""The prefix of the properties that said when it was to be delivered."""


class Letter(NamedTuple):
    """A dead letter, and the topic and id of the message that it becomes."""

    message: ReceivedMessage
    topic: str
    id: str


def letter_of(message: ReceivedMessage, group: str, to: RedriveTo) -> Letter:
    """Return the topic and id of the message that a dead letter becomes.

    The last digits of the id are the letter's offset in the log, so they increase, as brokers
    require for sending once; the first digits are specific to the broker, the group and the way.
    """
    whose = "\n".join((message.queue.broker, message.queue.topic, to))
    name = hashlib.sha256(whose.encode()).hexdigest()[:20].upper()
    number = f"{message.physical_offset:0{_NUMBER_DIGITS}X}"
    topic = retry_topic(group) if to == "group" else message.topic
    return Letter(message, topic, name + number)


def ways_of_letter(message: ReceivedMessage, group: str) -> list[Letter]:
    """Return all messages that a dead letter may have become; if one exists, it was redriven."""
    ways: tuple[RedriveTo, ...] = get_args(RedriveTo)
    return [letter_of(message, group, way) for way in ways]


def properties_of_letter(letter: Letter) -> dict[str, str]:
    """Return the properties of the new message: the user's, and its origin."""
    message = letter.message
    found = {
        name: value
        for name, value in message.properties.items()
        if name not in _NOT_AGAIN and not name.startswith(_TIMERS)
    }
    found.pop(names.RETRY_TOPIC, None)
    if letter.topic != message.topic:
        found[names.RETRY_TOPIC] = message.topic
    found[names.REDRIVEN_FROM] = message.id
    return {names.UNIQ_KEY: letter.id, **found, names.WAIT: "true"}


def came_back(message: ReceivedMessage) -> bool:
    """Whether it was redriven and no consumer saw it since: its first dead letter stands for it."""
    return message.attempt == 1 and names.REDRIVEN_FROM in message.properties
