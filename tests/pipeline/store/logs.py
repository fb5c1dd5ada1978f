"""Logs in folders: written by hand, changed, and read as the pipeline reads them."""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import numpy as np
from tests.store.records import HOST, record

from cometmq.pipeline.store.scan import Damage, scan
from cometmq.pipeline.store.splits import look, parts
from cometmq.store.config import StoreConfig
from cometmq.store.log.turn import Origin
from cometmq.store.message_store import MessageStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

BLANK = bytes.fromhex("cbd43194")
SIZE = 4096
SEGMENT = 1 << 20


def write_log(
    root: Path,
    bodies: Sequence[bytes],
    *,
    size: int = SIZE,
    properties: bytes = b"TAGS\x01a\x02",
    record_crc: bool = False,
) -> list[int]:
    """Write a log of small files, and return where each record begins."""
    folder = root / "commitlog"
    folder.mkdir(parents=True, exist_ok=True)
    numbers = count()
    files: list[bytearray] = [bytearray()]
    places: list[int] = []
    for body in bodies:
        start = (len(files) - 1) * size + len(files[-1])
        write = partial(
            record,
            body=body,
            queue_offset=next(numbers),
            properties=properties,
            record_crc=record_crc,
        )
        data = write(start)
        if len(files[-1]) + len(data) + 8 > size:
            rest = size - len(files[-1])
            files[-1] += rest.to_bytes(4, "big") + BLANK
            files.append(bytearray())
            start = (len(files) - 1) * size
            data = write(start)
        places.append(start)
        files[-1] += data
    for place, content in enumerate(files):
        (folder / f"{place * size:020d}").write_bytes(bytes(content).ljust(size, b"\0"))
    return places


def write_sealed_log(root: Path, messages: int) -> None:
    """Write and close a CometMQ store: some files of 1 MiB, whose whole blocks are sealed."""
    config = StoreConfig(segment_size=SEGMENT)
    store = MessageStore.open(str(root), config, now_ms=1, threads=False)
    for number in range(messages):
        store.put("T", 0, b"x" * 10_000, b"KEYS\x01k%d\x02" % number, Origin(1, 1, HOST))
        store.commit()
        store.run_jobs()
        store.advance()
        store.tick(1 + number)
    assert store.close(2)


def change(root: Path, place: int, data: bytes, *, size: int = SIZE) -> None:
    """Overwrite bytes of a log."""
    path = root / "commitlog" / f"{place - place % size:020d}"
    changing = bytearray(path.read_bytes())
    changing[place % size : place % size + len(data)] = data
    path.write_bytes(bytes(changing))


def found(
    root: Path, split_size: int = 64 << 20, *, checksums: bool = True
) -> tuple[list[int], list[Damage]]:
    """Return where the records of all parts begin, and the damage."""
    places: list[int] = []
    damages: list[Damage] = []
    for each in everything(root, split_size, checksums=checksums):
        if isinstance(each, Damage):
            damages.append(each)
        else:
            places += each.tolist()
    return places, damages


def everything(
    root: Path, split_size: int, *, checksums: bool
) -> Iterator[np.ndarray[tuple[int], np.dtype[np.int64]] | Damage]:
    """Yield where records begin, and the damage, in the order of the parts."""
    for part in parts(look(str(root)), split_size):
        for each in scan(part, checksums=checksums):
            yield each if isinstance(each, Damage) else each.physical_offsets
