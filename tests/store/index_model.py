"""An index made item by item, as its format says, to compare the numpy one with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from cometmq.proto.java import string_hash
from cometmq.store.config import StoreConfig
from cometmq.store.index.index_format import HEADER, ITEM


class Indexed(NamedTuple):
    """A record and its keys."""

    offset: int
    time: int
    topic: str
    unique_id: str = ""
    words: tuple[str, ...] = ()
    tags: str = ""

    @property
    def properties(self) -> bytes:
        pairs = {"UNIQ_KEY": self.unique_id, "KEYS": " ".join(self.words), "TAGS": self.tags}
        return "".join(f"{name}\x01{value}\x02" for name, value in pairs.items() if value).encode()

    @property
    def keys(self) -> list[str]:
        keys = [f"{self.topic}#{self.unique_id}"] if self.unique_id else []
        keys += [f"{self.topic}#{word}" for word in self.words]
        return keys + ([f"{self.topic}#T#{self.tags}"] if self.tags else [])


@dataclass
class PlainFile:
    """One index file as lists."""

    slots: list[int]
    begin_time: int = 0
    end_time: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    items: list[bytes] = field(default_factory=list[bytes])

    def put(self, key: str, offset: int, time: int) -> None:
        value = string_hash(key)
        key_hash = 0 if value == -(1 << 31) else abs(value)
        slot = key_hash % len(self.slots)
        seconds = (time - self.begin_time) // 1000 if self.begin_time > 0 else 0
        seconds = min(max(seconds, 0), 0x7FFFFFFF)
        self.items.append(ITEM.pack(key_hash, offset, seconds, self.slots[slot]))
        self.slots[slot] = len(self.items)
        if len(self.items) == 1:
            self.begin_offset, self.begin_time = offset, time
        self.end_offset, self.end_time = offset, time

    def content(self, items_max: int) -> bytes:
        times = self.begin_time, self.end_time, self.begin_offset, self.end_offset
        header = HEADER.pack(*times, sum(slot > 0 for slot in self.slots), len(self.items) + 1)
        slots = b"".join(slot.to_bytes(4, "big") for slot in self.slots)
        items = bytes(20) + b"".join(self.items)
        return header + slots + items.ljust(20 * items_max, b"\0")


def plain_index(records: list[Indexed], config: StoreConfig) -> list[bytes]:
    """Return the files that must follow from a log's records."""
    files: list[PlainFile] = []
    for record in records:
        for key in record.keys:
            if not files or len(files[-1].items) + 1 >= config.index_items:
                last = files[-1] if files else PlainFile([])
                files.append(
                    PlainFile(
                        [0] * config.index_slots,
                        last.end_time,
                        last.end_time,
                        last.end_offset,
                        last.end_offset,
                    )
                )
            files[-1].put(key, record.offset, record.time)
    return [file.content(config.index_items) for file in files]
