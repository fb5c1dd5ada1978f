"""Reading a request in one pass gives the result of the general reader, whatever comes."""

from __future__ import annotations

from cometmq.proto.command import Command
from cometmq.proto.commands import GetMaxOffset, SendMessageV2
from cometmq.proto.errors import FieldError, RemoteProtocolError
from cometmq.proto.header import Header
from cometmq.proto.header_json import JSON
from cometmq.proto.header_msgpack import MESSAGEPACK
from cometmq.proto.header_typed import RequestReader

CLASSES: dict[int, type[Header]] = {30: GetMaxOffset, 310: SendMessageV2}
READER = RequestReader(CLASSES)
FIELDS_MAX = 1024


def check(data: bytes) -> None:
    """Read as JSON and as MessagePack in both ways, and compare results and refusals."""
    refusals: list[RemoteProtocolError] = []
    for codec in (JSON, MESSAGEPACK):
        decode = READER.decoders[codec.serialize_type]
        try:
            general = codec.decode(data, None, FIELDS_MAX)
        except RemoteProtocolError as error:
            refusals.append(error)
            try:
                decode(data, None, FIELDS_MAX)
            except RemoteProtocolError:
                continue
            raise AssertionError("refused by the general way only") from None
        assert told(decode(data, None, FIELDS_MAX)) == told(general)
    if len(refusals) == 2:
        raise refusals[0]


def told(command: Command) -> tuple[object, ...]:
    """Return everything that a command contains."""
    known = (command.code, command.flag, command.opaque, command.remark)
    cls = CLASSES.get(command.code, GetMaxOffset)
    try:
        fields: object = (command.read(cls), command.ext_fields_as(cls))
    except FieldError as error:
        fields = str(error)
    return (*known, command.language, command.version, fields)
