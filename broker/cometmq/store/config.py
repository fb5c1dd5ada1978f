"""Every setting of a store: its default, its unit and the reason for the default.

Some sizes cannot change once a store's files exist: `segment_size`, those of queue files, and those
of the index. Opening an existing store takes all but the last from its files; for these the
settings count for new stores only.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import Enum

from cometmq.store.errors import StoreFormatError
from cometmq.store.index.index_format import COUNT_MAX, IndexShape

CONSUME_QUEUE_ENTRY_SIZE = 20
BATCH_CONSUME_QUEUE_ENTRY_SIZE = 46
_SEGMENT_SIZE_MIN = 4096

MIB = 1 << 20
GIB = 1 << 30

DELAY_LEVELS_MS = tuple(
    seconds * 1000 for seconds in (1, 5, 10, 30, *range(60, 660, 60), 1200, 1800, 3600, 7200)
)
"""Apache's `1s 5s 10s 30s 1m ... 10m 20m 30m 1h 2h`: level 1 is the first."""
DELAY_LEVELS_MAX = 1_000
"""The number of a level's queue has at most three digits."""


class Flush(Enum):
    """When a put counts as done."""

    SYNC = "sync"
    """Once it would survive a power cut; many puts share one sync."""
    ASYNC = "async"
    """Once written: it survives the process, and a power cut after `flush_interval_ms`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """The settings of one store."""

    # What is on the disk.

    segment_size: int = GIB
    """Bytes of a CommitLog file: Apache's default, so its brokers open the store unconfigured."""
    consume_queue_file_size: int = 300_000 * CONSUME_QUEUE_ENTRY_SIZE
    """Bytes of a ConsumeQueue file; sparse, so a queue of one message costs one block."""
    batch_consume_queue_file_size: int = 300_000 * BATCH_CONSUME_QUEUE_ENTRY_SIZE
    """Bytes of a ConsumeQueue file of a batch topic."""
    index_slots: int = 5_000_000
    """Hash slots of an index file. A start is refused unless this and `index_items` match the files
    of the store."""
    index_items: int = 20_000_000
    """Items of an index file, after which the next file begins."""
    index: bool = True
    """Whether messages can be found by key; costs 20 bytes a key."""
    record_crc: bool = False
    """Whether each record ends with a checksum of the whole record, as with Apache's
    `enabledAppendPropCRC`."""

    # How safe it is.

    flush: Flush = Flush.SYNC
    """A message that is acknowledged and then lost is worse than a slower acknowledgement."""
    flush_interval_ms: int = 200
    """With `Flush.ASYNC`: how much may be lost to a power cut. Apache's is 500, or 10,000 when
    little is written."""
    flush_least_pages: int = 0
    """With `Flush.ASYNC`: pages of 4 KiB that must wait before the interval counts; 0 keeps the
    promise of the interval at any rate of writing."""
    flush_thorough_interval_ms: int = 10_000
    """With `flush_least_pages`: after this long, fewer pages are synced too."""
    checkpoint_bytes: int = 256 * MIB
    """Bytes of log between two checkpoints: they bound what an unclean start must read."""
    checkpoint_interval_ms: int = 60_000
    """Time between two checkpoints, if anything was written."""
    verify_size: int = 32 * MIB
    """Bytes of log before the last checkpoint that a start verifies: 0.1 s well spent, because
    damage is found while there still is a replica."""
    unsynced_size_max: int = 256 * MIB
    """Bytes of log that may wait for the disk; beyond them puts are refused until a sync returns.
    If good records follow a bad one further on than this, it was safe once, so it is corruption."""

    zero_ahead_size: int = 4 * MIB
    """With `Flush.SYNC`: bytes of log that are filled with zeros ahead of the records, which halves
    the time of a sync on ext4 and XFS; 0 where the file system never writes a block in place."""

    # What one put and one turn may hold.

    message_size_max: int = 4 * MIB
    """Bytes of a body, or of all bodies of a batch; Apache's `maxMessageSize`."""
    turn_size_max: int = 32 * MIB
    """Bytes that one turn collects before it must be committed: they bound its memory and the time
    for which its one write holds up the loop."""

    # What one read may hold.

    read_size_max: int = 256 * 1024
    """Bytes of one read of hot data; the first record is returned whatever its size."""
    read_count_max: int = 32
    """Records of one read of hot data, whatever the caller asks for."""
    read_cold_size_max: int = 64 * 1024
    """Bytes of one read of data that is not in memory: all readers share the disk."""
    read_cold_count_max: int = 8
    """Records of one read of data that is not in memory."""
    read_scan_size_max: int = 16_000
    """Bytes of ConsumeQueue that one filtered read looks through, at least."""
    hot_size: int = 256 * MIB
    """Bytes at the end of the log that are read through the map. Older data might not be in memory,
    and a page fault would hold up the whole process."""

    # What stays open.

    segment_maps_max: int = 32
    """CommitLog files mapped at a time, besides those that slow readers pin."""
    segment_pins_max: int = 4
    """Removed CommitLog files that slow readers may keep on the disk; at this number no further
    file is removed."""
    consume_queue_files_max: int = 512
    """ConsumeQueue files open at a time; reopening one costs 5 µs."""
    consume_queue_unwritten_size_max: int = 32 * MIB
    """ConsumeQueue entries, at 20 bytes each, that wait in memory to be written to their files.
    From half of this on they are written at once; beyond it puts are refused until some are."""
    consume_queue_write_interval_ms: int = 1000
    """Age at which a waiting ConsumeQueue entry is written to its file, or to the journal."""
    consume_queue_journal_queues_min: int = 1024
    """If at least this many queues have new entries at a checkpoint, entries first go to one
    journal: a queue's file is then written a few times an hour, not each second."""

    # What is kept, and for how long.

    retention_hours: int = 72
    """Age of a CommitLog file, by its last write, at which it may be removed."""
    retention_hours_of_day: tuple[int, ...] = (4,)
    """Local hours in which files are removed for their age: when the disk has least to do."""
    retention_size_max: int | None = None
    """Bytes of CommitLog to keep; `off` for as many as the disk holds."""
    disk_used_percent_expire: int = 75
    """Above this, files that are old enough are removed at any hour."""
    disk_used_percent_force: int = 85
    """Above this, the oldest files are removed whatever their age. If this is higher than
    `disk_used_percent_max`, puts are refused first."""
    disk_used_percent_max: int = 90
    """Above this, puts are refused: a disk that is full to the last byte cannot be cleaned up."""
    disk_check_interval_ms: int = 1000
    """Time between two checks of how full the disk is: puts are refused at most this much too
    long."""
    retention_interval_ms: int = 10_000
    """Time between two rounds of removing files."""
    retention_files_max: int = 10
    """Files removed in one round: unlinking a large file keeps the disk busy."""
    integrity: bool = True
    """Whether sealed data gets additional checksums, 8 bytes per 64 KiB, beside the log."""

    # What the store must know of the broker above it.

    store_host: bytes = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
    """The packed address that each record names as its store, and offset message ids hold."""
    delay_levels_ms: tuple[int, ...] = DELAY_LEVELS_MS
    """The delay of each level. If it changes at run time, messages that wait already keep their due
    time, which is in their ConsumeQueue entries."""

    @property
    def index_shape(self) -> IndexShape:
        """What an index file has room for."""
        return IndexShape(self.index_slots, self.index_items)

    def with_index_shape(self, shape: IndexShape) -> StoreConfig:
        """Return the same settings with the sizes of these index files."""
        return replace(self, index_slots=shape.slots, index_items=shape.items)

    def __post_init__(self) -> None:
        """Refuse settings that no store could work with."""
        if self.segment_size < _SEGMENT_SIZE_MIN:
            raise StoreFormatError(
                f"segment_size: {self.segment_size} is less than {_SEGMENT_SIZE_MIN}"
            )
        delays = self.delay_levels_ms
        if not 1 <= len(delays) <= DELAY_LEVELS_MAX or min(delays) < 0:
            raise StoreFormatError(
                f"delay_levels_ms: {len(delays)} levels; there must be 1 to {DELAY_LEVELS_MAX},"
                " none of them negative"
            )
        self._check_retention()
        for name, least in (("index_slots", 1), ("index_items", 2)):  # Item 0 is never used.
            count: int = getattr(self, name)
            if not least <= count <= COUNT_MAX:
                raise StoreFormatError(f"{name}: {count} is not between {least} and {COUNT_MAX}")
        for name, entry_size in (
            ("consume_queue_file_size", CONSUME_QUEUE_ENTRY_SIZE),
            ("batch_consume_queue_file_size", BATCH_CONSUME_QUEUE_ENTRY_SIZE),
        ):
            size: int = getattr(self, name)
            if size <= 0 or size % entry_size:
                raise StoreFormatError(f"{name}: {size} is not a positive multiple of {entry_size}")
        for field in fields(self):
            value: object = getattr(self, field.name)
            least = 1 if field.name.endswith(("_max", "_bytes", "_ms")) else 0
            if isinstance(value, int) and value < least:
                problem = "not positive" if least else "negative"
                raise StoreFormatError(f"{field.name}: {value} is {problem}")

    def _check_retention(self) -> None:
        if self.retention_hours < 1:
            raise StoreFormatError(f"retention_hours: {self.retention_hours} is not positive")
        if not self.retention_hours_of_day:
            raise StoreFormatError("retention_hours_of_day: names no hour; name one from 0 to 23")
        for hour in self.retention_hours_of_day:
            if not 0 <= hour <= 23:
                raise StoreFormatError(
                    f"retention_hours_of_day: {hour} is not an hour from 0 to 23"
                )
        for name in ("expire", "force", "max"):
            percent: int = getattr(self, f"disk_used_percent_{name}")
            if not 0 <= percent <= 100:
                raise StoreFormatError(
                    f"disk_used_percent_{name}: {percent} is not between 0 and 100"
                )
