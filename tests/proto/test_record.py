from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, strategies as st
from tests.proto.apache_messages import STORES, captured_messages, manifest, stored_messages

from cometmq.proto.checksum import crc31
from cometmq.proto.errors import LocalProtocolError, MessageError
from cometmq.proto.host import pack_host
from cometmq.proto.message import StoredMessage, read_message
from cometmq.proto.record import (
    HEAD_SIZE,
    MAGIC_BLANK,
    RECORD_CRC_SIZE,
    check_record_crc,
    encode_record,
    record_parts,
    record_size,
    shared_part,
    topic_part,
)

if TYPE_CHECKING:
    from collections.abc import Callable

LOCAL = pack_host("127.0.0.1", 10911)
HOSTS = st.one_of(st.binary(min_size=8, max_size=8), st.binary(min_size=20, max_size=20))
I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
RECORDS = st.fixed_dictionaries(
    {
        "topic": st.text(min_size=1, max_size=140).map(lambda text: text.encode()[:255]),
        "body": st.binary(max_size=40),
        "properties": st.binary(max_size=40),
        "queue_id": I32,
        "queue_offset": I64,
        "physical_offset": I64,
        "born_timestamp": I64,
        "born_host": HOSTS,
        "store_timestamp": I64,
        "store_host": HOSTS,
        "sys_flag": I32,
        "flag": I32,
        "reconsume_times": I32,
        "prepared_transaction_offset": I64,
    }
)


FIELDS: dict[str, Any] = {
    "topic": b"TopicTest",
    "body": b"hello",
    "properties": b"TAGS\x01TagA\x02KEYS\x01KEY1\x02UNIQ_KEY\x01AAAA\x02",
    "queue_id": 0,
    "queue_offset": 0,
    "physical_offset": 0,
    "born_timestamp": 1700000000000,
    "born_host": LOCAL,
    "store_timestamp": 1700000000001,
    "store_host": LOCAL,
    "sys_flag": 0,
    "flag": 0,
    "reconsume_times": 0,
    "prepared_transaction_offset": 0,
}


def record(**changes: Any) -> bytes:
    return encode_record(**(FIELDS | changes))


def encoded_again(message: StoredMessage, **changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "topic": message.topic_raw,
        "body": message.body,
        "properties": message.properties_raw,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "physical_offset": message.physical_offset,
        "born_timestamp": message.born_timestamp,
        "born_host": message.born_host,
        "store_timestamp": message.store_timestamp,
        "store_host": message.store_host,
        "sys_flag": message.sys_flag,
        "flag": message.flag,
        "reconsume_times": message.reconsume_times,
        "prepared_transaction_offset": message.prepared_transaction_offset,
    }
    return encode_record(**(fields | changes))


def test_a_record_of_version_1_is_these_bytes() -> None:
    assert record() == bytes.fromhex(
        "0000008b daa320a7 3610a686 00000000 00000000 0000000000000000 0000000000000000 00000000"
        "0000018bcfe56800 7f00000100002a9f 0000018bcfe56801 7f00000100002a9f 00000000"
        "0000000000000000 00000005 68656c6c6f 09 546f70696354657374 0022"
        "54414753015461674102 4b455953014b45593102 554e49515f4b45590141414141 02"
    )


def test_each_number_stands_in_its_field() -> None:
    encoded = record(
        topic=b"T",
        properties=b"TAGS\x01A\x02",
        queue_id=1,
        queue_offset=5,
        physical_offset=1000,
        born_host=pack_host("10.0.0.2", 40000),
        store_timestamp=1700000000005,
        store_host=pack_host("10.0.0.1", 10911),
    )
    assert encoded == bytes.fromhex(
        "00000068 daa320a7 3610a686 00000001 00000000 0000000000000005 00000000000003e8"
        "00000000 0000018bcfe56800 0a000002 00009c40 0000018bcfe56805 0a000001 00002a9f"
        "00000000 0000000000000000 00000005 68656c6c6f 01 54 0007 54414753014102"
    )


def joined_parts(**fields: Any) -> tuple[int, bytes]:
    """Make the record from its parts, which do not use `encode_record`."""
    size, head, middle = record_parts(
        topic_part(fields["topic"]),
        fields["body"],
        fields["properties"],
        fields["queue_id"],
        fields["flag"],
        fields["queue_offset"],
        fields["physical_offset"],
        shared_part(
            fields["sys_flag"],
            fields["born_timestamp"],
            fields["born_host"],
            fields["store_timestamp"],
            fields["store_host"],
            fields["reconsume_times"],
            fields["prepared_transaction_offset"],
        ),
    )
    return size, head + fields["body"] + middle + fields["properties"]


@given(RECORDS)
def test_the_parts_of_a_record_joined_are_the_record(fields: dict[str, Any]) -> None:
    whole = encode_record(**fields)
    assert joined_parts(**fields) == (len(whole), whole)


