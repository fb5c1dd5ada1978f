"""Registrations: the plain body, the old and the new compressed one, and the older bare table."""

from __future__ import annotations

import contextlib
import struct
import time
import zlib

import pytest
from hypothesis import given, strategies as st

from cometmq.proto.bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    TopicFilterType,
    TopicQueueMappingInfo,
    decode_registration,
    encode_compressed,
)
from cometmq.proto.errors import BodyError

TABLE = TopicConfigTable(
    data_version=DataVersion(counter=2, timestamp=1700000000000),
    topic_config_table={
        "T": TopicConfig(
            attributes={"message.type": "a b"},
            read_queue_nums=8,
            topic_filter_type=TopicFilterType.MULTI_TAG,
            topic_name="T",
            write_queue_nums=4,
        ),
        "U": TopicConfig(topic_name="U", perm=4),
    },
    topic_queue_mapping_info_map={"S": TopicQueueMappingInfo(topic="S", curr_id_map={0: 1})},
)
BODY = RegisterBrokerBody(filter_server_list=("f:1",), topic_config_serialize_wrapper=TABLE)


def block(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


VERSION = block(b'{"counter":2,"stateVersion":0,"timestamp":1700000000000}')
COUNT_1 = struct.pack(">i", 1)
COUNT_0 = struct.pack(">i", 0)


def test_the_plain_body_is_read() -> None:
    assert decode_registration(BODY.encode(), version=513) == BODY


def test_no_body_is_an_empty_table() -> None:
    assert decode_registration(b"", version=513) == RegisterBrokerBody()


def test_the_oldest_brokers_send_the_table_alone() -> None:
    read = decode_registration(TABLE.encode(), version=36, compressed=True)
    assert read.topic_config_serialize_wrapper == TABLE


def test_the_compressed_body_of_5_is_laid_out_block_by_block() -> None:
    assert zlib.decompress(encode_compressed(BODY, version=413)) == (
        VERSION
        + struct.pack(">i", 2)
        + block(b'T 8 4 6 MULTI_TAG {"message.type":"a b"}')
        + block(b"U 16 16 4 SINGLE_TAG {}")
        + block(b'["f:1"]')
        + COUNT_1
        + block(
            b'{"currIdMap":{0:1},"dirty":false,"epoch":0,"topic":"S","totalQueues":0}',
        )
    )


def test_the_compressed_body_of_4_has_no_attributes_and_no_mappings() -> None:
    assert zlib.decompress(encode_compressed(BODY, version=412)) == (
        VERSION
        + struct.pack(">i", 2)
        + block(b"T 8 4 6 MULTI_TAG")
        + block(b"U 16 16 4 SINGLE_TAG")
        + block(b'["f:1"]')
    )


def test_the_compressed_body_reads_back() -> None:
    assert (
        decode_registration(encode_compressed(BODY, version=413), version=413, compressed=True)
        == BODY
    )
    old = decode_registration(encode_compressed(BODY, version=401), version=401, compressed=True)
    table = old.topic_config_serialize_wrapper
    assert table.topic_config_table["T"].attributes == {}
    assert table.topic_config_table["T"].write_queue_nums == 4
    assert table.topic_queue_mapping_info_map is None
    assert old.filter_server_list == ("f:1",)


def test_a_broker_of_5_may_leave_the_attributes_out() -> None:
    data = VERSION + COUNT_1 + block(b"T 8 4 6 SINGLE_TAG") + block(b"null") + COUNT_0
    read = decode_registration(zlib.compress(data), version=413, compressed=True)
    assert read.topic_config_serialize_wrapper.topic_config_table["T"].attributes == {}
    assert read.filter_server_list == ()


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "cut off before the data version, at byte 0"),
        (b"\0\0\0", "cut off before the data version"),
        (struct.pack(">i", -1), "negative length of data version, at byte 0"),
        (struct.pack(">i", 9) + b"{}", "the data version has 9 bytes, more than"),
        (block(b"{}"), "cut off before the topics, at byte 6"),
        (block(b"[]") + COUNT_0, "DataVersion: Expected `object`"),
        (
            block(b"{}") + struct.pack(">i", 2**31 - 1),
            "2147483647 topics, more than the rest can hold, at byte 6",
        ),
        (block(b"{}") + COUNT_1 + block(b"T 8 x 6 SINGLE_TAG"), "topic 'T': invalid literal"),
        (block(b"{}") + COUNT_1 + block(b"T 1 1 99999999999"), "topic 'T': .* not a 32-bit number"),
        (block(b"{}") + COUNT_1 + block(b"T 1 1 6 NO_TAG"), "topic 'T': 'NO_TAG'"),
        (block(b"{}") + COUNT_1 + block(b" 1 1 6 SINGLE_TAG"), "a topic without a name"),
        (block(b"{}") + COUNT_1 + block(b"T 1 1 6 SINGLE_TAG {"), "topic 'T': Input data was"),
        (block(b"{}") + COUNT_1 + block(b"\xff 8 8 6 SINGLE_TAG"), "text of a topic is not UTF-8"),
        (block(b"{}") + COUNT_0 + block(b"{}"), "filter servers: Expected `array"),
        (block(b"{}") + COUNT_0 + block(b"[]"), "cut off before the queue mappings"),
        (block(b"{}") + COUNT_0 + block(b"[]") + COUNT_1 + block(b"[]"), "TopicQueueMappingInfo"),
    ],
)  # fmt: skip
def test_a_compressed_body_that_is_wrong_says_where(data: bytes, problem: str) -> None:
    with pytest.raises(BodyError, match=problem):
        decode_registration(zlib.compress(data), version=413, compressed=True)


