"""The checkpoint: how much of the log is synced, and how much of it the ConsumeQueues have.

`root/checkpoint` is Apache's file of 4096 bytes, big-endian:

====  ====  =====================================================================================
at    size  field
====  ====  =====================================================================================
0     8     store timestamp of the last record that is synced
8     8     store timestamp of the last record whose ConsumeQueue entry is synced
16    8     the same for its index items
24    8     what a replica has synced (HA)
32    8     confirm offset (HA)
40    8     a physical offset: the records before it have their ConsumeQueue entries synced;
            0 is unknown. Too small is safe, too large leaves holes
48    4     `CMCP`; from here on our own fields, which Apache leaves alone
52    4     version
56    8     recover from: as at 40, but exactly at a record, and for the index too
64    8     verify from: what `recover from`, or the end of the journal, was some checkpoints
            earlier
72    8     synced offset: the log before it is on the disk
80    8     segment size
88    8     ours from: no other program wrote to the log from here on
96    8     checked from: every record from here on ends with its own checksum; 2^62 is none
104   8     size of the files of ConsumeQueues
112   8     the same for batch topics
120   48    the first six fields as we wrote them: if they differ, another program wrote since
168   4     CRC-32 of bytes 48 to 168
256   4     `CMEJ`: an entry journal has the entries of records that the queues may lack
260   24    its start and end (both offsets in the log), and the bytes of the file: 8, 8, 8
284   4     CRC-32 of bytes 256 to 284 and of bytes 168 to 172
384   4     `CMIS`, the shape of the index files; missing if nobody noted it
388   16    slots and items of each: 8, 8
404   4     CRC-32 of bytes 384 to 404 and of bytes 168 to 172
512   4     `CMSO`, the synced note: kept up to date between checkpoints
516   8     synced offset
524   4     CRC-32 of bytes 512 to 524 and of bytes 168 to 172
====  ====  =====================================================================================

The file is replaced as a whole: written beside, synced, renamed. So a power cut always leaves one
whole checkpoint. Only the synced note is overwritten in place, after each sync, and is not synced
itself: an older note, or a torn one, claims less, never more.

If a journal is named, the index has all records before its end, and so have the queues with its
help. A program that knows no journals starts further back.
"""

from __future__ import annotations

import struct
from contextlib import closing, suppress
from dataclasses import astuple, dataclass, field, replace
from threading import Lock
from typing import TYPE_CHECKING, Final
from zlib import crc32

from cometmq.store.errors import check_version
from cometmq.store.index.index_format import IndexShape
from cometmq.store.log.log_scan import NEVER
from cometmq.store.queues.entry_journal import JournalClaim

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cometmq.store.disk.filesystem import File, FileSystem

CHECKPOINT_NAME: Final = "checkpoint"
FILE_SIZE: Final = 4096
VERSION: Final = 1
_MAGIC: Final = b"CMCP"

_LONGS = struct.Struct(">6q")
_OURS = struct.Struct(">4si8q48s")
_CRC = struct.Struct(">I")
_OURS_AT: Final = 48
_CRC_AT: Final = 168
assert _LONGS.size == _OURS_AT
assert _OURS_AT + _OURS.size == _CRC_AT


class _Part:
    """Numbers that belong to the claims, with a separate checksum that is bound to theirs."""

    def __init__(self, position: int, magic: bytes, count: int) -> None:
        self.position = position
        self._magic = magic
        self._layout = struct.Struct(f">4s{count}q")

    def read(self, data: bytes, claims_crc: int) -> tuple[int, ...] | None:
        """Return the numbers; None if there are none, or if they are of other claims."""
        packed = data[self.position : self.position + self._layout.size]
        (crc,) = _CRC.unpack_from(data, self.position + self._layout.size)
        magic, *numbers = self._layout.unpack(packed)
        if magic != self._magic or crc != _bound(packed, claims_crc):
            return None
        return tuple(numbers)

    def pack(self, numbers: Iterable[int], claims_crc: int) -> bytes:
        """Return the bytes of this part."""
        packed = self._layout.pack(self._magic, *numbers)
        return packed + _CRC.pack(_bound(packed, claims_crc))


def _bound(data: bytes, claims_crc: int) -> int:
    return crc32(_CRC.pack(claims_crc), crc32(data))


_JOURNAL: Final = _Part(256, b"CMEJ", 3)
_INDEX_SHAPE: Final = _Part(384, b"CMIS", 2)
_NOTE: Final = _Part(512, b"CMSO", 1)


@dataclass(frozen=True, slots=True)
class Longs:
    """The six numbers that Apache keeps, in order."""

    log_timestamp: int = 0
    queues_timestamp: int = 0
    index_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_offset: int = 0
    queues_offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """What we know about our own store beyond Apache's numbers."""

    recover_from: int
    verify_from: int
    synced_offset: int
    segment_size: int
    ours_from: int = NEVER
    checked_from: int = NEVER
    queue_file_size: int | None = None
    batch_queue_file_size: int | None = None
    index_shape: IndexShape | None = None
    journal: JournalClaim | None = None
    """It has entries before its end that the queues may lack."""

    @property
    def complete_to(self) -> int:
        """Records before this offset need not be read back from the log."""
        return self.recover_from if self.journal is None else self.journal.end


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The file's content: `claims` is None if another program wrote it, or has written since."""

    longs: Longs
    claims: Claims | None = None
    last_claims: Claims | None = None
    """Our claims even if another program wrote since: still true, but no longer the whole truth."""
    is_damaged: bool = field(default=False, compare=False)
    """Whether we, or Apache, wrote the file, and it is no longer what was written."""

    @property
    def is_of_others(self) -> bool:
        """Whether another program wrote it: False if it is missing, or damaged."""
        return self.claims is None and not self.is_damaged and self.longs != Longs()

    @property
    def dispatched_to(self) -> int:
        """The offset up to which, by another program's note, each record has its entry.

        That program notes where the last such record begins, we where the first without one does.
        """
        noted, ours = self.longs.queues_offset, self.last_claims
        return noted + (noted > (0 if ours is None else ours.recover_from))


