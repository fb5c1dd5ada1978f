"""Replies (324, 325): handed to the requester over its connection to this broker.

The requester is a member of a producer group, and its request carries its client id. It is handed
the reply (326) and confirms it; only then is the replier answered. As with Apache's brokers,
replies are also stored in a topic, for later inspection; nobody consumes them.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from cometmq.broker.handlers.send import checked_target
from cometmq.broker.handlers.send_origin import identified, origin_of
from cometmq.broker.refusals import send_refusal
from cometmq.net import LATER, NetError
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands.send import (
    PushReplyMessageToClient,
    SendMessage,
    SendMessageResponse,
    SendMessageV2,
)
from cometmq.proto.errors import LocalProtocolError
from cometmq.proto.message_id import encode_offset_id
from cometmq.proto.properties import join_properties, property_finder, set_property
from cometmq.store.errors import PutRefusedError

if TYPE_CHECKING:
    from cometmq.broker.session import Session
    from cometmq.net import Later

PUSH_TIMEOUT_MS: Final = 10_000
_NOT_STORED: Final = "0"
_find_client = property_finder(b"REPLY_TO_CLIENT")
_find_unique_id = property_finder(b"UNIQ_KEY")


def send_reply_message(request: Command, session: Session) -> Command | Later:
    """324: a reply; its fields have their long names."""
    return _Reply(request, request.read(SendMessage), session).push()


def send_reply_message_v2(request: Command, session: Session) -> Command | Later:
    """325: a reply; its fields have names of one letter."""
    return _Reply(request, request.read(SendMessageV2), session).push()


class _Reply:
    """One reply on its way."""

    def __init__(self, request: Command, header: SendMessage, session: Session) -> None:
        self._request = request
        self._header = header
        self._session = session
        _, self._queue_id = checked_target(request, header, session)
        state = session.state
        self._now_ms = state.now_ms()
        self._body = bytes(request.body or b"")
        raw = (header.properties or "").encode()
        raw = join_properties(raw, state.stored_properties)
        raw, _ = identified(raw, _find_unique_id(raw), state)
        self._properties = set_property(raw, b"PUSH_REPLY_TIME", b"%d" % self._now_ms)

    def push(self) -> Command | Later:
        """Hand the reply to the requester."""
        state = self._session.state
        client = _find_client(self._properties)
        if client is None:
            raise send_refusal(
                state.config,
                ResponseCode.SYSTEM_ERROR,
                "reply message properties[REPLY_TO_CLIENT] is null",
            )
        client_id = client.decode("utf-8", "replace")
        peer = state.producers.peer_of(client_id)
        if peer is None:
            self._finish(f"push reply message fail, channel of <{client_id}> not found.")
            return LATER
        failed = f"push reply message to {client_id}fail."  # Apache's words.

        def said(answer: Command | NetError) -> None:
            is_taken = isinstance(answer, Command) and answer.code == ResponseCode.SUCCESS
            self._finish(None if is_taken else failed)
            self._session.peer.peers.turn.end()

        try:
            peer.ask(self._pushed(), said, timeout_ms=PUSH_TIMEOUT_MS)
        except (NetError, LocalProtocolError):
            self._finish(failed)
        return LATER

    def _pushed(self) -> Command:
        header = self._header
        fields = PushReplyMessageToClient(
            header.producer_group,
            header.topic,
            header.default_topic,
            header.default_topic_queue_nums,
            self._queue_id,
            header.sys_flag,
            header.born_timestamp,
            header.flag,
            str(self._session.peer.host),
            str(self._session.state.address),
            self._now_ms,
            properties=self._properties.decode("utf-8", "replace"),
            reconsume_times=header.reconsume_times,
            unit_mode=header.unit_mode,
        )
        return Command.request(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, fields, body=self._body or None
        )

    def _finish(self, failed: str | None) -> None:
        """Store the reply, and answer its sender."""
        state, request = self._session.state, self._request
        place, queue_offset = _NOT_STORED, 0
        # An empty reply is handed on, but no topic can store a message without a body.
        if state.config.store_replies and self._body:
            with suppress(PutRefusedError):  # The reply is handed on all the same.
                place, queue_offset = self._store()
        fields = SendMessageResponse(
            place,
            self._queue_id,
            queue_offset,
            region_id=state.config.region_id,
            trace_on=state.config.trace_on,
        )
        code = ResponseCode.SUCCESS if failed is None else ResponseCode.SYSTEM_ERROR
        if failed is not None:
            state.traffic.refused[request.code, int(code)] += 1
        response = request.answer(code, fields, remark=failed)
        state.acknowledgements.add(self._session.peer, request, response, waits=True)

    def _store(self) -> tuple[str, int]:
        state, header = self._session.state, self._header
        put = state.store.put(
            header.topic,
            self._queue_id,
            self._body,
            self._properties,
            origin_of(header, self._session, header.sys_flag),
            header.flag,
        )
        return encode_offset_id(state.store_host, put.physical_offset), put.queue_offset
