"""The claims of a store's checkpoint about its log, compared with the log, for `audit`.

Both layouts are known: Apache's six numbers, and what CometMQ writes after them, which is valid as
long as nobody else has written since (see `cometmq.store.upkeep.checkpoint`). A checkpoint may
claim less than there is, but never more: it is read before the log, to which a broker may append.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.store.places import behind_filler, record_at, store_time_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cometmq.pipeline.store.splits import Log
    from cometmq.store.upkeep.checkpoint import Checkpoint, Claims

FILE: Final = "checkpoint"
OURS: Final = "cometmq"
"""The writer of a checkpoint if nobody else has had the store since."""
NEVER: Final = 1 << 62
"""A physical offset after all real ones."""
_KIND: Final = "wrong checkpoint"


class Claimed(NamedTuple):
    """A checkpoint, read by the driver."""

    root: str
    checkpoint: Checkpoint | None
    """None if the store has no checkpoint, such as a copy of the log alone."""

    @property
    def written_by(self) -> str:
        """Whose layout is valid; `none` if there is no checkpoint or it is damaged."""
        if self.checkpoint is None or self.checkpoint.is_damaged:
            return "none"
        return "apache" if self.checkpoint.claims is None else OURS

    @property
    def entries_to(self) -> int:
        """The physical offset before which all records have their entries; 0 if unknown."""
        if self.checkpoint is None:
            return 0
        claims = self.checkpoint.claims
        return self.checkpoint.longs.queues_offset if claims is None else claims.recover_from

    @property
    def ours_from(self) -> int:
        """The physical offset from which on only CometMQ has written, and has noted deletions."""
        claims = self.checkpoint.claims if self.checkpoint is not None else None
        return NEVER if claims is None else claims.ours_from


def read_claims(root: str) -> Claimed:
    """Read the checkpoint of a store."""
    from cometmq.store.disk.filesystem import RealFileSystem
    from cometmq.store.errors import StoreFormatError
    from cometmq.store.upkeep.checkpoint import load_checkpoint

    path = f"{root.rstrip('/')}/{FILE}"
    try:
        there = load_checkpoint(RealFileSystem(), path) if Path(path).is_file() else None
    except OSError as error:
        raise OptionError(f"store: {path}: {error.strerror}") from None
    except StoreFormatError as error:
        raise OptionError(f"store: {error}") from None
    return Claimed(root, there)


def read_topics(root: str) -> tuple[dict[str, int], frozenset[str]]:
    """Return up to which place topics were deleted, by CometMQ's notes, and the table's topics.

    For a store that is not a local folder neither is known, nor the table if it is lost.
    """
    from cometmq.store.deletions import Deletions
    from cometmq.store.disk.filesystem import RealFileSystem
    from cometmq.store.errors import StoreFormatError
    from cometmq.store.table_contents import listed_topics

    if "://" in root:
        return {}, frozenset()
    filesystem, root = RealFileSystem(), root.rstrip("/")
    try:
        marks = Deletions(filesystem, root).offsets
        listed = listed_topics(filesystem, root) or frozenset()
    except (OSError, StoreFormatError) as error:
        raise OptionError(f"store: {error}") from None
    return {topic.decode(): offset for topic, offset in marks.items()}, listed


def wrong_claims(
    claimed: Claimed, log: Log, latest_ms: Callable[[], int]
) -> list[tuple[str, str, int, int, str]]:
    """Return findings: kind, file, start, end, detail; places are positions in the log.

    `latest_ms` returns the latest store time of all records, which takes a while to find. Usually
    the last record of the log has it, unless a clock went back.
    """
    checkpoint = claimed.checkpoint
    if checkpoint is None:
        return []
    if checkpoint.is_damaged:
        problem = (
            "it does not match its checksum, or is of an unknown kind: a start reads the whole log"
        )
        return [("damaged checkpoint", FILE, 0, 0, problem)]
    found = (
        _of_apache(checkpoint, log, latest_ms)
        if checkpoint.claims is None
        else _of_ours(claimed, checkpoint.claims, log)
    )
    return [(_KIND, FILE, place, place, problem) for place, problem in found]


def _of_apache(
    checkpoint: Checkpoint, log: Log, latest_ms: Callable[[], int]
) -> Iterator[tuple[int, str]]:
    longs = checkpoint.longs
    time = max(longs.log_timestamp, longs.queues_timestamp)
    last = record_at(log, log.last)
    if (last is None or store_time_ms(last) < time) and latest_ms() < time:
        yield log.end, f"it knows a record that was stored at {time} ms, later than any in the log"
    # For an empty log we wrote 1, as to Apache 0 means unknown.
    if longs.queues_offset > max(behind_filler(log, log.end), 1):
        yield (
            longs.queues_offset,
            f"it knows an entry of a record at {longs.queues_offset}, but the log ends at"
            f" {log.end}",
        )


def _of_ours(claimed: Claimed, claims: Claims, log: Log) -> Iterator[tuple[int, str]]:
    end = behind_filler(log, log.end)
    if claims.synced_offset > end:
        lost = claims.synced_offset - end
        yield end, f"the log was synced up to {claims.synced_offset}: {lost} bytes are lost"
    for name, place in (
        ("recover from", claims.recover_from),
        ("verify from", claims.verify_from),
    ):
        if place > end:
            yield place, f"{name} is {place}, but the log ends at {log.end}"
        elif log.first <= place < log.end and not _begins_something(log, place):
            yield place, f"{name} is {place}, but no record begins there"
    if log.files and claims.segment_size != log.files[0].size:
        yield (
            log.first,
            f"by it files of the log have {claims.segment_size} bytes, but they have"
            f" {log.files[0].size}",
        )
    if claims.journal is not None and (problem := _of_journal(claimed, claims)):
        yield claims.journal.start, problem


def _begins_something(log: Log, place: int) -> bool:
    return record_at(log, place) is not None or behind_filler(log, place) > place


def _of_journal(claimed: Claimed, claims: Claims) -> str:
    """Say what is wrong with the journal that is named; '' if another one is named by now."""
    from cometmq.store.queues.entry_journal import journal_path

    assert claims.journal is not None
    path = Path(journal_path(claimed.root.rstrip("/"), claims.journal.start))
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        size = 0
    if size >= claims.journal.size or read_claims(claimed.root) != claimed:
        return ""
    place = f"{path.name} in {path.parent.name}"
    return f"it names {claims.journal.size} bytes of {place}, which has {size}"
