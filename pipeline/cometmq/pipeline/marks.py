"""Telling whether two tasks sent rows of one message: the second would look sent again.

A task finds its own (`identities.py`). Of all tasks together the driver knows what they say at
their end, which must be little. So each says marks of some of its messages, 64 bits of each id, and
always of those whose marks are the smallest: what two tasks have sent of one message has one mark,
and where that is small for the one it is for the other. Of tasks with up to `MARKS_MAX` messages
none is missed. Of larger ones a lone message may be; not what a union does to all of them.
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
"""Of a task: 32 KiB."""
_WORD: Final = 4
_FACTORS: Final = np.random.default_rng(31).integers(1 << 63, size=16, dtype=np.uint64) | 1
"""Always the same ones, in every process."""


class Marks:
    """Marks of what a task has sent."""

    def __init__(self) -> None:
        self._smallest = np.zeros(0, np.uint64)

    def add(self, ids: Bytes) -> None:
        """Take down messages with these ids."""
        self._smallest = np.append(self._smallest, marks_of(ids))
        if len(self._smallest) > MARKS_MAX:
            self._smallest = np.partition(self._smallest, MARKS_MAX)[:MARKS_MAX]

    def said(self) -> bytes:
        """Return what the driver is told."""
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
    """Return of how many messages several tasks have sent rows, as far as they say so."""
    marks = np.frombuffer(b"".join(said), np.uint64)
    return len(marks) - len(np.unique(marks))