def many(count: int, each: bytes, behind: bytes) -> bytes:
    return VERSION + struct.pack(">i", count) + block(each) * count + behind


@pytest.mark.parametrize(
    "data",
    [
        many(100_000, b"a 1 1 1 0 {}", block(b"[]") + COUNT_0),
        many(100_000, b"a 1 1 1 0 {1:1}", block(b"[]") + COUNT_0),
        many(600_000, b"a 1 1 1 0", block(b"[]") + COUNT_0),
        many(1, b"a", block(b"[" + b"'',\"\"," * 1_100_000 + b"]") + COUNT_0),
        many(1, b"a", block(b"[]") + struct.pack(">i", 10_000) + block(b"{'a':{1:1}}") * 10_000),
        VERSION
        + struct.pack(">i", 0)
        + block(b"[]")
        + struct.pack(">i", 700_000)
        + block(b"{}") * 700_000,
    ],
    ids=["ordinals", "integer keys", "too many", "filter servers", "mappings", "too many mappings"],
)
def test_a_few_compressed_bytes_take_no_long_time(data: bytes) -> None:
    compressed = zlib.compress(data)
    began = time.process_time()
    with contextlib.suppress(BodyError):
        decode_registration(compressed, version=413, compressed=True)
    assert time.process_time() - began < 30, "minutes, when each costs what it did once"


def test_what_is_no_zlib_stream_is_refused() -> None:
    with pytest.raises(BodyError, match="not a zlib stream"):
        decode_registration(b"{}", version=413, compressed=True)
    with pytest.raises(BodyError, match="cut off"):
        decode_registration(encode_compressed(BODY, version=413)[:-5], version=413, compressed=True)


def test_a_bomb_is_refused_before_it_goes_off() -> None:
    bomb = zlib.compress(bytes(10_000_000))
    with pytest.raises(BodyError, match="inflates to more than 100000 bytes"):
        decode_registration(bomb, version=413, compressed=True, size_max=100_000)
    fits = zlib.compress(bytes(100))
    with pytest.raises(BodyError, match="body is empty"):
        decode_registration(fits, version=413, compressed=True, size_max=100)


@given(st.integers(0, 200), st.integers(0, 255))
def test_every_flipped_byte_of_the_stream_is_read_or_refused(at: int, value: int) -> None:
    data = bytearray(zlib.decompress(encode_compressed(BODY, version=413)))
    data[at % len(data)] = value
    with contextlib.suppress(BodyError):
        decode_registration(zlib.compress(bytes(data)), version=413, compressed=True)
