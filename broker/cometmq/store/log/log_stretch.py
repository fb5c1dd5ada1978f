"""Many neighbouring records at once, for a start that has to read a gigabyte of them.

Reading a tail of 1 KiB records one by one in Python takes 7 s a GiB. But nearly all records are of
one common form: version 1, IPv4 hosts, no half of a transaction, no checksum of their own. A
stretch of these is found by their sizes alone, and then checked and taken apart column by column
with numpy. Only the checksum of each body takes a separate call.

A stretch ends before the first record of any other form, sound or not: `LogScan` judges that one by
itself. So every record in a stretch has passed every check that `LogScan` makes.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from cometmq.proto.checksum import CRC_MASK, crc32
from cometmq.proto.message import read_message
from cometmq.proto.properties import PROPERTIES_SIZE_MAX
from cometmq.proto.record import (
    HEAD_SIZE,
    HOSTS_MASK,
    MAGIC_V1,
    RECORD_CRC_DIGITS,
    RECORD_CRC_HEAD,
    RECORD_SIZE_MIN,
    TOPIC_SIZE_V1_MAX,
)
from cometmq.proto.sysflag import SysFlag
from cometmq.store.queues.consume_queue import ENTRY_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from cometmq.proto.message import StoredMessage

    Longs = npt.NDArray[np.int64]
    Rows = npt.NDArray[np.intp]
    Truths = npt.NDArray[np.bool_]

_HEAD: Final = np.dtype(
    {
        "names": ["magic", "crc", "queue", "number", "place", "flags", "stored", "body"],
        "formats": [">u4", ">u4", ">i4", ">i8", ">i8", ">i4", ">i8", ">u4"],
        "offsets": [4, 8, 12, 20, 28, 36, 56, 84],
        "itemsize": HEAD_SIZE,
    }
)
"""The fields of a record's head that are looked at; `proto.record` has the whole layout."""

ENTRY_COLUMNS: Final = np.dtype([("offset", ">i8"), ("size", ">i4"), ("code", ">i8")])
"""An entry of an ordinary queue, see `consume_queue`."""

assert ENTRY_COLUMNS.itemsize == ENTRY_SIZE

_size_at = Struct(">i").unpack_from
_BEHIND_BODY: Final = 3
"""Bytes that follow every body at least: the sizes of topic and properties."""
_SPECIAL: Final = HOSTS_MASK | int(SysFlag.TRANSACTION_PREPARED | SysFlag.INNER_BATCH)
"""Flags of IPv6 hosts, of batches, and of halves of transactions and rolled back ones; committed
ones are like other records."""
_ZERO, _NINE = b"09"


class Stretch(NamedTuple):
    """Sound records in a row, with a column for each field that a start needs."""

    offsets: Longs
    """Physical offsets."""
    chunk: bytes
    """The bytes that hold them, from `starts[0]` to `ends[-1]`."""
    starts: Longs
    ends: Longs
    queue_ids: Longs
    queue_offsets: Longs
    store_times: Longs
    topics: list[bytes]
    properties: list[bytes]

    @property
    def size(self) -> int:
        """The size of all of them in bytes."""
        return int(self.ends[-1] - self.starts[0])

    def first(self, count: int) -> Stretch:
        """Return a stretch of the first `count` of these records."""
        return Stretch(
            self.offsets[:count],
            self.chunk,
            self.starts[:count],
            self.ends[:count],
            self.queue_ids[:count],
            self.queue_offsets[:count],
            self.store_times[:count],
            self.topics[:count],
            self.properties[:count],
        )

    def messages(self) -> Iterator[StoredMessage]:
        """Yield the records one by one."""
        for start in self.starts.tolist():
            yield read_message(self.chunk, start)

    def entries(self, tags_codes: list[int]) -> npt.NDArray[np.void]:
        """Return the ConsumeQueue entries of all records."""
        entries = np.empty(len(self.offsets), ENTRY_COLUMNS)
        entries["offset"] = self.offsets
        entries["size"] = self.ends - self.starts
        entries["code"] = tags_codes
        return entries

    def first_gap(self, rows: Rows, expected: int) -> int | None:
        """Return the first of these rows whose queue offset does not continue from `expected`."""
        wrong = self.queue_offsets[rows] != np.arange(expected, expected + len(rows))
        return int(rows[np.argmax(wrong)]) if wrong.any() else None

    def rows_by_queue(self, first: int) -> list[Rows]:
        """Return each queue's rows, from row `first` on; the queue with the earliest row first."""
        numbers = {topic: number for number, topic in enumerate(set(self.topics))}
        keys = self.queue_ids[first:].copy()
        if len(numbers) > 1:
            of_topics = map(numbers.__getitem__, self.topics[first:])
            keys += np.fromiter(of_topics, np.int64, len(keys)) << 32
        order = np.argsort(keys, kind="stable")
        borders = np.flatnonzero(np.diff(keys[order])) + 1
        rows = np.split(order + first, borders)
        return sorted(rows, key=lambda each: int(each[0]))


class _Columns(NamedTuple):
    starts: Longs
    ends: Longs
    heads: npt.NDArray[np.void]
    body_ends: Longs
    topic_ends: Longs

    def first(self, count: int) -> _Columns:
        return _Columns(
            self.starts[:count],
            self.ends[:count],
            self.heads[:count],
            self.body_ends[:count],
            self.topic_ends[:count],
        )


