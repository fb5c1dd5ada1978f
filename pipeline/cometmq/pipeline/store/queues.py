"""The entries of ConsumeQueues as a table.

An entry of a queue has 20 bytes, that of a batch queue has 46 (big-endian; times in ms):

==  ====  ===================================    ==  ====  ====================================
at  size  of a queue                             at  size  of a queue of batches
==  ====  ===================================    ==  ====  ====================================
0   8     physical offset of the record          0   8     physical offset of the record
8   4     size; 1, 0x7FFFFFFF: of no record      8   4     size of the record
12  8     tags code                              12  8     tags code
..  ..                                           20  8     store time
..  ..                                           28  8     queue offset of its first message
..  ..                                           36  2     how many messages it has
..  ..                                           38  8     of no meaning here
==  ====  ===================================    ==  ====  ====================================

Files are longer than what is written to them; the rest is zeros.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from cometmq.pipeline.columns import BIGINT, INT, STRING, TIMESTAMP, Column, schema_of
from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.store.files import Opened, folders_of, inside, is_file, row_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

SIMPLE: Final = "consumequeue"
BATCH: Final = "batchconsumequeue"
_IN_ROCKSDB: Final = "consumequeue_rocksdb"
_DATABASE: Final = "CURRENT"
"""A file in the folder of every database; see `cometmq.store.starting.rocksdb`."""

COLUMNS: Final[Mapping[str, Column]] = {
    column.name: column
    for column in (
        Column("topic", STRING, "The topic."),
        Column("queue_id", INT, "Its queue."),
        Column("queue_offset", BIGINT, "Of the message; of a batch, of its first."),
        Column("messages", INT, "1; of a batch, how many it has."),
        Column("physical_offset", BIGINT, "Where the record begins in the log."),
        Column("size", INT, "Bytes of the record."),
        Column("tags_code", BIGINT, "Java's hash of the tags; when a delayed message is due, ms."),
        Column("store_time", TIMESTAMP, "Of a batch, when it was stored; else null."),
        Column("is_batch", pa.bool_(), "Whether the queue is one of batches."),
    )
}
"""The columns of the view `queues`."""

_SIMPLE_ENTRY: Final = np.dtype([("offset", ">i8"), ("size", ">i4"), ("code", ">i8")])
_BATCH_ENTRY: Final = np.dtype(
    [
        ("offset", ">i8"), ("size", ">i4"), ("code", ">i8"), ("time", ">i8"), ("base", ">i8"),
        ("count", ">i2"), ("rest", ">i8"),
    ]
)  # fmt: skip
assert (_SIMPLE_ENTRY.itemsize, _BATCH_ENTRY.itemsize) == (20, 46)

_QUEUE_ID_MAX: Final = 0x7FFFFFFF
_GONE_SIZE: Final = 1
_PRE_BLANK_SIZE: Final = 0x7FFFFFFF
_ROWS: Final = 16_384


class QueuePart(NamedTuple):
    """One file of a queue."""

    root: str
    path: str
    topic: str
    queue_id: int
    start: int
    """Where in the queue the file begins, in bytes."""
    size: int
    is_batch: bool


def queue_parts(root: str, topics: Sequence[str] = ()) -> list[QueuePart]:
    """Return the files of all queues, or of the queues of some topics.

    Raise `OptionError` if an Apache broker has them in RocksDB, as its plain files are outdated.
    """
    for folder in (SIMPLE, _IN_ROCKSDB):
        if is_file(root, folder, _DATABASE):
            raise OptionError(
                f"path: {inside(root, folder)}: the queues of an Apache broker in RocksDB, which"
                " cannot be read here; read the log, by the views `records` and `survey`, or by"
                " `audit` with `--check log,blocks,gaps,index`"
            )
    return [
        QueuePart(root, file.path, topic, int(queue), file.start, file.size, folder == BATCH)
        for folder in (SIMPLE, BATCH)
        for topic in folders_of(root, folder)
        if not topics or topic in topics
        for queue in folders_of(root, f"{folder}/{topic}")
        if _is_queue(queue)
        for file in row_of(root, inside(root, folder, topic, queue))
    ]


def _is_queue(name: str) -> bool:
    """Whether a folder has a queue's name: `7`, not `007`. The store does not read others."""
    is_number = name.isascii() and name.isdecimal()
    return is_number and (name[0] != "0" or name == "0") and int(name) <= _QUEUE_ID_MAX


def queue_batches(part: QueuePart, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the entries of a file that name a record."""
    kind = _BATCH_ENTRY if part.is_batch else _SIMPLE_ENTRY
    size = _ROWS * kind.itemsize
    with Opened(part.root, part.path) as file:
        for position in range(0, part.size, size):
            data = file.read(min(size, part.size - position), position)
            entries = np.frombuffer(data[: len(data) // kind.itemsize * kind.itemsize], kind)
            sizes = entries["size"]
            rows = np.flatnonzero((sizes > _GONE_SIZE) & (sizes < _PRE_BLANK_SIZE))
            if len(rows):
                first = (part.start + position) // kind.itemsize
                yield _batch(part, entries[rows], rows + first, columns)


def _batch(
    part: QueuePart,
    entries: npt.NDArray[np.void],
    numbers: npt.NDArray[np.int64],
    columns: Sequence[str],
) -> pa.RecordBatch:
    count = len(entries)
    found = {
        "topic": pa.repeat(part.topic, count),
        "queue_id": pa.array(np.full(count, part.queue_id, np.int32)),
        "queue_offset": pa.array(numbers),
        "messages": pa.array(np.ones(count, np.int32)),
        "physical_offset": pa.array(entries["offset"].astype(np.int64)),
        "size": pa.array(entries["size"].astype(np.int32)),
        "tags_code": pa.array(entries["code"].astype(np.int64)),
        "store_time": pa.nulls(count, TIMESTAMP),
        "is_batch": pa.array(np.full(count, part.is_batch)),
    }
    if part.is_batch:
        found["queue_offset"] = pa.array(entries["base"].astype(np.int64))
        found["messages"] = pa.array(entries["count"].astype(np.int32))
        found["store_time"] = pa.array(entries["time"].astype(np.int64) * 1000).view(TIMESTAMP)
    return pa.RecordBatch.from_arrays(
        [found[name] for name in columns], schema=schema_of(COLUMNS, columns)
    )
