"""Checksums of the log's sealed blocks, in separate files beside it (`integrity/`).

The checksum in a record covers its body; these cover every byte. The log is divided into blocks of
64 KiB, counted from the start of each segment. A block is sealed once all of it is synced (the last
block of a segment may be shorter); from then on it does not change. Its CRC-32C goes into the
segment's sidecar, a file with the name of the segment::


    offset  size  field
    0       8     magic `CMQBLOCK`
    8       4     version, 1
    12      4     block size, 65536
    16      8     physical offset of the segment
    24      8     size of the segment
    32      4     CRC-32C of bytes 0 to 31
    36      28    zero
    64      8n    one entry a block:
                  0  4  CRC-32C of the block
                  4  4  CRC-32C of the block's physical offset (8 bytes) and of the previous field

An entry vouches for itself: if it was torn, lost, never written, or moved to another place, it does
not match its own checksum, and its block is simply not covered. So nothing here needs to be synced
in any order, and no state of a sidecar can make sound data look damaged.

All of it is derived. A sidecar of another version, block size or segment size is not read but
rebuilt: that is the rule for the day this format changes.

Another program (an Apache broker) may have had the store in between. Either it appended after the
sealed part, which changes no block, or it cut the log at a broken record and appended there, which
changes every block from the cut to the end of the log. `last_untouched` finds that place with a
handful of reads, and what follows it is dropped. The caller must know two things: whether another
program wrote (the checkpoint says so), and where the log ends now.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from cometmq.store.disk.names import is_offset_file

if TYPE_CHECKING:
    from cometmq.proto.buffer import Buffer
    from cometmq.store.disk.filesystem import File, FileSystem

BLOCK_SIZE = 65_536
VERSION = 1
SLICE_BLOCKS = 8
"""Blocks of one `advance`, at some 10 µs each from memory: so a slice stays below 200 µs."""
REST_SIZE_MAX = (4 << 20) + BLOCK_SIZE + 8
"""Bytes that may be left unused at the end of a segment, with the default limit of a record."""

_MAGIC = b"CMQBLOCK"
_HEADER = struct.Struct(">8siiqqI28x")
_ENTRY = struct.Struct(">II")
_ENTRY_CHECK = struct.Struct(">qI")
assert _HEADER.size == 64
assert _ENTRY.size == 8
assert _HEADER.size % _ENTRY.size == 0, "an entry never spans two sectors"

Read = Callable[[int, int], "Buffer"]
"""Returns `size` bytes of the log from a physical offset, all in one segment."""


class Block(NamedTuple):
    """One block of the log and what its sidecar says about it."""

    physical_offset: int
    size: int
    is_sound: bool | None
    """None if no checksum covers it."""


class Integrity:
    """The sidecars of one log, built in slices as data is sealed."""

    def __init__(self, filesystem: FileSystem, folder: str, segment_size: int) -> None:
        self._filesystem = filesystem
        self._folder = folder
        self._segment_size = segment_size
        self._next_offset = 0
        self._file: File | None = None
        self._file_start = -1
        self._rolled: list[File] = []
        self._has_new_names = False

    # Building.

    @property
    def next_offset(self) -> int:
        """Where the next block to be sealed begins."""
        return self._next_offset

    def begin(self, physical_offset: int) -> None:
        """Build from this offset on, rounded up to a block.

        The caller has checked the log from there (recovery its tail, an explicit rebuild all of
        it): sealing a block that is already damaged would vouch for the damage.
        """
        start, position = self._split(physical_offset)
        rounded = -(-position // BLOCK_SIZE) * BLOCK_SIZE
        self._next_offset = start + min(rounded, self._segment_size)

    def resume(self, start: int, end: int) -> None:
        """Continue after the blocks below `end` that are sealed without a gap from `start` on."""
        self.begin(start)
        while self._next_offset < end:
            segment, position = self._split(self._next_offset)
            entries = self._entries(segment)
            while self._next_offset < segment + self._segment_size:
                size = self._size_of_block(self._next_offset)
                crc = _checksum(entries, self._next_offset, position // BLOCK_SIZE)
                if crc is None or self._next_offset + size > end:
                    return
                self._next_offset += size
                position += size

    def sealed_end(self) -> int:
        """Return the end of the last sealed block; 0 if there is none."""
        for segment in sorted(self._sidecars(), reverse=True):
            if (end := self.covered_to(segment)) > segment:
                return end
        return 0

    def covered_to(self, segment: int) -> int:
        """Return the end of a segment's last sealed block; its start if there is none."""
        entries = self._entries(segment)
        for number in reversed(range(len(entries) // _ENTRY.size)):
            offset = segment + number * BLOCK_SIZE
            if _checksum(entries, offset, number) is not None:
                return offset + self._size_of_block(offset)
        return segment

    def gaps(self, segment: int) -> list[int]:
        """Return the offsets of blocks without a checksum that come before one with a checksum."""
        entries = self._entries(segment)
        before = range(segment, self.covered_to(segment), BLOCK_SIZE)
        return [at for n, at in enumerate(before) if _checksum(entries, at, n) is None]

    def advance(self, synced_offset: int, read: Read, blocks_max: int = SLICE_BLOCKS) -> bool:
        """Seal the next blocks below `synced_offset`; return whether there are more to seal.

        After an `OSError`, of the log's disk or of the sidecar's, nothing has advanced and the call
        can be repeated; the log itself is not affected.
        """
        start, position = self._split(self._next_offset)
        first = position // BLOCK_SIZE
        entries: list[bytes] = []
        offset = self._next_offset
        while len(entries) < blocks_max and offset < start + self._segment_size:
            size = self._size_of_block(offset)
            if offset + size > synced_offset:
                break
            entries.append(_entry(offset, crc32c(read(offset, size))))
            offset += size
        if entries:
            self._open_sidecar(start).write(b"".join(entries), _position(first))
            self._next_offset = offset
        return offset + self._size_of_block(offset) <= synced_offset

    def prepare_sync(self) -> Callable[[], None]:
        """Return a function that syncs the sealed entries, to be run in a thread.

        `advance` may be called meanwhile; `drop` and `close` may not. A power cut before it has run
        only means that less is covered.
        """
        rolled, self._rolled = self._rolled, []
        current = self._file
        has_new_names, self._has_new_names = self._has_new_names, False

        def sync() -> None:
            for file in rolled:
                file.sync()
                file.close()
            if current is not None:
                current.sync()
            if has_new_names:
                self._filesystem.sync_directory(self._folder)

        return sync

    def close(self) -> None:
        """Close the open sidecars."""
        for file in (*self._rolled, *filter(None, [self._file])):
            file.close()
        self._rolled.clear()
        self._file = None
        self._file_start = -1

    def reseal(self, physical_offset: int, read: Read) -> None:
        """Vouch for a sealed block as it is now; on return this is on the disk.

        Only for an operator who has looked at it: nothing else may make damage look sound.
        """
        start, position = self._split(physical_offset)
        crc = crc32c(read(physical_offset, self._size_of_block(physical_offset)))
        with closing(self._filesystem.open(self._path(start))) as file:
            file.write(_entry(physical_offset, crc), _position(position // BLOCK_SIZE))
            file.sync()

    # Checking.

    def blocks(self, start: int, end: int, read: Read) -> Iterator[Block]:
        """Check the blocks of the log from `start` to `end`, one a step.

        A block that reaches outside counts as not covered: the log ends, or begins, inside it.
        """
        offset = start
        for segment in range(start - start % self._segment_size, end, self._segment_size):
            entries = self._entries(segment)
            while offset < min(end, segment + self._segment_size):
                number = (offset - segment) // BLOCK_SIZE
                begin = segment + number * BLOCK_SIZE
                size = self._size_of_block(begin)
                crc = _checksum(entries, begin, number)
                is_sound = None
                if crc is not None and start <= begin and begin + size <= end:
                    is_sound = crc32c(read(begin, size)) == crc
                yield Block(offset, min(end, begin + size) - offset, is_sound)
                offset = begin + size

    def unread(self) -> Iterator[tuple[str, str]]:
        """Name the sidecars that are not read, and why: nothing covers their segments' blocks."""
        for segment in self._sidecars():
            with closing(self._filesystem.open(self._path(segment), read_only=True)) as file:
                header = file.read(_HEADER.size, 0)
            if any(header) and header != _header(segment, self._segment_size):
                yield self._path(segment), _difference(header)

    # Dropping.

    def last_untouched(
        self, start: int, end: int, read: Read, *, rest_size_max: int = REST_SIZE_MAX
    ) -> int:
        """Return up to where another program that has written since certainly changed no block.

        It wrote the whole log after a cut, so a block that still fits shows that the cut is after
        it. Blocks with bytes that may be left over at the end of a segment do not: these are from
        before the cut. At most some twenty blocks are read. Damage in the last block that can show
        the cut cannot be told from a cut.
        """
        telling = self._telling_blocks(start, end, rest_size_max)
        low, high = 0, len(telling)
        if telling and self._fits(*telling[-1], read):
            low = high
        while low < high:
            middle = (low + high) // 2
            if self._fits(*telling[middle], read):
                low = middle + 1
            else:
                high = middle
        if low == 0:
            return start
        offset, _ = telling[low - 1]
        return offset + self._size_of_block(offset)

    def drop(self, physical_offset: int) -> None:
        """Forget the blocks that reach beyond this offset; on return this is on the disk.

        Call it before the log is cut there and rewritten.
        """
        self.close()
        start, position = self._split(physical_offset)
        for segment in self._sidecars():
            if segment > start or (segment == start and position == 0):
                self._filesystem.remove(self._path(segment))
            elif segment == start and self._filesystem.exists(self._path(segment)):
                file = self._filesystem.open(self._path(segment))
                length = _position(position // BLOCK_SIZE)
                if file.size() > length:
                    file.resize(length)
                file.sync()  # An earlier process may have cut it without syncing that.
                file.close()
        if self._filesystem.exists(self._folder):
            self._filesystem.sync_directory(self._folder)
        self._next_offset = min(self._next_offset, start + position // BLOCK_SIZE * BLOCK_SIZE)

    def expire(self, min_offset: int) -> None:
        """Remove the sidecars of segments that are gone.

        The one that is being built, which a thread may be syncing, is removed later.
        """
        for segment in self._sidecars():
            if segment + self._segment_size <= min_offset and segment != self._file_start:
                self._filesystem.remove(self._path(segment))

    # Leaves.

    def _split(self, physical_offset: int) -> tuple[int, int]:
        position = physical_offset % self._segment_size
        return physical_offset - position, position

    def _size_of_block(self, offset: int) -> int:
        return min(BLOCK_SIZE, self._segment_size - offset % self._segment_size)

    def _path(self, segment: int) -> str:
        return f"{self._folder}/{segment:020d}"

    def _sidecars(self) -> list[int]:
        return [
            int(entry.name)
            for entry in self._filesystem.list(self._folder)
            if is_offset_file(entry)
        ]

    def _open_sidecar(self, segment: int) -> File:
        if self._file is not None and self._file_start == segment:
            return self._file
        if not self._filesystem.exists(self._path(segment)):
            self._filesystem.make_directories(self._folder)
            self._has_new_names = True
        file = self._filesystem.open(self._path(segment), create=True)
        header = _header(segment, self._segment_size)
        try:
            if file.read(_HEADER.size, 0) != header:
                file.resize(0)
                file.write(header, 0)
        except OSError:
            file.close()
            raise
        if self._file is not None:
            self._rolled.append(self._file)
        self._file, self._file_start = file, segment
        return file

    def _entries(self, segment: int) -> bytes:
        """The entries of a segment's sidecar; none if it is missing or not of this format."""
        if not self._filesystem.exists(self._path(segment)):
            return b""
        with closing(self._filesystem.open(self._path(segment), read_only=True)) as file:
            data = file.read(_position(-(-self._segment_size // BLOCK_SIZE)), 0)
        if data[: _HEADER.size] != _header(segment, self._segment_size):
            return b""
        return data[_HEADER.size :]

    def _telling_blocks(self, start: int, end: int, rest_size_max: int) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for segment in sorted(self._sidecars()):
            entries = self._entries(segment)
            telling_end = min(end, segment + self._segment_size - rest_size_max)
            for number in range(len(entries) // _ENTRY.size):
                offset = segment + number * BLOCK_SIZE
                crc = _checksum(entries, offset, number)
                if crc is not None and start <= offset and offset + BLOCK_SIZE <= telling_end:
                    found.append((offset, crc))
        return found

    def _fits(self, offset: int, crc: int, read: Read) -> bool:
        return crc32c(read(offset, self._size_of_block(offset))) == crc


def _header(segment: int, segment_size: int) -> bytes:
    fields = (_MAGIC, VERSION, BLOCK_SIZE, segment, segment_size)
    return _HEADER.pack(*fields, crc32c(_HEADER.pack(*fields, 0)[:32]))


def _difference(header: bytes) -> str:
    if len(header) == _HEADER.size and header.startswith(_MAGIC):
        _, version, block_size, *_, crc = _HEADER.unpack(header)
        if crc != crc32c(header[:32]):
            return "has a damaged header"
        if version != VERSION:
            return f"has version {version}, but this program uses {VERSION}"
        if block_size != BLOCK_SIZE:
            return f"has blocks of {block_size} bytes, but this program uses {BLOCK_SIZE}"
        return "is of another segment, or of segments of another size"
    return "has a damaged header"


def _position(number: int) -> int:
    return _HEADER.size + number * _ENTRY.size


def _entry(offset: int, crc: int) -> bytes:
    return _ENTRY.pack(crc, crc32c(_ENTRY_CHECK.pack(offset, crc)))


def _checksum(entries: bytes, offset: int, number: int) -> int | None:
    if (number + 1) * _ENTRY.size > len(entries):
        return None
    crc, check = _ENTRY.unpack_from(entries, number * _ENTRY.size)
    return crc if check == crc32c(_ENTRY_CHECK.pack(offset, crc)) else None
