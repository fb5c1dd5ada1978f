"""Copies of a queue's folder under another name: people keep them beside the queues.

Without a record of its own in the log, such a folder looks like a queue whose messages have all
expired. A rebuild keeps those, so it does not help: the copy has to be moved elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.store.looking.findings import Kind

if TYPE_CHECKING:
    from cometmq.store.looking.findings import Report
    from cometmq.store.looking.queue_files import QueueFiles


def is_copied(entry: bytes, index: int, original: QueueFiles) -> bool:
    """Whether another queue has the very same entry in the same place."""
    found = original.read(index, 1)
    original.close()  # There may be more queues than a process may have open files.
    return found == entry


def report_copy(report: Report, folder: str, topic: str, queue_id: int) -> None:
    """Report a folder, once, as a copy of that queue's."""
    if (Kind.MISPLACED, folder) not in report.alike:
        problem = f"a copy of queue {queue_id} of {topic}: move it elsewhere"
        report.find(Kind.MISPLACED, folder, 0, problem)
