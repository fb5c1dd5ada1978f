"""Whatever a connection receives becomes events, ending with a breach or a closed stream.

The first byte says how many bytes come at once, and whether requests of ours are pending.
"""

from __future__ import annotations

from cometmq.proto.command import Command
from cometmq.proto.commands import SendMessageV2
from cometmq.proto.connection import (
    NEED_DATA,
    Answer,
    Connection,
    ConnectionBroken,
    ConnectionClosed,
)
from cometmq.proto.errors import FieldError, RemoteProtocolError


def check(data: bytes) -> None:
    """Answer each request. Raise a breach here, as the connection itself must not raise it."""
    if not data:
        raise RemoteProtocolError("no stream")
    connection = Connection(frame_size_max=4096, fields_max=32, offer_messagepack=True)
    for opaque in range(data[0] % 8):
        connection.send(Command.request(34, opaque=opaque, extras=connection.offer))
    step = data[0] // 8 or len(data)
    for at in range(1, len(data), step):
        connection.receive_data(data[at : at + step])
        handle_events(connection)
    connection.receive_data(b"")
    handle_events(connection)
    assert connection.next_event() == ConnectionClosed()


def handle_events(connection: Connection) -> None:
    """Take all events, read the fields of each command, and answer requests."""
    while (event := connection.next_event()) is not NEED_DATA:
        match event:
            case Command():
                read_both_ways(event)
                connection.send(event.answer(0, SendMessageV2("g", "t", "d", 4, 0, 0, 0, 0)))
            case Answer(request, response):
                assert request.opaque == response.opaque
                read_both_ways(response)
            case ConnectionBroken(error):
                assert connection.next_event() is event
                raise error
            case _:
                return


def read_both_ways(command: Command) -> None:
    """Read the fields typed and by name. A wrong field is no breach."""
    try:
        command.read(SendMessageV2)
        command.ext_fields_as(SendMessageV2)
    except FieldError:
        return