@given(RECORDS)
def test_every_field_of_both_versions_and_address_families_round_trips(
    fields: dict[str, Any],
) -> None:
    encoded = encode_record(**fields)
    message = read_message(encoded)
    hosts_size = len(fields["born_host"]) + len(fields["store_host"])
    bits = (0x10 if len(fields["born_host"]) == 20 else 0) | (
        0x20 if len(fields["store_host"]) == 20 else 0
    )
    assert message.size == len(encoded)
    assert message.size == record_size(
        len(fields["topic"]), len(fields["body"]), len(fields["properties"]), hosts_size
    )
    assert message.version == (2 if len(fields["topic"]) > 127 else 1)
    assert message.body_crc == crc31(fields["body"])
    assert message.sys_flag == fields["sys_flag"] & ~0x30 | bits
    for name, raw in (("topic", "topic_raw"), ("properties", "properties_raw")):
        assert getattr(message, raw) == fields[name]
    for name in set(fields) - {"topic", "properties", "sys_flag"}:
        assert getattr(message, name) == fields[name]
    assert encoded_again(message) == encoded == message.raw


@pytest.mark.parametrize("size", [126, 127, 128, 255, 32767])
def test_a_topic_over_127_bytes_makes_version_2(size: int) -> None:
    message = read_message(record(topic=b"t" * size))
    assert message.version == (1 if size <= 127 else 2)
    assert message.topic == "t" * size


def test_a_body_may_be_empty_and_may_be_a_view() -> None:
    assert read_message(record(body=b"")).body_crc == 0
    assert read_message(record(body=memoryview(b"-body-")[1:-1])).body == b"body"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"properties": bytes(32768)}, "properties of 32768 bytes, over 32767"),
        ({"topic": bytes(32768)}, "topic of 32768 bytes, over 32767"),
        ({"queue_id": 2**31}, "a number does not fit"),
        ({"physical_offset": -(2**63) - 1}, "a number does not fit"),
        ({"born_host": b"1234"}, "packed hosts of 4 and 8 bytes"),
    ],
)
@pytest.mark.parametrize("make", [encode_record, joined_parts])
def test_what_the_layout_cannot_hold_is_refused(
    make: Callable[..., object], changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(LocalProtocolError, match=problem):
        make(**(FIELDS | changes))


def test_the_checksum_of_the_record_is_its_last_property_digits_reversed() -> None:
    encoded = record(record_crc=True)
    assert len(encoded) == 159
    assert encoded.endswith(b"\x02__CRC32#\x010160013260\x02")
    assert check_record_crc(encoded) is True
    assert read_message(encoded).is_record_intact() is True


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (b"", b""),
        (b"a\x01b", b"a\x01b\x02"),
        (b"__CRC32#\x01123\x02a\x01b\x02__CRC32#\x01456\x02", b"a\x01b\x02"),
    ],
)
def test_the_checksum_of_the_record_replaces_one_that_a_client_made_up(
    given: bytes, kept: bytes
) -> None:
    encoded = record(properties=given, record_crc=True)
    assert read_message(encoded).properties_raw[:-RECORD_CRC_SIZE] == kept
    assert check_record_crc(encoded) is True


def test_a_flipped_bit_anywhere_shows_in_the_checksum_of_the_record() -> None:
    encoded = record(record_crc=True)
    for at in range(len(encoded)):
        flipped = encoded[:at] + bytes([encoded[at] ^ 0x10]) + encoded[at + 1 :]
        assert check_record_crc(flipped) in (False, None)
    assert check_record_crc(record()) is None


def test_a_flipped_bit_at_either_end_of_that_property_makes_it_a_wrong_one() -> None:
    for properties in (b"", b"a\x01b\x02"):
        encoded = record(properties=properties, record_crc=True)
        for at in (*range(len(encoded) - 11, len(encoded)), *range(90)):
            flipped = encoded[:at] + bytes([encoded[at] ^ 0x10]) + encoded[at + 1 :]
            assert check_record_crc(flipped) is False
    at = len(encoded) - RECORD_CRC_SIZE - 1
    assert encoded[at] == 2
    assert check_record_crc(encoded[:at] + b"\x12" + encoded[at + 1 :]) is False


@pytest.mark.parametrize("begin", [b"x", b"a\x01b\x02x", b"a\x01"])
def test_a_property_that_only_ends_like_a_checksum_is_none(begin: bytes) -> None:
    properties = begin + b"__CRC32#\x010123456789\x02"
    assert check_record_crc(record(properties=properties)) is None
    assert check_record_crc(record(properties=properties, record_crc=True)) is True


def test_what_follows_a_record_and_what_precedes_it_do_not_matter() -> None:
    encoded = record()
    message = read_message(b"before" + encoded + b"after", 6)
    assert message.raw == encoded
    assert encoded_again(message) == encoded


