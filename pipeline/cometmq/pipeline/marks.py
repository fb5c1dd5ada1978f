"""Detecting that two tasks sent rows of one message: the second would look like a repeat.

A task finds such rows among its own (`identities.py`). About all tasks together the driver knows
only what they report at their end, which must be little. So each task reports marks of some of its
messages, 64 bits of an id each, and always the smallest marks: one message has one mark in both
tasks, and if it is among the smallest of one task, it probably is of the other. Nothing is missed
among tasks with up to `MARKS_MAX` messages. Among larger ones a single message may be missed, but
not a union that does it to all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from cometmq.pipeline.records.layout import Bytes

    Numbers = npt.NDArray[np.uint64]

MARKS_MAX: Final = 4096
"""How many marks a task reports: 32 KiB."""
_WORD: Final = 4
_FACTORS: Final = np.random.default_rng(31).integers(1 << 63, size=16, dtype=np.uint64) | 1
"""The same numbers in every process."""


class Marks:
    """The marks of a task's messages."""

    def __init__(self) -> None:
        self._smallest = np.zeros(0, np.uint64)

    def add(self, ids: Bytes) -> None:
        """Record messages with these ids."""
        self._smallest = np.append(self._smallest, marks_of(ids))
        if len(self._smallest) > MARKS_MAX:
            self._smallest = np.partition(self._smallest, MARKS_MAX)[:MARKS_MAX]

    def said(self) -> bytes:
        """Return the marks to report to the driver."""
        return self._smallest.tobytes()


def marks_of(ids: Bytes) -> Numbers:
    """Return a number for each id, spread evenly over 64 bits."""
    words = np.ascontiguousarray(ids).view(np.dtype(f"<u{_WORD}")).astype(np.uint64)
    mixed: Numbers = (words * _FACTORS[: words.shape[1]]).sum(axis=1, dtype=np.uint64)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    return mixed


def sent_twice(said: Iterable[bytes]) -> int:
    """Return how many messages more than one task has sent, as far as their marks show."""
    marks = np.frombuffer(b"".join(said), np.uint64)
    return len(marks) - len(np.unique(marks))
