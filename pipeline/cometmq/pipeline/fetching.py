"""Pulling ranges of queues from a broker in an executor, with only the standard library.

How it works. A thread pulls ahead while earlier answers are turned into columns: receiving releases
the interpreter, and so does Arrow. A CometMQ broker is asked in bulk: one request after the other,
each for as much as fits (`docs/protocol-extensions.md`). Any other broker says that it does not
know that request, and is then pulled from. As Apache's brokers return at most 32 messages at a
time, many pulls are in flight at once, each for its own stretch; messages that an answer leaves out
are asked for again. With a filter, only the answer tells where the next request begins.

Messages arrive in the order of their offsets, on which the sink relies.

If a connection breaks, it is replaced, and unanswered requests are repeated: reading changes
nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass
from queue import Empty, Full, Queue as Handover
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.pipeline import wire
from cometmq.pipeline.errors import PASSING, ConnectionLostError, DataLossError
from cometmq.pipeline.losses import Listener, tell
from cometmq.pipeline.retrying import Pauses

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cometmq.pipeline.cluster import Queue
    from cometmq.pipeline.planning import Range
    from cometmq.pipeline.wire import Answer, Settings, Wire

log = logging.getLogger(__name__)

PULL_MESSAGE: Final = 11
BULK_PULL_MESSAGE: Final = 31002
NOT_SUPPORTED: Final = 3
_NOT_FOUND: Final = 19
_RETRY_IMMEDIATELY: Final = 20
_OFFSET_MOVED: Final = 21
_GONE: Final = {
    17: "its topic no longer exists",
    29: "its topic has fewer queues now",
}
"""Codes of answers that say that there is no such queue, with their texts."""
_BEING_REMOVED: Final = "MESSAGE_WAS_REMOVING"
"""The remark of an answer that skips a file of the log that no longer exists."""
_BY_REQUEST: Final = 4
"""The bit of a pull's flags that says that the filter is in the request."""
GROUP: Final = "TOOLS_CONSUMER"
"""A group that every broker has, so that reading creates no group and moves nobody's progress."""

_UNDER_WAY: Final = 16
_STRETCH: Final = 32
"""The messages of one pull: the most that Apache's brokers return."""
_PATIENCE: Final = 16
_PATIENCE_MAX: Final = 2048
"""After so many whole answers in a row, twice as much is asked for. Each short one doubles this."""
_JOINED_SIZE: Final = 1 << 20
"""Bytes handed over at a time: turning small answers into columns takes five times as long."""
_AHEAD: Final = 3
_LOOK_SECONDS: Final = 0.1
_QUEUE_OFFSET: Final = Struct(">20xq")

without_bulk: Final[set[str]] = set()
"""Brokers that do not know the request for bulk reads."""


@dataclass(frozen=True, slots=True)
class Pulling:
    """How ranges are read: everything that an executor is told besides the ranges."""

    settings: Settings
    expression: str = "*"
    kind: str = "TAG"
    fail_on_data_loss: bool = True
    pull_bytes: int = 4 << 20
    retries: int = 5
    retry_interval_ms: int = 200
    losses: Listener | None = None
    """Where to report messages that are skipped because they expired."""

    @property
    def is_filtered(self) -> bool:
        """Whether the broker filters messages."""
        return (self.expression, self.kind) != ("*", "TAG")


class Chunk(NamedTuple):
    """Consecutive stored records, and which of them are wanted."""

    data: bytes
    queue: Queue
    first: int
    end: int


def chunks(ranges: Sequence[Range], how: Pulling) -> Iterator[Chunk]:
    """Yield all messages of the ranges.

    Raise `DataLossError` if some are gone, unless they are to be skipped.
    """
    ahead = _Ahead()
    thread = threading.Thread(
        target=ahead.pull, args=(ranges, how), name="cometmq pulling", daemon=True
    )
    thread.start()
    try:
        yield from ahead.taken(thread)
    finally:
        ahead.over.set()


class _Ahead:
    """What has been pulled and not yet taken."""

    def __init__(self) -> None:
        self.over = threading.Event()
        """Set when nobody wants more."""
        self._handover: Handover[Chunk | BaseException | None] = Handover(_AHEAD)

    def pull(self, ranges: Sequence[Range], how: Pulling) -> None:
        """Pull everything; runs on the pulling thread."""
        try:
            for each in ranges:
                if each.first >= each.end:
                    continue
                puller = _Puller(each, how)
                for chunk in puller.chunks():
                    if not self._put(chunk):
                        return
                if puller.expired and how.losses is not None:
                    tell(how.losses, each, puller.expired)
        except BaseException as error:  # Passed on to the thread that waits for messages.
            self._put(error)
        else:
            self._put(None)

    def _put(self, item: Chunk | BaseException | None) -> bool:
        while not self.over.is_set():
            try:
                self._handover.put(item, timeout=_LOOK_SECONDS)
            except Full:
                continue
            return True
        return False

    def taken(self, thread: threading.Thread) -> Iterator[Chunk]:
        """Yield what is pulled, and raise the error of the pulling thread, if any."""
        while True:
            try:
                item = self._handover.get(timeout=1.0)
            except Empty:
                if thread.is_alive():
                    continue
                item = self._handover.get_nowait()  # The thread's last act.
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item


