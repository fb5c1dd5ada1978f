"""Any bytes are messages or `MessageError`, the same as when read record by record."""

from __future__ import annotations

from cometmq.proto.message import StoredMessage, read_message
from cometmq.proto.message_list import MessageList


def check(data: bytes) -> None:
    start = 0
    for message in MessageList(data):
        expected = read_message(data, start)
        for name in StoredMessage.__struct_fields__:
            assert getattr(message, name) == getattr(expected, name)
        assert message.end > start
        start = message.end
    assert start == len(data)
