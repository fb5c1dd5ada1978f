"""Apache's own classes read the messages, properties and ids that we write, just as we do."""

from __future__ import annotations

import base64
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
from tests.interop.apache_java import ask, class_path

from cometmq.proto.batch import BatchItem, encode_batch
from cometmq.proto.checksum import crc31
from cometmq.proto.compression import Compression, compress
from cometmq.proto.host import pack_host
from cometmq.proto.java import string_hash
from cometmq.proto.message import StoredMessage, read_message
from cometmq.proto.message_id import UniqueIds, decode_offset_id, unique_id_time_ms
from cometmq.proto.properties import decode_properties
from cometmq.proto.record import RECORD_CRC_SIZE, encode_record

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow

RELEASES = ("5.3.1", "5.5.0")
SOURCE = Path(__file__).parent / "java-messages" / "Ask.java"
IPV4, IPV6 = pack_host("10.1.2.3", 10911), pack_host("fd00::1:2", 65535)
BODY = "one two three ü ".encode() * 20

Java: TypeAlias = "Callable[[str, list[bytes]], list[str]]"


@pytest.fixture(scope="module", params=RELEASES)
def java(request: pytest.FixtureRequest) -> Java:
    classes = class_path(request.param)

    def run(question: str, values: list[bytes]) -> list[str]:
        lines = [f"{question} {base64.b64encode(value).decode()}" for value in values]
        return ask(classes, SOURCE, lines)

    return run


def packed(raw: bytes) -> str:
    return "=" + base64.b64encode(raw).decode()


def packed_host(raw: bytes) -> str:
    return f"{packed(raw[:-4])} {int.from_bytes(raw[-4:])}"


def packed_properties(raw: bytes) -> str:
    # Java sorts by UTF-16 units.
    pairs = sorted(decode_properties(raw).items(), key=lambda pair: pair[0].encode("utf-16-be"))
    return " ".join(f"{packed(n.encode())}:{packed(v.encode())}" for n, v in pairs)


def expected_record(message: StoredMessage, body: bytes) -> str:
    return (
        f"{message.queue_id} {message.flag} {message.queue_offset} {message.physical_offset}"
        f" {message.born_timestamp} {packed_host(message.born_host)}"
        f" {message.store_timestamp} {packed_host(message.store_host)}"
        f" {message.reconsume_times} {message.prepared_transaction_offset}"
        f" {packed(body)} {packed(message.topic_raw)} {message.message_id}"
        f" {packed_properties(message.properties_raw)}"
    ).strip()


def record(**changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "topic": b"TopicTest",
        "body": BODY,
        "properties": b"TAGS\x01TagA\x02UNIQ_KEY\x01AAAA\x02",
        "queue_id": 3,
        "queue_offset": 1 << 40,
        "physical_offset": 1 << 41,
        "born_timestamp": 1700000000000,
        "born_host": IPV4,
        "store_timestamp": 1700000000001,
        "store_host": IPV4,
        "flag": -7,
        "reconsume_times": 16,
        "prepared_transaction_offset": 5,
    }
    return encode_record(**(fields | changes))


def test_apache_reads_records_of_all_forms(java: Java) -> None:
    records = [
        record(born_host=born, store_host=store, topic=topic, properties=properties)
        for born in (IPV4, IPV6)
        for store in (IPV4, IPV6)
        for topic in (b"T", b"t" * 127, b"%RETRY%" + b"g" * 121, "标签".encode())
        for properties in (b"", b"TAGS\x01TagA", b"a\x01\xc3\xbc\x02UNIQ_KEY\x01X\x02")
    ]
    records += [record(body=b"", flag=2**31 - 1), record(record_crc=True)]
    answers = java("record", records)
    for raw, answer in zip(records, answers, strict=True):
        message = read_message(raw)
        assert answer == expected_record(message, message.body)


def test_apache_decompresses_what_we_compress(java: Java) -> None:
    records: list[bytes] = []
    for kind in Compression:
        compressed, flags = compress(BODY, kind)
        assert flags
        records.append(record(body=compressed, sys_flag=flags))
    records.append(record(body=compress(BODY, Compression.ZLIB)[0], sys_flag=0x1))
    for raw, answer in zip(records, java("record", records), strict=True):
        assert answer == expected_record(read_message(raw), BODY)


def test_apache_writes_the_checksum_of_a_record_as_we_do(java: Java) -> None:
    records = [record(body=b"%d" % n, record_crc=True) for n in range(30)]
    covered = [raw[:-RECORD_CRC_SIZE] for raw in records]
    answers = java("record-crc", [b"%d" % crc31(raw) for raw in covered])
    assert answers == [packed(raw[-RECORD_CRC_SIZE:]) for raw in records]


def test_apache_reads_any_properties_as_we_do(java: Java) -> None:
    random_of = random.Random(1)
    pieces = [b"a", b"b", b"\x01", b"\x01", b"\x02", b"\xff", "é".encode(), "😀".encode()]
    pieces += [b"\xed", b"\xa0", b"\x80"]  # Halves of surrogate pairs.
    samples = [b"".join(random_of.choices(pieces, k=random_of.randrange(12))) for _ in range(3000)]
    for raw, answer in zip(samples, java("properties", samples), strict=True):
        assert answer == packed_properties(raw)


def test_apache_reads_our_batches(java: Java) -> None:
    items = [BatchItem(b"one", b"a\x01b\x02", 3), BatchItem(b"two"), BatchItem(BODY, b"", -1)]
    (answer,) = java("batch", [encode_batch("T", items)])
    assert [word.strip() for word in answer.removesuffix(";").split(";")] == [
        f"{i.flag} {packed(i.body)} {packed_properties(i.properties)}".strip() for i in items
    ]


def test_java_hashes_strings_as_we_do(java: Java) -> None:
    random_of = random.Random(2)
    texts = ["", "TagA", "标签", "polygenelubricants", "😀" * 70]
    texts += ["".join(map(chr, random_of.choices(range(0x1F000), k=90))) for _ in range(100)]
    texts = [text.encode("utf-16", "replace").decode("utf-16") for text in texts]
    answers = java("hash", [text.encode("utf-16-be") for text in texts])
    assert answers == [str(string_hash(text)) for text in texts]


def test_apache_reads_our_ids(java: Java) -> None:
    ids = [read_message(record(store_host=host)).offset_id for host in (IPV4, IPV6)]
    answers = java("offset-id", [text.encode() for text in ids])
    assert answers == [
        f"{packed_host(decode_offset_id(text).host)} {decode_offset_id(text).physical_offset}"
        for text in ids
    ]


def test_apache_reads_the_time_of_our_unique_ids(java: Java) -> None:
    now_ms = int(time.time() * 1000)
    ids = [UniqueIds(address, 7, 8).make(now_ms - 1000) for address in (bytes(4), bytes(16))]
    answers = java("made", [text.encode() for text in ids])
    assert answers == [str(unique_id_time_ms(text, now_ms)) for text in ids]
    assert answers == [str(now_ms - 1000)] * 2
