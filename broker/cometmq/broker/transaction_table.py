"""The open transactions, the outcomes of the last ones, and the place from which a start must read.

A transaction that is over costs a byte, while it is among the `REMEMBERED`. An open one stands in
one of five lines, and those that have waited long enough are found at the heads of the lines. Three
lines are in the order of the half messages. Two are not: the line of transactions whose immunity is
over, and the line of those for which nobody was there to be asked. These wait without being put
again, so that the half queue does not grow with time.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from cometmq.broker.transaction_records import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cometmq.broker.config import BrokerConfig

REMEMBERED: Final = 1 << 20
"""The newest half messages whose outcomes are remembered, in a byte each."""
RESUMED_MAX: Final = 10_000
"""The newest given-up half messages of which it is remembered that they were resumed."""
SLICE: Final = 64
"""Transactions of a line that one step deals with."""
SPAN_MAX: Final = 100_000
"""The half messages that a start should have to read at most."""
OPS_A_NOTE: Final = 64
"""Op messages that share one note."""

_OPEN: Final = int(Outcome.OPEN)

KEPT: Final = 1024
"""The newest half messages that are kept in memory: most end soon, and then need not be read."""


class Kept(msgspec.Struct, frozen=True, gc=False):
    """The message that a half message becomes when it is committed."""

    topic: str
    queue_id: int
    body: bytes
    half_properties: bytes
    """Properties of the half message: first those of the message, then `REAL_TOPIC` and
    `REAL_QID`."""
    properties_size: int
    """Bytes of the message's own properties."""
    tail: bytes
    """The part of the properties by which the store recognizes similar half messages."""
    born_host: bytes
    sys_flag: int
    flag: int


class Progress(NamedTuple):
    """From where a start must read the two queues."""

    half: int
    op: int


class Place(NamedTuple):
    """Where a half message is."""

    offset: int
    """Its offset in the half queue."""
    physical_offset: int


class Open(msgspec.Struct, eq=False, gc=False):
    """An open transaction.

    Hidden from the garbage collector, though it and its line refer to each other: it leaves the
    line when it is over.
    """

    offset: int
    """The offset of its newest half message in the half queue."""
    physical_offset: int
    since_ms: int
    """When that half message was stored, or since when the transaction waits for a member."""
    due_ms: int = 0
    """When its producer allows a first question; 0 if the producer does not say."""
    checks: int = 0
    """How often its producers were asked."""
    aliases: tuple[Place, ...] = ()
    """Its earlier half messages by which it may be ended: the first, whose place its producer was
    told, and then those that a producer was asked about."""
    is_asked: bool = False
    """Whether a producer was asked about its newest half message."""
    group: str = ""
    """The group of its producers."""
    born_ms: int = 0
    """When its producer made it."""
    resumed_from: int = -1
    """The place in the log where it was given up, if it has been resumed since; else -1."""
    end: Outcome = Outcome.OPEN
    """How it ends, while that is not yet written."""
    kept: Kept | None = None
    """The message that it becomes, if that is in memory; only while it has one half message."""
    line: Line | None = None
    """The line in which it stands."""

    @property
    def root(self) -> int:
        """The offset of its first half message."""
        return self.aliases[0].offset if self.aliases else self.offset

    @property
    def place(self) -> Place:
        """Where its newest half message is."""
        return Place(self.offset, self.physical_offset)

    def places_behind(self) -> tuple[Place, ...]:
        """Return the `aliases` that it will have once there is a newer half message."""
        is_known = self.is_asked or not self.aliases
        return (*self.aliases, self.place) if is_known else self.aliases


class Line:
    """Open transactions in the order of their half messages."""

    def __init__(self) -> None:
        self.waiting: dict[int, Open] = {}
        """By the offsets of their newest half messages."""

    def __len__(self) -> int:
        return len(self.waiting)

    def add(self, opened: Open) -> None:
        """Add a transaction at the end."""
        self.waiting[opened.offset] = opened
        opened.line = self

    def discard(self, opened: Open) -> None:
        """Take a transaction out, wherever it stands."""
        waiting = self.waiting
        opened.line = None
        if waiting.pop(opened.offset, None) is not None and not waiting:
            waiting.clear()  # Otherwise iteration walks over the slots of all removed ones.

    def first(self) -> Open | None:
        """Return the transaction that has stood here for longest."""
        return next(iter(self.waiting.values()), None)

    def take_due(self, now_ms: int, delay_ms: int, count: int) -> list[Open]:
        """Return up to `count` that have waited `delay_ms`.

        If the clock was set back to before their time, they wait no longer.
        """
        due: list[Open] = []
        for opened in self.waiting.values():
            if len(due) >= count or opened.since_ms <= now_ms < opened.since_ms + delay_ms:
                break
            due.append(opened)
        return due


