from __future__ import annotations

import json

import pytest

from cometmq.proto.codes import Language
from cometmq.proto.command import Command
from cometmq.proto.commands import GetMaxOffset
from cometmq.proto.errors import LocalProtocolError, RemoteProtocolError
from cometmq.proto.header_json import JSON


def read(text: str | bytes, fields_max: int = 64) -> Command:
    return JSON.decode(text.encode() if isinstance(text, str) else text, None, fields_max)


def test_the_header_of_the_documented_frame_is_written_to_the_byte() -> None:
    request = Command(105, {"topic": "T"}, opaque=7, version=399)
    assert JSON.encode(request) == (
        b'{"code":105,"extFields":{"topic":"T"},"flag":0,"language":"PYTHON","opaque":7,'
        b'"serializeTypeCurrentRPC":"JSON","version":399}'
    )


def test_a_request_without_fields_has_no_ext_fields_and_a_response_always_has() -> None:
    request = Command.request(34)
    assert "extFields" not in json.loads(JSON.encode(request))
    assert json.loads(JSON.encode(request.answer(0)))["extFields"] == {}


def test_texts_are_escaped() -> None:
    text = '"\\\x00\x01\x1f\b\f\n\r\t é😀</script>'
    command = Command(0, {text: text}, remark=text)
    assert json.loads(JSON.encode(command))["remark"] == text
    again = read(JSON.encode(command))
    assert (again.remark, again.ext_fields) == (text, {text: text})


@pytest.mark.parametrize(
    "command",
    [
        Command(0, {"a": "\ud800"}),
        Command(0, GetMaxOffset("\ud800", 0)),
        Command(0, remark="\ud800"),
        Command(0, GetMaxOffset("T", 0), extras={"topic": "U"}),
    ],
)
def test_what_has_no_form_on_the_wire_is_a_local_error(command: Command) -> None:
    with pytest.raises(LocalProtocolError):
        JSON.encode(command)


def test_an_empty_object_is_a_header() -> None:
    command = read("{}")
    assert (command.code, command.flag, command.opaque, command.version) == (0, 0, 0, 0)
    assert (command.language, command.remark, command.ext_fields) == (Language.OTHER, None, {})


def test_numbers_may_be_texts_and_nulls_are_missing() -> None:
    command = read(
        ' { "version" : "401", "opaque": "-1", "code":"11", "flag":1.0, "remark":null, "new":[{}] }'
    )
    assert (command.code, command.flag, command.opaque, command.version) == (11, 1, -1, 401)
    assert command.remark is None
    nulls = read('{"code":null,"flag":null,"opaque":null,"version":null,"extFields":null}')
    assert (nulls.code, nulls.flag, nulls.opaque, nulls.version) == (0, 0, 0, 0)
    assert nulls.ext_fields == {}


@pytest.mark.parametrize(
    ("said", "language"),
    [
        ('"JAVA"', Language.JAVA),
        ('"NODE_JS"', Language.NODE_JS),
        ('"KOTLIN"', Language.OTHER),
        ('"java"', Language.OTHER),
        ("3", Language.PYTHON),
        ("300", Language.OTHER),
        ("null", Language.OTHER),
    ],
)
def test_any_language_is_accepted(said: str, language: Language) -> None:
    assert read(f'{{"language":{said}}}').language == language


def test_an_unknown_language_of_ours_is_other() -> None:
    assert json.loads(JSON.encode(Command(0, language=77)))["language"] == "OTHER"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{",
        "{}xx",
        '{"code":{}}',
        '{"code":"x"}',
        '{"code":2147483648}',
        '{"opaque":1.5}',
        '{"remark":7}',
        "\ufeff{}",
        '{"code":' + "[" * 100_000,
    ],
)
def test_what_is_not_a_header_is_a_remote_error(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="JSON header"):
        read(text)


@pytest.mark.parametrize(
    ("text", "half"),
    [
        (r"\ud83d", r"\ud83d"),
        (r"\uD83D-", r"\uD83D"),
        (r"\udc00", r"\udc00"),
        (r"\\\ud83d\ude00\ud83d\u0041", r"\ud83d"),
    ],
)
def test_half_a_surrogate_pair_is_called_that_and_found(text: str, half: str) -> None:
    raw = '{"code":1,"extFields":{"topic":"' + text + '"}}'
    with pytest.raises(RemoteProtocolError) as caught:
        read(raw)
    at = raw.rindex(half)
    assert str(caught.value) == f"JSON header: {half} is half a surrogate pair (byte {at})"


@pytest.mark.parametrize("text", [r"\ud83d\ude00", r"\\ud83d", r"\\\\udc00", r"\u00e9"])
def test_other_escapes_are_not_taken_for_half_a_surrogate_pair(text: str) -> None:
    fields = '{"topic":"' + text + '"}'
    assert read('{"code":1,"extFields":' + fields + "}").ext_fields == json.loads(fields)
    with pytest.raises(RemoteProtocolError, match="truncated"):
        read('{"code":1,"extFields":' + fields)


def test_text_that_is_not_utf8_is_a_remote_error() -> None:
    with pytest.raises(RemoteProtocolError):
        read(b'{"remark":"\xff"}')


def test_as_many_fields_as_fields_max_may_come() -> None:
    fields = {str(n): "" for n in range(64)}
    assert read(json.dumps({"extFields": fields})).ext_fields == fields
    with pytest.raises(RemoteProtocolError, match="65 fields exceed fields_max 64"):
        read(json.dumps({"extFields": fields | {"x": "y" * 500}}))
    with pytest.raises(RemoteProtocolError, match="extFields"):
        read(json.dumps({"extFields": "x" * 500}))
    assert read(json.dumps({"extFields": None, "remark": "x" * 500})).ext_fields == {}


def test_extras_join_the_fields() -> None:
    command = Command(0, GetMaxOffset("T", 1), extras={"Signature": "s="})
    again = read(JSON.encode(command))
    assert again.ext_fields == {
        "topic": "T",
        "queueId": "1",
        "committed": "true",
        "Signature": "s=",
    }
    assert again.read(GetMaxOffset) == GetMaxOffset("T", 1)


def test_a_received_command_is_sent_on_as_it_came() -> None:
    text = b'{"extFields":{"topic":"T","queueId":3,"x":null}}'
    assert b'"extFields":{"topic":"T","queueId":3,"x":null}' in JSON.encode(read(text))


def test_of_a_name_that_comes_often_one_counts_and_the_last_wins() -> None:
    pairs = ",".join(f'"topic":"T{n}"' for n in range(5000))
    command = JSON.decode(f'{{"code":30,"extFields":{{{pairs}}}}}'.encode(), None, 8)
    assert command.ext_fields == {"topic": "T4999"}
    pairs = ",".join(f'"{n % 9}":"T"' for n in range(5000))
    with pytest.raises(RemoteProtocolError, match="9 fields exceed fields_max 8"):
        JSON.decode(f'{{"code":30,"extFields":{{{pairs}}}}}'.encode(), None, 8)
