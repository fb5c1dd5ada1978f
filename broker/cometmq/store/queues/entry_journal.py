"""The entry journal: one file with the new entries of the ConsumeQueues of very many topics.

With thousands of queues, nearly every entry would need its own write, and a checkpoint would sync
thousands of files. So while many queues are written to, their entries stay in memory, and a
checkpoint needs only this one file on the disk: `root/entryjournal/<start, 20 digits>` holds
**every** entry of the records from `start` on, in the order in which they became readable. The
checkpoint names the file, how much of it is synced, and up to which record it goes. An unclean
start cuts the queues back to the synced part of their files, as always, and takes from here what it
would otherwise take from the log; see `journal_reading`. If the file is damaged, the log has all.

Head of the file, big-endian:

====  ====  ======================================================
at    size  field
====  ====  ======================================================
0     4     `CMEJ`
4     4     version
8     8     start: the file has the entries of records from here on
16    4     CRC-32 of bytes 0 to 16
====  ====  ======================================================

Then blocks, one after another, each with entries of one kind of queue:

====  ====  ====================================================================================
at    size  field
====  ====  ====================================================================================
0     4     size of the block after this head
4     4     names: queues that are named here, because the file had no entry of them before
8     4     runs: how often entries of one queue follow
12    4     size of an entry: 20, or 46 in queues of batches
16    4     CRC-32 of bytes 0 to 16 and of the block, of the start and the block's place in the file
20          names: number, queue id, index of the first entry, size of the topic (4, 4, 8, 2), topic
..          4 bytes a run: the number of its queue
..          4 bytes a run: how many entries it has
..          the entries of all runs
====  ====  ====================================================================================

A queue's number is valid in one file only. A queue that is deleted and recreated is named again.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

from cometmq.store.disk.names import is_offset_file
from cometmq.store.queues.batch_consume_queue import BATCH_ENTRY_SIZE, BatchConsumeQueue
from cometmq.store.queues.consume_queue import ENTRY_SIZE

if TYPE_CHECKING:
    from cometmq.store.disk.filesystem import File, FileSystem
    from cometmq.store.log.turn import Runs
    from cometmq.store.queues.consume_queue import ConsumeQueue

JOURNAL_FOLDER: Final = "entryjournal"
VERSION: Final = 1
MAGIC: Final = b"CMEJ"
FILE_HEAD: Final = struct.Struct(">4siq")
BLOCK_HEAD: Final = struct.Struct(">IIII")
CRC: Final = struct.Struct(">I")
NAME: Final = struct.Struct(">IiqH")
PLACE: Final = struct.Struct(">qq")

WRITTEN_TURNS_MAX: Final = 512
"""Turns that wait to be written: about as many µs of work."""


class JournalClaim(NamedTuple):
    """What a checkpoint says about a journal that is on the disk."""

    start: int
    """The journal has the entries of all records from this offset on."""
    end: int
    """It has them up to this offset."""
    size: int
    """The bytes of its file that have these entries."""


def journal_path(root: str, start: int) -> str:
    """Return the path of a journal."""
    return f"{root}/{JOURNAL_FOLDER}/{start:020d}"


def journals_in(filesystem: FileSystem, root: str) -> list[int]:
    """Return the starts of all journals in the folder, whether or not a checkpoint names them."""
    entries = filesystem.list(f"{root}/{JOURNAL_FOLDER}")
    return [int(entry.name) for entry in entries if is_offset_file(entry)]


class UnsyncedJournal:
    """A journal as it was when a checkpoint began; to be synced in a thread."""

    def __init__(
        self, filesystem: FileSystem, file: File, folders: tuple[str, ...], claim: JournalClaim
    ) -> None:
        self._filesystem = filesystem
        self._file = file
        self._folders = folders
        self.claim = claim

    def sync(self) -> None:
        """Return once the journal and its name would survive a power cut. An error is final."""
        self._file.sync()
        for folder in self._folders:
            self._filesystem.sync_directory(folder)


class _Block:
    """Entries of one kind of queue, while they are collected."""

    __slots__ = ("counts", "entries", "names", "numbers")

    def __init__(self) -> None:
        self.names: list[bytes] = []
        self.numbers: list[int] = []
        self.counts: list[int] = []
        self.entries: list[bytes] = []

    def pack(self, entry_size: int, base: int, start: int, position: int) -> bytes:
        """Return the block for a place in the file; its numbers begin at `base`."""
        runs = len(self.numbers)
        body = b"".join(
            (
                *self.names,
                struct.pack(f">{runs}I", *[number - base for number in self.numbers]),
                struct.pack(f">{runs}I", *self.counts),
                *self.entries,
            )
        )
        head = BLOCK_HEAD.pack(len(body), len(self.names) // 2, runs, entry_size)
        return head + CRC.pack(block_crc(head, body, start, position)) + body


def block_crc(head: bytes, body: bytes, start: int, position: int) -> int:
    """Return the checksum of a block; that of a block from another place does not fit."""
    return crc32(body, crc32(head, crc32(PLACE.pack(start, position))))


class EntryJournal:
    """The journal that an open store writes, and the earlier ones that it has to remove."""

    def __init__(self, filesystem: FileSystem, root: str) -> None:
        self._filesystem = filesystem
        self._root = root
        self._file: File | None = None
        self._closing: list[File] = []  # To be closed once no thread can be syncing them.
        self._left = set(journals_in(filesystem, root))
        self._next_number = 0
        self._base = 0  # Lower numbers are of other journals.
        self._start = self._end = self._size = 0
        self._flushed_ms = 0
        self.waiting: list[Runs] | None = None
        """Turns whose entries are readable but not in the file yet; None without a journal."""

    @property
    def is_recording(self) -> bool:
        """Whether entries that become readable go to a journal."""
        return self.waiting is not None

    def covers(self, offset: int) -> bool:
        """Whether the journal has the entries of all records from an offset on."""
        return self.waiting is not None and self._start <= offset

    def begin(self, start: int) -> None:
        """Begin a journal with what becomes readable from now on; none if the disk refuses it.

        No sync may be under way.
        """
        self.end()
        for file in self._closing:
            file.close()
        self._closing.clear()
        path = journal_path(self._root, start)
        head = FILE_HEAD.pack(MAGIC, VERSION, start)
        head += CRC.pack(crc32(head))
        try:
            self._filesystem.make_directories(f"{self._root}/{JOURNAL_FOLDER}")
            file = self._filesystem.open(path, create=True)
        except OSError:
            return
        self._left.add(start)
        try:
            file.resize(0)
            file.write(head, 0)
        except OSError:
            file.close()
            return
        self._file, self._base = file, self._next_number
        self._start = self._end = start
        self._size = len(head)
        self.waiting = []

    def end(self) -> None:
        """Stop writing the journal."""
        if self._file is not None:
            self._closing.append(self._file)
        self._file = self.waiting = None

    def is_due(self, now_ms: int, interval_ms: int) -> bool:
        """Whether the waiting turns are old enough, or many enough, to be written."""
        if not self.waiting:
            return False
        passed = 0 <= now_ms - self._flushed_ms < interval_ms
        return len(self.waiting) >= WRITTEN_TURNS_MAX or not passed

    def write(self, end: int, now_ms: int) -> None:
        """Write what waits: the entries of all records before an offset.

        If the disk refuses that, the journal ends; its synced part stays good.
        """
        waiting, file = self.waiting, self._file
        if waiting is None or file is None:
            return
        self.waiting = []
        self._flushed_ms = now_ms
        data = self._blocks(waiting)
        try:
            if data:
                file.write(data, self._size)
        except OSError:
            self.end()
            return
        self._size += len(data)
        self._end = end

    def take_unsynced(self) -> UnsyncedJournal:
        """Return the journal in its present state, for a checkpoint to sync and name."""
        assert self._file is not None
        folders = (f"{self._root}/{JOURNAL_FOLDER}", self._root)
        claim = JournalClaim(self._start, self._end, self._size)
        return UnsyncedJournal(self._filesystem, self._file, folders, claim)

    def remove_others(self, claim: JournalClaim | None) -> None:
        """Remove the journals except the current one and the one that the checkpoint names."""
        kept = {claim.start} if claim is not None else set[int]()
        if self.waiting is not None:
            kept.add(self._start)
        for start in self._left - kept:
            with suppress(OSError):  # The next checkpoint tries again.
                with suppress(FileNotFoundError):
                    self._filesystem.remove(journal_path(self._root, start))
                self._left.discard(start)

    def close(self) -> None:
        """Close the files. No sync may be under way."""
        self.end()
        for file in self._closing:
            file.close()
        self._closing.clear()

    # The format

    def _blocks(self, waiting: list[Runs]) -> bytes:
        simple, batch = _Block(), _Block()
        base = self._base
        for runs in waiting:
            for queue, index, entries in runs:
                block = batch if type(queue) is BatchConsumeQueue else simple
                number = queue.journal_number
                if number < base:
                    number = self._name(queue, index, block)
                block.numbers.append(number)
                block.counts.append(len(entries))
                block.entries += entries
        data = b""
        for block, entry_size in ((simple, ENTRY_SIZE), (batch, BATCH_ENTRY_SIZE)):
            if block.numbers:
                data += block.pack(entry_size, base, self._start, self._size + len(data))
        return data

    def _name(self, queue: ConsumeQueue | BatchConsumeQueue, index: int, block: _Block) -> int:
        number = queue.journal_number = self._next_number
        self._next_number = number + 1
        topic = queue.topic.encode()
        block.names += (NAME.pack(number - self._base, queue.queue_id, index, len(topic)), topic)
        return number
