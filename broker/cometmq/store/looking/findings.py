"""What verifying a store finds: a `Finding` for each damage, and a `Report` of all."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

ALIKE_KEPT: Final = 3
"""Findings of one kind about one queue, or one file, that are kept however many there are."""


class Kind(Enum):
    """What is wrong."""

    RECORD = "record"
    """No sound record begins where one must."""
    BLOCK = "block"
    """64 KiB of the log differ from their checksum."""
    LOST_MESSAGE = "lost message"
    """A queue's entry leads to a record that is damaged."""
    WRONG_ENTRY = "wrong entry"
    """A queue's entry differs from its record."""
    MISSING_ENTRY = "missing entry"
    """A record has no entry in its queue."""
    EXTRA_ENTRY = "extra entry"
    """An entry has no record."""
    OFFSET_TWICE = "offset given twice"
    """A record is in no queue, because its offset was given again to a later record."""
    OUT_OF_REACH = "out of reach"
    """A record is in no queue, because its queue begins after messages that the log lacks."""
    QUEUE_FILE = "queue file"
    """A file of a queue has a wrong size, or a start would not accept it."""
    MISPLACED = "misplaced"
    """Something is where it does not belong: a foreign file, a copy of the folder of a queue, or a
    folder or pipe for a file."""
    WRONG_ITEM = "wrong item"
    """An item of the index differs from its record."""
    MISSING_ITEM = "missing item"
    """A key of a record is not in the index."""
    EXTRA_ITEM = "extra item"
    """An item has no key."""
    INDEX_CHAIN = "index chain"
    """Items do not lead to one another as their hashes require."""
    INDEX_HEADER = "index header"
    """The header of an index file contradicts its items."""
    INDEX_FILE = "index file"
    """An index file that cannot be read as one."""
    CHECKPOINT = "checkpoint"
    """The checkpoint is damaged."""
    QUEUE_ENDS = "queue ends"
    """The list of the queues' ends is damaged."""
    CONFIG_FILE = "config file"
    """A table of `config/` is damaged, and so is its backup: a start refuses it."""
    ROCKSDB = "rocksdb"
    """A folder is a database of Apache's, which cannot be read here: a start refuses it."""
    REFUSED = "refused"
    """A start refuses the store, and nothing else is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One damage: where it is, what is there, and what should be there."""

    kind: Kind
    path: str
    position: int
    """The first byte in the file that is affected."""
    problem: str
    expected: str = ""
    physical_offset: int | None = None
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None

    def __str__(self) -> str:
        """Return all of it in one line."""
        about: list[str] = []
        if self.topic is not None:
            about.append(f"{self.topic} queue {self.queue_id} offset {self.queue_offset}")
        if self.physical_offset is not None:
            about.append(f"physical offset {self.physical_offset}")
        text = f"{self.kind.value}: {self.path}: byte {self.position}"
        if about:
            text += f" ({', '.join(about)})"
        text += f": {self.problem}"
        return f"{text}; should be {self.expected}" if self.expected else text


@dataclass(slots=True)
class Alike:
    """The findings of one kind about one queue, or one file."""

    first: list[Finding]
    last: Finding
    count: int = 1

    def rest_text(self) -> str:
        """Return one line for the findings after the first ones."""
        last = self.last
        about, end = last.path, f"byte {last.position}"
        if last.queue_offset is not None:
            about, end = f"{last.topic} queue {last.queue_id}", f"offset {last.queue_offset}"
        elif last.physical_offset is not None:
            end = f"physical offset {last.physical_offset}"
        more = self.count - len(self.first)
        return f"{last.kind.value}: {about}: and {more} more of that kind, to {end}"


class Progress(NamedTuple):
    """How far a long task has come."""

    stage: str
    done: int
    total: int
    """In bytes of the log, or in the queues or files that are looked at."""


@dataclass(slots=True)
class Report:
    """What was looked at, and what was found."""

    findings_max: int
    """Findings to keep; the others are only counted."""
    findings: list[Finding] = field(default_factory=list[Finding])
    alike: dict[tuple[Kind, str], Alike] = field(default_factory=dict[tuple[Kind, str], Alike])
    """All findings, by their kind and the queue or the file that they are about."""
    paths: set[str] = field(default_factory=set[str])
    """The files named by all findings."""
    counts: dict[Kind, int] = field(default_factory=dict[Kind, int])
    notes: list[str] = field(default_factory=list[str])
    """What differs from a store that was shut down cleanly, but is no damage."""
    records: int = 0
    log_bytes: int = 0
    first_offset: int = 0
    end_offset: int = 0
    torn_bytes: int = 0
    """Bytes of a torn tail, which the next start cuts off."""
    torn_records: int = 0
    """Sound records in that tail, which nobody promised."""
    blocks: int = 0
    entries: int = 0
    items: int = 0
    unsettled_entries: int = 0
    """Entries that the next start rebuilds, because the last process did not get to write them."""
    unsettled_items: int = 0
    records_of_deleted_topics: int = 0
    is_complete: bool = True
    """Whether everything was looked at."""
    is_explained: Callable[[Finding], bool] = lambda _: False
    """Whether something that happened since the store was looked at explains a finding away."""
    queues_with_gaps: int = 0
    """Queues of which the log lacks messages between others: a rebuild refuses them."""

    @property
    def found(self) -> int:
        """The number of damages."""
        return sum(self.counts.values())

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.counts

    def find(
        self,
        kind: Kind,
        path: str,
        position: int,
        problem: str,
        expected: str = "",
        physical_offset: int | None = None,
    ) -> None:
        """Add a finding at a place that belongs to no known queue."""
        self.add(
            Finding(
                kind=kind,
                path=path,
                position=position,
                problem=problem,
                expected=expected,
                physical_offset=physical_offset,
            )
        )

    def add(self, finding: Finding) -> None:
        """Add a finding, or only count it if there are too many."""
        if self.is_explained(finding):
            return
        self.counts[finding.kind] = self.counts.get(finding.kind, 0) + 1
        self.paths.add(finding.path)
        about = finding.path if finding.topic is None else f"{finding.topic}/{finding.queue_id}"
        alike = self.alike.get((finding.kind, about))
        if alike is None:
            self.alike[finding.kind, about] = Alike([finding], finding)
        else:
            alike.count += 1
            alike.last = finding
            if len(alike.first) < ALIKE_KEPT:
                alike.first.append(finding)
        if len(self.findings) < self.findings_max:
            self.findings.append(finding)
