"""The machinery of one consumer: its membership, its line of messages, and its end.

A `Consumer` is a thin handle on this: when a `break` leaves the loop `async for message in
mq.consume(...)`, the handle is dropped, and the queues go to other members.
"""

from __future__ import annotations

import logging
from enum import Enum
from typing import TYPE_CHECKING, Final

import anyio

from cometmq.client._core.identity import now_ms
from cometmq.client._core.names import in_namespace
from cometmq.client._core.options import GIVE_UP_LEVEL
from cometmq.client._core.process_queue import DirectQueue, Outcome
from cometmq.client._core.queues import Queue, from_wire
from cometmq.client._delivery import Delivery
from cometmq.client._group import GroupMember
from cometmq.client._watching import tell_each
from cometmq.client.errors import ClientError, UnreachableError, UsageError, refusal
from cometmq.client.request import send_reply
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands import ConsumerSendMsgBack

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cometmq.client._core.options import ConsumeOptions
    from cometmq.client._core.process_queue import ProcessQueue
    from cometmq.client._parts import Parts
    from cometmq.client.consumer import Message
    from cometmq.proto.bodies import ResetOffsets
    from cometmq.proto.buffer import Buffer
    from cometmq.proto.message import StoredMessage

_log = logging.getLogger("cometmq.client")

SUSPEND_SECONDS: Final = 1.0
"""How long an ordered queue waits before it retries a message that failed."""

LEAVE_SECONDS: Final = 2.0
"""How long stopping a consumer waits for its last commits."""


class State(Enum):
    """The states of a consumer's life."""

    NEW = "new"
    RUNNING = "running"
    ENDED = "ended"


