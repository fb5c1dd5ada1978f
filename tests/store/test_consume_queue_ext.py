from __future__ import annotations

from pathlib import Path

import pytest
from tests.crash.disk import SimulatedFileSystem
from tests.store.apache_stores import config, records, unpack

from cometmq.store.delay_levels import DelayLevels
from cometmq.store.disk.filesystem import RealFileSystem
from cometmq.store.messages.dispatch import entry_tags_code
from cometmq.store.queues.consume_queue import ENTRY
from cometmq.store.queues.consume_queue_ext import (
    ADDRESS_OF_FIRST,
    UNIT_HEAD,
    ConsumeQueueExt,
    ExtUnit,
    is_address,
)
from cometmq.store.queues.consume_queues import ConsumeQueues

UNIT = ExtUnit(2598919, 1_795_254_456_123, b"bits")


def extension(
    *contents: bytes, file_size: int = 64, disk: SimulatedFileSystem | None = None
) -> ConsumeQueueExt:
    disk = SimulatedFileSystem() if disk is None else disk
    folder = "/store/consumequeue_ext/t/0"
    disk.make_directories(folder)
    for number, content in enumerate(contents):
        file = disk.open(f"{folder}/{number * file_size:020d}", create=True)
        file.write(content.ljust(file_size, b"\0"), 0)
    return ConsumeQueueExt(disk, "/store")


def packed(unit: ExtUnit, size: int | None = None) -> bytes:
    size = 20 + len(unit.bitmap) if size is None else size
    return UNIT_HEAD.pack(size, unit.tags_code, unit.store_time, len(unit.bitmap)) + unit.bitmap


def test_apaches_units_hold_what_entries_without_extension_do(tmp_path: Path) -> None:
    apache = unpack("ext", tmp_path)
    settings = config("ext")
    queues = ConsumeQueues(RealFileSystem(), str(apache), settings, clean=True)
    ext = ConsumeQueueExt(RealFileSystem(), str(apache))
    assert ext.exists()
    for message in records("ext"):
        topic, queue_id = message.topic, message.queue_id
        entry = queues.simple.get(topic, queue_id).read(message.queue_offset, 1)
        code = ENTRY.unpack(entry)[2]
        expected = entry_tags_code(message, DelayLevels.always(settings.delay_levels_ms))
        assert is_address(code)
        assert ext.tags_code(topic, queue_id, code) == expected
        unit = ext.unit(topic, queue_id, code)
        assert unit is not None
        assert unit.store_time == message.store_timestamp
    ext.close()


def test_a_unit_is_found_in_the_file_of_its_position() -> None:
    other = ExtUnit(5, 6, b"")
    ext = extension(packed(UNIT) + b"\xff\xff", packed(other) + packed(UNIT))
    assert ext.unit("t", 0, ADDRESS_OF_FIRST) == UNIT
    assert ext.unit("t", 0, ADDRESS_OF_FIRST + 64) == other
    assert ext.unit("t", 0, ADDRESS_OF_FIRST + 84) == UNIT
    assert ext.tags_code("t", 0, ADDRESS_OF_FIRST + 64) == 5


def test_what_somebody_keeps_beside_the_files_is_none_of_them() -> None:
    disk = SimulatedFileSystem()
    ext = extension(packed(UNIT), disk=disk)
    disk.open("/store/consumequeue_ext/t/0/0", create=True).write(bytes(64), 0)
    assert ext.unit("t", 0, ADDRESS_OF_FIRST) == UNIT


@pytest.mark.parametrize("position", [24, 50, 128, 1 << 40])
def test_where_no_unit_is_nothing_is_found(position: int) -> None:
    ext = extension(packed(UNIT) + b"\xff\xff", packed(UNIT))
    assert ext.unit("t", 0, ADDRESS_OF_FIRST + position) is None
    assert ext.tags_code("t", 0, ADDRESS_OF_FIRST + position) == 0


@pytest.mark.parametrize("content", [packed(UNIT, 21), packed(UNIT)[:22]])
def test_a_damaged_unit_is_not_taken_for_one(content: bytes) -> None:
    file_size = 64 if len(content) == 24 else len(content)
    assert extension(content, file_size=file_size).unit("t", 0, ADDRESS_OF_FIRST) is None


def test_the_largest_address_is_one_and_the_smallest_hash_of_tags_is_none() -> None:
    assert is_address(-2147483649)
    assert not is_address(-2147483648)
    assert ConsumeQueueExt(SimulatedFileSystem(), "/store").tags_code("t", 0, -2147483649) == 0


def test_an_ordinary_tags_code_is_itself() -> None:
    ext = ConsumeQueueExt(SimulatedFileSystem(), "/store")
    assert not ext.exists()
    for code in (0, 2598919, -2147483648, 1_795_254_456_123):
        assert ext.tags_code("t", 0, code) == code
