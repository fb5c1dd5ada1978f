"""What an audit needs of each part of a log: counts, damage, and sequences of queue offsets.

Rows of several kinds are in one table, distinguished by `kind`:

======  ==================================================================================
part    one per part: `count` records of `size` bytes from `start` to `end` in the log; the
        checksums of `compared` of them were compared
damage  a place from `start` to `end` where a sound record should be and is not
block   a sealed block, from `start` to `end`, whose checksum is not the one beside the log
run     `count` messages of a queue with consecutive offsets, beginning with `first`; the
        first of them is at `start` in the log
======  ==================================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa

from cometmq.pipeline.columns import BIGINT, INT, STRING, Column, schema_of
from cometmq.pipeline.records.slices import pieces
from cometmq.pipeline.store.blocks import Compared, compare
from cometmq.pipeline.store.scan import Damage, sampled, scan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cometmq.pipeline.records.layout import Layout, Longs
    from cometmq.pipeline.store.scan import Part

    Row: TypeAlias = dict[str, object]

COLUMNS: Final[Mapping[str, Column]] = {
    column.name: column
    for column in (
        Column("kind", STRING, "part, damage, block or run."),
        Column("file", STRING, "The log file."),
        Column("start", BIGINT, "Where in the log it begins."),
        Column("end", BIGINT, "Where it ends; null of a run."),
        Column("count", BIGINT, "Records, or messages of a run; null of damage."),
        Column("size", BIGINT, "Bytes of a part's records; else null."),
        Column("compared", BIGINT, "Records of a part whose checksums were compared; else null."),
        Column("blocks", BIGINT, "Blocks of a part that were compared; null where none can be."),
        Column("topic", STRING, "Of a run; else null."),
        Column("queue_id", INT, "Of a run; else null."),
        Column("first", BIGINT, "The queue offset of a run's first message; else null."),
        Column("reason", STRING, "What is wrong where damage begins; else null."),
    )
}
"""The columns of the view `survey`."""

_WRONG_BLOCK: Final = "these bytes do not match their checksum in integrity/"
_TRANSACTION_MASK: Final = 0xC
_TRANSACTION_PREPARED: Final = 0x4
_TRANSACTION_ROLLED_BACK: Final = 0xC
_INNER_BATCH: Final = 0x80


def survey_batches(
    part: Part,
    columns: Sequence[str],
    *,
    checksums: bool,
    runs: bool,
    blocks: bool = False,
    sample: float = 1.0,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part; runs and blocks only if asked for."""
    rows: list[Row] = []
    noted = _Runs()
    count = size = compared = 0
    for found in scan(part, checksums=checksums, sample=sample):
        if isinstance(found, Damage):
            rows.append({"kind": "damage", **found._asdict()})
            continue
        count += len(found.starts)
        size += int(found.sizes.sum())
        if checksums:
            compared += int(sampled(found.physical_offsets, sample).sum())
        if runs:
            noted.add(found)
    begin, end = part.base + part.start, part.base + part.stop
    sealed = compare(part, sample) if blocks else Compared(0, [])
    for first, behind in sealed.wrong:
        rows.append({"kind": "block", "start": first, "end": behind, "reason": _WRONG_BLOCK})
    counted = {"count": count, "size": size, "compared": compared, "blocks": sealed.blocks}
    rows.append({"kind": "part", "start": begin, "end": end, **counted})
    rows += noted.rows()
    whole = [{name: row.get(name) for name in columns} for row in rows]
    if "file" in columns:
        for row in whole:
            row["file"] = part.path
    yield pa.RecordBatch.from_pylist(whole, schema=schema_of(COLUMNS, columns))


class _Runs:
    """The runs of offsets of all queues in a part."""

    def __init__(self) -> None:
        self._open: dict[tuple[bytes, int], list[int]] = {}
        """By queue, the run that may continue: its first offset, its count, and where it starts."""
        self._done: list[Row] = []

    def add(self, layout: Layout) -> None:
        """Note the messages of some records, which must follow the earlier ones."""
        kinds = layout.sys_flags & _TRANSACTION_MASK
        # Half messages, which belong to no topic's queue, and batches do not count one by one.
        counted = (kinds != _TRANSACTION_PREPARED) & (kinds != _TRANSACTION_ROLLED_BACK)
        counted &= (layout.sys_flags & _INNER_BATCH) == 0
        some = layout if counted.all() else layout.rows(counted)
        if not len(some.starts):
            return
        names = pieces(some.raw, some.topic_starts, some.topic_ends).dictionary_encode()
        topics = names.dictionary.to_pylist()
        keys = names.indices.to_numpy().astype(np.int64) << 32 | some.queue_ids
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        offsets = some.queue_offsets[order]
        places = some.physical_offsets[order]
        new = np.ones(len(keys), np.bool_)
        new[1:] = (keys[1:] != keys[:-1]) | (offsets[1:] != offsets[:-1] + 1)
        firsts = np.flatnonzero(new)
        counts = np.diff(firsts, append=len(keys))
        self._note(topics, keys[firsts], offsets[firsts], counts, places[firsts])

    def _note(
        self, topics: list[bytes], keys: Longs, offsets: Longs, counts: Longs, places: Longs
    ) -> None:
        key: int
        offset: int
        count: int
        place: int
        columns = (keys.tolist(), offsets.tolist(), counts.tolist(), places.tolist())
        for key, offset, count, place in zip(*columns, strict=True):
            queue = (topics[key >> 32], key & 0xFFFFFFFF)
            run = self._open.get(queue)
            if run is not None and run[0] + run[1] == offset:
                run[1] += count
                continue
            if run is not None:
                self._done.append(_row(queue, run))
            self._open[queue] = [offset, count, place]

    def rows(self) -> list[Row]:
        """Return all runs."""
        return self._done + [_row(queue, run) for queue, run in self._open.items()]


def _row(queue: tuple[bytes, int], run: list[int]) -> Row:
    topic, queue_id = queue
    first, count, start = run
    return {
        "kind": "run",
        "topic": topic.decode("utf-8", "replace"),
        "queue_id": queue_id,
        "first": first,
        "count": count,
        "start": start,
    }
