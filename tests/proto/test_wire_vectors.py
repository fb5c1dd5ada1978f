from __future__ import annotations

import msgspec
import pytest
from tests.proto.wire_vectors import MALFORMED, VECTORS, Vector

from cometmq.proto.codes import Language
from cometmq.proto.command import Command
from cometmq.proto.errors import RemoteProtocolError
from cometmq.proto.frame import FrameParser, frame_head
from cometmq.proto.header_codecs import HEADER_CODECS

FIELDS_MAX = 1024


def command_of(frame: bytes) -> Command:
    parser = FrameParser()
    parser.receive_data(frame)
    found = parser.next_frame()
    assert found is not None
    assert parser.pending_size == 0
    serialize_type, header, body = found
    if serialize_type not in HEADER_CODECS:
        raise RemoteProtocolError("unknown type")
    return HEADER_CODECS[serialize_type].decode(header, body, FIELDS_MAX)


def header_text(frame: bytes) -> bytes:
    return frame[8 : 8 + int.from_bytes(frame[5:8], "big")]


def test_there_are_as_many_vectors_as_were_captured() -> None:
    assert len(VECTORS) == 926
    assert len(MALFORMED) == 2


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.where)
def test_a_captured_frame_decodes_to_what_the_capture_says(vector: Vector) -> None:
    command = command_of(vector.frame)
    said = vector.header
    assert command.code == said["code"]
    assert command.flag == said["flag"]
    assert command.opaque == said["opaque"]
    assert command.remark == said.get("remark")
    assert command.version == said.get("version", 0)
    assert command.ext_fields == vector.ext_fields
    assert command.codec is not None
    assert command.codec.name == vector.codec
    assert len(command.body or b"") == vector.said["bodyLength"]
    language = said.get("language")
    if isinstance(language, str) and language in Language.__members__:
        assert command.language == Language[language]
    elif vector.codec == "ROCKETMQ":
        assert command.language == language


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.where)
def test_what_was_captured_encodes_to_an_equal_command(vector: Vector) -> None:
    command = command_of(vector.frame)
    assert command.codec is not None
    header = command.codec.encode(command)
    body = command.body or b""
    frame = frame_head(command.codec.serialize_type, len(header), len(body)) + header + body
    again = command_of(frame)
    assert again.ext_fields == command.ext_fields
    for name in ("code", "flag", "opaque", "remark", "body", "language", "version"):
        assert getattr(again, name) == getattr(command, name)


def written_by_java(vector: Vector) -> bool:
    return vector.codec == "ROCKETMQ" or b'"serializeTypeCurrentRPC"' in header_text(vector.frame)


JAVA_MADE = [vector for vector in VECTORS if written_by_java(vector)]


def without_empty_fields(header: bytes) -> bytes:
    return header.replace(b'"extFields":{},', b"")


@pytest.mark.parametrize("vector", JAVA_MADE, ids=lambda v: v.where)
def test_what_java_wrote_encodes_to_the_same_bytes(vector: Vector) -> None:
    """Key order and escapes are Java's. But our responses have extFields even when it is empty."""
    command = command_of(vector.frame)
    codec = command.codec
    assert codec is not None
    read_and_written = msgspec.structs.replace(command, fields=command.ext_fields or None)
    for again in (command, read_and_written):
        header = codec.encode(again)
        assert without_empty_fields(header) == without_empty_fields(header_text(vector.frame))


@pytest.mark.parametrize("vector", MALFORMED, ids=lambda vector: vector.where)
def test_a_frame_that_apache_hangs_up_on_is_a_remote_error(vector: Vector) -> None:
    with pytest.raises(RemoteProtocolError):
        command_of(vector.frame)
