"""What a log means, worked out without the store's code: its records, ConsumeQueues and index.

Everything here is computed from the bytes of the log alone, in the slow and plain way, and nothing
of the store or the protocol is imported. The oracle agrees with stores of a live Apache broker (see
`test_oracle.py`), so what it makes of a log is what the store must have made of it.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from typing import NamedTuple

ROOT = "/store"
BATCH_TOPIC = "Batch"
INNER_BATCH = 0x80
MAGIC_V1, MAGIC_V2, MAGIC_BLANK = 0xDAA320A7, 0xDAA320AB, 0xCBD43194
DELAYS_S: tuple[int, ...] = (1, 5, 10, 30, *range(60, 660, 60), 1200, 1800, 3600, 7200)
PRE_BLANK = struct.pack(">qiq", 0, 0x7FFFFFFF, 0)


class Record(NamedTuple):
    """One record of the log."""

    physical_offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_timestamp: int
    body: bytes
    properties: dict[str, str]

    @property
    def batch_size(self) -> int:
        """How many messages it holds that consumers see."""
        if self.sys_flag & 0xC in (4, 0xC):
            return 0
        count = self.properties.get("INNER_NUM", "")  # A power cut may have torn it.
        return int(count) if self.sys_flag & INNER_BATCH and count.isdecimal() else 1


@dataclass
class Log:
    """The records of a log, and where they end."""

    records: list[Record] = field(default_factory=list[Record])
    start: int = 0
    end: int = 0
    trailing: bytes = b""
    """The bytes after the end, in its segment and all later ones."""


def read_log(segments: dict[int, bytes]) -> Log:
    """Read the records of a log, from its first segment to the first byte that begins none."""
    start = min(segments, default=0)
    log = Log(start=start, end=start)
    for start in sorted(segments):
        data = segments[start]
        if log.end != start:
            log.trailing += data
            continue
        at = 0
        while (record := _record(data, at, start)) is not None:
            log.records.append(record)
            at += record.size
        log.end = start + at
        if at + 8 <= len(data):
            size, magic = struct.unpack_from(">iI", data, at)
            if magic == MAGIC_BLANK and size == len(data) - at:
                log.end = start + len(data)
                continue
        log.trailing = data[at:]
    return log


def _record(data: bytes, at: int, start: int) -> Record | None:
    if at + 91 > len(data):
        return None
    size, magic, crc, queue_id, _, queue_offset, physical_offset, sys_flag, _ = struct.unpack_from(
        ">iIIiiqqiq", data, at
    )
    if magic not in (MAGIC_V1, MAGIC_V2) or size < 91 or at + size > len(data):
        return None
    place = at + 48 + (20 if sys_flag & 0x10 else 8)
    (store_timestamp,) = struct.unpack_from(">q", data, place)
    place += 8 + (20 if sys_flag & 0x20 else 8) + 4 + 8
    try:
        (body_size,) = struct.unpack_from(">I", data, place)
        body = data[place + 4 : place + 4 + body_size]
        place += 4 + body_size
        (topic_size,) = struct.unpack_from(">B" if magic == MAGIC_V1 else ">H", data, place)
        place += 1 if magic == MAGIC_V1 else 2
        topic = data[place : place + topic_size].decode()
        place += topic_size
        (properties_size,) = struct.unpack_from(">H", data, place)
        text = data[place + 2 : place + 2 + properties_size].decode()
    except (struct.error, UnicodeDecodeError):
        return None
    if place + 2 + properties_size != at + size or zlib.crc32(body) & 0x7FFFFFFF != crc:
        return None
    if physical_offset != start + at:
        return None
    pairs = (piece.split("\1", 1) for piece in text.split("\2") if len(piece) >= 3)
    properties = {pair[0]: pair[1] for pair in pairs if len(pair) == 2}
    return Record(
        physical_offset,
        size,
        topic,
        queue_id,
        queue_offset,
        sys_flag,
        store_timestamp,
        body,
        properties,
    )


def java_hash(text: str) -> int:
    """Java's `String.hashCode`."""
    data = text.encode("utf-16-be")
    value: int = 0
    for at in range(0, len(data), 2):
        value = (31 * value + (data[at] << 8) + data[at + 1]) & 0xFFFFFFFF
    return (value ^ 1 << 31) - (1 << 31)


