"""What must be true of a store, asked of Apache, of us, and of the bare files."""

from __future__ import annotations

import struct
from collections import defaultdict
from operator import attrgetter
from pathlib import Path
from time import monotonic, sleep
from typing import TypeAlias

from tests.crash.oracle import (
    Log,
    Record,
    consume_queues,
    index_files,
    index_items,
    java_hash,
    read_log,
)
from tests.interop.apache_client import BrokerClient
from tests.interop.store_content import (
    INDEX_ITEMS,
    INDEX_SLOTS,
    INNER,
    SCHEDULE,
    TOPICS,
    Known,
    number_in,
    queues_of,
)
from tests.interop.store_sessions import now_ms

from cometmq.proto.message import StoredMessage, read_message
from cometmq.store.disk.cold import Cold
from cometmq.store.message_store import MessageStore
from cometmq.store.messages.reading import ReadStatus
from cometmq.store.queues.consume_queue import Boundary

FAR_MS = 1 << 60
TimeAnswers: TypeAlias = dict[tuple[str, int, int, Boundary], int]
KEYS_MAX = 4
"""The most keys of one message."""
INDEX_FILE_SIZE = 40 + 4 * INDEX_SLOTS + 20 * INDEX_ITEMS

# The bare files, by a reader that shares nothing with the store.


def log_of(root: Path) -> Log:
    return read_log(
        {int(path.name): path.read_bytes() for path in sorted((root / "commitlog").iterdir())}
    )


def found_in_log(root: Path, known: list[Known], unanswered: range = range(0)) -> list[Known]:
    """Return every message of the log, in its order.

    Each known message must be there once, in its known place. Others may be there, also once, if
    their numbers are among those whose sender got no answer.
    """
    expected = {each.number: each for each in known}
    assert len(expected) == len(known)
    found: dict[int, Known] = {}
    for record in log_of(root).records:
        if record.topic not in TOPICS and record.topic != SCHEDULE:
            continue  # A broker wrote it for itself.
        number = number_in(record.body, record.properties, record.sys_flag)
        assert number not in found, f"{number} is doubled"
        here = _as_known(record, number)
        there = expected.pop(number, None)
        if there is None:
            assert number in unanswered, f"{number} was never sent"
        else:
            assert here[:6] == there[:6]
            assert there.properties.items() <= here.properties.items()
        found[number] = here
    assert not expected, f"lost: {sorted(expected)}"
    return list(found.values())


def _as_known(record: Record, number: int) -> Known:
    return Known(
        number,
        record.topic,
        record.queue_id,
        record.queue_offset,
        record.physical_offset,
        record.body,
        record.properties,
        record.sys_flag,
    )


def check_queue_files(root: Path) -> None:
    """Every ConsumeQueue file is, byte for byte, what follows from the log."""
    expected: dict[str, bytes] = defaultdict(bytes)
    for (topic, queue_id), entries in consume_queues(log_of(root)).items():
        if topic != INNER:
            assert sorted(entries) == list(range(len(entries))), (topic, queue_id)
            data = b"".join(entries[offset] for offset in sorted(entries))
            expected[f"consumequeue/{topic}/{queue_id}"] = data
    for record in log_of(root).records:
        if record.topic == INNER:
            expected[f"batchconsumequeue/{INNER}/{record.queue_id}"] += _batch_entry(record)
    found = {
        str(folder.relative_to(root))
        for kind in ("consumequeue", "batchconsumequeue")
        for folder in (root / kind).glob("*/*")
    }
    assert found == set(expected)
    for folder, data in expected.items():
        content = queue_content(root / folder)
        assert content[: len(data)] == data, folder
        assert not content[len(data) :].strip(b"\0"), f"{folder}: more behind the end"


