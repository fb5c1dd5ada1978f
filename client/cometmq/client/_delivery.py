"""The way of messages from the queues to the callers of `next`, and back when they fail.

How it works. Fetched messages of all queues wait in one line. `next` takes the first while fewer
than `concurrency` are in hand; a message leaves the hand when it is settled or goes back into the
line. In order, a queue has one message in the line, in hand or set aside, and its other messages
wait until that one is settled. Many tasks may wait in `next`; each is woken for its own message.
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
"""After how many messages without waiting `next` lets the loop run other tasks."""

STALL_SECONDS: Final = 30.0
"""After how long a consumer warns that its hands are full."""


class Delivery:
    """The line of one consumer. `settled` is called for each queue that has more room."""

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
        self._in_order: set[Queue] = set()  # in order: queues with a message in hand
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
        """Put a message at the front of the line."""
        self._line.appendleft(message)
        self._wake(1)

    async def next(self) -> Message:
        """Return the next message; raise StopAsyncIteration if there will be none."""
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
        """Put a message in hand back at the front of the line."""
        self._leave_hand(message)
        if not self._keep_behind(message):
            self.put_first(message)

    def set_aside(self, message: Message) -> None:
        """Note that `put_again` will give a message in hand back later."""
        self._leave_hand(message)

    def put_again(self, message: Message) -> None:
        """Put a message that was set aside back into the line."""
        if not message.process_queue.is_dropped and not self._keep_behind(message):
            self._line.append(message)
            self._wake(1)

    def holds(self, queue: Queue) -> bool:
        """Whether a message of a queue is in hand; only known for ordered consumers."""
        return queue in self._in_order

    def part(self, process_queue: ProcessQueue) -> bool:
        """Stop delivering a queue that another member gets; return whether a message is in hand.

        In order, the next owner of the queue must not begin before that message is settled:
        `settled` is called then.
        """
        process_queue.is_parting = process_queue.is_in_hand
        return process_queue.is_parting

    def keep(self, process_queue: ProcessQueue) -> None:
        """Continue with a queue after `part`, as it stays with this member."""
        process_queue.is_parting = False
        self._next_in_order(process_queue)

    def drop(self, process_queue: ProcessQueue) -> None:
        """Forget the messages of a queue that belongs to another member now."""
        process_queue.is_dropped = True
        self.size -= process_queue.size
        process_queue.forget()
        self._line = deque(m for m in self._line if m.process_queue is not process_queue)
        if self._behind is not None:
            self._behind.pop(process_queue, None)

    def end(self) -> None:
        """Deliver no more messages, and wake the tasks that wait for one."""
        self.is_ended = True
        self._line.clear()
        self._wake(len(self._waiting))

    async def empty_hands(self) -> None:
        """Wait until no message is in hand."""
        while self.in_hand:
            self._empty_hands = self._empty_hands or anyio.Event()
            await self._empty_hands.wait()

    def _next_in_order(self, process_queue: ProcessQueue) -> None:
        """Put the next message of a queue into the line if the one before it is settled."""
        assert self._behind is not None
        behind = self._behind.get(process_queue)
        if behind and not process_queue.is_busy and not process_queue.is_parting:
            process_queue.is_busy = True
            self._line.append(behind.popleft())
            self._wake(1)

    def _keep_behind(self, message: Message) -> bool:
        """If its queue goes to another member, put a message before those that wait for it."""
        process_queue = message.process_queue
        if self._behind is None or not process_queue.is_parting:
            return False
        self._behind.setdefault(process_queue, deque()).appendleft(message)
        process_queue.is_busy = False
        return True

    def _is_lost(self, process_queue: ProcessQueue) -> bool:
        """Whether a queue belongs to another member now or, in order, may belong to one."""
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
                "%d messages are in hand, all that concurrency=%d allows, and none has been"
                " settled for %.0f s: leave `async with message`, or call message.ack()",
                self.in_hand,
                self.concurrency,
                STALL_SECONDS,
            )
        except BaseException:
            if woken.is_set():  # It was woken for a message: let another task have it.
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
