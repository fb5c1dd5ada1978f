from __future__ import annotations

import pytest
from hypothesis import example, given, strategies as st
from tests.proto.apache_messages import captured_bodies, manifest, stored_messages

from cometmq.proto.batch import (
    BatchItem,
    batch_properties,
    decode_batch,
    encode_batch,
    split_batch,
    unwrap_batch,
    without_property,
)
from cometmq.proto.buffer import Buffer
from cometmq.proto.errors import LocalProtocolError, MessageError
from cometmq.proto.message import StoredMessage, read_message
from cometmq.proto.properties import join_properties
from cometmq.proto.record import encode_record

ITEMS = st.lists(
    st.builds(
        BatchItem,
        st.binary(max_size=20),
        st.binary(max_size=20),
        st.integers(-(2**31), 2**31 - 1),
    ),
    min_size=1,
    max_size=5,
)


def test_an_item_is_these_bytes() -> None:
    assert encode_batch("T", [BatchItem(b"hi", b"UNIQ_KEY\x01X\x02")]) == bytes.fromhex(
        "00000023 00000000 00000000 00000000 00000002 6869 000b 554e49515f4b4559 01 58 02"
    )


@given(ITEMS)
def test_batches_round_trip(items: list[BatchItem]) -> None:
    raw = encode_batch("T", items)
    assert list(decode_batch(raw)) == items
    assert list(decode_batch(memoryview(raw))) == items


@given(ITEMS)
@example([BatchItem(b"x", b"k\x01" + b"v" * 300 + b"\x02"), BatchItem(b"x", b"k\x01v")])
@example([BatchItem(b"x", b""), BatchItem(b"x", b"k\x01v\x02")])
def test_a_batch_in_parts_has_what_it_decodes_to(items: list[BatchItem]) -> None:
    raw, more = encode_batch("T", items), b"n\x01w\x02"
    assert batch_properties(raw) == [item.properties for item in items]
    assert split_batch(raw, more) == [
        (item.flag, item.body, join_properties(item.properties, more)) for item in items
    ]


def test_captured_batches_decode_and_encode_to_the_same_bytes() -> None:
    bodies = {
        captured.name: captured.body
        for captured in captured_bodies(320)
        if captured.name.endswith("-request")
    }
    malformed = bodies.pop("320-4-request")  # a broker refused it, too
    with pytest.raises(MessageError, match="batch item at 0: cut short"):
        list(decode_batch(malformed))
    assert len(bodies) == 5
    for body in bodies.values():
        assert encode_batch("T", decode_batch(body)) == body


@pytest.mark.parametrize(
    ("topic", "items", "flags", "problem"),
    [
        ("T", [], 0, "no messages"),
        ("%RETRY%group", [BatchItem(b"")], 0, "retry topic"),
        ("T", [BatchItem(b"")], 0x1, "compressed"),
        ("T", [BatchItem(b"")], 0x4, "transaction"),
        ("T", [BatchItem(b"", b"DELAY\x013\x02")], 0, "delayed"),
        ("T", [BatchItem(b"", b"WAIT\x01false\x02"), BatchItem(b"")], 0, "some messages wait"),
        ("T", [BatchItem(b"", bytes(32768))], 0, "properties of 32768 bytes"),
        ("T", [BatchItem(b"", flag=2**31)], 0, "does not fit"),
    ],
)
def test_what_a_broker_would_not_take_as_meant_is_refused(
    topic: str, items: list[BatchItem], flags: int, problem: str
) -> None:
    with pytest.raises(LocalProtocolError, match=problem):
        encode_batch(topic, items, flags)


def test_no_delay_and_agreement_on_waiting_are_no_reason_to_refuse() -> None:
    items = [
        BatchItem(b"a", b"DELAY\x010\x02WAIT\x01true\x02"),
        BatchItem(b"b", b"WAIT\x01TRUE\x02"),
        BatchItem(b"c"),
    ]
    assert list(decode_batch(encode_batch("T", items))) == items


def test_a_batch_cut_anywhere_else_than_between_items_is_malformed() -> None:
    raw = encode_batch("T", [BatchItem(b"one", b"a\x01b\x02"), BatchItem(b"two")])
    second = int.from_bytes(raw[:4])
    for size in range(1, len(raw)):
        if size == second:
            continue
        with pytest.raises(MessageError, match="batch item at"):
            list(decode_batch(raw[:size]))


