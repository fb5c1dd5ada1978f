"""How hooks are called."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeVar

from cometmq.client.hooks import Sending, Sent
from cometmq.proto import property_names as names
from cometmq.proto.errors import RemoteProtocolError
from cometmq.proto.message_id import decode_offset_id

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from cometmq.client._core.outgoing import NewMessage
    from cometmq.client._core.queues import Queue
    from cometmq.client.hooks import SendKind, SendWatch
    from cometmq.proto.commands import SendMessageResponse

_log = logging.getLogger("cometmq.client")

T = TypeVar("T")
R = TypeVar("R")

_DELAYS = (names.DELAY, names.TIMER_DELAY_MS, names.TIMER_DELIVER_MS)


def tell_each(listeners: Iterable[T], tell: Callable[[T], R]) -> list[R]:
    """Call `tell` for each hook or watch, and return the answers.

    One that raises is logged and left out: hooks must not affect a message.
    """
    answers: list[R] = []
    for listener in listeners:
        try:
            answers.append(tell(listener))
        except Exception:
            _log.exception("the hook %r raised an error, which hooks must not", listener)
    return answers


def sending_of(
    topic: str, message: NewMessage, message_id: str, body_size: int, more: Mapping[str, str]
) -> Sending:
    """Describe a send that begins, for hooks."""
    kind: SendKind = "normal"
    if names.TRAN_MSG in more:
        kind = "transaction"
    elif any(name in more for name in _DELAYS):
        kind = "delayed"
    elif names.SHARDING_KEY in more:
        kind = "ordered"
    keys = [] if message.key is None else [message.key]
    return Sending(
        topic=topic,
        id=message_id,
        kind=kind,
        body_size=body_size,
        keys=[*keys, *message.keys],
        tag=message.tag,
    )


async def watched(
    watches: Sequence[SendWatch], send: Awaitable[tuple[Queue, SendMessageResponse, int]]
) -> tuple[Queue, SendMessageResponse, int]:
    """Wait for the end of a send, and tell the watches how it ended."""
    try:
        result = queue, answer, _ = await send
    except BaseException as error:
        failure = error
        tell_each(watches, lambda watch: watch.ended(failure))
        raise
    offset_id = answer.msg_id.partition(",")[0]
    sent = Sent(queue, answer.queue_offset, offset_id, _address_in(offset_id))
    tell_each(watches, lambda watch: watch.ended(sent))
    return result


def _address_in(offset_id: str) -> str:
    try:
        return str(decode_offset_id(offset_id).address)
    except RemoteProtocolError:
        return ""