class Consumption:
    """One consumer at work."""

    def __init__(
        self,
        parts: Parts,
        options: ConsumeOptions,
        make: Callable[[Consumption, StoredMessage, Queue, ProcessQueue], Message],
        ended: Callable[[Consumption], None],
    ) -> None:
        self.options = options
        self.state = State.NEW
        self.started_ms = now_ms()
        self._parts = parts
        self._make = make
        self._ended = ended
        self.is_abandoned = False
        self.before: Consumption | None = None
        """The abandoned consumer of the same group; it leaves before this one begins."""
        self._left = anyio.Event()
        self._starting: anyio.Event | None = None
        self.delivery = Delivery(
            options.concurrency, self._settled, self._may_deliver if options.is_ordered else None
        )
        self.member = GroupMember(
            parts,
            options,
            self.delivery,
            lambda stored, queue, process_queue: make(self, stored, queue, process_queue),
        )

    def check_here(self) -> None:
        """Refuse a caller on another loop: it would wait for ever, or corrupt the consumer."""
        if not self._parts.runtime.is_here():
            raise UsageError(
                "the consumer belongs to another event loop: use it and its messages on the loop of"
                " its client only; from threads, use SyncClient"
            )

    async def next(self) -> Message:
        """Return the next message; begin first if necessary."""
        self.check_here()
        if self.state is not State.RUNNING:
            await self.start()
        message = await self.delivery.next()
        if self._parts.hooks:
            group = self.options.group
            message.watches = tell_each(
                self._parts.hooks, lambda hook: hook.consuming(message, group)
            )
        return message

    async def start(self) -> None:
        """Begin, once; concurrent callers wait."""
        while self._starting is not None:
            await self._starting.wait()
        if self.state is not State.NEW:
            return
        self._starting = anyio.Event()
        try:
            await self._let_go_of_before()
            await self.member.start()
            if self.state is State.NEW:
                self.state = State.RUNNING
        except ClientError as error:
            if not error.can_retry:  # It cannot begin: the group is free for another consumer.
                self.state = State.ENDED
                self.delivery.end()
                self._has_ended()
            raise
        finally:
            self._starting.set()
            self._starting = None

    async def drain(self, timeout: float | None) -> bool:
        """Wait for the messages in hand, commit and leave; return whether all were settled."""
        if self.state is State.ENDED:
            await self._left.wait()
            return not self.delivery.in_hand
        self.member.stop_fetching()
        self.delivery.end()
        finished = True
        try:
            if timeout is None:
                await self.delivery.empty_hands()
            else:
                with anyio.move_on_after(timeout) as scope:
                    await self.delivery.empty_hands()
                finished = not scope.cancelled_caught
        finally:
            await self.stop()  # Also on cancellation: otherwise it would stay in the group, idle.
        return finished

    async def stop(self) -> None:
        """Commit what is settled and leave at once; a second call waits for the first."""
        was, self.state = self.state, State.ENDED
        if was is State.ENDED:
            await self._left.wait()
            return
        self.delivery.end()
        try:
            await self._let_go_of_before()
            if was is State.RUNNING or self._starting is not None:
                with anyio.move_on_after(LEAVE_SECONDS, shield=True):
                    await self.member.leave()
        finally:
            self._has_ended()

    def abandon(self) -> None:
        """Stop because nobody holds the consumer any more; on the loop's thread."""
        if self.state is not State.ENDED:
            self._parts.runtime.spawn(self.stop, f"leave {self.options.group}")

    def abandon_soon(self) -> None:
        """Do the same from any thread, as the garbage collector may run on any."""
        self.is_abandoned = True
        if self.state is not State.ENDED:
            self._parts.runtime.call_soon_threadsafe(self.abandon)

    async def _let_go_of_before(self) -> None:
        if self.before is not None:
            await self.before.stop()
            self.before = None

    def _has_ended(self) -> None:
        self._ended(self)
        self._left.set()

    def reset(self, body: ResetOffsets) -> None:
        """Move to the offsets that an operator has set."""
        offsets = {from_wire(queue): offset for queue, offset in body.offset_table.items()}

        async def reset() -> None:
            await self.member.reset(offsets)

        self._parts.runtime.spawn(reset, f"reset {self.options.group}")

    async def reply(
        self, message: Message, body: Buffer, properties: Mapping[str, str] | None
    ) -> None:
        """Reply to a request."""
        await send_reply(self._parts, message, body, properties)

    def consume_directly(self, stored: StoredMessage, told: Callable[[Outcome], None]) -> None:
        """Hand out a message on behalf of an operator, and report the outcome."""
        queue = Queue(stored.topic, "", stored.queue_id)
        self.delivery.put_first(self._make(self, stored, queue, DirectQueue(queue, told)))

    async def send_back(
        self, message: Message, delay_level: int, error: Exception | None = None
    ) -> None:
        """Have a message delivered again later, to any member of the group.

        If the broker does not take it back, it is delivered again here, after a while. A broadcast
        consumer cannot send it back: it gives the message up, as Apache's does.
        """
        if isinstance(message.process_queue, DirectQueue):
            message.process_queue.outcome = Outcome(is_consumed=False, error=error)
            self.delivery.settle(message)
            return
        if message.process_queue.is_dropped:
            self.delivery.settle(message)  # The queue's new owner delivers it anyway.
            return
        if self.options.is_broadcast:
            _log.warning("%r is given up: broadcast messages are delivered only once", message)
            self.delivery.settle(message)
            return
        if self.options.is_ordered and delay_level >= 0:
            if message.attempt - 1 <= self.options.max_retries:  # `attempt` counts this failure.
                self.delivery.set_aside(message)
                self._put_again_after(message, SUSPEND_SECONDS)
                return
            delay_level = GIVE_UP_LEVEL
        try:
            await self._ask_to_take_back(message, delay_level)
        except ClientError as error:
            _log.warning(
                "%r cannot be sent back: %s; this consumer will deliver it again", message, error
            )
            self.delivery.set_aside(message)
            self._put_again_after(message, self._parts.config.redelivery_delay)
        except BaseException:
            self.delivery.give_back(message)
            raise
        else:
            self.delivery.settle(message)

    def _put_again_after(self, message: Message, seconds: float) -> None:
        async def put_again() -> None:
            await anyio.sleep(seconds)
            self.delivery.put_again(message)

        self._parts.runtime.spawn(put_again, "put again")

    async def _ask_to_take_back(self, message: Message, delay_level: int) -> None:
        timeout = self._parts.config.timeout
        route = await self._parts.routes.get(message.queue.topic, timeout=timeout)
        address = route.master_of(message.queue.broker)
        if address is None:
            raise UnreachableError(f"broker {message.queue.broker!r} has no master at the moment")
        header = ConsumerSendMsgBack(
            message.physical_offset,
            self.options.group,
            delay_level,
            origin_msg_id=message.id,
            origin_topic=in_namespace(self._parts.config.namespace, message.topic),
            max_reconsume_times=self.options.max_retries,
        )
        extras = {"bname": message.queue.broker}
        request = Command.request(RequestCode.CONSUMER_SEND_MSG_BACK, header, extras=extras)
        response = await self._parts.connections.call(address, request, timeout=timeout)
        if response.code != ResponseCode.SUCCESS:
            raise refusal(response.code, response.remark, address)

    def _may_deliver(self, process_queue: ProcessQueue) -> bool:
        locks = self.member.locks
        if (
            isinstance(process_queue, DirectQueue)
            or locks is None
            or locks.holds(process_queue.queue)
        ):
            return True
        self.member.lose(process_queue)
        return False

    def _settled(self, process_queue: ProcessQueue) -> None:
        self.member.room_in(process_queue)
