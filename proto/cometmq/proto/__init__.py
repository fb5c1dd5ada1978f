"""The RocketMQ remoting protocol, sans-I/O: bytes in, commands out, and back.

No socket, no clock, no event loop, no logger: what this package needs of them comes in as
arguments. The names of daily use are here; the header classes of all commands are in
`cometmq.proto.commands`, the JSON bodies in `cometmq.proto.bodies`.
"""

from __future__ import annotations

from cometmq.proto.codes import Language, RequestCode, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.connection import (
    NEED_DATA,
    Answer,
    Connection,
    ConnectionBroken,
    ConnectionClosed,
)
from cometmq.proto.errors import (
    BodyError,
    FieldError,
    LocalProtocolError,
    MessageError,
    ProtocolError,
    RemoteProtocolError,
)
from cometmq.proto.message import StoredMessage, read_message
from cometmq.proto.message_list import MessageList

__all__ = [
    "NEED_DATA",
    "Answer",
    "BodyError",
    "Command",
    "Connection",
    "ConnectionBroken",
    "ConnectionClosed",
    "FieldError",
    "Language",
    "LocalProtocolError",
    "MessageError",
    "MessageList",
    "ProtocolError",
    "RemoteProtocolError",
    "RequestCode",
    "ResponseCode",
    "StoredMessage",
    "read_message",
]
