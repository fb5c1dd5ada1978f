"""Messages: making and reading records, pull answers, properties, ids and checksums."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from bench.measure import show
from cometmq.proto.batch import BatchItem, decode_batch, encode_batch
from cometmq.proto.checksum import crc31
from cometmq.proto.host import pack_host
from cometmq.proto.java import string_hash, tags_code
from cometmq.proto.message import read_message
from cometmq.proto.message_id import UniqueIds
from cometmq.proto.message_list import MessageList
from cometmq.proto.properties import decode_properties, encode_properties, find_property
from cometmq.proto.record import encode_record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

COUNT = 32
BODY = bytes(range(256)) * 4
HOST = pack_host("127.0.0.1", 10911)
UNIQ_KEY = "FD00000000000000000000000000000238A330946E09690997E20009"
PROPERTIES = encode_properties(
    {
        "MSG_REGION": "DefaultRegion",
        "UNIQ_KEY": UNIQ_KEY,
        "CLUSTER": "DefaultCluster",
        "TAGS": "TagA",
        "KEYS": "K1",
        "WAIT": "true",
        "TRACE_ON": "true",
    }
)


def encode() -> bytes:
    """Make one record of 1 KiB, including its checksum."""
    return encode_record(
        topic=b"TopicTest",
        body=BODY,
        properties=PROPERTIES,
        queue_id=3,
        queue_offset=1500,
        physical_offset=500_000_000,
        born_timestamp=1795253435806,
        born_host=HOST,
        store_timestamp=1795253435807,
        store_host=HOST,
    )


RECORD = encode()
ANSWER = RECORD * COUNT
BATCH = encode_batch("TopicTest", [BatchItem(BODY, PROPERTIES)] * COUNT)
IDS = UniqueIds(bytes([10, 0, 0, 1]), 1234, 5678)


def read_pull_answer() -> None:
    """Read what a consumer reads of each message."""
    for message in MessageList(ANSWER):
        _ = message.topic
        _ = message.queue_offset
        _ = message.body
        _ = message.tags


def scan() -> None:
    """Find the records of an answer, without reading them."""
    for _ in MessageList(ANSWER):
        pass


def read_batch() -> None:
    """Read the items of a batch."""
    for _ in decode_batch(BATCH):
        pass


CASES: dict[str, tuple[Callable[[], object], int]] = {
    "record of 1 KiB encoded, body CRC included": (encode, 1),
    "record read in place": (lambda: read_message(RECORD), 1),
    "pull answer of 32, a message: topic, queue offset, body and tags read": (
        read_pull_answer,
        COUNT,
    ),
    "pull answer of 32, a message: only found": (scan, COUNT),
    "batch of 32, a message: read": (read_batch, COUNT),
    "seven properties decoded": (lambda: decode_properties(PROPERTIES), 1),
    "one property found among seven": (lambda: find_property(PROPERTIES, b"TAGS"), 1),
    "unique id made": (lambda: IDS.make(1795253435806), 1),
    "tag code of a known tag": (lambda: tags_code(b"TagA"), 1),
    "Java's hash of a key of 56 characters": (lambda: string_hash(UNIQ_KEY), 1),
    "body CRC of 1 KiB": (lambda: crc31(BODY), 1),
}


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table."""
    show(CASES, "python -m bench.messages", arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
