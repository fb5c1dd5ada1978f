"""The keys under which a record is found, as the index hashes them.

A key is `topic#k`: one for the id that the producer gave the record (`UNIQ_KEY`), one for each word
of `KEYS`, and last `topic#T#tags` for all its tags together, as in Apache since 5.5.0. `index_hash`
extracts them from records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# A plain tuple, made for each message: physical offset, topic, properties, store time.
NotedRecord: TypeAlias = "tuple[int, bytes, bytes, int]"


class NotedBatch(NamedTuple):
    """Consecutive records of one size, whose properties have one size, too."""

    physical_offset: int
    """That of the first record."""
    topic: bytes
    properties: bytes
    """The properties of all records, one after another."""
    store_time: int
    record_size: int
    record_count: int

    def records(self) -> list[NotedRecord]:
        """Return the single records."""
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
"""What the index has to know; in both kinds the first four fields describe the first record."""

CountSound: TypeAlias = "Callable[[int, Sequence[int]], int]"
"""Counts how many of the items that name a record by its offset, from the first on, are its own."""


def all_sound(_physical_offset: int, hashes: Sequence[int]) -> int:
    """Count every item as one of the record that it names."""
    return len(hashes)


def query_key(topic: str, key: str, kind: str = "") -> str:
    """Return the string that a query for a key hashes; `kind` T asks for the tags of records."""
    return f"{topic}#{kind}#{key}" if kind else f"{topic}#{key}"
