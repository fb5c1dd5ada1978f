"""Requests that wait for their replies, by correlation id."""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING

import anyio

from cometmq.client._core.checking import time_at
from cometmq.client.errors import DeadlineError
from cometmq.client.messages import Reply
from cometmq.proto import property_names as names
from cometmq.proto.codes import ResponseCode
from cometmq.proto.commands import PushReplyMessageToClient
from cometmq.proto.compression import decompress
from cometmq.proto.properties import decode_properties
from cometmq.proto.sysflag import SysFlag

if TYPE_CHECKING:
    from cometmq.proto.command import Command

_log = logging.getLogger("cometmq.client")


class _Waiting:
    """One request, until its reply comes."""

    def __init__(self) -> None:
        self.came = anyio.Event()
        self.reply: Reply | None = None


class Requests:
    """The requests of one client that have no reply yet."""

    def __init__(self) -> None:
        self._waiting: dict[str, _Waiting] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(self, client_id: str, timeout: float) -> dict[str, str]:
        """Expect a reply; return the properties that the request must have."""
        correlation_id = str(uuid.uuid4())
        self._waiting[correlation_id] = _Waiting()
        return {
            names.CORRELATION_ID: correlation_id,
            names.REPLY_TO_CLIENT: client_id,
            names.TTL: str(max(1, round(timeout * 1000))),
        }

    async def reply(self, correlation_id: str, timeout: float) -> Reply:
        """Wait for a reply."""
        waiting = self._waiting[correlation_id]
        with anyio.move_on_after(max(timeout, 0)):
            await waiting.came.wait()
        if waiting.reply is None:
            raise DeadlineError("the request was sent, but no reply came in time")
        return waiting.reply

    def end(self, correlation_id: str) -> None:
        """Stop expecting the reply."""
        self._waiting.pop(correlation_id, None)

    def came(self, pushed: Command, inflated_size_max: int) -> Command:
        """Accept a reply that a broker pushes, and pass it on."""
        header = pushed.read(PushReplyMessageToClient)
        properties = decode_properties((header.properties or "").encode())
        body = bytes(pushed.body or b"")
        if header.sys_flag & SysFlag.COMPRESSED:
            body = decompress(body, header.sys_flag, inflated_size_max)
        reply = Reply(body, properties, time_at(header.born_timestamp))
        if not self.arrived(properties.get(names.CORRELATION_ID, ""), reply):
            _log.info("a reply came that nobody waits for any more")
        return pushed.answer(ResponseCode.SUCCESS)

    def arrived(self, correlation_id: str, reply: Reply) -> bool:
        """Pass a reply to the request that waits for it; return False if none does."""
        waiting = self._waiting.get(correlation_id)
        if waiting is None or waiting.reply is not None:
            return False
        waiting.reply = reply
        waiting.came.set()
        return True
