"""JSON requests read in one pass: the result is that of the general way, whatever comes."""

from __future__ import annotations

from cometmq.proto.command import Command
from cometmq.proto.commands import GetMaxOffset, SendMessageV2
from cometmq.proto.errors import FieldError, RemoteProtocolError
from cometmq.proto.header import Header
from cometmq.proto.header_json import JSON
from cometmq.proto.header_json_typed import TypedJsonReader

CLASSES: dict[int, type[Header]] = {30: GetMaxOffset, 310: SendMessageV2}
READER = TypedJsonReader(CLASSES)
FIELDS_MAX = 1024


def check(data: bytes) -> None:
    """Read both ways; they refuse the same."""
    try:
        general = JSON.decode(data, None, FIELDS_MAX)
    except RemoteProtocolError:
        READER.decode(data, None, FIELDS_MAX)
        raise AssertionError("refused by the general way only") from None
    assert told(READER.decode(data, None, FIELDS_MAX)) == told(general)


def told(command: Command) -> tuple[object, ...]:
    """All that a command tells."""
    known = (command.code, command.flag, command.opaque, command.remark)
    try:
        fields: object = (command.read(CLASSES.get(command.code, GetMaxOffset)), command.ext_fields)
    except FieldError as error:
        fields = str(error)
    return (*known, command.language, command.version, fields)
