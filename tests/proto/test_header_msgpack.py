from __future__ import annotations

import re
from pathlib import Path

import msgpack
import pytest
from hypothesis import given, strategies as st
from msgspec import structs

from cometmq.proto.codes import Language
from cometmq.proto.command import Command
from cometmq.proto.commands import GetMaxOffset, GetRouteInfoByTopic, SendMessageResponse
from cometmq.proto.errors import FieldError, LocalProtocolError, RemoteProtocolError
from cometmq.proto.frame import frame_head
from cometmq.proto.header_msgpack import MESSAGEPACK
from cometmq.proto.version import CURRENT_VERSION

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "protocol-extensions.md"


def read(raw: bytes, fields_max: int = 64) -> Command:
    return MESSAGEPACK.decode(raw, None, fields_max)


def pack(*items: object) -> bytes:
    packed: bytes = msgpack.packb(items)
    return packed


def test_the_documented_frame_is_written_to_the_byte() -> None:
    example = DOCUMENT.read_text().split("```")[1]
    lines = [re.match(r"[0-9a-f ]+(?=  )", line) for line in example.strip().splitlines()]
    header = MESSAGEPACK.encode(Command(105, GetRouteInfoByTopic("T"), opaque=7, version=513))
    frame = frame_head(2, len(header), 0) + header
    assert frame == bytes.fromhex("".join(line[0] for line in lines if line))


def test_items_may_be_missing_at_the_end_and_more_are_ignored() -> None:
    command = read(pack(10, 1, -3))
    assert (command.code, command.flag, command.opaque) == (10, 1, -3)
    assert (command.language, command.version, command.remark) == (0, 0, None)
    assert command.ext_fields == {}
    assert read(pack(1, 0, 2, 3, 4, "r", None, None, "newer")).remark == "r"


def test_fields_are_typed_and_named_by_their_class_only() -> None:
    sent = GetMaxOffset("T", 5)
    command = read(MESSAGEPACK.encode(Command(30, sent, extras={"Signature": "s="})))
    assert command.read(GetMaxOffset) == sent
    assert command.ext_fields == {"Signature": "s="}
    assert command.ext_fields_as(GetMaxOffset) == {
        "topic": "T",
        "queueId": "5",
        "committed": "true",
        "Signature": "s=",
    }


def test_fields_without_a_class_travel_by_name_and_read_as_a_class() -> None:
    command = read(MESSAGEPACK.encode(Command(30, {"topic": "T", "queueId": "5"})))
    assert command.ext_fields == {"topic": "T", "queueId": "5"}
    assert command.read(GetMaxOffset) == GetMaxOffset("T", 5)
    with pytest.raises(FieldError, match="'topic' is missing"):
        read(MESSAGEPACK.encode(Command(30))).read(GetMaxOffset)


def test_a_received_command_is_sent_on_as_it_came() -> None:
    raw = pack(1, 0, 2, 3, 4, None, ["T", 5, None, None, "newer"], {"a": "b"})
    assert MESSAGEPACK.encode(read(raw)) == raw


@given(
    st.integers(-(2**31), 2**31 - 1),
    st.text(),
    st.integers(-(2**63), 2**63 - 1),
    st.none() | st.text(),
    st.none() | st.booleans(),
    st.none() | st.dictionaries(st.text(), st.text()),
)
def test_a_header_class_is_written_as_msgpack_writes_it(
    number: int,
    text: str,
    offset: int,
    maybe: str | None,
    flag: bool | None,
    extras: dict[str, str] | None,
) -> None:
    fields = SendMessageResponse(text, number, offset, maybe, None, maybe, text, flag)
    command = Command(number, fields, 1, number, maybe, extras=extras)
    assert MESSAGEPACK.encode(command) == pack(
        number,
        1,
        number,
        int(Language.PYTHON),
        CURRENT_VERSION,
        maybe,
        list(structs.astuple(fields)),
        extras,
    )


@pytest.mark.parametrize(
    "command",
    [
        Command(0, remark="\ud800"),
        Command(2**64),
        Command(0, GetMaxOffset("T", 0), extras={"topic": "U"}),
    ],
)
def test_what_has_no_form_on_the_wire_is_a_local_error(command: Command) -> None:
    with pytest.raises(LocalProtocolError):
        MESSAGEPACK.encode(command)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xc0",
        b"\x80",
        pack(),
        pack(1, 0),
        pack("1", 0, 0),
        pack(2**31, 0, 0),
        pack(1, 0, 0, 0, 0, 7),
        pack(1, 0, 0, 0, 0, None, {"topic": "T"}),
        pack(1, 0, 0, 0, 0, None, "T"),
        pack(1, 0, 0, 0, 0, None, None, {(1, 2): ""}),
        pack(1, 0, 0, 0, 0, None, msgpack.Timestamp(1)),
        pack(1, 0, 0, 0, 0, None, None, {"a": 1}),
        pack(1, 0, 0) + b"\xc0",
        b"\xdd\xff\xff\xff\xff",
        b"\x93\x00\x00\xdb\xff\xff\xff\xff",
        pack(1, 0, 0, 0, 0, None)[:-1] + b"\xc0" + b"\x91" * 100_000,
        b"\x98\x00\x00\x00\x00\x00\xc0" + b"\x91" * 100_000,
        b"\x98\x00\x00\x00\x00\x00\xc0\xc0\xdf\xff\xff\xff\xff",
        pack(1, 0, 0, 0, 0, "x")[:-1] + b"\xff",
    ],
)
def test_what_is_not_a_header_is_a_remote_error(raw: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="MessagePack header"):
        read(raw)


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (pack(2**31, 0, 0), "at `code`"),
        (pack(1, 0, "x"), "at `opaque`"),
        (pack(1, 0, 0, 0, 0, 7), "at `remark`"),
        (pack(1, 0, 0, 0, 0, None, None, {"a": 1}), r"at `extras\[...\]`"),
    ],
)
def test_a_wrong_item_is_named(raw: bytes, problem: str) -> None:
    with pytest.raises(RemoteProtocolError, match=f"MessagePack header: Expected .*{problem}"):
        read(raw)


def test_as_many_extras_as_fields_max_may_come() -> None:
    fields = {str(n): "" for n in range(64)}
    assert read(MESSAGEPACK.encode(Command(0, fields))).ext_fields == fields
    with pytest.raises(RemoteProtocolError, match="65 fields exceed fields_max 64"):
        read(MESSAGEPACK.encode(Command(0, fields | {"x": "y"})))


def test_as_many_fields_as_fields_max_may_come() -> None:
    assert read(pack(1, 0, 0, 0, 0, None, ["t"] * 60, {str(n): "" for n in range(4)})).code == 1
    with pytest.raises(RemoteProtocolError, match="1000000 fields exceed fields_max 64"):
        read(pack(1, 0, 0, 0, 0, None, [0] * 1_000_000))
