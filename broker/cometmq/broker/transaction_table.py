"""The transactions that are not over, how the last ones ended, and from where a start must read.

What is over costs a byte, while it is among the `REMEMBERED`. Each open one stands in one of five
lines: who has waited long enough is found at a line's head. Three of them are in the order of their
half messages. Out of order are those whose immunity is over, and those of whom nobody was there to
be asked: they wait for somebody where they lie, so their half queue does not grow with the time.
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
"""Half messages, the newest, of which it is known how they ended: a byte each."""
RESUMED_MAX: Final = 10_000
"""Half messages that were given up, the newest, of which it is known that they were resumed."""
SLICE: Final = 64
"""Transactions that one step deals with."""
SPAN_MAX: Final = 100_000
"""How many half messages a start should have to read."""
OPS_A_NOTE: Final = 64
"""Op messages that are noted together."""

_OPEN: Final = int(Outcome.OPEN)

KEPT: Final = 1024
"""Half messages, the newest, that are kept in memory: most end soon, and need no reading then."""


class Kept(msgspec.Struct, frozen=True, gc=False):
    """What becomes a message when a half message is committed."""

    topic: str
    queue_id: int
    body: bytes
    half_properties: bytes
    """The half message's: its own first, and then what `REAL_TOPIC` and `REAL_QID` say."""
    properties_size: int
    """Bytes of its own."""
    tail: bytes
    """Of the properties: what the store knows of half messages that are alike."""
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
    """In the half queue."""
    physical_offset: int


class Open(msgspec.Struct, eq=False, gc=False):
    """A transaction that is not over.

    The collector need not look at it: it stands in a line, which it knows, until it is over.
    """

    offset: int
    """Of its newest half message, in the half queue."""
    physical_offset: int
    since_ms: int
    """When that was stored, and where it waits that it is due."""
    due_ms: int = 0
    """When its producer allows a first question, where it says so; 0 where it does not."""
    checks: int = 0
    """How often its producers were asked."""
    aliases: tuple[Place, ...] = ()
    """Its earlier half messages by which it may be ended: the first one, which its producer was
    told of, and then those that somebody was asked about."""
    is_asked: bool = False
    """Whether somebody was asked about its newest half message."""
    group: str = ""
    """Of its producers."""
    born_ms: int = 0
    """When its producer made it."""
    resumed_from: int = -1
    """Where in the log it was given up, if it was, and resumed since."""
    end: Outcome = Outcome.OPEN
    """How it ends, while that is not written."""
    kept: Kept | None = None
    """What it becomes, while that is in memory, and its half message is the first and only one."""
    line: Line | None = None
    """Where it stands."""

    @property
    def root(self) -> int:
        """The offset of its first half message."""
        return self.aliases[0].offset if self.aliases else self.offset

    @property
    def place(self) -> Place:
        """Where its newest half message is."""
        return Place(self.offset, self.physical_offset)

    def places_behind(self) -> tuple[Place, ...]:
        """Return what `aliases` are once there is a newer half message."""
        is_known = self.is_asked or not self.aliases
        return (*self.aliases, self.place) if is_known else self.aliases


class Line:
    """Open transactions in the order of their half messages."""

    def __init__(self) -> None:
        self.waiting: dict[int, Open] = {}
        """By the offset of their half messages."""

    def __len__(self) -> int:
        return len(self.waiting)

    def add(self, opened: Open) -> None:
        """Put one at the end."""
        self.waiting[opened.offset] = opened
        opened.line = self

    def discard(self, opened: Open) -> None:
        """Take one out, wherever it stands."""
        waiting = self.waiting
        opened.line = None
        if waiting.pop(opened.offset, None) is not None and not waiting:
            waiting.clear()  # Otherwise the room of those that were here is walked through.

    def first(self) -> Open | None:
        """The one that has stood here for the longest."""
        return next(iter(self.waiting.values()), None)

    def take_due(self, now_ms: int, delay_ms: int, count: int) -> list[Open]:
        """Return those that have waited so long; a clock that was set back lets none wait more."""
        due: list[Open] = []
        for opened in self.waiting.values():
            if len(due) >= count or opened.since_ms <= now_ms < opened.since_ms + delay_ms:
                break
            due.append(opened)
        return due