def find_stretch(
    chunk: bytes,
    at: int,
    limit: int,
    physical_offset: int,
    admit: Callable[[bytes], bool],
    *,
    is_verified: bool,
    count_max: int,
) -> Stretch | None:
    """Return the common records from `at` on that end by `limit`; None if there are none.

    At most `count_max` records are examined, because work on those after the first uncommon one is
    wasted. `admit` says whether bytes can be a topic, that is, text that may name a folder. With
    `is_verified` the content of the records is known to be sound, and only lengths and places are
    checked.
    """
    columns = _columns(chunk, *_chain(chunk, at, limit, count_max), physical_offset)
    if not is_verified:
        columns = columns.first(_sound_bodies(chunk, columns))
    topic_begins = (columns.body_ends + 1).tolist()
    topic_ends = columns.topic_ends.tolist()
    ends = columns.ends.tolist()
    topics = [chunk[begin:end] for begin, end in zip(topic_begins, topic_ends, strict=True)]
    properties = [chunk[begin + 2 : end] for begin, end in zip(topic_ends, ends, strict=True)]
    count = _plain_texts(topics, properties, admit, is_verified=is_verified)
    if not count:
        return None
    columns = columns.first(count)
    return Stretch(
        columns.starts + (physical_offset - at),
        chunk,
        columns.starts,
        columns.ends,
        columns.heads["queue"].astype(np.int64),
        columns.heads["number"].astype(np.int64),
        columns.heads["stored"].astype(np.int64),
        topics[:count],
        properties[:count],
    )


def _chain(chunk: bytes, at: int, limit: int, count_max: int) -> tuple[Longs, Longs]:
    """Follow the sizes from record to record; return where each begins and ends."""
    borders = [at]
    while at + RECORD_SIZE_MIN <= limit and len(borders) <= count_max:
        at += _size_at(chunk, at)[0]
        if not borders[-1] + RECORD_SIZE_MIN <= at <= limit:
            break
        borders.append(at)
    places = np.array(borders, np.int64)
    return places[:-1], places[1:]


def _columns(chunk: bytes, starts: Longs, ends: Longs, physical_offset: int) -> _Columns:
    """Take the records apart, up to the first that is not of the common form."""
    if not len(starts):
        return _Columns(starts, ends, np.empty(0, _HEAD), starts, starts)
    raw = np.frombuffer(chunk, np.uint8)
    heads = np.ndarray(len(chunk) - HEAD_SIZE + 1, _HEAD, chunk, strides=(1,))[starts]
    body_ends = starts + HEAD_SIZE + heads["body"].astype(np.int64)
    good = body_ends + _BEHIND_BODY <= ends
    body_ends = np.where(good, body_ends, starts)  # Each index must be inside the chunk.
    topic_sizes = raw[body_ends].astype(np.int64)
    topic_ends = body_ends + 1 + topic_sizes
    good &= (topic_sizes <= TOPIC_SIZE_V1_MAX) & (topic_ends + 2 <= ends)
    topic_ends = np.where(good, topic_ends, starts)
    sizes = (raw[topic_ends].astype(np.int64) << 8) | raw[topic_ends + 1]
    good &= (sizes <= PROPERTIES_SIZE_MAX) & (topic_ends + 2 + sizes == ends)
    good &= (heads["magic"] == MAGIC_V1) & (heads["flags"] & _SPECIAL == 0)
    good &= heads["place"] == starts + (physical_offset - starts[0])
    good &= (heads["number"] >= 0) & (heads["queue"] >= 0)
    return _Columns(starts, ends, heads, body_ends, topic_ends).first(_leading(good))


def _sound_bodies(chunk: bytes, columns: _Columns) -> int:
    """Return how many leading records have a sound body and nothing like an own checksum."""
    raw = np.frombuffer(chunk, np.uint8)
    last = raw[columns.ends - 2]
    for number in np.flatnonzero((last >= _ZERO) & (last <= _NINE)).tolist():
        end = int(columns.ends[number])
        if chunk[end - RECORD_CRC_DIGITS - 1 : end - 1].isdigit():
            columns = columns.first(number)
            break
    view = memoryview(chunk)
    begins, ends = (columns.starts + HEAD_SIZE).tolist(), columns.body_ends.tolist()
    found = [crc32(view[begin:end]) for begin, end in zip(begins, ends, strict=True)]
    return _leading(np.array(found, np.uint32) & CRC_MASK == columns.heads["crc"])


def _plain_texts(
    topics: list[bytes],
    properties: list[bytes],
    admit: Callable[[bytes], bool],
    *,
    is_verified: bool,
) -> int:
    """Return how many leading records have a possible topic, no zeros and no own checksum."""
    count = len(topics)
    for topic in set(topics):
        if not admit(topic):
            count = min(count, topics.index(topic))
    if not is_verified:
        joined = b"\x02".join(properties)
        if 0 in joined or joined.find(RECORD_CRC_HEAD) >= 0:
            for number, raw in enumerate(properties[:count]):
                if 0 in raw or raw.find(RECORD_CRC_HEAD) >= 0:
                    return number
    return count


def _leading(good: Truths) -> int:
    """Return how many are good before the first that is not."""
    return len(good) if good.all() else int(np.argmin(good))
