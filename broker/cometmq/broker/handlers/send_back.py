"""Messages that a consumer could not consume (36): kept for later, or as dead letters.

A message comes back as a new one in the retry topic of its group, with a delay that grows each time
(see `setting_aside`). After the last retry it goes to the group's dead-letter topic.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from cometmq.broker.errors import RequestError
from cometmq.broker.handlers.reading import with_message
from cometmq.broker.handlers.retry_sends import retries_max, writeable
from cometmq.broker.refusals import FAQ
from cometmq.broker.setting_aside import set_aside
from cometmq.broker.topic_names import dead_letter_topic, retry_topic
from cometmq.net import LATER
from cometmq.proto.codes import ResponseCode
from cometmq.proto.commands.send import ConsumerSendMsgBack
from cometmq.proto.message_id import encode_offset_id
from cometmq.proto.properties import find_property, set_property
from cometmq.proto.sysflag import TRANSACTION_MASK
from cometmq.store.log.turn import Origin
from cometmq.store.messages.dispatch import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from cometmq.broker.session import Session, State
    from cometmq.broker.topics import Topic
    from cometmq.net import Later
    from cometmq.proto.bodies import SubscriptionGroupConfig
    from cometmq.proto.command import Command
    from cometmq.proto.message import StoredMessage

FIRST_LEVEL: Final = 3
"""The delay level of a message that comes back for the first time: 10 s."""


def consumer_send_msg_back(request: Command, session: Session) -> Command | Later:
    """36: a consumer could not consume a message."""
    header = request.read(ConsumerSendMsgBack)
    state = session.state
    group = state.groups.find_or_make(header.group, state.now_ms())
    if group is None:
        raise RequestError(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"subscription group not exist, {header.group} {FAQ}",
        )
    if group.retry_queue_nums <= 0:
        return request.answer(ResponseCode.SUCCESS)
    writeable(retry_topic(header.group), group.retry_queue_nums, state)
    missing = f"look message by offset failed, {header.offset}"
    return with_message(
        request,
        session,
        header.offset,
        missing,
        lambda message: _put_back(request, header, message, group, session),
    )


def _put_back(
    request: Command,
    header: ConsumerSendMsgBack,
    message: StoredMessage,
    group: SubscriptionGroupConfig,
    session: Session,
) -> Later:
    """Put the message as a new one, and answer when it is written."""
    state = session.state
    times_max = retries_max(request, header.max_reconsume_times, group)
    properties = _marked(message, state)
    is_dead = message.reconsume_times >= times_max or header.delay_level < 0
    if is_dead:
        topic = writeable(dead_letter_topic(group.group_name), 1, state)
        queue_id = 0
        properties = set_property(properties, b"DELAY", b"0")
    else:
        queue_id = random.randrange(group.retry_queue_nums)
        level = header.delay_level or FIRST_LEVEL + message.reconsume_times
        topic, queue_id, properties = _aside(
            retry_topic(group.group_name), queue_id, level, properties, state
        )
    origin = (find_property(properties, b"RETRY_TOPIC") or b"").decode(errors="replace")
    put = state.store.put(
        topic.config.topic_name,
        queue_id,
        message.body,
        properties,
        Origin(
            state.now_ms(),
            message.born_timestamp,
            message.born_host,
            message.sys_flag & ~TRANSACTION_MASK,
            message.reconsume_times + 1,
        ),
        message.flag,
    )
    topic.flow.take(1, put.size)
    state.traffic.sent_back_flow(origin, group.group_name).take(1, put.size)
    state.acknowledgements.add(
        session.peer,
        request,
        request.answer(ResponseCode.SUCCESS),
        waits=True,  # The consumer drops the message upon the answer.
    )
    return LATER


def _marked(message: StoredMessage, state: State) -> bytes:
    """Return the properties, with those that say where the message comes from."""
    properties = bytes(message.properties_raw)
    if find_property(properties, b"RETRY_TOPIC") is None:
        properties = set_property(properties, b"RETRY_TOPIC", message.topic.encode())
    if not find_property(properties, b"ORIGIN_MESSAGE_ID"):
        origin = encode_offset_id(state.store_host, message.physical_offset)
        properties = set_property(properties, b"ORIGIN_MESSAGE_ID", origin.encode())
    return set_property(properties, b"WAIT", b"false")


def _aside(
    name: str, queue_id: int, level: int, properties: bytes, state: State
) -> tuple[Topic, int, bytes]:
    """Return where a message waits until its delay is over, and its properties there."""
    levels = len(state.config.store.delay_levels_ms)
    waits = set_aside(name, queue_id, properties, level, levels)
    topic = state.topics.find(SCHEDULE_TOPIC)
    assert topic is not None  # One of the broker's own, which cannot be deleted.
    return topic, waits.queue_id, waits.properties
