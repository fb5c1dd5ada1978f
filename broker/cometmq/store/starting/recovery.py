"""Where the log ends, and what becomes of the bytes after it.

A start reads the log from its last checkpoint to the first place where no sound record begins. What
that place is depends on three things: whether the last shutdown was clean, whether the disk was
known to hold the log beyond that place, and whether sound records follow. `VERDICTS` is the table;
docs/store.md explains it.

`find_end` changes nothing, so a refusal leaves every byte as it was; `log_repair` then makes the
log end there. If the start itself is interrupted, the next one begins from the same checkpoint and
finds the same end.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.proto.message import StoredMessage
from cometmq.store.errors import CorruptionError
from cometmq.store.log.log_scan import NEVER, LogScan
from cometmq.store.log.record_search import data_end, last_record_behind
from cometmq.store.queues.entry_search import PRE_BLANK_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cometmq.store.errors import MissingEntriesError
    from cometmq.store.log.log_stretch import Stretch
    from cometmq.store.log.segments import Segments
    from cometmq.store.queues.consume_queues import ConsumeQueues
    from cometmq.store.upkeep.checkpoint import Checkpoint


class Promise(Enum):
    """What is known about the disk at the place where the log breaks off."""

    KEPT = auto()
    """Everything that was known to be synced is before it."""
    BROKEN = auto()
    """The log was known to be synced further than that."""
    UNKNOWN = auto()
    """Nobody noted how far the log was synced."""


class Behind(Enum):
    """What follows the place where the log breaks off."""

    NOTHING = auto()
    """No record."""
    NEAR = auto()
    """Records, no further away than data that waits for a sync may reach."""
    FAR = auto()
    """Records so far away that everything before them must have been synced."""


class Verdict(Enum):
    """What to do about it."""

    CUT = auto()
    """A torn tail: keep a copy, erase it, continue."""
    CORRUPT = auto()
    """Data that was safe is damaged: stop and say where."""


VERDICTS: Final[dict[tuple[bool, Promise, Behind], Verdict]] = {
    # (clean shutdown, promise, behind): verdict
    (True, Promise.KEPT, Behind.NOTHING): Verdict.CUT,
    (True, Promise.KEPT, Behind.NEAR): Verdict.CUT,
    (True, Promise.KEPT, Behind.FAR): Verdict.CUT,
    (True, Promise.BROKEN, Behind.NOTHING): Verdict.CORRUPT,
    (True, Promise.BROKEN, Behind.NEAR): Verdict.CORRUPT,
    (True, Promise.BROKEN, Behind.FAR): Verdict.CORRUPT,
    (True, Promise.UNKNOWN, Behind.NOTHING): Verdict.CORRUPT,
    (True, Promise.UNKNOWN, Behind.NEAR): Verdict.CORRUPT,
    (True, Promise.UNKNOWN, Behind.FAR): Verdict.CORRUPT,
    (False, Promise.KEPT, Behind.NOTHING): Verdict.CUT,
    (False, Promise.KEPT, Behind.NEAR): Verdict.CUT,
    (False, Promise.KEPT, Behind.FAR): Verdict.CORRUPT,
    (False, Promise.BROKEN, Behind.NOTHING): Verdict.CORRUPT,
    (False, Promise.BROKEN, Behind.NEAR): Verdict.CORRUPT,
    (False, Promise.BROKEN, Behind.FAR): Verdict.CORRUPT,
    (False, Promise.UNKNOWN, Behind.NOTHING): Verdict.CUT,
    (False, Promise.UNKNOWN, Behind.NEAR): Verdict.CUT,
    (False, Promise.UNKNOWN, Behind.FAR): Verdict.CORRUPT,
}


class Start(NamedTuple):
    """From where a start reads the log."""

    scan_from: int
    """Records from here on are verified."""
    replay_from: int
    """Records from here on may be missing in the ConsumeQueues and the index."""
    synced_offset: int | None
    """How far the log is known to be synced; None if nobody knows."""
    is_noted: bool
    """Whether that was noted; if not, it is from the ConsumeQueues, which may name what Apache
    cut."""
    ours_from: int = NEVER
    """From here on no other program wrote to the log."""
    checked_from: int = NEVER
    """From here on every record ends with its own checksum."""
    least_end: int = 0
    """The last known end of the log: if the files end before it, some are missing."""
    most_begin: int | None = None
    """The log begins here at the latest, by our checkpoint: nothing from there on is removed."""

    @property
    def unpromised_from(self) -> int:
        """Where the records begin that nobody promised to be on the disk.

        `NEVER` if nobody promised anything: then all sound records count.
        """
        if not self.is_noted or self.synced_offset is None:
            return NEVER
        return max(self.synced_offset, self.replay_from)

    def with_witnesses(self, queues: ConsumeQueues, segments: Segments, *, clean: bool) -> Start:
        """Let the queues say how far the log went, if nobody noted it and they can be trusted."""
        if self.is_noted or (segments and not clean):
            return self
        behind = queues_behind(queues, segments.data_limit) or 0
        return self._replace(least_end=max(self.least_end, behind))

    def with_promise(self, promised_to: int, *, clean: bool) -> Start:
        """Add how far the log was synced according to other files: a power cut may take notes.

        If nothing was noted, a torn tail may begin there or, after a clean shutdown, the log goes
        at least that far. The files that say so are ours, and so are the records after it.
        """
        if not promised_to:
            return self
        if self.is_noted:
            return self._replace(synced_offset=max(self.synced_offset or 0, promised_to))
        if clean:
            return self._replace(least_end=max(self.least_end, promised_to))
        return self._replace(synced_offset=promised_to, is_noted=True, ours_from=promised_to)

    def scan(self, segments: Segments, offset: int, *, is_verified: bool = False) -> LogScan:
        """Return a pass over the log from a record on, with the checks that apply to this start."""
        return LogScan(
            segments,
            offset,
            ours_from=self.ours_from,
            checked_from=self.checked_from,
            is_verified=is_verified,
        )

    def missing_end(self, segments: Segments) -> int | None:
        """Return how far the log went, if its files end before that or begin after it.

        If only files that were made ahead are left, the log before them has not expired.
        """
        if self.most_begin is not None and segments.first_offset > self.most_begin:
            return self.most_begin
        noted = (self.synced_offset or 0) if self.is_noted else 0
        least = max(self.least_end, self.scan_from, noted)
        # Our empty stores note 1, because to Apache 0 means unknown.
        return least if least > max(segments.data_limit, 1) else None


class LogEnd(NamedTuple):
    """Where the log ends."""

    offset: int
    data_end: int
    """The end of the last nonzero byte: more than `offset` if something has to be cut."""


def choose_start(segments: Segments, checkpoint: Checkpoint) -> Start:
    """Choose by offsets alone: by our claims, else by Apache's offset, else the first segment.

    Apache's offset, or ours if Apache has written since, leads to the start of a segment, because
    only there a record surely begins.
    """
    first = segments.first_offset
    claims = checkpoint.claims
    if claims is not None:
        return Start(
            max(first, claims.verify_from),
            max(first, claims.recover_from),
            claims.synced_offset,
            is_noted=True,
            ours_from=claims.ours_from,
            checked_from=claims.checked_from,
            most_begin=claims.recover_from,
        )
    least_end = noted = checkpoint.longs.queues_offset
    if checkpoint.last_claims is not None:
        noted = min(noted, checkpoint.last_claims.recover_from)
        least_end = max(least_end, checkpoint.last_claims.synced_offset)
    segment = segments.at(noted) if noted > 0 else None
    start = first if segment is None else segment.start
    return Start(start, start, None, is_noted=False, least_end=least_end)


def find_end(
    segments: Segments,
    start: Start,
    *,
    clean: bool,
    unsynced_size_max: int,
    look_at: Callable[[StoredMessage | Stretch], None] = lambda _: None,
) -> LogEnd:
    """Find the end of the log; raise `CorruptionError` if what follows may not be cut.

    `look_at` is called with every record on the way.
    """
    missing_end = start.missing_end(segments)
    if missing_end is not None:
        place, problem = missing_files(segments, missing_end)
        path, position = segments.directory, place
        short = segments.at(place)
        if short is not None and short.start < place:
            path, position = short.path, place - short.start
            problem += f" (this file has {position} bytes where others have {segments.size})"
        raise CorruptionError(
            path,
            position,
            f"{problem}: check that its disk is mounted, and restore the missing files from a"
            " copy; `cometmq store repair` says what is lost without them",
        )
    scan = start.scan(segments, start.scan_from)
    for each in scan.stretches():
        look_at(each)
    end = scan.end_offset
    written = data_end(segments, end)
    verdict = judge(segments, start, end, written, clean=clean, unsynced_size_max=unsynced_size_max)
    if verdict is Verdict.CORRUPT:
        raise _corruption(segments, scan, start, clean=clean)
    return LogEnd(end, written)


def missing_files(segments: Segments, missing_end: int) -> tuple[int, str]:
    """Return where files of the log are missing, and the reason."""
    place, what = segments.data_limit, "ends here, but it was on the disk up to"
    if segments.first_offset > missing_end:
        place, what = segments.first_offset, "begins here, but nothing had expired after"
    return place, f"the log {what} {missing_end}"


def end_at(
    segments: Segments, start: Start, offset: int, written: int, *, unsynced_size_max: int
) -> LogEnd:
    """Return the end of a log whose last part is torn, from a record on that looks sound.

    Raise `CorruptionError` if the table says that it may not be cut there.
    """
    written = max(written, data_end(segments, offset))
    verdict = judge(
        segments, start, offset, written, clean=False, unsynced_size_max=unsynced_size_max
    )
    if verdict is Verdict.CORRUPT:
        raise CorruptionError(
            *segments.place_of(offset),
            "the record here is not the next one of its queue, and so much follows it that it"
            " must have been safe on the disk; restore the log from a copy",
        )
    return LogEnd(offset, written)


def judge(
    segments: Segments, start: Start, end: int, written: int, *, clean: bool, unsynced_size_max: int
) -> Verdict:
    """Judge a place at which no sound record begins; data reaches to `written`."""
    promise = _promise(start, end)
    if written <= end and not (promise is Promise.BROKEN and start.is_noted):
        return Verdict.CUT
    return VERDICTS[clean, promise, _behind(segments, end, written, unsynced_size_max)]


def _promise(start: Start, end: int) -> Promise:
    if start.synced_offset is None:
        return Promise.UNKNOWN
    return Promise.KEPT if end >= start.synced_offset else Promise.BROKEN


def _behind(segments: Segments, end: int, written: int, unsynced_size_max: int) -> Behind:
    last = last_record_behind(segments, end + 1, written)
    if last is None:
        return Behind.NOTHING
    return Behind.NEAR if last - end <= unsynced_size_max else Behind.FAR


def _corruption(segments: Segments, scan: LogScan, start: Start, *, clean: bool) -> CorruptionError:
    end = scan.end_offset
    why = f"no sound record begins here ({scan.problem or 'there are zeros'})"
    if start.synced_offset is not None and end < start.synced_offset:
        why += f", but the log was safe on the disk up to offset {start.synced_offset}"
    elif clean:
        why += ", but the store was shut down cleanly"
    else:
        why += ", but records follow so far after it that it must have been safe on the disk"
    return CorruptionError(
        *segments.place_of(end),
        f"{why}; restore the log from a copy, or repair it with `cometmq store repair`, which"
        " first says what it would do",
    )


def gap_in_log(segments: Segments, gap: MissingEntriesError) -> CorruptionError:
    """Return the error for a record before which the log lacks messages of its queue.

    No checksum of the body covers its number, so the number itself may be wrong.
    """
    return CorruptionError(
        *segments.place_of(gap.physical_offset),
        f"this record, at physical offset {gap.physical_offset}, says that it is message"
        f" {gap.queue_offset} of {gap.topic}/{gap.queue_id}, but the log has none from {gap.end}"
        f" to {gap.queue_offset - 1}: restore the log from a copy. Without one, run `cometmq"
        " store repair --dry-run`: it finds a single record whose topic, queue or number is"
        " wrong, and can step over it. Only if it finds none, `cometmq store rebuild"
        " --accept-gaps` lets the queue begin after the gap, and puts the sound messages before"
        " it out of reach",
    )


def queues_end(queues: ConsumeQueues) -> int:
    """Return the end of the last record that any ConsumeQueue knows.

    After a clean shutdown of Apache, which notes no offset and leaves what it cut after the end of
    its log, this is how far the log was whole.
    """
    end = 0
    for queue in queues.walk():
        if queue.end > queue.start:
            physical_offset, size = queue.head(queue.end - 1)
            end = max(end, physical_offset + size)
    return end


def queues_behind(queues: ConsumeQueues, data_limit: int) -> int | None:
    """Return how far the log went by the queues, if that is beyond the end of its files.

    A single entry that leads beyond it may be damaged, unless it leads to the very next byte.
    """
    end = count = 0
    is_next = False
    for queue in queues.walk():
        for index in range(max(queue.start, queue.end - 2), queue.end):
            physical_offset, size = queue.head(index)
            if physical_offset >= data_limit and size != PRE_BLANK_SIZE:
                count += 1
                end = max(end, physical_offset + size)
                is_next |= physical_offset == data_limit
    return end if count > 1 or is_next else None


def entries_made_to(checkpoint: Checkpoint, start: Start, end: int, *, clean: bool) -> int:
    """Return up to where each record had its entry when the store was left, with the log's `end`.

    If another program was killed, that is what it noted as safe: after it a missing entry may be
    lost. If the checkpoint is ours, it is what this covers, even in a clean store: the checkpoint
    of a copy may be older than the log.
    """
    if clean and checkpoint.claims is None:
        return end
    if checkpoint.is_of_others:
        return min(checkpoint.dispatched_to, start.unpromised_from, end)
    return min(start.replay_from, end)


def records_up_to(
    segments: Segments, scan_from: int, start: Start, end: int
) -> Iterator[StoredMessage | Stretch]:
    """Yield the records up to an end that was found before, see `LogScan.stretches`."""
    scan = start.scan(segments, scan_from, is_verified=scan_from >= start.scan_from)
    for each in scan.stretches():
        begin = each.physical_offset if isinstance(each, StoredMessage) else int(each.offsets[0])
        if begin >= end:
            return  # A torn tail: in what was verified, only lengths are checked now.
        yield each
    if scan.end_offset < end:
        raise CorruptionError(
            *segments.place_of(scan.end_offset),
            f"no sound record begins here ({scan.problem or 'there are zeros'}), but the log goes"
            f" on up to offset {end}; restore it from a copy",
        )