def load_checkpoint(filesystem: FileSystem, path: str) -> Checkpoint:
    """Read a checkpoint; if the file is missing or damaged, the checkpoint knows nothing.

    Raise `StoreFormatError` if a newer version of this program wrote it.
    """
    if not filesystem.exists(path):
        return Checkpoint(Longs())
    with closing(filesystem.open(path, read_only=True)) as file:
        data = file.read(FILE_SIZE, 0)
    if len(data) < FILE_SIZE:  # We replace it as a whole, and Apache creates it at full length.
        return Checkpoint(Longs(), is_damaged=True)
    magic, version, *offsets, copy = _OURS.unpack_from(data, _OURS_AT)
    longs = Longs(*_LONGS.unpack_from(data))
    (crc,) = _CRC.unpack_from(data, _CRC_AT)
    if magic != _MAGIC:
        return Checkpoint(longs) if _is_whole(data) else Checkpoint(Longs(), is_damaged=True)
    if crc != crc32(data[_OURS_AT:_CRC_AT]):
        # A damaged file proves nothing, Apache's part included.
        return Checkpoint(Longs(), is_damaged=True)
    check_version(path, version, VERSION)
    shape, journal = _INDEX_SHAPE.read(data, crc), _JOURNAL.read(data, crc)
    claims = Claims(
        recover_from=offsets[0],
        verify_from=offsets[1],
        synced_offset=offsets[2],
        segment_size=offsets[3],
        ours_from=offsets[4],
        checked_from=offsets[5],
        queue_file_size=offsets[6] or None,
        batch_queue_file_size=offsets[7] or None,
        index_shape=None if shape is None else IndexShape(*shape),
        journal=None if journal is None else JournalClaim(*journal),
    )
    if copy != data[:_OURS_AT]:
        return Checkpoint(longs, None, claims)
    return Checkpoint(longs, _with_note(claims, data, crc), claims)


def _is_whole(data: bytes) -> bool:
    """Whether only zeros follow Apache's numbers: anything else is a damaged file of ours."""
    return not any(data[_OURS_AT:])


def _with_note(claims: Claims, data: bytes, crc: int) -> Claims:
    (synced,) = _NOTE.read(data, crc) or (0,)
    return replace(claims, synced_offset=max(claims.synced_offset, synced))


class CheckpointFile:
    """The checkpoint of an open store: `write` replaces it, `note_synced` keeps it up to date.

    They may run in different threads. A note that goes into the file that is being replaced is
    lost, and the next note makes up for it.
    """

    def __init__(self, filesystem: FileSystem, path: str) -> None:
        self._filesystem = filesystem
        self._path = path
        self._lock = Lock()  # No note may go to a file whose descriptor is closed and reused.
        self._file: File | None = None
        self._crc = 0

    def write(self, longs: Longs, claims: Claims) -> None:
        """Replace the checkpoint; when this returns, the new one would survive a power cut."""
        data = bytearray(FILE_SIZE)
        _LONGS.pack_into(data, 0, *astuple(longs))
        _OURS.pack_into(
            data,
            _OURS_AT,
            _MAGIC,
            VERSION,
            claims.recover_from,
            claims.verify_from,
            claims.synced_offset,
            claims.segment_size,
            claims.ours_from,
            claims.checked_from,
            claims.queue_file_size or 0,
            claims.batch_queue_file_size or 0,
            bytes(data[:_OURS_AT]),
        )
        crc = crc32(data[_OURS_AT:_CRC_AT])
        _CRC.pack_into(data, _CRC_AT, crc)
        for part, numbers in ((_JOURNAL, claims.journal), (_INDEX_SHAPE, claims.index_shape)):
            if numbers is not None:
                packed = part.pack(numbers, crc)
                data[part.position : part.position + len(packed)] = packed
        beside = f"{self._path}.new"
        file = self._filesystem.open(beside, create=True)
        try:
            file.resize(FILE_SIZE)
            file.write(data, 0)
            file.sync()
            self._filesystem.rename(beside, self._path)
        except BaseException:
            file.close()
            with suppress(OSError):
                self._filesystem.remove(beside)
            raise
        with self._lock:
            before, self._file, self._crc = self._file, file, crc
        if before is not None:
            before.close()
        self._filesystem.sync_directory(self._path.rpartition("/")[0])

    def note_synced(self, synced_offset: int) -> None:
        """Note how far the log is synced; nothing waits for the note itself to be synced.

        Nor must the disk take it: a file system that writes nothing in place (btrfs, ZFS) may
        refuse it if it is full, and the older note that stays claims less.
        """
        with self._lock, suppress(OSError):
            if self._file is not None:
                self._file.write(_NOTE.pack((synced_offset,), self._crc), _NOTE.position)

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
