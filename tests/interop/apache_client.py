"""Asks a broker over a plain blocking socket what is in its store, in every possible way."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Self, TypeVar

from cometmq.proto.batch import BatchItem, encode_batch
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands import (
    GetMaxOffset,
    GetMinOffset,
    OffsetResponse,
    PullMessage,
    PullMessageResponse,
    PullSysFlag,
    QueryConsumerOffset,
    QueryMessage,
    SearchOffsetByTimestamp,
    SendMessageResponse,
    SendMessageV2,
    UpdateConsumerOffset,
    ViewMessageById,
)
from cometmq.proto.connection import NEED_DATA, Answer, Connection, ConnectionBroken
from cometmq.proto.header import Header
from cometmq.proto.message import StoredMessage, read_message
from cometmq.proto.message_list import MessageList
from cometmq.proto.properties import encode_properties

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

H = TypeVar("H", bound=Header)

SECONDS = 20
FAR_MS = 1 << 60


class BrokerClient:
    """A client of one broker that asks one question at a time, except by `start`."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
        self._connection = Connection()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def start(self, code: int, fields: Header, body: bytes | None = None) -> None:
        """Ask without waiting for the answer."""
        opaque = self._connection.new_opaque()
        request = Command.request(code, fields, body=body, opaque=opaque)
        self._socket.sendall(b"".join(self._connection.send(request)))

    def next_answer(self) -> Answer | None:
        """Wait for the next answer; None once the broker is gone."""
        while True:
            event = self._connection.next_event()
            if isinstance(event, Answer):
                return event
            if event is not NEED_DATA and not isinstance(event, Command):
                assert not isinstance(event, ConnectionBroken) or "the stream ends" in str(event)
                return None
            try:
                self._connection.receive_data(self._socket.recv(1 << 18))
            except ConnectionResetError:
                return None

    def ask(self, code: int, fields: Header, body: bytes | None = None) -> Command:
        """Ask and wait."""
        self.start(code, fields, body)
        answer = self.next_answer()
        assert answer is not None, "the broker closed the connection"
        return answer.response

    def _asked(self, code: int, fields: Header, cls: type[H]) -> H:
        response = self.ask(code, fields)
        assert response.code == ResponseCode.SUCCESS, response
        return response.read(cls)

    # Reading

    def min_offset(self, topic: str, queue_id: int) -> int:
        fields = GetMinOffset(topic=topic, queue_id=queue_id)
        return self._asked(RequestCode.GET_MIN_OFFSET, fields, OffsetResponse).offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        fields = GetMaxOffset(topic=topic, queue_id=queue_id)
        return self._asked(RequestCode.GET_MAX_OFFSET, fields, OffsetResponse).offset

    def offset_by_time(self, topic: str, queue_id: int, timestamp: int, boundary: str) -> int:
        fields = SearchOffsetByTimestamp(
            topic=topic, queue_id=queue_id, timestamp=timestamp, boundary_type=boundary
        )
        return self._asked(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields, OffsetResponse).offset

    def pull(self, topic: str, queue_id: int, offset: int, subscription: str = "*") -> Command:
        """Pull up to 32 messages from an offset; return the answer as it came."""
        fields = PullMessage(
            consumer_group="interop_pull",
            topic=topic,
            queue_id=queue_id,
            queue_offset=offset,
            max_msg_nums=32,
            sys_flag=int(PullSysFlag.SUBSCRIPTION),
            commit_offset=0,
            suspend_timeout_millis=0,
            sub_version=0,
            subscription=subscription,
        )
        return self.ask(RequestCode.PULL_MESSAGE, fields)

    def pull_all(self, topic: str, queue_id: int, subscription: str = "*") -> list[StoredMessage]:
        """Every message of a queue, from its least offset to its greatest."""
        messages: list[StoredMessage] = []
        offset = self.min_offset(topic, queue_id)
        end = self.max_offset(topic, queue_id)
        while offset < end:
            response = self.pull(topic, queue_id, offset, subscription)
            following = response.read(PullMessageResponse).next_begin_offset
            assert following > offset, (response, offset)
            if response.code == ResponseCode.SUCCESS:
                messages += MessageList(bytes(response.body or b""))
            else:
                assert response.code == ResponseCode.PULL_RETRY_IMMEDIATELY, response
            offset = following
        return messages

    def view(self, physical_offset: int) -> StoredMessage:
        response = self.ask(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageById(offset=physical_offset))
        assert response.code == ResponseCode.SUCCESS, response
        return read_message(bytes(response.body or b""))

    def query(self, topic: str, key: str, *, unique: bool = False) -> list[int]:
        """The physical offsets of the messages that have a key."""
        fields = QueryMessage(
            topic=topic,
            key=key,
            max_num=64,
            begin_timestamp=0,
            end_timestamp=FAR_MS,
            unique_key_query=unique,
        )
        response = self.ask(RequestCode.QUERY_MESSAGE, fields)
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            return []
        assert response.code == ResponseCode.SUCCESS, response
        return [message.physical_offset for message in MessageList(bytes(response.body or b""))]

    def consumer_offset(self, group: str, topic: str, queue_id: int) -> int:
        fields = QueryConsumerOffset(consumer_group=group, topic=topic, queue_id=queue_id)
        return self._asked(RequestCode.QUERY_CONSUMER_OFFSET, fields, OffsetResponse).offset

    # Writing

    def commit_offset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        fields = UpdateConsumerOffset(
            consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset
        )
        response = self.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        assert response.code == ResponseCode.SUCCESS, response

    def send(
        self, topic: str, queue_id: int, body: bytes, properties: Mapping[str, str]
    ) -> SendMessageResponse:
        header = send_header(topic, queue_id, properties)
        return _stored(self.ask(RequestCode.SEND_MESSAGE_V2, header, body))

    def send_batch(
        self, topic: str, queue_id: int, items: Sequence[BatchItem], properties: Mapping[str, str]
    ) -> SendMessageResponse:
        header = send_header(topic, queue_id, properties, batch=True)
        return _stored(self.ask(RequestCode.SEND_BATCH_MESSAGE, header, encode_batch(topic, items)))


def _stored(response: Command) -> SendMessageResponse:
    assert response.code == ResponseCode.SUCCESS, response
    return response.read(SendMessageResponse)


def send_header(
    topic: str,
    queue_id: int,
    properties: Mapping[str, str],
    *,
    batch: bool = False,
    flag: int = 0,
) -> SendMessageV2:
    return SendMessageV2(
        producer_group="interop",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=queue_id,
        sys_flag=0,
        born_timestamp=1,
        flag=flag,
        properties=encode_properties(properties).decode(),
        batch=batch,
    )
