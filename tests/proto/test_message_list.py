from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, strategies as st
from tests.proto.apache_messages import captured_messages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

from cometmq.proto.errors import MessageError
from cometmq.proto.message import StoredMessage, read_message
from cometmq.proto.message_list import MessageList
from cometmq.proto.record import encode_record


def record(offset: int, **changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "topic": b"T",
        "body": b"body %d" % offset,
        "properties": b"TAGS\x01A\x02",
        "queue_id": 0,
        "queue_offset": offset,
        "physical_offset": 0,
        "born_timestamp": 0,
        "born_host": bytes(8),
        "store_timestamp": 0,
        "store_host": bytes(8),
    }
    return encode_record(**(fields | changes))


FORMS: list[dict[str, Any]] = [
    {},
    {"born_host": bytes(20)},
    {"store_host": bytes(20)},
    {"topic": b"t" * 128},
    {"body": b"", "properties": b""},
]


def read_one_by_one(raw: bytes) -> list[StoredMessage]:
    """Return the messages of the list, using only `read_message`."""
    found: list[StoredMessage] = []
    while not found or found[-1].end < len(raw):
        found.append(read_message(raw, found[-1].end if found else 0))
    return found


def positions(message: StoredMessage) -> tuple[object, ...]:
    return tuple(getattr(message, name) for name in StoredMessage.__struct_fields__)


def outcome(reader: Callable[[bytes], Iterable[StoredMessage]], raw: bytes) -> object:
    try:
        return [positions(message) for message in reader(raw)]
    except MessageError as error:
        return str(error)


@given(st.lists(st.sampled_from(FORMS), min_size=1, max_size=6))
def test_messages_of_all_forms_follow_each_other(forms: list[dict[str, Any]]) -> None:
    raw = b"".join(record(offset, **form) for offset, form in enumerate(forms))
    messages = MessageList(memoryview(raw))
    assert len(messages) == len(forms)
    assert [message.queue_offset for message in messages] == list(range(len(forms)))
    assert [positions(m) for m in messages] == [positions(m) for m in read_one_by_one(raw)]


def test_no_body_and_an_empty_one_hold_no_message() -> None:
    assert list(MessageList(b"")) == []
    assert list(MessageList(None)) == []


def test_a_list_shows_its_size() -> None:
    assert repr(MessageList(b"no record")) == "<MessageList of 9 bytes>"


def test_a_bytearray_is_copied_as_a_view_is() -> None:
    buffer = bytearray(record(0))
    messages = MessageList(buffer)
    buffer.clear()
    assert [message.queue_offset for message in messages] == [0]


def test_captured_answers_hold_the_messages_of_the_capture() -> None:
    for captured in captured_messages():
        messages = MessageList(captured.body)
        assert len(messages) == len(captured.messages)
        for message, expected in zip(messages, captured.messages, strict=True):
            assert message.topic == expected["topic"]
            assert message.queue_offset == expected["queueOffset"]
            assert message.properties == expected["properties"]


def test_the_messages_before_a_malformed_one_are_read() -> None:
    raw = record(0) + record(1) + b"rest"
    messages = iter(MessageList(raw))
    assert [next(messages).queue_offset, next(messages).queue_offset] == [0, 1]
    with pytest.raises(MessageError, match=f"record at {len(raw) - 4}: it runs past"):
        next(messages)


def test_the_messages_outlive_the_receive_buffer() -> None:
    buffer = bytearray(record(0))
    messages = MessageList(memoryview(buffer))
    buffer[:] = bytes(len(buffer))
    assert [message.body for message in messages] == [b"body 0"]


@pytest.mark.parametrize("form", FORMS)
def test_cut_anywhere_the_last_message_is_malformed(form: dict[str, Any]) -> None:
    first = record(0, **form)
    raw = first + record(1, **form)
    for size in range(1, len(raw)):
        if size == len(first):
            continue
        with pytest.raises(MessageError, match="record at"):
            list(MessageList(raw[:size]))


@pytest.mark.parametrize("form", FORMS)
def test_a_changed_byte_is_read_or_refused_as_by_reading_one_by_one(form: dict[str, Any]) -> None:
    raw = record(0, **form) + record(1, **form)
    for at in range(len(raw)):
        for byte in (0x00, 0x01, 0x10, 0x20, 0x30, 0x7F, 0x80, 0xFF, raw[at] ^ 1):
            changed = raw[:at] + bytes([byte]) + raw[at + 1 :]
            assert outcome(MessageList, changed) == outcome(read_one_by_one, changed)


@pytest.mark.parametrize(
    ("at", "byte", "problem"), [(95, 0x80, "topic of 128"), (97, 0x80, "properties of 32")]
)
def test_a_length_that_java_would_read_as_negative_is_malformed(
    at: int, byte: int, problem: str
) -> None:
    raw = bytearray(record(0, body=b"bodyXX", properties=bytes(8)))
    raw[at - 1] = byte
    raw += bytes(33_000)
    raw[0:4] = (int.from_bytes(raw[0:4]) + (127 if at == 95 else 0x8000)).to_bytes(4)
    with pytest.raises(MessageError, match=problem):
        list(MessageList(bytes(raw)))


def test_a_topic_of_128_bytes_is_refused_in_version_1_though_all_lengths_agree() -> None:
    raw = record(0, topic=b"t" * 127)
    at = raw.index(b"\x7fttt")
    longer = (len(raw) + 1).to_bytes(4) + raw[4:at] + b"\x80t" + raw[at + 1 :]
    with pytest.raises(MessageError, match="topic of 128"):
        list(MessageList(longer))
    with pytest.raises(MessageError, match="topic of 128"):
        read_message(longer)
