"""Whether the store takes puts: upkeep, the disk and an operator may each refuse them."""

from __future__ import annotations

import os
from logging import getLogger
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from cometmq.store.errors import StoreNotWriteableError, disk_error_text

if TYPE_CHECKING:
    from cometmq.store.errors import PutRefusedError
    from cometmq.store.opened import Opened

log = getLogger(__name__)
_gates: Final[WeakSet[PutGate]] = WeakSet()


class PutGate:
    """Refuses the puts of a store while there is any reason to.

    One reason is not looked at here: whether the next file of the log can be created. A put that
    needs the file finds out, and tries again.
    """

    def __init__(self, parts: Opened) -> None:
        self._parts = parts
        self._by_operator: StoreNotWriteableError | None = None
        self._for_good: StoreNotWriteableError | None = None
        self.write_error: OSError | None = None
        """Why, at the last `judge`, the disk did not take what earlier puts left in memory."""
        _gates.add(self)

    @property
    def is_ours(self) -> bool:
        """Whether this process may still write to the folder: see `leave`."""
        return self._for_good is None

    def check_ours(self) -> None:
        """Raise the error that puts are refused with, unless the folder is ours."""
        if self._for_good is not None:
            raise self._for_good

    def refuse(self, reason: str | None) -> None:
        """Refuse puts from now on, for instance because an operator asks; None takes them again."""
        self._by_operator = None if reason is None else StoreNotWriteableError(reason)
        self.judge()

    def leave(self, reason: str) -> None:
        """Write nothing to the folder any more: the store was closed, or belongs to the parent."""
        self._for_good = StoreNotWriteableError(reason)
        self._parts.log.leave(self._for_good)
        self.judge()

    def judge(self) -> None:
        """Check every reason to refuse puts, and refuse or take them accordingly."""
        parts = self._parts
        refusal: PutRefusedError | None = self._for_good or self._by_operator
        refusal = refusal or parts.checkpointer.write_behind.refusal
        if (lack := parts.expiry.refusal) is not None:
            refusal = StoreNotWriteableError(lack)
        index = parts.index
        error = parts.queues.write_error or (None if index is None else index.write_error)
        if error is not None:
            text = f"the queues or the index cannot be written: {disk_error_text(error)}"
            refusal = StoreNotWriteableError(text)
            if self.write_error is None:
                log.error("puts are refused: %s", text)
        elif self.write_error is not None:
            log.warning("puts are accepted again: the queues and the index can be written")
        self.write_error = error
        parts.appender.refuse(refusal)


def _leave_in_child() -> None:
    """Leave the stores to the parent: a child would write where the parent writes."""
    for gate in _gates:
        gate.leave("this process was forked from the one that has the store open")


os.register_at_fork(after_in_child=_leave_in_child)