class TransactionTable:
    """All transactions of one broker, as far as they are remembered."""

    def __init__(self) -> None:
        self.next_offset = 0
        """Of the half queue, behind what is known of it."""
        self._open: dict[int, Open] = {}
        """By the offset of each of its half messages."""
        self.count = 0
        """Of open transactions."""
        self._kept: list[Open | None] = [None] * KEPT
        """By the offset of its half message."""
        self._new, self._asked, self._immune, self._ready = Line(), Line(), Line(), Line()
        self._unheard = Line()
        self.resumed: dict[int, int] = {}
        """By where it was given up in the log, the offset of the half message that it became."""
        self._immune_due: list[tuple[int, int]] = []
        self._outcomes = bytearray(REMEMBERED)
        self._ops: deque[list[int]] = deque()
        """Of each some op messages: the first's offset, how many, the highest half offset."""
        self._op_offset = 0

    def find(self, offset: int) -> Open | None:
        """The open transaction that has this half message."""
        return self._open.get(offset)

    def outcome(self, offset: int) -> Outcome:
        """How the transaction of a half message ended; `OVER` when that is not remembered."""
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
        if immune_ms and not opened.checks:
            self.immune_until(opened)
        self.stand(opened)

    def add_kept(self, opened: Open) -> None:
        """Add a new transaction with what it becomes, instead of what an earlier one does.

        Most are added so: it is what `add` does, of one that may be asked about like any other.
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
        """Note that a transaction has a newer half message; `stand` has it wait again."""
        self.leave(opened)
        opened.kept = None
        self.remember(opened.offset, Outcome.MOVED)
        opened.aliases = opened.places_behind()
        if opened.aliases[-1].offset != opened.offset:
            self._open.pop(opened.offset, None)  # Nobody was told of it.
        opened.offset, opened.physical_offset = to
        opened.is_asked = False

    def stand(self, opened: Open) -> None:
        """Have a transaction wait behind the others."""
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
        """Note an op message: a start needs it until the half queue's progress is behind it."""
        self._op_offset = op_offset + 1
        if self._ops and self._ops[-1][1] < OPS_A_NOTE:
            last = self._ops[-1]
            last[1] += 1
            last[2] = max(last[2], highest)
        else:
            self._ops.append([op_offset, 1, highest])

    def start_at(self, half: int, op: int) -> None:
        """Say where both queues go on that nothing more is known of."""
        self.next_offset = max(self.next_offset, half)
        self._op_offset = max(self._op_offset, op)

    def leave(self, opened: Open) -> None:
        """Have a transaction wait no more."""
        if opened.line is not None:
            opened.line.discard(opened)

    def wait_unheard(self, opened: Open, now_ms: int) -> None:
        """Have a transaction wait, where it lies, for somebody who can be asked about it."""
        self.leave(opened)
        opened.since_ms = now_ms
        self._unheard.add(opened)

    def is_far_behind(self, opened: Open) -> bool:
        """Whether its half message has so many behind it that a start should not begin there."""
        return self.next_offset - opened.offset > max(SPAN_MAX, 4 * self.count)

    def remove(self, opened: Open, outcome: Outcome) -> None:
        """Take out a transaction that ended like this."""
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
        """Take out transactions that ended as each says: `remove`, for less where it is simple."""
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
        """Take out a transaction whose half message was not written."""
        next_offset = min(self.next_offset, opened.offset)
        self.remove(opened, Outcome.OPEN)
        self.resumed.pop(opened.resumed_from, None)
        self.next_offset = next_offset

    def immune_until(self, opened: Open) -> None:
        """Have a transaction wait for when its producer allows a question."""
        heapq.heappush(self._immune_due, (opened.due_ms, opened.offset))

    def due(self, config: BrokerConfig, now_ms: int) -> list[Open]:
        """Return who has waited long enough, up to a slice of each line."""
        while self._immune_due and self._immune_due[0][0] <= now_ms:
            due_ms, offset = heapq.heappop(self._immune_due)
            opened = self._open.get(offset)
            # It may stand where one was that was taken back.
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
        """Work out from where a start must read both queues."""
        heads = [line.first() for line in (self._new, self._asked, self._immune)]
        offsets = [head.offset for head in heads if head is not None]
        offsets += [*self._ready.waiting, *self._unheard.waiting]
        half = min(offsets, default=self.next_offset)
        ops = self._ops
        while ops and ops[0][2] < half:
            ops.popleft()
        return Progress(half, ops[0][0] if ops else self._op_offset)
