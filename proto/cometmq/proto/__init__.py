"""The RocketMQ remoting protocol, sans-I/O: bytes in, commands out, and back.

There is no socket, no clock, no event loop and no logger here: whatever this package needs of them
is passed in. The most used names are exported here; the header classes of all commands are in
`cometmq.proto.commands`, the JSON bodies in `cometmq.proto.bodies`. Modules about messages:

* `message` and `message_list`: stored records, and those of a pull answer, read in place
* `properties`: the properties of messages, which a send carries as text and a record as bytes
* `batch`: several messages in one send
* `compression`: compressing bodies, and decompressing them up to a limit
  (`StoredMessage.plain_body`)
* `record`, `message_id`: making records and ids
"""

from __future__ import annotations

from cometmq.proto.capture import decode_frame
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
    MissingLibraryError,
    ProtocolError,
    RefusedError,
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
    "MissingLibraryError",
    "ProtocolError",
    "RefusedError",
    "RemoteProtocolError",
    "RequestCode",
    "ResponseCode",
    "StoredMessage",
    "decode_frame",
    "read_message",
]
