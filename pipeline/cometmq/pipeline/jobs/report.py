"""What a job did, and how it ended."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cometmq.pipeline.jobs.durable import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterable


class Outcome(IntEnum):
    """How a job ended: the exit status of its command."""

    DONE = 0
    FINDINGS = 1
    """It ran to its end and found what it looks for, such as damage or differences."""
    USAGE = 2
    """The settings are invalid; nothing was changed."""
    FAILED = 3
    """It can be started again unchanged, and continues."""


class Span(NamedTuple):
    """A part of a queue."""

    topic: str
    broker: str
    queue: int | str
    first: int
    end: int
    """The offset after the last message."""


@dataclass(slots=True)
class Report:
    """What a job did; `--report FILE` writes it as JSON."""

    job: str
    outcome: Outcome = Outcome.DONE
    rows: int = 0
    size: int | None = None
    """The size of the bodies in bytes; `None` for a job that does not count it."""
    seconds: float = 0.0
    """The time it took, once Spark was running."""
    start_seconds: float | None = None
    """The time that the start of Spark took; `None` if the caller had Spark running."""
    batches: list[int] = field(default_factory=list[int])
    """The numbers of a stream's batches."""
    offsets: dict[str, Any] = field(default_factory=dict[str, Any])
    """The range that was read of each queue: topic, broker, queue, `[first, end]`. It may have
    gaps, as a filter skips messages."""
    stopped: bool = False
    """Whether it was asked to stop, and there is more to do."""
    dry_run: bool = False
    details: dict[str, Any] = field(default_factory=dict[str, Any])
    """What is specific to this job."""

    def cover(self, spans: Iterable[Span]) -> None:
        """Note that parts of queues were read."""
        for topic, broker, queue, first, end in spans:
            queues = self.offsets.setdefault(topic, {}).setdefault(broker, {})
            before = queues.get(str(queue), [first, end])
            queues[str(queue)] = [min(before[0], first), max(before[1], end)]

    def count_bytes(self, size: int | None) -> None:
        """Add a size of bodies; Spark returns `None` for no rows."""
        self.size = (self.size or 0) + (size or 0)

    def count(self, name: str, number: int) -> None:
        """Add to a number that is specific to this job."""
        self.details[name] = self.details.get(name, 0) + number

    def document(self) -> dict[str, Any]:
        """Return it as a JSON document."""
        return {
            "job": self.job,
            "outcome": self.outcome.name.lower(),
            "rows": self.rows,
            "bytes": self.size,
            "seconds": round(self.seconds, 3),
            "start_seconds": None if self.start_seconds is None else round(self.start_seconds, 3),
            "batches": self.batches,
            "offsets": _in_order(self.offsets),
            "stopped": self.stopped,
            "dry_run": self.dry_run,
            **self.details,
        }

    def write(self, path: str) -> None:
        """Write it to a file; an earlier run's file stays until all of it is written."""
        write_whole(Path(path), as_json(self.document(), indent=2) + "\n")


def _in_order(offsets: dict[str, Any]) -> dict[str, Any]:
    """Return offsets sorted by topic, broker and queue."""
    return {
        topic: {
            broker: dict(sorted(queues.items(), key=lambda each: (len(each[0]), each[0])))
            for broker, queues in sorted(brokers.items())
        }
        for topic, brokers in sorted(offsets.items())
    }


def as_json(document: Any, indent: int | None = None) -> str:
    """Encode a job's output; times are in ISO 8601, with their zone."""
    return json.dumps(document, indent=indent, default=_said)


def _said(value: object) -> str:
    # Spark returns times without a zone, in that of this process.
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else str(value)