@pytest.mark.parametrize("hosts", [(8, 8), (20, 8), (8, 20), (20, 20)])
@pytest.mark.parametrize("topic_size", [1, 128])
def test_a_record_cut_anywhere_is_malformed(hosts: tuple[int, int], topic_size: int) -> None:
    encoded = record(born_host=bytes(hosts[0]), store_host=bytes(hosts[1]), topic=b"t" * topic_size)
    for size in range(len(encoded)):
        with pytest.raises(MessageError, match="record at 0"):
            read_message(encoded[:size])


@pytest.mark.parametrize("hosts", [(8, 8), (20, 20)])
@pytest.mark.parametrize("topic_size", [1, 128])
def test_a_changed_byte_makes_a_malformed_or_a_whole_record_never_anything_else(
    hosts: tuple[int, int], topic_size: int
) -> None:
    encoded = record(
        born_host=bytes(hosts[0]), store_host=bytes(hosts[1]), topic=b"t" * topic_size, body=b""
    )
    for at in range(len(encoded)):
        for byte in (0x00, 0x01, 0x10, 0x20, 0x30, 0x7F, 0x80, 0xFF, encoded[at] ^ 1):
            changed = encoded[:at] + bytes([byte]) + encoded[at + 1 :] + b"\x00" * 300
            try:
                message = read_message(changed)
            except MessageError:
                continue
            assert message.size <= len(encoded)
            assert message.raw == changed[: message.size]
            assert message.sys_flag & 0x30 == 0x30 * (hosts[0] == 20)
            message.properties  # noqa: B018  # reading it must not fail


@pytest.mark.parametrize(
    ("at", "field", "problem"),
    [
        (0, "7fffffff", "says 2147483647 bytes, but its parts have 139"),
        (4, "cbd43194", "the filler at the end of a log file"),
        (4, "00000000", "magic 0x00000000"),
        (84, "80000000", "it runs past"),
        (84, "7fffffff", "it runs past"),
        (93, "80", "topic of 128 bytes"),
        (103, "ffff", "properties of 65535"),
        (103, "7fff", "its parts have"),
    ],
)
def test_what_is_wrong_with_a_record_is_said_and_where(at: int, field: str, problem: str) -> None:
    encoded = bytearray(record())
    encoded[at : at + len(field) // 2] = bytes.fromhex(field)
    with pytest.raises(MessageError, match=f"record at 3: .*{problem}"):
        read_message(b"..." + encoded + bytes(100), 3)


def test_a_negative_topic_length_of_version_2_is_malformed() -> None:
    encoded = record(topic=b"t" * 128, body=b"")
    with pytest.raises(MessageError, match="topic of 32896 bytes"):
        read_message(encoded[:HEAD_SIZE] + b"\x80\x80" + bytes(40000))


def test_the_filler_has_its_own_magic() -> None:
    assert MAGIC_BLANK.to_bytes(4) == b"\xcb\xd4\x31\x94"


def test_captured_messages_decode_as_the_capture_says_and_encode_to_the_same_bytes() -> None:
    count = 0
    for captured in captured_messages():
        start = 0
        for expected in captured.messages:
            message = read_message(captured.body, start)
            assert_equals_account(message, expected)
            assert message.is_body_intact()
            assert message.body.hex().startswith(expected["bodyHex"].removesuffix("..."))
            assert encoded_again(message) == message.raw
            start = message.end
            count += 1
        assert start == len(captured.body)
    assert count > 100


@pytest.mark.parametrize("store", STORES)
def test_every_record_of_apaches_stores_decodes_and_encodes_to_the_same_bytes(store: str) -> None:
    expected = {message["physicalOffset"]: message for message in manifest(store)["messages"]}
    seen = 0
    for physical_offset, message in stored_messages(store):
        assert message.physical_offset == physical_offset
        assert message.is_body_intact()
        assert message.is_record_intact() is None
        assert encoded_again(message) == message.raw
        if physical_offset in expected:
            assert_equals_account(message, expected.pop(physical_offset))
        seen += 1
    assert expected == {}
    assert seen == manifest(store)["messageCount"]


def assert_equals_account(message: StoredMessage, expected: dict[str, Any]) -> None:
    got = {
        "magic": f"V{message.version}",
        "size": message.size,
        "bodyCRC": message.body_crc,
        "queueId": message.queue_id,
        "flag": message.flag,
        "queueOffset": message.queue_offset,
        "physicalOffset": message.physical_offset,
        "sysFlag": message.sys_flag,
        "bornTimestamp": message.born_timestamp,
        "bornHost": str(message.born_address),
        "storeTimestamp": message.store_timestamp,
        "offsetMsgId": message.offset_id,
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "topic": message.topic,
        "properties": message.properties,
        "storedBodyLength": len(message.body),
        "uniqKey": message.unique_id,
    }
    assert {name: value for name, value in got.items() if name in expected} == {
        name: expected[name] for name in got if name in expected
    }
    assert len(got.keys() & expected.keys()) >= 17