def test_a_changed_byte_makes_a_malformed_or_a_whole_batch_never_anything_else() -> None:
    raw = encode_batch("T", [BatchItem(b"one", b"a\x01b\x02"), BatchItem(b"two")])
    for at in range(len(raw)):
        for byte in (0x00, 0x01, 0x7F, 0x80, 0xFF, raw[at] ^ 1):
            changed = raw[:at] + bytes([byte]) + raw[at + 1 :]
            try:
                items = list(decode_batch(changed))
            except MessageError:
                continue
            assert [(len(item.body), len(item.properties)) for item in items] == [(3, 4), (3, 0)]


@pytest.mark.parametrize(
    ("at", "field", "problem"),
    [
        (0, "00000000", "batch item at 0: says 0 bytes, but its parts have 29"),
        (0, "0000001e", "says 30 bytes"),
        (16, "80000000", "cut short"),
        (23, "8004", "says 29 bytes"),
    ],
)
def test_what_is_wrong_with_an_item_is_said(at: int, field: str, problem: str) -> None:
    raw = bytearray(encode_batch("T", [BatchItem(b"one", b"a\x01b\x02")]))
    raw[at : at + len(field) // 2] = bytes.fromhex(field)
    with pytest.raises(MessageError, match=problem):
        list(decode_batch(bytes(raw)))


def test_properties_that_no_record_can_hold_are_malformed() -> None:
    size = 22 + 32768
    raw = size.to_bytes(4) + bytes(16) + (32768).to_bytes(2) + bytes(32768)
    with pytest.raises(MessageError, match="properties of 32768"):
        list(decode_batch(raw))


def inner_batch(items: list[BatchItem], properties: bytes) -> StoredMessage:
    return read_message(
        encode_record(
            topic=b"T",
            body=encode_batch("T", items),
            properties=properties,
            queue_id=0,
            queue_offset=7,
            physical_offset=0,
            born_timestamp=0,
            born_host=bytes(8),
            store_timestamp=0,
            store_host=bytes(8),
            sys_flag=0xC0,
        )
    )


def test_an_inner_batch_gives_each_message_its_own_queue_offset() -> None:
    items = [BatchItem(b"one"), BatchItem(b"two", flag=3)]
    message = inner_batch(items, b"INNER_NUM\x012\x02")
    assert message.is_inner_batch
    assert [(m.queue_offset, m.item) for m in unwrap_batch(message, message.body)] == [
        (7, items[0]),
        (8, items[1]),
    ]


@pytest.mark.parametrize("properties", [b"", b"INNER_NUM\x013\x02", b"INNER_NUM\x01x\x02"])
def test_an_inner_batch_of_another_count_than_announced_is_malformed(properties: bytes) -> None:
    message = inner_batch([BatchItem(b"one")], properties)
    with pytest.raises(MessageError, match="inner batch: 1 messages"):
        unwrap_batch(message, message.body)


def test_apaches_inner_batches_unwrap_to_what_its_client_saw() -> None:
    unwrapped = 0
    expected = {message["physicalOffset"]: message for message in manifest("clean")["messages"]}
    for physical_offset, message in stored_messages("clean"):
        if message.is_inner_batch:
            seen = expected[physical_offset]["client"]
            inner = unwrap_batch(message, message.body)
            assert [(m.queue_offset, len(m.item.body)) for m in inner] == [
                (account["queueOffset"], account["bodyLength"]) for account in seen
            ]
            unwrapped += 1
    assert unwrapped >= 4


@pytest.mark.parametrize("raw", [None, b"", memoryview(b"")])
def test_no_body_is_no_batch(raw: Buffer | None) -> None:
    with pytest.raises(MessageError, match="batch: no messages"):
        list(decode_batch(raw))


def test_a_property_is_taken_out_of_every_message_and_nothing_else_is() -> None:
    items = [
        BatchItem(b"A\x01", b"K\x01v\x02A\x01x\x02L\x01w", 7),
        BatchItem(b"b", b"L\x01A\x02", 8),
    ]
    kept = [BatchItem(b"A\x01", b"K\x01v\x02L\x01w", 7), items[1]]
    raw = encode_batch("T", items)
    assert list(decode_batch(without_property(raw, b"A"))) == kept
    assert without_property(raw, b"absent") is raw
    with pytest.raises(MessageError):
        without_property(raw[:-1], b"A")
