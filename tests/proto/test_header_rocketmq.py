from __future__ import annotations

import pytest

from cometmq.proto.codes import Language
from cometmq.proto.command import Command
from cometmq.proto.commands import GetMaxOffset
from cometmq.proto.errors import LocalProtocolError, RemoteProtocolError
from cometmq.proto.header_rocketmq import ROCKETMQ

DOCUMENTED = bytes.fromhex(
    "0069 03 018f 00000007 00000000 00000000 0000000c 0005 746f706963 00000001 54"
)


def read(raw: bytes, fields_max: int = 64) -> Command:
    return ROCKETMQ.decode(raw, None, fields_max)


def test_the_documented_header_is_written_and_read_to_the_byte() -> None:
    command = Command(105, {"topic": "T"}, opaque=7, version=399)
    assert ROCKETMQ.encode(command) == DOCUMENTED
    again = read(DOCUMENTED)
    assert (again.code, again.opaque, again.version, again.flag) == (105, 7, 399, 0)
    assert (again.language, again.remark) == (Language.PYTHON, None)
    assert again.ext_fields == {"topic": "T"}


def test_the_least_header_has_21_bytes() -> None:
    raw = ROCKETMQ.encode(Command(-1, flag=-1, opaque=-1, version=-1, language=255))
    assert len(raw) == 21
    command = read(raw)
    assert (command.code, command.flag, command.opaque, command.version) == (-1, -1, -1, -1)
    assert command.language == 255
    assert command.ext_fields == {}


def test_an_empty_remark_is_none_and_none_fields_are_not_written() -> None:
    assert read(ROCKETMQ.encode(Command(0, remark=""))).remark is None
    assert read(ROCKETMQ.encode(Command(0, remark="é"))).remark == "é"
    sent = GetMaxOffset("T", 0)
    assert "bname" not in read(ROCKETMQ.encode(Command(0, sent))).ext_fields
    assert read(ROCKETMQ.encode(Command(0, sent))).read(GetMaxOffset) == sent


@pytest.mark.parametrize(
    "command",
    [
        Command(200050),
        Command(32768),
        Command(0, version=32768),
        Command(0, opaque=2**31),
        Command(0, {"k" * 32768: ""}),
        Command(0, remark="\ud800"),
        Command(0, {"k": "\ud800"}),
        Command(0, GetMaxOffset("T", 0), extras={"queueId": "1"}),
    ],
)
def test_what_does_not_fit_is_a_local_error(command: Command) -> None:
    with pytest.raises(LocalProtocolError):
        ROCKETMQ.encode(command)


@pytest.mark.parametrize("size", range(len(DOCUMENTED)))
def test_a_header_cut_short_is_a_remote_error(size: int) -> None:
    with pytest.raises(RemoteProtocolError, match="ROCKETMQ header"):
        read(DOCUMENTED[:size])


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (
            "00000000 00000000 00 00000000 00000001 00000000",
            "a remark of 1 bytes|fixed fields|exceed",
        ),
        ("0000 00 0000 00000000 00000000 ffffffff 00000000", "a remark of -1 bytes"),
        ("0000 00 0000 00000000 00000000 00000000 ffffffff", "fields of -1 bytes"),
        ("0000 00 0000 00000000 00000000 00000000 00000001", "fields of 1 bytes"),
        ("0000 00 0000 00000000 00000000 00000000 00000001 00", "within a size"),
        ("0000 00 0000 00000000 00000000 00000000 00000002 ffff", "a key of -1 bytes"),
        ("0000 00 0000 00000000 00000000 00000000 00000003 0001 61", "within a size"),
        ("0000 00 0000 00000000 00000000 00000000 00000007 0001 61 ffffffff", "a value of -1"),
        ("0000 00 0000 00000000 00000000 00000000 00000007 0001 61 00000001", "a value of 1"),
        (
            "0000 00 0000 00000000 00000000 00000000 00000007 0001 61 00000001 62",
            "goes past the end of the fields",
        ),
        ("0000 00 0000 00000000 00000000 00000000 00000007 0001 ff 00000000", "key at 23: .*utf-8"),
        (
            "0000 00 0000 00000000 00000000 00000000 00000008 0001 61 00000001 ff",
            "value at .*utf-8",
        ),
        ("0000 00 0000 00000000 00000000 00000001 ff 00000000", "remark at 17: .*utf-8"),
    ],
)
def test_every_declared_size_and_text_is_checked(raw: str, problem: str) -> None:
    with pytest.raises(RemoteProtocolError, match=problem):
        read(bytes.fromhex(raw))


def test_bytes_behind_the_fields_are_ignored() -> None:
    assert read(DOCUMENTED + b"more").ext_fields == {"topic": "T"}


def test_as_many_fields_as_fields_max_may_come() -> None:
    fields = {str(n): "" for n in range(64)}
    assert read(ROCKETMQ.encode(Command(0, fields))).ext_fields == fields
    with pytest.raises(RemoteProtocolError, match="fields_max 64"):
        read(ROCKETMQ.encode(Command(0, fields | {"x": "y"})))
