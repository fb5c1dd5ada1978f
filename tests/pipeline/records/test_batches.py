from __future__ import annotations

import struct
from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st
from tests.pipeline.records.expected_rows import expected_rows, records

from cometmq.pipeline.columns import ALL_COLUMNS, COLUMNS, HEADER_COLUMNS, schema_of
from cometmq.pipeline.errors import DamagedRecordError
from cometmq.pipeline.records import Reading, record_batches
from cometmq.proto.batch import BatchItem, encode_batch
from cometmq.proto.compression import Compression, compress
from cometmq.proto.record import encode_record

HOST = b"\x7f\0\0\x01\0\0\x2a\x9f"
OTHER_HOST = b"\x0a\0\0\x02\0\0\x2a\x9f"


def rows(data: bytes, *args: Any, **options: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for batch in record_batches(data, *args, **options):
        batch.validate(full=True)
        found += batch.to_pylist()
    return found


def record(body: bytes = b"hello", properties: bytes = b"", **changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "topic": b"T",
        "queue_id": 1,
        "queue_offset": 5,
        "physical_offset": 1000,
        "born_timestamp": 1,
        "born_host": HOST,
        "store_timestamp": 2,
        "store_host": HOST,
    }
    return encode_record(body=body, properties=properties, **fields | changes)


@settings(max_examples=300)
@given(st.lists(records(), max_size=12).map(b"".join))
@example(record(properties=b"a\x01b\x02") * 3)
@example(record(properties=b"TAGS\x01A\x02TAGS\x01B\x02") + record(properties=b"KEYS\x01k\x02"))
@example(record(properties=b"TAGS\x01A\x02TAGS\x01\x02") + record(properties=b"KEYS\x01k"))
@example(record(properties=b"".join(b"n%d\x01v\x02" % n for n in range(40))) * 2)
@example(record(properties=b"".join(b"n%d\x01v\x02" % (n % 39) for n in range(40))) + record())
@example(record(properties=b"a\0\x01b\x02TAGS\x01\xff\x02"))
@example(record(properties=b"TAGS\x01\xed\xa0\xbd\x02KEYS\x01\xed\xac\x02"))
@example(record(properties=b"TAGS\x01A\x02TAGS\x01B\x02") * 2)
@example(record(properties=b"KEYS\x01k\x02") + record(properties=b"TAGS\x01t\x02"))
@example(record(properties=b"KEYS\x01k\x02TAGS\x01t\x02") + record() * 3)
@example(b"".join(record(properties=b"same-%c-same-same\x01v\x02" % n) for n in b"abc"))
@example(record(properties=b"KEYS\x01k\x02") + record(properties=b"KEYS\x01longer\x02", topic=b"U"))
@example(record(properties=b"KEYS\x01k\x02") * 5 + record(properties=b"TAGS\x01t\x02") * 5)
@example(record(b"b" * 60) * 3)
@example(record(b"b" * 60) * 2 + record(b"c" * 60, topic=b"longer") + record(b"d" * 60))
@example(record() + record(born_host=OTHER_HOST, store_host=OTHER_HOST))
@example(
    record(reconsume_times=-3, prepared_transaction_offset=-(2**40))
    + record(physical_offset=2**62 + 5)
)
@example(record(born_timestamp=-(2**60), store_timestamp=2**60) + record())
@example(record() + record(sys_flag=0x20, store_host=bytes(15) + b"\x01" + bytes(4)))
@example(record() + record(sys_flag=0x10, born_host=bytes(15) + b"\x01" + bytes(4)))
def test_every_column_holds_what_the_protocol_reads_from_the_record(data: bytes) -> None:
    assert rows(data) == expected_rows(data)


def test_names_that_every_message_has_are_the_same_in_batches_of_any_size() -> None:
    data = b"".join(
        record(properties=b"KEYS\x01k%d\x02n\x01v\x02" % number) for number in range(20)
    )
    batches = list(record_batches(data, ("properties",), Reading(rows_max=7)))
    assert [batch.num_rows for batch in batches] == [7, 7, 6]
    found = [dict(row["properties"]) for batch in batches for row in batch.to_pylist()]
    assert found == [{"KEYS": f"k{number}", "n": "v"} for number in range(20)]


@given(st.lists(records(), max_size=5).map(b"".join))
def test_bodies_stay_as_they_are_stored_where_that_is_asked_for(data: bytes) -> None:
    assert rows(data, ALL_COLUMNS, Reading(decompress=False)) == expected_rows(
        data, decompress=False
    )


@pytest.mark.parametrize("name", ALL_COLUMNS)
def test_a_column_is_the_same_without_the_others(name: str) -> None:
    data = record(properties=b"TAGS\x01A\x02") + record(properties=b"UNIQ_KEY\x010A\x02")
    assert rows(data, (name,)) == [{name: row[name]} for row in expected_rows(data)]


def test_columns_come_in_the_order_in_which_they_are_asked_for() -> None:
    (batch,) = record_batches(record(), ("body", "topic"))
    assert batch.schema.equals(schema_of(COLUMNS, ("body", "topic")))


def test_an_answer_without_messages_has_no_rows() -> None:
    assert list(record_batches(b"")) == []


def test_a_record_batch_is_limited_in_rows_and_in_bytes() -> None:
    data = b"".join(record(queue_offset=number) for number in range(10))
    by_rows = list(record_batches(data, how=Reading(rows_max=4)))
    assert [batch.num_rows for batch in by_rows] == [4, 4, 2]
    size = len(record())
    by_bytes = list(record_batches(data, how=Reading(size_max=3 * size)))
    assert [batch.num_rows for batch in by_bytes] == [3, 3, 3, 1]
    larger = list(record_batches(data, how=Reading(size_max=size - 1)))
    assert [batch.num_rows for batch in larger] == [1] * 10
    assert [row for batch in by_rows for row in batch.to_pylist()] == expected_rows(data)


def test_a_record_batch_is_limited_in_the_bytes_of_its_bodies_too() -> None:
    body, flags = compress(bytes(1000), Compression.ZLIB)
    data = record(body, sys_flag=flags) * 5 + record() + record(body, sys_flag=flags)
    found = list(record_batches(data, how=Reading(size_max=2500)))
    assert [batch.num_rows for batch in found] == [2, 2, 3]
    assert [row for batch in found for row in batch.to_pylist()] == expected_rows(data)


def test_only_a_range_of_queue_offsets_is_given() -> None:
    data = b"".join(record(queue_offset=number) for number in range(10))
    found = rows(data, ("queue_offset",), queue_offsets=(3, 7))
    assert [row["queue_offset"] for row in found] == [3, 4, 5, 6]
    assert rows(data, queue_offsets=(10, 20)) == []


@pytest.mark.parametrize(
    ("tags", "offsets"),
    [({"A"}, [0, 4]), ({"A", "B"}, [0, 1, 4]), ({""}, []), ({"C"}, []), ((), [0, 1, 2, 3, 4])],
)
def test_only_rows_with_certain_tags_are_given(tags: Collection[str], offsets: list[int]) -> None:
    properties = [b"TAGS\x01A\x02", b"TAGS\x01B\x02", b"", b"KEYS\x01A\x02", b"TAGS\x01A\x02"]
    data = b"".join(
        record(properties=each, queue_offset=number) for number, each in enumerate(properties)
    )
    how = Reading(tags=frozenset(tags))
    found = rows(data, ("queue_offset", "tag"), how)
    assert [row["queue_offset"] for row in found] == offsets
    found = rows(data, ("queue_offset",), how, queue_offsets=(1, 4))
    assert [row["queue_offset"] for row in found] == [each for each in offsets if 1 <= each < 4]


def test_the_broker_is_what_the_reader_says() -> None:
    assert rows(record() * 2, ("broker",), broker="b-0") == [{"broker": "b-0"}] * 2


def inner_batch(count: int, announced: int | None = None, **changes: Any) -> bytes:
    items = [
        BatchItem(b"body %d" % number, b"KEYS\x01k%d\x02" % number, number)
        for number in range(count)
    ]
    announced = count if announced is None else announced
    properties = b"INNER_NUM\x01%d\x02INNER_BASE\x015\x02" % announced
    flags = 0xC0 | changes.pop("sys_flag", 0)
    return record(encode_batch("T", items), properties, sys_flag=flags, **changes)


def test_an_inner_batch_is_a_row_for_each_of_its_messages() -> None:
    data = record() + inner_batch(3) + record(b"compressed" * 9) + inner_batch(2)
    found = rows(data)
    assert found == expected_rows(data)
    assert [row["queue_offset"] for row in found] == [5, 5, 6, 7, 5, 5, 6]
    assert [row["key"] for row in found] == [None, "k0", "k1", "k2", None, "k0", "k1"]


def test_a_compressed_inner_batch_is_unwrapped_also_where_other_bodies_stay_compressed() -> None:
    items = [BatchItem(b"x" * 100, b""), BatchItem(b"y" * 100, b"")]
    body, flags = compress(encode_batch("T", items), Compression.ZSTD)
    data = record(body, b"INNER_NUM\x012\x02", sys_flag=flags | 0xC0)
    for decompress in (False, True):
        found = rows(data, ALL_COLUMNS, Reading(decompress=decompress))
        assert [row["body"] for row in found] == [b"x" * 100, b"y" * 100]
        assert {row["sys_flag"] for row in found} == {flags | 0xC0}
        assert {row["size"] for row in found} == {len(data)}


def test_an_inner_batch_stays_one_row_where_that_is_asked_for() -> None:
    (row,) = rows(inner_batch(3), ALL_COLUMNS, Reading(unwrap=False))
    assert row["properties"] == [("INNER_NUM", "3"), ("INNER_BASE", "5")]


def test_an_inner_batch_that_lies_is_an_error_or_stays_a_row() -> None:
    data = record() + inner_batch(3, announced=4, physical_offset=2000)
    with pytest.raises(
        DamagedRecordError, match=r"at 2000: its batch: it has 3 messages, but announces 4"
    ):
        rows(data)
    assert len(rows(data, ALL_COLUMNS, Reading(strict=False))) == 2


def test_an_inner_batch_with_more_properties_than_there_can_be_is_an_error_or_stays_a_row() -> None:
    """Apache's brokers do not look into inner batches, so a store may contain one like this."""
    item = struct.pack(">I8xiI", 22 + 40_000, 0, 0) + struct.pack(">H", 40_000) + b"p" * 40_000
    data = record(item, b"INNER_NUM\x011\x02", sys_flag=0xC0, physical_offset=7)
    with pytest.raises(DamagedRecordError, match="at 7: its batch: its message at 0 has 40000 byt"):
        rows(data)
    assert len(rows(data, ALL_COLUMNS, Reading(strict=False))) == 1


def test_an_inner_batch_that_lies_is_a_row_without_a_body_where_such_are_skipped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cut = record(b"cut short", b"INNER_NUM\x012\x02", sys_flag=0xC0)
    squeezed = record(b"no stream", b"INNER_NUM\x012\x02", sys_flag=0xC1)
    lying = inner_batch(3, announced=4)
    data = record() + inner_batch(2) + cut + inner_batch(2) + squeezed + lying + record()
    skipping = Reading(skips_bodies=True)
    found = rows(data, ALL_COLUMNS, skipping)
    two = [b"body 0", b"body 1"]
    assert [row["body"] for row in found] == [b"hello", *two, None, *two, None, None, b"hello"]
    assert len(caplog.messages) == 3
    assert all("skipped: no sound record" in each for each in caplog.messages)
    for rows_max in (1, 2, 3):
        assert rows(data, ALL_COLUMNS, Reading(skips_bodies=True, rows_max=rows_max)) == found
    places = rows(data, ("queue_offset", "body_crc"), skipping)
    assert places == [{name: row[name] for name in places[0]} for row in found]


@pytest.mark.parametrize("kind", [0x000, 0x100, 0x200, 0x300, 0x400])
@pytest.mark.parametrize("body", [b"no stream", b""])
def test_a_body_that_does_not_decompress_is_an_error_or_null(kind: int, body: bytes) -> None:
    data = record() + record(body, sys_flag=kind | 1, physical_offset=7)
    where = r"\(T, queue \d, offset \d+\)$"
    with pytest.raises(DamagedRecordError, match=f"no sound record at 7: its body: .* {where}"):
        rows(data)
    assert [row["body"] for row in rows(data, how=Reading(strict=False))] == [b"hello", None]
    assert len(rows(data, HEADER_COLUMNS)) == 2


@pytest.mark.parametrize("kind", Compression)
def test_a_body_is_decompressed_up_to_a_limit(kind: Compression) -> None:
    body, flags = compress(bytes(5000), kind)
    data = record(body, sys_flag=flags)
    assert rows(data, ("body",), Reading(body_size_max=5000)) == [{"body": bytes(5000)}]
    with pytest.raises(DamagedRecordError, match="inflates to more than 4999 bytes"):
        rows(data, ("body",), Reading(body_size_max=4999))
    cut = record(body[:-2], sys_flag=flags)
    with pytest.raises(DamagedRecordError, match="not a whole"):
        rows(cut, ("body",))


def changed(data: bytes, at: int, form: str, value: int) -> bytes:
    changing = bytearray(data)
    struct.pack_into(form, changing, at, value)
    return bytes(changing)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (record() + record()[:-1], "it claims"),
        (record() + b"\0" * 200, "size 0 and magic 0x00000000 do not begin a record"),
        (record() + b"\0" * 20, "20 bytes are too few"),
        (record() + changed(record(), 84, ">i", -1), "its lengths do not agree"),
        (record() + changed(record(), 84, ">i", 2**31 - 1), "its lengths do not agree"),
        (record() + changed(record(), 84, ">i", 6), "its lengths do not agree"),
        (record() + changed(record(), 36, ">i", 0x10), "its lengths do not agree"),
        (record() + changed(record(), 93, ">b", -1), "its lengths do not agree"),
        (record() + changed(record(), 95, ">h", -1), "its lengths do not agree"),
        (record() + changed(record(), 0, ">i", 90), "it claims 90 bytes"),
        (record() + changed(record(), 0, ">i", -1), "it claims -1 bytes"),
    ],
)
def test_an_answer_that_is_not_records_alone_is_an_error_with_its_place(
    data: bytes, reason: str
) -> None:
    with pytest.raises(DamagedRecordError, match=reason) as caught:
        rows(data)
    assert caught.value.position == len(record())


@given(st.binary(max_size=200), st.integers(0, 300))
def test_bytes_are_records_or_an_error(noise: bytes, at: int) -> None:
    data = record(properties=b"TAGS\x01A\x02") * 3
    data = data[:at] + noise + data[at + len(noise) :]
    try:
        found = rows(data, ALL_COLUMNS, Reading(strict=False))
    except DamagedRecordError:
        return
    assert found == rows(data, ALL_COLUMNS, Reading(strict=False))
