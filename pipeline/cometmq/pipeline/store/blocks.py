"""Comparing the sealed blocks of a log with the checksums stored beside it (`integrity/`).

The checksums cover every byte, including heads and properties of records; they are described in
`cometmq.store.upkeep.integrity`. They require `crc32c`, which executors may not have: a task
without it reports that it has compared no blocks.
"""

from __future__ import annotations

import logging
from importlib import import_module
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from cometmq.pipeline.store.files import Opened, inside, is_ours
from cometmq.pipeline.store.scan import BLOCK_SIZE, sampled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cometmq.pipeline.store.scan import Part, WrongBlocks

    Crc32c = Callable[[bytes | memoryview], int]

log = logging.getLogger(__name__)

FOLDER: Final = "integrity"
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
    sealed = Sealed(part, crc32c)
    count = 0
    wrong: list[tuple[int, int]] = []
    begin = -(-part.start // BLOCK_SIZE)
    numbers = np.arange(begin, max(-(-part.stop // BLOCK_SIZE), begin))
    chosen = set(numbers[sampled(part.base + numbers * BLOCK_SIZE, sample)].tolist())
    for data, position in _read(part, begin, len(numbers)) if sealed.covers_some else ():
        for start, end, is_right in sealed.judged(data, position):
            if start // BLOCK_SIZE in chosen:
                count += 1
                if not is_right:
                    wrong.append((part.base + start, part.base + end))
    return Compared(count, wrong)


def wrong_blocks(part: Part) -> WrongBlocks | None:
    """Return what tells a scan of a part which sealed blocks are wrong; `None` if nothing can."""
    crc32c = installed_crc32c()
    if crc32c is None:
        return None
    try:
        if not is_ours(part.root):  # The checksums of what another program wrote anew are old.
            return None
        sealed = Sealed(part, crc32c)
    except OSError as error:  # Nobody can be asked for more rights than the log itself needs.
        log.warning("%s: its sealed blocks are not compared: %s", part.path, error)
        return None
    return sealed.wrong if sealed.covers_some else None


def installed_crc32c() -> Crc32c | None:
    """Return the function that computes the checksums, if an executor has it."""
    try:
        found: Crc32c = import_module("crc32c").crc32c
    except ImportError:
        return None
    return found


class Sealed:
    """The checksums of the sealed blocks of one file of a log."""

    def __init__(self, part: Part, crc32c: Crc32c) -> None:
        self._part = part
        self._crc32c = crc32c
        self._entries = self._read_entries()

    @property
    def covers_some(self) -> bool:
        """Whether there are checksums at all."""
        return bool(self._entries)

    def judged(self, data: bytes, position: int) -> Iterator[tuple[int, int, bool]]:
        """Yield the blocks in some data of the file, and whether each has its checksum.

        The data begins at `position`, where a block does. Blocks that are not whole in it, or not
        covered, are left out. All places are positions in the file.
        """
        view = memoryview(data)
        for at in range(0, len(view), BLOCK_SIZE):
            start = position + at
            end = min(start + BLOCK_SIZE, self._part.length)
            if end > self._part.limit or end - position > len(view):
                return
            expected = self._checksum(start // BLOCK_SIZE)
            if expected is not None:
                yield start, end, self._crc32c(view[at : end - position]) == expected

    def wrong(self, data: bytes, position: int) -> list[tuple[int, int]]:
        """Return where blocks begin and end that do not have their checksums."""
        found = self.judged(data, position)
        return [(start, end) for start, end, is_right in found if not is_right]

    def _checksum(self, number: int) -> int | None:
        """Return the checksum of a block.

        Each entry has its own check: one that is torn, or has another format, covers nothing.
        """
        at = number * _ENTRY.size
        if at + _ENTRY.size > len(self._entries):
            return None
        crc: int
        crc, check = _ENTRY.unpack_from(self._entries, at)
        place = self._part.base + number * BLOCK_SIZE
        return crc if check == self._crc32c(_ENTRY_CHECKED.pack(place, crc)) else None

    def _read_entries(self) -> bytes:
        part = self._part
        size = _HEADER.size + -(-part.length // BLOCK_SIZE) * _ENTRY.size
        try:
            path = inside(part.root, FOLDER, part.path.rpartition("/")[2])
            with Opened(part.root, path) as file:
                data = file.read(size, 0)
        except FileNotFoundError:
            return b""
        fields = (_MAGIC, VERSION, BLOCK_SIZE, part.base, part.length)
        check = self._crc32c(_HEADER.pack(*fields, 0)[:_HEADER_CHECKED])
        is_known = data[: _HEADER.size] == _HEADER.pack(*fields, check)
        return data[_HEADER.size :] if is_known else b""


def _read(part: Part, begin: int, count: int) -> Iterator[tuple[bytes, int]]:
    """Yield the data of up to `count` blocks, many together, with their positions in the file."""
    with Opened(part.root, part.path) as file:
        for first in range(begin, begin + count, _READ_AT_ONCE):
            size = min(_READ_AT_ONCE, begin + count - first) * BLOCK_SIZE
            yield file.read(size, first * BLOCK_SIZE), first * BLOCK_SIZE
