"""What the outside world knows of a store: what was put, acknowledged and promised."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tests.crash.oracle import Log, Record


class Sent(NamedTuple):
    """One message as its sender knows it, and where the store said it is."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    body: bytes
    properties: dict[str, str]
    stored_ms: int = 0
    """0 if the writer did not tell."""
    batch_size: int = 1
    """How many messages its record holds."""

    @property
    def end(self) -> int:
        """The physical offset where its record ends."""
        return self.physical_offset + self.size


class Ending(Enum):
    """How a life of the store ended."""

    CLOSED = auto()
    KILLED = auto()
    POWER_CUT = auto()


class BrokenPromise(AssertionError):  # noqa: N818  # it names what happened
    """The store did what it promised not to do."""


class Uncovered(Exception):  # noqa: N818  # it names what happened
    """A record that was not promised is damaged where no checksum in force covers it.

    In a record without its own checksum (`record_crc`) only the body is covered. So, after a power
    cut tore the tail, a record there may come back with other properties than it had.
    """


@dataclass
class History:
    """All messages that the store accepted, in the order of the log.

    ==============  ===========================================================================
    kill            every committed message is there
    power cut       every message that was reported as synced is there; of the others, a prefix
    clean shutdown  every committed message is there, also after a power cut
    ==============  ===========================================================================

    A quota removes messages from the front, and never more than the store said; the rest is kept. A
    deleted topic's messages stay in the log, but no queue leads to them any more, whatever happens
    next. With `Flush.ASYNC`, messages older than the interval are synced.

    If the process ended while a turn was being committed, a first part of the turn may be there.
    """

    committed: list[Sent] = field(default_factory=list[Sent])
    in_flight: list[Sent] = field(default_factory=list[Sent])
    """The turn that is being put together or committed."""
    doubtful: list[Sent] = field(default_factory=list[Sent])
    """A refused turn that the disk also refused to erase."""
    synced_offset: int = 0
    """The highest offset up to which the store ever claimed to be synced."""
    first_offset: int = 0
    """Where the log began, as the store last said."""
    deleted: dict[str, int] = field(default_factory=dict[str, int])
    """By deleted topic, the end of the log at the deletion."""
    deleting: tuple[str, int] | None = None
    """The topic that was being deleted when the process ended, and the end of the log then."""

    def copy(self) -> History:
        """A copy for another of several images of one ending."""
        return History(
            list(self.committed),
            list(self.in_flight),
            list(self.doubtful),
            self.synced_offset,
            self.first_offset,
            dict(self.deleted),
            self.deleting,
        )

    def next_queue_offset(self, topic: str, queue_id: int) -> int:
        """How many messages a queue ever had."""
        return sum(
            sent.batch_size
            for sent in self.committed
            if (sent.topic, sent.queue_id) == (topic, queue_id) and self.is_alive(sent)
        )

    def is_alive(self, message: Sent | Record) -> bool:
        """Whether the topic that a message was put to still exists."""
        return message.physical_offset >= self.deleted.get(message.topic, 0)

    def note_deletion(self, *, is_done: bool) -> None:
        """Note whether the topic that was being deleted when the process ended is gone."""
        if self.deleting is not None and is_done:
            topic, end = self.deleting
            self.deleted[topic] = end
        self.deleting = None

    def note_first(self, first_offset: int) -> None:
        """Note where the store says that its log begins."""
        if first_offset < self.first_offset:
            raise BrokenPromise(f"the first offset went back to {first_offset}")
        self.first_offset = first_offset

    def check_interval(self, until_ms: int) -> None:
        """Check that every message stored up to this time is synced by now."""
        for sent in self.committed:
            if sent.stored_ms <= until_ms and sent.end > self.synced_offset:
                raise BrokenPromise(
                    f"{_short(sent)} is unsynced longer than the interval of an asynchronous flush"
                )

    def check_synced(self, offset: int) -> None:
        """Note how far the store claims to be synced."""
        if offset < self.synced_offset:
            raise BrokenPromise(f"the synced offset went back to {offset}")
        self.synced_offset = offset

    def survivors_min(self, ending: Ending) -> int:
        """How many messages must be there after an ending."""
        if ending is Ending.POWER_CUT:
            return sum(1 for sent in self.committed if sent.end <= self.synced_offset)
        return len(self.committed)

    def promised(self, ending: Ending) -> list[Sent]:
        """Return the messages that must be there, of topics neither deleted nor being deleted."""
        deleting = self.deleting[0] if self.deleting is not None else ""
        survivors = self.committed[: self.survivors_min(ending)]
        return [
            sent
            for sent in survivors
            if sent.batch_size and self.is_alive(sent) and sent.topic != deleting
        ]

    def check_log(self, log: Log, ending: Ending, *, is_covered: bool) -> None:
        """Compare a recovered log with what was promised, and continue from what it holds."""
        found = log.records
        if log.start > self.first_offset:
            raise BrokenPromise(f"the log begins at {log.start}, not at {self.first_offset}")
        # A message without a size stands for a queue offset given out whose record is unknown.
        gone = sum(
            1 for sent in self.committed if sent.physical_offset < log.start or not sent.size
        )
        everything = self.committed + self._unfinished(found, gone)
        sent = everything[gone:]
        needed = max(0, self.survivors_min(ending) - gone)
        if len(found) < needed:
            lost = sent[len(found)]
            raise BrokenPromise(
                f"{needed - len(found)} messages lost after {ending.name}, from {lost.topic}"
                f"/{lost.queue_id}/{lost.queue_offset} at {lost.physical_offset} on;"
                f" synced up to {self.synced_offset}"
            )
        if len(found) > len(sent):
            ghost = found[len(sent)]
            raise BrokenPromise(f"a record that was never accepted at {ghost.physical_offset}")
        for number, (expected, record) in enumerate(zip(sent, found, strict=False)):
            if not _same(expected, record):
                if number >= needed and not is_covered:
                    raise Uncovered(f"{_short(record)} was {_short(expected)}")
                raise BrokenPromise(
                    f"{_short(record)} stands where {_short(expected)} was accepted"
                )
        if log.trailing.strip(b"\0"):
            raise BrokenPromise(f"bytes are left standing behind the end of the log at {log.end}")
        self.committed = everything[: gone + len(found)]
        self.first_offset = log.start
        self.deleted = {topic: min(end, log.end) for topic, end in self.deleted.items()}
        if self.deleting is not None:
            self.deleting = (self.deleting[0], min(self.deleting[1], log.end))
        self.in_flight = []
        self.doubtful = []
        # A start syncs what it serves: from here on all of it is promised.
        self.synced_offset = log.end

    def _unfinished(self, found: list[Record], gone: int) -> list[Sent]:
        """Return the turn of which a part may follow what was committed."""
        first = len(self.committed) - gone
        if self.doubtful and first < len(found) and _same(self.doubtful[0], found[first]):
            return self.doubtful
        return self.in_flight


def _short(message: Sent | Record) -> str:
    where = f"{message.topic}/{message.queue_id}/{message.queue_offset}"
    body = f"{len(message.body)} bytes {message.body[:8].hex()}"
    return f"{where} at {message.physical_offset} ({body}, {message.properties})"


def _same(sent: Sent, record: Record) -> bool:
    return (
        sent.topic,
        sent.queue_id,
        sent.queue_offset,
        sent.physical_offset,
        sent.size,
        sent.stored_ms or record.store_timestamp,
        sent.batch_size,
        sent.body,
    ) == (
        record.topic,
        record.queue_id,
        record.queue_offset,
        record.physical_offset,
        record.size,
        record.store_timestamp,
        record.batch_size,
        record.body,
    ) and sent.properties.items() <= record.properties.items()
