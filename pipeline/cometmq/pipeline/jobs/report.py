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
    """It ran to its end, and found what it looks for: damage, differences."""
    USAGE = 2
    """Settings that cannot be; nothing was changed."""
    FAILED = 3
    """It can be started again as it was, and goes on."""


class Span(NamedTuple):
    """A part of a queue."""

    topic: str
    broker: str
    queue: int | str
    first: int
    end: int
    """Behind the last message."""


@dataclass(slots=True)
class Report:
    """What a job did; `--report FILE` writes it as JSON."""

    job: str
    outcome: Outcome = Outcome.DONE
    rows: int = 0
    size: int | None = None
    """Bytes of bodies; `None` of a job that does not count them."""
    seconds: float = 0.0
    """What it took with Spark running."""
    start_seconds: float | None = None
    """What the start of Spark took before; `None` where who runs the job had it running."""
    batches: list[int] = field(default_factory=list[int])
    """The numbers of a stream's batches."""
    offsets: dict[str, Any] = field(default_factory=dict[str, Any])
    """From where to where each queue was read: topic, broker, queue, `[first, end]`. Not all that
    is between them need be there: a filter passes some over."""
    stopped: bool = False
    """Whether it was asked to stop, and there is more to do."""
    dry_run: bool = False
    details: dict[str, Any] = field(default_factory=dict[str, Any])
    """What only this job has to say."""

    def cover(self, spans: Iterable[Span]) -> None:
        """Note that parts of queues were read."""
        for topic, broker, queue, first, end in spans:
            queues = self.offsets.setdefault(topic, {}).setdefault(broker, {})
            before = queues.get(str(queue), [first, end])
            queues[str(queue)] = [min(before[0], first), max(before[1], end)]

    def count_bytes(self, size: int | None) -> None:
        """Add bytes of bodies; Spark says `None` of no rows."""
        self.size = (self.size or 0) + (size or 0)

    def count(self, name: str, number: int) -> None:
        """Add to a number that only this job has to say."""
        self.details[name] = self.details.get(name, 0) + number

    def document(self) -> dict[str, Any]:
        """Return it as JSON has it."""
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
        """Write it to a file; that of an earlier run stays until all of it is written."""
        write_whole(Path(path), as_json(self.document(), indent=2) + "\n")


def _in_order(offsets: dict[str, Any]) -> dict[str, Any]:
    """Return offsets by topic, broker and queue, however they came."""
    return {
        topic: {
            broker: dict(sorted(queues.items(), key=lambda each: (len(each[0]), each[0])))
            for broker, queues in sorted(brokers.items())
        }
        for topic, brokers in sorted(offsets.items())
    }


def as_json(document: Any, indent: int | None = None) -> str:
    """Write what a job says; times are in ISO 8601, with their zone."""
    return json.dumps(document, indent=indent, default=_said)


def _said(value: object) -> str:
    # Spark gives times without a zone, in that of this process.
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else str(value)