class _Puller:
    """The reading of one range."""

    def __init__(self, wanted: Range, how: Pulling) -> None:
        self.range = wanted
        self.how = how
        self._left = deque([(wanted.first, wanted.end)])
        """The stretches still to be requested, in order."""
        self._asked: dict[int, tuple[int, int]] = {}
        self._early: dict[int, Answer] = {}
        """Answers that arrived before those for earlier stretches."""
        self._stretch = _STRETCH
        self._whole = 0
        """How many answers in a row had all that was asked for."""
        self._patience = _PATIENCE
        self._joined: list[bytes] = []
        self._size = 0
        self._idle = 0
        self.expired = 0
        """The number of messages that were skipped because they were gone."""

    def chunks(self) -> Iterator[Chunk]:
        """Yield the range; if a connection breaks, continue over a new one."""
        how = self.how
        pauses = Pauses(how.retries, how.retry_interval_ms, f"reading {self.range.queue}")
        while self._left:
            begun = self._left[0]
            peer: Wire | None = None
            try:
                peer = wire.connect(self.range.address, how.settings)
                yield from self._over(peer)
                wire.keep(peer, how.settings)
                peer = None
            except PASSING as error:
                self._forget_asked()
                if self._left[0] != begun:
                    pauses.taken = 0
                pauses.take(error)
            finally:
                if peer is not None:
                    peer.close()
        if self._joined:
            yield self._handed_over()

    def _forget_asked(self) -> None:
        """Put the requested stretches back before those that are left."""
        self._left.extendleft(sorted(self._asked.values(), reverse=True))
        self._asked.clear()
        self._early.clear()

    def _over(self, peer: Wire) -> Iterator[Chunk]:
        """Yield what arrives over one connection, as long as it holds."""
        while self._left or self._asked:
            one_by_one = self._is_bulk or self.how.is_filtered
            while self._left and len(self._asked) < (1 if one_by_one else _UNDER_WAY):
                self._ask(peer)
            answer = peer.receive()
            if answer.opaque in self._asked:
                self._early[answer.opaque] = answer
            while self._asked and (first := next(iter(self._asked))) in self._early:
                yield from self._take(self._early.pop(first), *self._asked.pop(first))
            if self._size >= _JOINED_SIZE:
                if self._left and not self._asked:
                    self._ask(peer)  # The broker works on it meanwhile.
                yield self._handed_over()  # Only now: if asking fails, it must stay.

    @property
    def _is_bulk(self) -> bool:
        return self.range.address not in without_bulk

    def _ask(self, peer: Wire) -> None:
        first, end = self._left[0]
        until = end
        if self._is_bulk:
            number = peer.send(BULK_PULL_MESSAGE, self._bulk_fields(first, end))
        else:
            if not self.how.is_filtered:
                until = min(end, first + self._stretch)
            number = peer.send(PULL_MESSAGE, self._pull_fields(first, until))
        # Only now: if sending finds the connection broken, the stretch must stay.
        self._left.popleft()
        if until < end:
            self._left.appendleft((until, end))
        self._asked[number] = (first, until)

    def _bulk_fields(self, first: int, end: int) -> dict[str, str]:
        return {
            "consumerGroup": GROUP,
            "topic": self.range.queue.topic,
            "queueId": str(self.range.queue.id),
            "queueOffset": str(first),
            "endOffset": str(end),
            "maxMsgBytes": str(self.how.pull_bytes),
            "subscription": self.how.expression,
            "expressionType": self.how.kind,
        }

    def _pull_fields(self, first: int, until: int) -> dict[str, str]:
        """Return the fields of a pull that does not wait and leaves no trace."""
        return {
            "consumerGroup": GROUP,
            "topic": self.range.queue.topic,
            "queueId": str(self.range.queue.id),
            "queueOffset": str(first),
            "maxMsgNums": str(min(until - first, _STRETCH)),
            "sysFlag": str(_BY_REQUEST),
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": self.how.expression,
            "subVersion": "0",
            "expressionType": self.how.kind,
        }

    def _take(self, answer: Answer, first: int, end: int) -> Iterator[Chunk]:
        if answer.code == NOT_SUPPORTED and self._is_bulk:
            without_bulk.add(self.range.address)
            self._left.appendleft((first, end))
            return
        if answer.code in _GONE:
            self._lost(f"messages from {first} on were to be read, and {_GONE[answer.code]}")
            self._asked.clear()  # The rest of the range is gone, too.
            self._early.clear()
            self._left.clear()
            return
        if answer.code not in (wire.SUCCESS, _NOT_FOUND, _RETRY_IMMEDIATELY, _OFFSET_MOVED):
            self._forget_asked()
            self._left.appendleft((first, end))  # A broker that is only busy is asked again.
            raise answer.refusal(self.range.address)
        following = int(answer.fields["nextBeginOffset"])
        if answer.code == wire.SUCCESS:
            begins = _queue_offset(answer.body, first)
            self._look_for_gap(answer, first, min(begins, end))
            yield from self._add(answer.body, begins, first, end, following)
        elif answer.code == _RETRY_IMMEDIATELY:
            self._look_for_gap(answer, first, min(following, end))
        else:
            following = self._gone(answer, first, end)
        if following < end:
            # Later stretches were requested too early to arrive in order.
            self._forget_asked()
            self._left.appendleft((max(following, first), end))
        if following <= first:
            self._wait(first)  # At last, it raises, and what is left must be there.
            return
        self._idle = 0
        if not self._is_bulk:
            self._learn(following - first, end - first)

    def _learn(self, got: int, asked: int) -> None:
        """Ask for as much as comes: of what an answer leaves out, later answers came in vain.

        After one large message, or some that were on the broker's disk, more come again.
        """
        if got < asked:
            self._stretch = max(min(got, self._stretch), 1)
            self._whole, self._patience = 0, min(2 * self._patience, _PATIENCE_MAX)
        elif (whole := self._whole + 1) < self._patience:
            self._whole = whole
        else:
            self._whole, self._stretch = 0, min(2 * self._stretch, _STRETCH)

    def _add(
        self, body: bytes, begins: int, first: int, end: int, following: int
    ) -> Iterator[Chunk]:
        """Take messages; if a batch record goes beyond the stretch, pass the bounds along."""
        if begins < first or (following > end and end < self.range.end):
            if self._joined:
                yield self._handed_over()
            yield Chunk(body, self.range.queue, first, end)
            return
        self._joined.append(body)
        self._size += len(body)

    def _handed_over(self) -> Chunk:
        data = self._joined[0] if len(self._joined) == 1 else b"".join(self._joined)
        self._joined, self._size = [], 0
        return Chunk(data, self.range.queue, self.range.first, self.range.end)

    def _look_for_gap(self, answer: Answer, first: int, reached: int) -> None:
        """Report a loss if an answer skips messages that expired after they were requested.

        With a filter, only the queue's first offset tells these from messages that did not pass.
        """
        if reached <= first:
            return
        if self.how.is_filtered:
            expired = min(int(answer.fields["minOffset"]), reached)
            if answer.remark == _BEING_REMOVED:
                expired = reached
        else:
            expired = reached
        if expired > first:
            self._lost(f"messages from {first} to {expired} expired before they were read")
            self.expired += expired - first

    def _lost(self, what: str) -> None:
        text = f"queue {self.range.queue}: {what}"
        if self.how.fail_on_data_loss:
            raise DataLossError(f"{text}. With failOnDataLoss=false they would be skipped")
        log.warning("data loss: %s", text)

    def _gone(self, answer: Answer, first: int, end: int) -> int:
        """Return where reading continues if there is nothing at `first`; report that as a loss."""
        lowest, highest = int(answer.fields["minOffset"]), int(answer.fields["maxOffset"])
        if lowest <= first < highest:  # Not readable yet, or just being removed.
            return first
        self._lost(
            f"messages from {first} on were to be read, but it has those from {lowest} to {highest}"
        )
        if lowest <= first:  # The queue ends before them, so they did not expire.
            return end
        following = min(lowest, end)
        self.expired += following - first
        return following

    def _wait(self, first: int) -> None:
        self._idle += 1
        if self._idle > self.how.retries * 10:
            raise ConnectionLostError(
                f"queue {self.range.queue}: {self.range.address} returns nothing at {first}"
            )
        time.sleep(min(0.005 * self._idle, 1.0))


def _queue_offset(body: bytes, otherwise: int) -> int:
    """Return the queue offset of the first of some messages."""
    offset: int = otherwise
    if len(body) >= _QUEUE_OFFSET.size:
        (offset,) = _QUEUE_OFFSET.unpack_from(body)
    return offset