class TransactionTable:
    """All remembered transactions of one broker."""

    def __init__(self) -> None:
        self.next_offset = 0
        """The offset in the half queue after all known half messages."""
        self._open: dict[int, Open] = {}
        """By the offsets of all its half messages."""
        self.count = 0
        """The number of open transactions."""
        self._kept: list[Open | None] = [None] * KEPT
        """By the offset of its half message, modulo `KEPT`."""
        self._new, self._asked, self._immune, self._ready = Line(), Line(), Line(), Line()
        self._unheard = Line()
        self.resumed: dict[int, int] = {}
        """By the place in the log where it was given up: the offset of its new half message."""
        self._immune_due: list[tuple[int, int]] = []
        self._outcomes = bytearray(REMEMBERED)
        self._ops: deque[list[int]] = deque()
        """Notes of some op messages each: the first's offset, their count, the highest offset in
        the half queue that they end."""
        self._op_offset = 0

    def find(self, offset: int) -> Open | None:
        """Return the open transaction that has this half message."""
        return self._open.get(offset)

    def outcome(self, offset: int) -> Outcome:
        """Return how the transaction of a half message ended; `OVER` if that is not remembered."""
        if not max(0, self.next_offset - REMEMBERED) <= offset < self.next_offset:
            return Outcome.OVER
        return Outcome(self._outcomes[offset % REMEMBERED] or Outcome.OVER)

    def add(self, opened: Open, born_timestamp: int, immune_ms: int) -> None:
        """Add an open transaction."""
        self.count += 1
        opened.born_ms = born_timestamp
        for alias in opened.aliases:
            self._open[alias.offset] = opened
        if opened.resumed_from >= 0:
            self.resumed[opened.resumed_from] = opened.root
            if len(self.resumed) > RESUMED_MAX:
                del self.resumed[next(iter(self.resumed))]
        if immune_ms:
            opened.due_ms = min(born_timestamp, opened.since_ms) + immune_ms
            self.immune_until(opened)
        self.stand(opened)

    def add_kept(self, opened: Open) -> None:
        """Add a new transaction with its `kept` message, in place of an earlier one's.

        Most are added like this: it does the same as `add`, for one without immunity.
        """
        offset = opened.offset
        self.count += 1
        self._open[offset] = opened
        if offset >= self.next_offset:
            self.next_offset = offset + 1
        self._outcomes[offset % REMEMBERED] = _OPEN
        line = opened.line = self._new
        line.waiting[offset] = opened
        number = offset % KEPT
        earlier = self._kept[number]
        if earlier is not None:
            earlier.kept = None
        self._kept[number] = opened

    def move(self, opened: Open, to: Place) -> None:
        """Note that a transaction has a newer half message; call `stand` to let it wait again."""
        self.leave(opened)
        opened.kept = None
        self.remember(opened.offset, Outcome.MOVED)
        opened.aliases = opened.places_behind()
        if opened.aliases[-1].offset != opened.offset:
            self._open.pop(opened.offset, None)  # Nobody was told of it.
        opened.offset, opened.physical_offset = to
        opened.is_asked = False

    def stand(self, opened: Open) -> None:
        """Let a transaction wait at the end of its line."""
        offset = opened.offset
        self._open[offset] = opened
        if offset >= self.next_offset:
            self.next_offset = offset + 1
        self._outcomes[offset % REMEMBERED] = _OPEN
        if opened.due_ms and not opened.checks:
            self._immune.add(opened)
        elif opened.aliases:
            self._asked.add(opened)
        else:
            self._new.add(opened)

    def remember(self, offset: int, outcome: Outcome) -> None:
        """Remember how a half message ended."""
        if offset >= self.next_offset - REMEMBERED:
            self._outcomes[offset % REMEMBERED] = outcome
            self.next_offset = max(self.next_offset, offset + 1)

    def note_op(self, op_offset: int, highest: int) -> None:
        """Note an op message, which a start needs until the half queue has progressed past it."""
        self._op_offset = op_offset + 1
        if self._ops and self._ops[-1][1] < OPS_A_NOTE:
            last = self._ops[-1]
            last[1] += 1
            last[2] = max(last[2], highest)
        else:
            self._ops.append([op_offset, 1, highest])

    def start_at(self, half: int, op: int) -> None:
        """Set where both queues continue if nothing more is read of them."""
        self.next_offset = max(self.next_offset, half)
        self._op_offset = max(self._op_offset, op)

    def leave(self, opened: Open) -> None:
        """Take a transaction out of its line: it no longer waits."""
        if opened.line is not None:
            opened.line.discard(opened)

    def wait_unheard(self, opened: Open, now_ms: int) -> None:
        """Let a transaction wait, without being put again, for a producer that can be asked."""
        self.leave(opened)
        opened.since_ms = now_ms
        self._unheard.add(opened)

    def is_far_behind(self, opened: Open) -> bool:
        """Whether so many half messages follow this one that a start should not begin there."""
        return self.next_offset - opened.offset > max(SPAN_MAX, 4 * self.count)

    def remove(self, opened: Open, outcome: Outcome) -> None:
        """Remove a transaction, and remember how it ended."""
        self.leave(opened)
        opened.kept = None
        if self._open.pop(opened.offset, None) is None:
            return
        self.count -= 1
        self.remember(opened.offset, outcome)
        for alias in opened.aliases:
            self._open.pop(alias.offset, None)
            self.remember(alias.offset, outcome)

    def remove_ended(self, ended: Iterable[Open]) -> None:
        """Remove transactions that ended as their `end` says: `remove`, but cheaper for most."""
        find, outcomes, next_offset = self._open, self._outcomes, self.next_offset
        for opened in ended:
            offset, line = opened.offset, opened.line
            if line is None or opened.aliases or offset < next_offset - REMEMBERED:
                self.remove(opened, opened.end)
                continue
            waiting = line.waiting
            del waiting[offset], find[offset]
            if not waiting:
                waiting.clear()  # As in `Line.discard`.
            opened.line = opened.kept = None
            outcomes[offset % REMEMBERED] = opened.end
            self.count -= 1

    def take_back(self, opened: Open) -> None:
        """Remove a transaction whose half message was not written."""
        next_offset = min(self.next_offset, opened.offset)
        self.remove(opened, Outcome.OPEN)
        self.resumed.pop(opened.resumed_from, None)
        self.next_offset = next_offset

    def immune_until(self, opened: Open) -> None:
        """Let a transaction wait until its producer allows a question."""
        heapq.heappush(self._immune_due, (opened.due_ms, opened.offset))

    def due(self, config: BrokerConfig, now_ms: int) -> list[Open]:
        """Return the transactions that have waited long enough, up to a slice of each line."""
        while self._immune_due and self._immune_due[0][0] <= now_ms:
            due_ms, offset = heapq.heappop(self._immune_due)
            opened = self._open.get(offset)
            # It may have the offset of an earlier one that was taken back.
            if opened is not None and not opened.checks and opened.due_ms == due_ms:
                self._immune.discard(opened)
                self._ready.add(opened)
        due = self._ready.take_due(now_ms, 0, SLICE)
        due += self._new.take_due(now_ms, config.transaction_timeout_ms, SLICE)
        due += self._asked.take_due(now_ms, config.transaction_check_interval_ms, SLICE)
        due += self._unheard.take_due(now_ms, config.transaction_check_interval_ms, SLICE)
        oldest = self._immune.first()
        if oldest is not None and self.is_far_behind(oldest):
            due.append(oldest)
        return due

    def progress(self) -> Progress:
        """Return the offsets from which a start must read both queues."""
        heads = [line.first() for line in (self._new, self._asked, self._immune)]
        offsets = [head.offset for head in heads if head is not None]
        offsets += [*self._ready.waiting, *self._unheard.waiting]
        half = min(offsets, default=self.next_offset)
        ops = self._ops
        while ops and ops[0][2] < half:
            ops.popleft()
        return Progress(half, ops[0][0] if ops else self._op_offset)
