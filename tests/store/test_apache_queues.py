"""ConsumeQueues made from Apache's logs equal Apache's, byte for byte."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
from tests.proto.apache_messages import STORES
from tests.store.apache_stores import (
    DELETED_TOPICS,
    batch_topics,
    config,
    manifest_records,
    records,
    unpack,
)

from cometmq.proto.java import tags_code
from cometmq.store.delay_levels import DelayLevels
from cometmq.store.disk.filesystem import RealFileSystem
from cometmq.store.messages.dispatch import place_record
from cometmq.store.queues.consume_queue import ENTRY, Boundary
from cometmq.store.queues.consume_queues import BATCH_FOLDER, SIMPLE_FOLDER, ConsumeQueues

EVERYTHING = 1 << 62


def rebuild(store: str, apache: Path, root: Path) -> ConsumeQueues:
    """Rebuild the queues of a captured store from its log, and write them."""
    settings = config(store)
    queues = ConsumeQueues(RealFileSystem(), str(root), settings, clean=True)
    batch = batch_topics(apache)
    for message in records(store):
        if message.topic not in DELETED_TOPICS:
            place_record(
                queues, message, batch.__contains__, DelayLevels.always(settings.delay_levels_ms)
            )
    assert queues.write_behind(EVERYTHING, EVERYTHING)
    queues.take_unsynced().sync()
    return queues


def files(root: Path, folder: str) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in (root / folder).rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("store", ["clean", "killed"])
@pytest.mark.parametrize("folder", [SIMPLE_FOLDER, BATCH_FOLDER])
def test_queues_rebuilt_from_the_log_are_equal_byte_for_byte(
    tmp_path: Path, store: str, folder: str
) -> None:
    apache = unpack(store, tmp_path)
    rebuild(store, apache, tmp_path / "ours")
    expected = files(apache, folder)
    assert expected
    assert files(tmp_path / "ours", folder) == expected


@pytest.mark.parametrize("store", STORES)
def test_replaying_the_log_over_apaches_queues_changes_nothing(tmp_path: Path, store: str) -> None:
    apache = unpack(store, tmp_path)
    if store == "ext":  # Its entries hold addresses instead of tags codes.
        return
    before = files(apache, SIMPLE_FOLDER) | files(apache, BATCH_FOLDER)
    queues = rebuild(store, apache, apache)
    assert len(queues.take_unsynced()) == 0
    assert files(apache, SIMPLE_FOLDER) | files(apache, BATCH_FOLDER) == before


@pytest.mark.parametrize("store", STORES)
def test_every_message_is_found_by_its_queue_offset(tmp_path: Path, store: str) -> None:
    apache = unpack(store, tmp_path)
    queues = ConsumeQueues(RealFileSystem(), str(apache), config(store), clean=True)
    batch = batch_topics(apache)
    reached: dict[str, int] = defaultdict(int)
    for line in manifest_records(store):
        topic, offset, place = line["topic"], line["queueOffset"], line["physicalOffset"]
        if topic in DELETED_TOPICS:
            assert queues.simple.find(topic, line["queueId"]) is None
        elif topic in batch:
            entry = queues.batch.get(topic, line["queueId"]).read(offset, 1)[0]
            assert entry.physical_offset == place
            assert entry.size == line["size"]
            reached[topic] += entry.batch_size
        elif line["sysFlag"] & 0xC not in (0x4, 0xC):
            entry_raw = queues.simple.get(topic, line["queueId"]).read(offset, 1)
            assert ENTRY.unpack(entry_raw)[:2] == (place, line["size"])
            reached[topic] += 1
    for table in (queues.simple, queues.batch):
        for topic in table.topics():
            found = [table.get(topic, queue_id) for queue_id in table.queues(topic)]
            assert sum(queue.max_offset - queue.min_offset for queue in found) == reached[topic]


@pytest.mark.parametrize("store", ["clean", "killed"])
def test_cutting_apaches_queues_anywhere_and_replaying_gives_them_back(
    tmp_path: Path, store: str
) -> None:
    apache = unpack(store, tmp_path)
    expected = files(apache, SIMPLE_FOLDER) | files(apache, BATCH_FOLDER)
    settings = config(store)
    batch = batch_topics(apache)
    log = [message for message in records(store) if message.topic not in DELETED_TOPICS]
    for message in log[:: len(log) // 12]:
        cut = message.physical_offset
        queues = ConsumeQueues(RealFileSystem(), str(apache), settings, clean=False)
        queues.truncate(cut)
        for each in log:
            if each.physical_offset >= cut:
                place_record(
                    queues, each, batch.__contains__, DelayLevels.always(settings.delay_levels_ms)
                )
        for _ in queues.settle():
            pass
        assert queues.settled_offset in (None, *(each.physical_offset for each in log))
        assert queues.write_behind(EVERYTHING, EVERYTHING)
        queues.close()
        found = files(apache, SIMPLE_FOLDER) | files(apache, BATCH_FOLDER)
        assert {path: content for path, content in found.items() if any(content)} == expected


def test_messages_are_found_by_their_store_time(tmp_path: Path) -> None:
    apache = unpack("clean", tmp_path)
    queues = ConsumeQueues(RealFileSystem(), str(apache), config("clean"), clean=True)
    times = {message.physical_offset: message.store_timestamp for message in records("clean")}
    queue = queues.simple.get("S_roll", 0)
    stored = [times[queue.head(offset)[0]] for offset in range(queue.max_offset)]
    assert stored == sorted(stored)
    for time in {time + shift for time in stored for shift in (-1, 0, 1)}:
        lower = next((n for n, at in enumerate(stored) if at >= time), len(stored))
        upper = max((n for n, at in enumerate(stored) if at <= time), default=0)
        assert queue.offset_by_time(time, Boundary.LOWER, lambda at, _: times[at]) == lower
        assert queue.offset_by_time(time, Boundary.UPPER, lambda at, _: times[at]) == upper


def test_extension_addresses_take_the_place_of_tags_codes(tmp_path: Path) -> None:
    apache = unpack("ext", tmp_path)
    queues = ConsumeQueues(RealFileSystem(), str(apache), config("ext"), clean=True)
    for message in records("ext"):
        queue = queues.simple.get(message.topic, message.queue_id)
        *place, code = ENTRY.unpack(queue.read(message.queue_offset, 1))
        assert place == [message.physical_offset, message.size]
        assert code <= -2147483649 or code == tags_code((message.tags or "").encode())