def queue_content(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


def _batch_entry(record: Record) -> bytes:
    count = int(record.properties.get("INNER_NUM", "1"))
    return struct.pack(
        ">qiqqqhii",
        record.physical_offset,
        record.size,
        java_hash(record.properties.get("TAGS", "")),
        record.store_timestamp,
        record.queue_offset,
        count,
        -1,
        0,
    )


def check_index_files(root: Path) -> None:
    """Every index file is, byte for byte, what follows from the log; names are times."""
    expected = index_files(index_items(log_of(root)), INDEX_SLOTS, INDEX_ITEMS)
    found = [path.read_bytes() for path in sorted((root / "index").iterdir())]
    assert [len(content) for content in found] == [INDEX_FILE_SIZE] * len(expected)
    for number, (content, data) in enumerate(zip(found, expected, strict=True)):
        assert content[:40] == data[:40], f"header of index file {number}"
        assert content[: len(data)] == data, f"index file {number}"
        assert not content[len(data) :].strip(b"\0"), f"index file {number}: more behind the end"


def timed_queues(known: list[Known]) -> list[tuple[str, int]]:
    """Return the queues in which Apache's answers to times mean something.

    In batch queues its UPPER mostly finds nothing and answers 0. Its LOWER looks at one file only:
    it skips equal times at the end of the file before, and stops at the last record of its own.
    """
    return sorted(queue for queue in queues_of(known) if queue[0] != INNER)


def check_index_items(root: Path) -> None:
    """The index has every key of the log and no others; some may be there twice."""
    found: list[tuple[int, int]] = []
    for path in (root / "index").iterdir():
        content = path.read_bytes()
        start = 40 + 4 * INDEX_SLOTS + 20
        end = start - 20 + 20 * int.from_bytes(content[36:40])
        found += [item[:2] for item in struct.iter_unpack(">iqii", content[start:end])]
    expected = [item[:2] for item in index_items(log_of(root))]
    assert sorted(set(found)) == sorted(set(expected))
    files = len(list((root / "index").iterdir()))
    assert len(expected) <= len(found) <= len(expected) + files * KEYS_MAX


# Asked of Apache.


def check_by_apache(client: BrokerClient, known: list[Known]) -> None:
    """A live broker finds every message in every way, and nothing else in its queues."""
    check_queues_by_apache(client, known)
    for each in known:
        each.check(client.view(each.physical_offset))
    for (topic, key), places in _by_key(known).items():
        found = client.query(topic, key, unique=len(key) == 32)
        # After a kill Apache indexes a record twice if one file ended and the next began with it.
        assert sorted(places) == sorted(set(found)), (topic, key)


def check_queues_by_apache(client: BrokerClient, known: list[Known]) -> None:
    ends = monotonic() + 20
    for (topic, queue_id), messages in _by_queue(known).items():
        assert client.min_offset(topic, queue_id) == 0
        # Apache answers a send before its thread for entries reaches the record.
        while client.max_offset(topic, queue_id) < _end_of(messages) and monotonic() < ends:
            sleep(0.02)
        assert client.max_offset(topic, queue_id) == _end_of(messages)
        _check_order(client.pull_all(topic, queue_id), messages)


def times_by_apache(client: BrokerClient, known: list[Known], times: list[int]) -> TimeAnswers:
    """The queue offsets of times, by each boundary, in each queue."""
    return {
        (topic, queue_id, time, boundary): client.offset_by_time(
            topic, queue_id, time, boundary.name
        )
        for topic, queue_id in timed_queues(known)
        for time in times
        for boundary in Boundary
    }


# Asked of us.


def check_by_us(store: MessageStore, known: list[Known]) -> None:
    """Our store finds every message in every way, and nothing else in its queues."""
    for (topic, queue_id), messages in _by_queue(known).items():
        assert store.min_offset(topic, queue_id) == 0
        assert store.max_offset(topic, queue_id) == _end_of(messages)
        _check_order(_read_all(store, topic, queue_id), messages)
    for each in known:
        record = store.find_record(each.physical_offset)
        assert record is not None
        assert not isinstance(record, Cold)
        each.check(read_message(bytes(record)))
    for (topic, key), places in _by_key(known).items():
        assert set(places) <= set(query_us(store, topic, key)), (topic, key)


def query_us(store: MessageStore, topic: str, key: str) -> list[int]:
    return store.query(topic, key, 10_000, begin_ms=0, end_ms=FAR_MS, now_ms=now_ms())


def times_by_us(store: MessageStore, known: list[Known], times: list[int]) -> TimeAnswers:
    found: TimeAnswers = {}
    for topic, queue_id in timed_queues(known):
        for time in times:
            for boundary in Boundary:
                offset = store.offset_by_time(topic, queue_id, time, boundary)
                assert not isinstance(offset, Cold)
                found[topic, queue_id, time, boundary] = offset
    return found


def _read_all(store: MessageStore, topic: str, queue_id: int) -> list[StoredMessage]:
    messages: list[StoredMessage] = []
    offset = store.min_offset(topic, queue_id)
    while offset < store.max_offset(topic, queue_id):
        result = store.read(topic, queue_id, offset, 32)
        assert result.status is ReadStatus.FOUND
        data = b"".join(bytes(piece) for piece in result.slices)
        place = 0
        while place < len(data):
            messages.append(read_message(data, place))
            place += messages[-1].size
        offset = result.next_begin_offset
    return messages


# What is expected.


def _by_queue(known: list[Known]) -> dict[tuple[str, int], list[Known]]:
    queues: dict[tuple[str, int], list[Known]] = defaultdict(list)
    for each in known:
        if each.has_entry:
            queues[each.topic, each.queue_id].append(each)
    return {
        queue: sorted(messages, key=attrgetter("queue_offset"))
        for queue, messages in sorted(queues.items())
    }


def _by_key(known: list[Known]) -> dict[tuple[str, str], list[int]]:
    places: dict[tuple[str, str], list[int]] = defaultdict(list)
    for each in known:
        for key in each.keys:
            places[each.topic, key].append(each.physical_offset)
    return places


def _end_of(messages: list[Known]) -> int:
    last = messages[-1]
    return last.queue_offset + int(last.properties.get("INNER_NUM", "1"))


def _check_order(found: list[StoredMessage], messages: list[Known]) -> None:
    assert len(found) == len(messages)
    for each, stored in zip(messages, found, strict=True):
        each.check(stored)


def store_times(root: Path, count: int) -> list[int]:
    """Return some times around those of the log's records, one before them all and one after."""
    times = sorted({record.store_timestamp for record in log_of(root).records})
    step = max(1, len(times) // count)
    some = times[::step]
    return [times[0] - 1, *some, *(time + 1 for time in some), times[-1] + 1]
