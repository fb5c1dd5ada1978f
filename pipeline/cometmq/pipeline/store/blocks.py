"""Comparing the sealed blocks of a log with the checksums stored beside it (`integrity/`).

The checksums cover every byte, including heads and properties of records; they are described in
`cometmq.store.upkeep.integrity`. They require `crc32c`, which executors may not have: a task
without it reports that it has compared no blocks.
"""

from __future__ import annotations

from importlib import import_module
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from cometmq.pipeline.store.files import Opened, inside
from cometmq.pipeline.store.scan import sampled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cometmq.pipeline.store.scan import Part

    Crc32c = Callable[[bytes | memoryview], int]

FOLDER: Final = "integrity"
BLOCK_SIZE: Final = 65_536
VERSION: Final = 1
_MAGIC: Final = b"CMQBLOCK"
_HEADER: Final = Struct(">8siiqqI28x")
_HEADER_CHECKED: Final = 32
_ENTRY: Final = Struct(">II")
_ENTRY_CHECKED: Final = Struct(">qI")
_READ_AT_ONCE: Final = 64
"""How many blocks are read at a time."""


class Compared(NamedTuple):
    """The result for the blocks that begin in a part of a log."""

    blocks: int | None
    """How many were compared; None if that is not possible."""
    wrong: list[tuple[int, int]]
    """Where in the log blocks with a wrong checksum begin and end."""


def compare(part: Part, sample: float = 1.0) -> Compared:
    """Compare the blocks that begin in a part, or a sample of them: see `sampled`."""
    crc32c = installed_crc32c()
    if crc32c is None:
        return Compared(None, [])
    count = 0
    wrong: list[tuple[int, int]] = []
    sums = _sums(part, crc32c)
    begin = -(-part.start // BLOCK_SIZE)
    numbers = np.arange(begin, max(-(-part.stop // BLOCK_SIZE), begin))
    chosen = set(numbers[sampled(part.base + numbers * BLOCK_SIZE, sample)].tolist())
    for number, data in _blocks(part, begin, len(numbers)) if sums else ():
        expected = sums.get(number)
        if expected is None or number not in chosen:
            continue
        count += 1
        if crc32c(data) != expected:
            start = part.base + number * BLOCK_SIZE
            wrong.append((start, start + len(data)))
    return Compared(count, wrong)


def installed_crc32c() -> Crc32c | None:
    """Return the function that computes the checksums, if an executor has it."""
    try:
        found: Crc32c = import_module("crc32c").crc32c
    except ImportError:
        return None
    return found


def _sums(part: Part, crc32c: Crc32c) -> dict[int, int]:
    """Return the checksums of a file of the log, by the numbers of its blocks.

    Each entry has its own check: one that is torn, or has another format, covers nothing.
    """
    try:
        with Opened(part.root, inside(part.root, FOLDER, part.path.rpartition("/")[2])) as file:
            data = file.read(_HEADER.size + -(-part.length // BLOCK_SIZE) * _ENTRY.size, 0)
    except FileNotFoundError:
        return {}
    fields = (_MAGIC, VERSION, BLOCK_SIZE, part.base, part.length)
    check = crc32c(_HEADER.pack(*fields, 0)[:_HEADER_CHECKED])
    if data[: _HEADER.size] != _HEADER.pack(*fields, check):
        return {}
    whole = len(data) - len(data) % _ENTRY.size
    return {
        number: crc
        for number, (crc, check) in enumerate(_ENTRY.iter_unpack(data[_HEADER.size : whole]))
        if check == crc32c(_ENTRY_CHECKED.pack(part.base + number * BLOCK_SIZE, crc))
    }


def _blocks(part: Part, begin: int, count: int) -> Iterator[tuple[int, memoryview]]:
    """Yield up to `count` blocks of a file with their numbers; only blocks that its data fills."""
    with Opened(part.root, part.path) as file:
        for first in range(begin, begin + count, _READ_AT_ONCE):
            size = min(_READ_AT_ONCE, begin + count - first) * BLOCK_SIZE
            data = memoryview(file.read(size, first * BLOCK_SIZE))
            for at in range(0, len(data), BLOCK_SIZE):
                start = first * BLOCK_SIZE + at
                end = min(start + BLOCK_SIZE, part.length)
                if end <= part.limit and end - start <= len(data) - at:
                    yield start // BLOCK_SIZE, data[at : at + end - start]