def consume_queues(log: Log) -> dict[tuple[str, int], dict[int, bytes]]:
    """The 20-byte entries of each queue, by queue offset."""
    queues: dict[tuple[str, int], dict[int, bytes]] = {}
    for record in log.records:
        if record.sys_flag & 0xC in (0, 8) and record.topic != BATCH_TOPIC:
            entry = struct.pack(">qiq", record.physical_offset, record.size, _tags_code(record))
            queues.setdefault((record.topic, record.queue_id), {})[record.queue_offset] = entry
    return queues


def batch_queues(log: Log) -> dict[tuple[str, int], dict[int, bytes]]:
    """The 46-byte entries of each queue of the batch topic, by queue offset."""
    queues: dict[tuple[str, int], dict[int, bytes]] = {}
    for record in log.records:
        if record.topic == BATCH_TOPIC:
            entry = struct.pack(
                ">qiqqqhii",
                record.physical_offset,
                record.size,
                _tags_code(record),
                record.store_timestamp,
                record.queue_offset,
                record.batch_size,
                -1,
                0,
            )
            queues.setdefault((record.topic, record.queue_id), {})[record.queue_offset] = entry
    return queues


def _tags_code(record: Record) -> int:
    level = int(record.properties.get("DELAY", 0))
    if record.topic == "SCHEDULE_TOPIC_XXXX" and level > 0:
        return record.store_timestamp + 1000 * DELAYS_S[min(level, len(DELAYS_S)) - 1]
    return java_hash(record.properties.get("TAGS", ""))


class Item(NamedTuple):
    """One key of one record, as the index keeps it."""

    key_hash: int
    physical_offset: int
    store_timestamp: int


def index_items(log: Log) -> list[Item]:
    """The items of the whole log, in order: unique key, keys, tag."""
    items: list[Item] = []
    for record in log.records:
        if record.sys_flag & 0xC == 0xC:
            continue
        properties = record.properties
        keys = [properties["UNIQ_KEY"]] if "UNIQ_KEY" in properties else []
        keys += [token for token in properties.get("KEYS", "").split(" ") if token]
        if properties.get("TAGS"):
            keys.append("T#" + properties["TAGS"])
        for key in keys:
            value = abs(java_hash(f"{record.topic}#{key}"))
            key_hash = 0 if value == 1 << 31 else value
            items.append(Item(key_hash, record.physical_offset, record.store_timestamp))
    return items


def index_files(items: list[Item], slots: int, size: int) -> list[bytes]:
    """The index files that hold these items, without the trailing zeros of each."""
    files: list[bytes] = []
    end_time = end_offset = 0
    while items:
        part, items = items[: size - 1], items[size - 1 :]
        begin_time, heads = end_time, [0] * slots
        body: list[bytes] = []
        for number, item in enumerate(part, 1):
            slot = item.key_hash % slots
            passed = item.store_timestamp - begin_time if begin_time > 0 else 0
            seconds = min(max(passed // 1000, 0), 0x7FFFFFFF)
            body.append(
                struct.pack(">iqii", item.key_hash, item.physical_offset, seconds, heads[slot])
            )
            heads[slot] = number
            if number == 1:
                begin_time = item.store_timestamp
        end_time, end_offset = part[-1].store_timestamp, part[-1].physical_offset
        used = sum(1 for head in heads if head)
        times = (begin_time, end_time, part[0].physical_offset, end_offset)
        header = struct.pack(">qqqqii", *times, used, len(part) + 1)
        files.append(header + struct.pack(f">{slots}i", *heads) + bytes(20) + b"".join(body))
    return files
