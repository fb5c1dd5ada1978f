from __future__ import annotations

import pytest
from tests.crash.disk import SimulatedFileSystem
from tests.store.queue_model import open_queues, small_config

from cometmq.proto.java import tags_code
from cometmq.proto.message import StoredMessage, read_message
from cometmq.proto.record import encode_record
from cometmq.proto.sysflag import SysFlag, TransactionType
from cometmq.store.config import StoreConfig
from cometmq.store.delay_levels import DelayLevels
from cometmq.store.index.index import Index
from cometmq.store.messages.dispatch import (
    batch_entry,
    entry_tags_code,
    message_count,
    note_record,
    place_record,
)
from cometmq.store.queues.consume_queue import ENTRY

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
LEVELS = DelayLevels.always((1000, 5000, 10_000))


def record(topic: str = "t", properties: bytes = b"", sys_flag: int = 0) -> StoredMessage:
    return read_message(
        encode_record(
            topic=topic.encode(),
            body=b"body",
            properties=properties,
            queue_id=2,
            queue_offset=0,
            physical_offset=4096,
            born_timestamp=1,
            born_host=HOST,
            store_timestamp=1_700_000_000_000,
            store_host=HOST,
            sys_flag=sys_flag,
        )
    )


def test_the_tags_code_is_the_hash_of_all_tags() -> None:
    assert entry_tags_code(record(), LEVELS) == 0
    assert entry_tags_code(record(properties=b"TAGS\x01TagA\x02"), LEVELS) == 2598919
    code = entry_tags_code(record(properties="TAGS\x01标签\x02".encode()), LEVELS)
    assert code == tags_code("标签".encode()) == 857175


@pytest.mark.parametrize(
    ("level", "delay"), [("1", 1000), ("3", 10_000), ("99", 10_000), ("0", None), ("x", None)]
)
def test_a_delayed_message_has_its_due_time_for_a_tags_code(level: str, delay: int | None) -> None:
    properties = b"TAGS\x01TagA\x02DELAY\x01%b\x02" % level.encode()
    code = entry_tags_code(record("SCHEDULE_TOPIC_XXXX", properties), LEVELS)
    assert code == (2598919 if delay is None else 1_700_000_000_000 + delay)
    assert entry_tags_code(record("t", properties), LEVELS) == 2598919


def test_without_levels_a_delay_is_a_second() -> None:
    delayed = record("SCHEDULE_TOPIC_XXXX", b"DELAY\x014\x02")
    assert entry_tags_code(delayed, DelayLevels.always(())) == 1_700_000_001_000


@pytest.mark.parametrize("transaction", TransactionType)
def test_only_what_consumers_may_see_gets_an_entry(transaction: TransactionType) -> None:
    queues = open_queues(SimulatedFileSystem(), small_config(10))
    message = record(sys_flag=transaction)
    placed = place_record(queues, message, lambda _topic: False, LEVELS)
    assert placed is (transaction in (TransactionType.NONE, TransactionType.COMMITTED))
    assert queues.simple.get("t", 2).max_offset == placed
    if placed:
        entry = queues.simple.get("t", 2).read(0, 1)
        assert ENTRY.unpack(entry) == (4096, message.size, 0)


@pytest.mark.parametrize(
    ("properties", "sys_flag", "place"),
    [
        (b"INNER_BASE\x017\x02INNER_NUM\x013\x02", 0xC0, (7, 3)),
        (b"INNER_NUM\x013\x02", 0xC0, (0, 3)),
        (b"", 0xC0, (0, 1)),
        (b"INNER_BASE\x017\x02INNER_NUM\x013\x02", 0, (0, 1)),
    ],
)
def test_a_batch_topic_gets_entries_of_whole_records(
    properties: bytes, sys_flag: int, place: tuple[int, int]
) -> None:
    queues = open_queues(SimulatedFileSystem(), small_config(10))
    message = record(properties=properties, sys_flag=sys_flag)
    assert place_record(queues, message, lambda _topic: True, LEVELS)
    (entry,) = queues.batch.get("t", 2).read(place[0], 1)
    assert (entry.base_offset, entry.batch_size) == place
    assert entry.store_time == message.store_timestamp
    assert queues.simple.topics() == []


@pytest.mark.parametrize("transaction", TransactionType)
def test_a_rolled_back_message_has_no_keys(transaction: TransactionType) -> None:
    index = Index(
        SimulatedFileSystem(), "/store", StoreConfig(index_slots=9, index_items=9), clean=True
    )
    note_record(index, record(properties=b"KEYS\x01k\x02", sys_flag=transaction))
    index.build(1, 0)
    wanted = [] if transaction is TransactionType.ROLLED_BACK else [4096]
    assert index.search("t", "k", 9).run() == wanted


@pytest.mark.parametrize(
    "properties",
    [
        b"INNER_NUM\x0132768\x02",
        b"INNER_NUM\x010\x02",
        b"INNER_NUM\x01-1\x02",
        b"INNER_BASE\x019223372036854775808\x02",
        b"INNER_BASE\x01-1\x02",
    ],
)
def test_numbers_of_a_batch_that_no_entry_can_hold_do_not_count(properties: bytes) -> None:
    message = record(properties=properties, sys_flag=SysFlag.INNER_BATCH)
    entry = batch_entry(message, LEVELS)
    assert (entry.base_offset, entry.batch_size) == (0, 1)
    assert message_count(message) == 1
