"""Messages on their way from the queues to whoever asks for the next one, and back when they fail.

How it works. Fetched messages wait in one line, whichever queue they are from. `next` takes the
first while fewer than `concurrency` are in hand; a message leaves the hand when it is settled or
comes back into the line. In order, a queue has one message in the line, in hand or set aside, and
its others wait behind that. Many tasks may wait in `next`; each is woken for a message of its own.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final

import anyio
from anyio.lowlevel import checkpoint

from cometmq.client._core.identity import now_ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.client._core.process_queue import ProcessQueue
    from cometmq.client._core.queues import Queue
    from cometmq.client.consumer import Message

_log = logging.getLogger("cometmq.client")

FAIR_EVERY: Final = 32
"""After how many messages in a row the loop gets its turn, if nothing had to be waited for."""

STALL_SECONDS: Final = 30.0
"""After how long a consumer whose hands are full says so."""


class Delivery:
    """The line of one consumer. `settled` is told of each queue that has more room."""

    def __init__(
        self,
        concurrency: int,
        settled: Callable[[ProcessQueue], None],
        may_deliver: Callable[[ProcessQueue], bool] | None = None,
    ) -> None:
        self.concurrency = concurrency
        self.in_hand = 0
        self.size = 0  # bytes of messages that are here and not settled
        self.is_ended = False
        self._settled = settled
        self._may_deliver = may_deliver
        self._behind: dict[ProcessQueue, deque[Message]] | None = (
            None if may_deliver is None else {}
        )
        self._in_order: set[Queue] = set()  # in order: those of which a message is in hand
        self._line: deque[Message] = deque()
        self._waiting: deque[anyio.Event] = deque()
        self._empty_hands: anyio.Event | None = None
        self._given = 0

    def add(self, messages: list[Message]) -> None:
        """Put messages into the line."""
        for message in messages:
            message.process_queue.add(message.offset, message.size)
            self.size += message.size
        if self._behind is not None:
            for message in messages:
                self._behind.setdefault(message.process_queue, deque()).append(message)
            for process_queue in {message.process_queue for message in messages}:
                self._next_in_order(process_queue)
            return
        self._line.extend(messages)
        self._wake(len(messages))

    def put_first(self, message: Message) -> None:
        """Put a message in front of the line."""
        self._line.appendleft(message)
        self._wake(1)

    async def next(self) -> Message:
        """Return the next message; StopAsyncIteration when there will be none."""
        self._given += 1
        if not self._given % FAIR_EVERY:
            await checkpoint()
        while True:
            if self.is_ended:
                raise StopAsyncIteration
            while self._line and self.in_hand < self.concurrency:
                message = self._line.popleft()
                if not self._is_lost(message.process_queue):
                    self.in_hand += 1
                    if self._behind is not None:
                        message.process_queue.is_in_hand = True
                        self._in_order.add(message.process_queue.queue)
                    message.taken()
                    return message
            await self._wait()

    def settle(self, message: Message) -> None:
        """Note that a message in hand is done with."""
        self._leave_hand(message)
        process_queue = message.process_queue
        process_queue.settled_ms = now_ms()
        self.size -= process_queue.settle(message.offset)
        if self._behind is not None:
            process_queue.is_busy = False
            self._next_in_order(process_queue)
        self._settled(process_queue)

    def give_back(self, message: Message) -> None:
        """Put a message in hand back into the line, to the front."""
        self._leave_hand(message)
        if not self._keep_behind(message):
            self.put_first(message)

    def set_aside(self, message: Message) -> None:
        """Note that a message in hand is given back later, by `put_again`."""
        self._leave_hand(message)

    def put_again(self, message: Message) -> None:
        """Put a message that was set aside back into the line."""
        if not message.process_queue.is_dropped and not self._keep_behind(message):
            self._line.append(message)
            self._wake(1)

    def holds(self, queue: Queue) -> bool:
        """Whether a message of a queue is in hand; only known in order."""
        return queue in self._in_order

    def part(self, process_queue: ProcessQueue) -> bool:
        """Give no more messages of a queue that is to be another's; whether one is in hand yet.

        In order, whoever has the queue next must not begin before that one is done with: `settled`
        is told when it is.
        """
        process_queue.is_parting = process_queue.is_in_hand
        return process_queue.is_parting

    def keep(self, process_queue: ProcessQueue) -> None:
        """Go on with a queue that was to be another's and is not."""
        process_queue.is_parting = False
        self._next_in_order(process_queue)

    def drop(self, process_queue: ProcessQueue) -> None:
        """Forget the messages of a queue that is another member's now."""
        process_queue.is_dropped = True
        self.size -= process_queue.size
        process_queue.move(process_queue.next_offset)
        self._line = deque(m for m in self._line if m.process_queue is not process_queue)
        if self._behind is not None:
            self._behind.pop(process_queue, None)

    def end(self) -> None:
        """Give no more messages; those who wait learn of it."""
        self.is_ended = True
        self._line.clear()
        self._wake(len(self._waiting))

    async def empty_hands(self) -> None:
        """Wait until no message is in hand."""
        while self.in_hand:
            self._empty_hands = self._empty_hands or anyio.Event()
            await self._empty_hands.wait()

    def _next_in_order(self, process_queue: ProcessQueue) -> None:
        """Let the next message of a queue into the line, when the one before it is settled."""
        assert self._behind is not None
        behind = self._behind.get(process_queue)
        if behind and not process_queue.is_busy and not process_queue.is_parting:
            process_queue.is_busy = True
            self._line.append(behind.popleft())
            self._wake(1)

    def _keep_behind(self, message: Message) -> bool:
        """Put a message before those that wait behind it, if its queue is to be another's."""
        process_queue = message.process_queue
        if self._behind is None or not process_queue.is_parting:
            return False
        self._behind.setdefault(process_queue, deque()).appendleft(message)
        process_queue.is_busy = False
        return True

    def _is_lost(self, process_queue: ProcessQueue) -> bool:
        """Whether a queue is another's now, or, in order, may be."""
        if process_queue.is_dropped:
            return True
        return self._may_deliver is not None and not self._may_deliver(process_queue)

    async def _wait(self) -> None:
        woken = anyio.Event()
        self._waiting.append(woken)
        try:
            if self.in_hand < self.concurrency:
                await woken.wait()
                return
            with anyio.move_on_after(STALL_SECONDS):
                await woken.wait()
                return
            _log.warning(
                "%d messages are in hand, which is all that concurrency=%d allows, and none was"
                " settled for %.0f s: leave `async with message`, or call message.ack()",
                self.in_hand,
                self.concurrency,
                STALL_SECONDS,
            )
        except BaseException:
            if woken.is_set():  # It was for this one: let another have it.
                self._wake(1)
            raise
        finally:
            if woken in self._waiting:
                self._waiting.remove(woken)

    def _wake(self, count: int) -> None:
        while count > 0 and self._waiting:
            self._waiting.popleft().set()
            count -= 1

    def _leave_hand(self, message: Message) -> None:
        self.in_hand -= 1
        process_queue = message.process_queue
        if self._behind is not None:
            process_queue.is_in_hand = False
            self._in_order.discard(process_queue.queue)
            if process_queue.is_parting or process_queue.is_dropped:
                self._settled(process_queue)
        if not self.in_hand and self._empty_hands is not None:
            self._empty_hands.set()
            self._empty_hands = None
        if self._line:
            self._wake(1)
