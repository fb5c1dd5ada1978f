from __future__ import annotations

import mmap
import sys
from typing import TYPE_CHECKING, Any

import pytest

from cometmq.proto.compression import Compression, compress
from cometmq.proto.errors import (
    LocalProtocolError,
    MessageError,
    MissingLibraryError,
    RemoteProtocolError,
)
from cometmq.proto.host import Host, pack_host
from cometmq.proto.message import StoredMessage, read_message
from cometmq.proto.record import encode_record

if TYPE_CHECKING:
    from pathlib import Path


def message(
    properties: bytes = b"",
    topic: bytes = b"T",
    body: bytes = b"hello",
    born_address: str = "10.0.0.2",
    sys_flag: int = 0,
) -> StoredMessage:
    return read_message(
        encode_record(
            topic=topic,
            body=body,
            properties=properties,
            queue_id=1,
            sys_flag=sys_flag,
            queue_offset=5,
            physical_offset=1000,
            born_timestamp=1,
            born_host=pack_host(born_address, 40000),
            store_timestamp=2,
            store_host=pack_host("192.168.0.1", 10911),
        )
    )


def test_properties_are_found_without_decoding_all() -> None:
    found = message(b"TAGS\x01A\x02KEYS\x01k1  k2\x02own\x01\xc3\xb6\x02")
    assert found.tags == "A"
    assert found.keys == ["k1", "k2"]
    assert found.find("own") == "ö"
    assert found.find("ow") is None
    assert found.properties == {"TAGS": "A", "KEYS": "k1  k2", "own": "ö"}


def test_text_that_is_not_utf_8_is_read_with_replacements() -> None:
    assert message(b"a\x01b\x02TAGS\x01\xff\x02").tags == "\ufffd"
    assert message(b"KEYS\x01\xff\x02").keys == ["\ufffd"]


def test_a_message_without_properties_has_no_tag_and_no_keys() -> None:
    assert message().tags is None
    assert message().keys == []
    assert message().properties == {}


def test_the_length_of_the_properties_is_not_taken_for_a_separator() -> None:
    # 514 = 0x0202: the byte before the first name looks like the end of a pair.
    found = message(b"TAGS\x01" + b"t" * 509)
    assert found.tags == "t" * 509
    assert message(b"TAGS\x01t").tags == "t"


def test_a_property_of_the_next_record_is_not_found() -> None:
    raw = message(b"a\x01b\x02").raw
    tagged = message(b"TAGS\x01A\x02").raw
    assert read_message(raw + tagged).tags is None
    assert read_message(raw + tagged, len(raw)).tags == "A"


def test_users_know_a_message_by_its_unique_id_or_else_by_its_offset_id() -> None:
    assert message().message_id == message().offset_id == "C0A8000100002A9F00000000000003E8"
    assert message(b"UNIQ_KEY\x01X\x02").message_id == "X"


def test_addresses_are_unpacked_on_demand() -> None:
    assert message().born_address == Host("10.0.0.2", 40000)
    assert message().store_address == Host("192.168.0.1", 10911)


@pytest.mark.parametrize("born_address", ["10.0.0.2", "fd00::2"])
def test_queue_place_in_the_log_and_time_are_read_in_one_go(born_address: str) -> None:
    found = message(born_address=born_address)
    assert found.place == (1, 1000, 2)
    assert found.place == (found.queue_id, found.physical_offset, found.store_timestamp)


def test_a_topic_that_is_not_utf_8_is_malformed_when_it_is_asked_for() -> None:
    found = message(topic=b"\xff")
    assert found.topic_raw == b"\xff"
    with pytest.raises(MessageError, match="topic is not UTF-8"):
        _ = found.topic


def test_a_damaged_body_shows_in_its_checksum() -> None:
    assert message().is_body_intact()
    raw = message().raw.replace(b"hello", b"hallo")
    assert not read_message(raw).is_body_intact()


def test_a_message_is_read_from_a_mapped_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"12345678" + message(b"TAGS\x01A\x02").raw + bytes(100))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as log:
        found = read_message(log, 8)
        assert (found.topic, found.tags, found.body) == ("T", "A", b"hello")
        assert found.queue_id == 1
        assert found.is_body_intact()


@pytest.mark.parametrize("kind", [memoryview, bytearray, str])
def test_what_is_not_read_in_place_is_a_type_error_at_once(kind: Any) -> None:
    raw = message().raw
    buffer: Any = "text" if kind is str else kind(raw)
    with pytest.raises(TypeError, match="read_message reads bytes or a map of a file, not"):
        read_message(buffer)


@pytest.mark.parametrize("records", [1, 3])
def test_a_start_that_is_nowhere_in_the_buffer_is_malformed(records: int) -> None:
    raw = message().raw * records
    outside = [*range(len(raw), len(raw) + 9), 2**31, 2**63 - 1, 2**63, 2**100]
    for start in [*outside, -1, -len(raw), -len(raw) // records, *(-far for far in outside)]:
        with pytest.raises(MessageError, match=f"record at {start}: it runs past"):
            read_message(raw, start)


def test_a_message_shows_what_it_is_and_not_what_is_around_it() -> None:
    found = read_message(message(b"UNIQ_KEY\x01X\x02").raw + bytes(10_000))
    assert repr(found) == "<StoredMessage 'T', queue 1, offset 5, id X, body of 5 bytes>"
    assert "\ufffd" in repr(message(topic=b"\xff"))


@pytest.mark.parametrize("kind", [None, *Compression])
def test_a_plain_body_is_what_the_producer_gave(kind: Compression | None) -> None:
    plain = b"one two " * 100
    body, flags = (plain, 0) if kind is None else compress(plain, kind)
    found = message(body=body, sys_flag=flags)
    assert found.plain_body(size_max=1000) == plain
    if kind is not None:
        with pytest.raises(MessageError, match="799 bytes"):
            found.plain_body(size_max=799)


def test_a_body_whose_library_is_missing_is_nobodys_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    body, flags = compress(bytes(1000), Compression.LZ4)
    found = message(body=body, sys_flag=flags)
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    with pytest.raises(MissingLibraryError, match="lz4") as missing:
        found.plain_body(size_max=1000)
    assert not isinstance(missing.value, LocalProtocolError | RemoteProtocolError)
