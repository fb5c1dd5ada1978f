"""The keys under which a record is found, as the index hashes them.

A key is `topic#k`: for the id that its producer gave it (`UNIQ_KEY`), for each word of `KEYS`, and
last `topic#T#tags` for all its tags as one, which Apache does since 5.5.0. `index_hash` takes them
out of records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# A plain tuple, for one is made with each message: physical offset, topic, properties, store time.
NotedRecord: TypeAlias = "tuple[int, bytes, bytes, int]"


class NotedBatch(NamedTuple):
    """Records of one size, one behind the other, whose properties have one size, too."""

    physical_offset: int
    """Of the first."""
    topic: bytes
    properties: bytes
    """Of all, one behind the other."""
    store_time: int
    record_size: int
    record_count: int

    def records(self) -> list[NotedRecord]:
        """Return each for itself."""
        size = len(self.properties) // self.record_count
        return [
            (
                self.physical_offset + number * self.record_size,
                self.topic,
                self.properties[number * size : (number + 1) * size],
                self.store_time,
            )
            for number in range(self.record_count)
        ]


Noted: TypeAlias = "NotedRecord | NotedBatch"
"""What the index has to know; of both kinds the first four fields are of the first record."""


CountSound: TypeAlias = "Callable[[int, Sequence[int]], int]"
"""Of the items that name a record by its physical offset: how many, from the front, are its own."""


def all_sound(_physical_offset: int, hashes: Sequence[int]) -> int:
    """Take every item for one of the record that it names."""
    return len(hashes)


def query_key(topic: str, key: str, kind: str = "") -> str:
    """Return what a query for a key hashes; `kind` T asks for the tags of records."""
    return f"{topic}#{kind}#{key}" if kind else f"{topic}#{key}"
