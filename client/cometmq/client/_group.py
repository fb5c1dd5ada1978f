"""A consumer's membership of its group: its share of the queues, fetching, and committing.

How it works. The member announces itself to all brokers of its topics, asks for the other members,
and computes its share of the queues, as all members do. It does so again when brokers say that
members changed, when a route changes, and at intervals. Each of its queues has a task that fetches
from it, one request at a time, and that pauses while enough messages are here. Offsets are
committed at intervals, when a queue is given up, and at the end.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import anyio

from cometmq.client._agreement import check_agreement, check_expressions
from cometmq.client._connections import elapsed_ms
from cometmq.client._core.identity import now_ms
from cometmq.client._core.names import RETRY_PREFIX
from cometmq.client._core.process_queue import ProcessQueue
from cometmq.client._core.rebalance import share
from cometmq.client._fetching import Fetching
from cometmq.client._locks import RENEW_SECONDS, LockedError, QueueLocks
from cometmq.client._membership import ask_for_members, consumer_data
from cometmq.client._offset_store import BroadcastOffsets, GroupOffsets, Places
from cometmq.client._reading import tell_moved
from cometmq.client.errors import BusyError, ClientError, NotFoundError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from cometmq.client._core.options import ConsumeOptions
    from cometmq.client._core.queues import Queue
    from cometmq.client._core.routes import Route
    from cometmq.client._delivery import Delivery
    from cometmq.client._parts import Parts
    from cometmq.client._runtime import BackgroundTask
    from cometmq.client.consumer import Message
    from cometmq.proto.bodies import ConsumerData
    from cometmq.proto.message import StoredMessage

_log = logging.getLogger("cometmq.client")

REBALANCE_SECONDS: Final = 20.0
RETRY_SECONDS: Final = 1.0
"""How long to wait after a failure to compute a share or to fetch."""

BUSY_SECONDS: Final = 0.05
COMMIT_SECONDS: Final = 5.0
FETCH_COUNT: Final = 32
HOLD_SECONDS: Final = 15.0
"""How long a broker holds a fetch that finds nothing."""


class GroupMember:
    """One consumer's membership of its group."""

    def __init__(
        self,
        parts: Parts,
        options: ConsumeOptions,
        delivery: Delivery,
        make: Callable[[StoredMessage, Queue, ProcessQueue], Message],
    ) -> None:
        self._parts = parts
        self._options = options
        self._delivery = delivery
        self._make = make
        self._filters = options.all_filters
        self._version = now_ms()
        self._owned: dict[Queue, Fetching] = {}
        self._lost: dict[Queue, ProcessQueue] = {}
        self._short_of_bytes: set[Fetching] = set()
        self._sharing: BackgroundTask | None = None
        self._upkeep: list[BackgroundTask] = []
        self._is_wanted = anyio.Event()
        self._going: anyio.Event = anyio.Event()  # set: not paused
        self._going.set()
        self._is_leaving = False
        self.locks = QueueLocks(parts, options.group) if options.is_ordered else None
        self._complaints: dict[str, str] = {}
        kind = BroadcastOffsets if options.is_broadcast else GroupOffsets
        self._offsets = kind(parts, options)
        self._places = Places(self._offsets)

    @property
    def queues(self) -> list[Queue]:
        """The queues that this member has now."""
        return list(self._owned)

    async def start(self) -> None:
        """Join the group; raise a ClientError if the brokers refuse the subscription."""
        await self._offsets.load()
        await check_expressions(self._parts, self._options, self._version)
        await check_agreement(self._parts, self._options)
        if self._is_leaving:
            return  # Stopped before it had begun.
        self._parts.membership.join(self._options.group, self.subscriptions)
        spawn, group = self._parts.runtime.spawn, self._options.group
        self._sharing = spawn(self._keep_share, f"share of {group}")
        self._upkeep = [spawn(self._keep_committing, f"commits of {group}")]
        if self.locks is not None:
            self._upkeep.append(spawn(self._keep_locks, "locks"))

    def stop_fetching(self) -> None:
        """Take no more messages, and no more queues; those that are here stay until `leave`."""
        self._is_leaving = True  # A cancelled task may still run once more.
        if self._sharing is not None:
            self._sharing.cancel()
        for fetching in self._owned.values():
            fetching.task.cancel()

    async def leave(self) -> None:
        """Commit what is settled and leave the group, so that others take the queues at once."""
        self.stop_fetching()
        for task in self._upkeep:
            task.cancel()
        owned, self._owned = self._owned, {}
        try:
            await self._commit(owned.values())
            for fetching in owned.values():
                fetching.process_queue.is_dropped = True
            if self.locks is not None:
                await self.locks.release_all()
        finally:  # Also if time runs out: otherwise heartbeats would keep it a member.
            await self._parts.membership.leave(self._options.group, self._parts.connections)

    @property
    def process_queues(self) -> list[ProcessQueue]:
        """The state of these queues."""
        return [fetching.process_queue for fetching in self._owned.values()]

    def subscriptions(self) -> ConsumerData:
        """Return this member's subscriptions, for heartbeats."""
        return consumer_data(self._options, self._version)

    def share_soon(self) -> None:
        """Have the share computed again: members or routes changed."""
        self._is_wanted.set()

    def pause(self) -> None:
        """Stop fetching until `resume`."""
        if self._going.is_set():
            self._going = anyio.Event()

    def resume(self) -> None:
        """Fetch again."""
        self._going.set()

    def room_in(self, process_queue: ProcessQueue) -> None:
        """Handle that a message of a queue is settled."""
        if process_queue.is_parting or (process_queue.is_dropped and self.locks is not None):
            self.share_soon()
        if self._short_of_bytes and self._delivery.size < self._options.prefetch_bytes:
            for each in self._short_of_bytes:
                each.look_again()
            self._short_of_bytes.clear()
        fetching = self._owned.get(process_queue.queue)
        if fetching is not None and fetching.room is not None and self._has_room(process_queue):
            fetching.look_again()

    def lose(self, process_queue: ProcessQueue) -> None:
        """Give up a queue whose lock is lost; the next share asks for it again."""
        if (fetching := self._owned.pop(process_queue.queue, None)) is not None:
            self._give_up(fetching)
            self._lost[process_queue.queue] = fetching.process_queue
        self.share_soon()

    async def reset(self, offsets: Mapping[Queue, int]) -> None:
        """Move to the offsets that an operator has set for these queues."""
        had: dict[Queue, ProcessQueue] = {}
        for queue in offsets:
            self._lost.pop(queue, None)
            if (fetching := self._owned.pop(queue, None)) is not None:
                self._give_up(fetching)
                had[queue] = fetching.process_queue
        await self._places.move(offsets, had)
        self.share_soon()

    def _reset_soon(self, queue: Queue, offset: int) -> None:
        """Move to another offset of a queue, in a new task, as this ends the one that fetches."""
        self._parts.runtime.spawn(lambda: self.reset({queue: offset}), f"reset of {queue}")

    # Sharing.

    async def _keep_share(self) -> None:
        patience = RETRY_SECONDS  # With a retry topic, which brokers make in a moment, or never.
        while True:
            self._is_wanted = anyio.Event()
            wait = REBALANCE_SECONDS
            for topic in self._filters:
                try:
                    await self._share_topic(topic)
                except ClientError as error:
                    is_retry = topic.startswith(RETRY_PREFIX)
                    wait = min(wait, patience if is_retry else RETRY_SECONDS)
                    if topic in self._options.filters or not isinstance(error, NotFoundError):
                        self._complain(topic, error)  # A retry topic may not exist yet.
                else:
                    self._complaints.pop(topic, None)
            with anyio.move_on_after(wait) as waiting:
                await self._is_wanted.wait()
            if waiting.cancelled_caught:
                patience *= 2

    async def _share_topic(self, topic: str) -> None:
        route = await self._parts.routes.get(topic, timeout=self._parts.config.timeout)
        await self._show_up(route)
        if self._options.is_broadcast:
            mine = set(route.to_read)
        else:
            members = await ask_for_members(self._parts, self._options.group, route)
            own_id = self._parts.identity.client_id
            mine = set(share(own_id, members, route.to_read, self._options.strategy))
        await self._part_with_others(topic, mine)
        await self._take_over(mine)

    async def _part_with_others(self, topic: str, mine: set[Queue]) -> None:
        """Give up the queues of a topic that belong to other members now, and their locks."""
        in_hand = {each for each in self._places.wanted if self._delivery.holds(each)}
        self._places.keep(topic, mine | in_hand)
        given_up: list[Fetching] = []
        for queue in [each for each in self._owned if each.topic == topic]:
            fetching = self._owned[queue]
            process_queue = fetching.process_queue
            if queue in mine:
                if process_queue.is_parting:
                    self._delivery.keep(process_queue)
                continue
            if self._delivery.part(process_queue):
                continue  # Its message in hand keeps the queue and its lock here.
            del self._owned[queue]
            self._give_up(fetching)
            given_up.append(fetching)
        await self._commit(given_up)
        if self.locks is not None:
            # Also the locks of lost queues: if they were renewed, no other member could get them.
            kept = mine | in_hand | self._owned.keys()
            await self.locks.release([q for q in self.locks.of_topic(topic) if q not in kept])

    async def _take_over(self, mine: set[Queue]) -> None:
        """Begin with the new queues; raise LockedError if another member still has a lock."""
        late: list[Queue] = []
        refused: RefusedError | None = None
        for queue in sorted(mine - self._owned.keys()):
            try:
                if self.locks is not None and not (
                    await self.locks.acquire(queue) and not self._delivery.holds(queue)
                ):
                    late.append(queue)
                    continue
                offset = await self._places.first(queue)
            except RefusedError as error:  # It may be of this queue only, if it is damaged.
                refused = error
                continue
            if self._is_leaving:
                return
            process_queue = ProcessQueue(queue, offset)
            lost = self._lost.pop(queue, None)
            if lost is not None and lost.committed == offset:  # Nobody went on with it meanwhile.
                process_queue.next_offset = lost.commit_offset
            self._begin(process_queue)
        if refused is not None:
            raise refused
        if late:
            names = ", ".join(map(str, late))
            raise LockedError(f"{names}: the previous owner is not done with its message yet")

    async def _show_up(self, route: Route) -> None:
        """Make sure that each broker of a route knows this member."""
        connections = self._parts.connections
        for address in route.one_of_each():
            link = connections.open_link(address)
            if link is None:
                await connections.to(address)  # This greets it.
            elif not self._parts.membership.has_told(link, self._options.group):
                await self._parts.membership.greet(link, address)

    def _give_up(self, fetching: Fetching) -> None:
        self._delivery.drop(fetching.process_queue)
        self._short_of_bytes.discard(fetching)
        fetching.task.cancel()

    async def _keep_locks(self) -> None:
        assert self.locks is not None
        while True:
            await anyio.sleep(RENEW_SECONDS)
            self._lose_unlocked(self.locks)  # Even if the lock is free again: who had it meanwhile?
            await self.locks.renew()
            self._lose_unlocked(self.locks)

    def _lose_unlocked(self, locks: QueueLocks) -> None:
        for process_queue in self.process_queues:
            if not locks.holds(process_queue.queue):
                self.lose(process_queue)

    # Fetching.

    def _begin(self, process_queue: ProcessQueue) -> None:
        fetching = self._owned[process_queue.queue] = Fetching(process_queue)
        process_queue.committed_ms = elapsed_ms()

        async def fetch() -> None:
            while not process_queue.is_dropped:
                await self._wait_for_room(fetching)
                try:
                    await self._fetch(process_queue)
                except BusyError:
                    await anyio.sleep(BUSY_SECONDS)
                except ClientError as error:
                    self._complain(str(process_queue.queue), error)
                    await anyio.sleep(RETRY_SECONDS)

        fetching.task = self._parts.runtime.spawn(fetch, f"fetch {process_queue.queue}")

    async def _wait_for_room(self, fetching: Fetching) -> None:
        while True:
            await self._going.wait()
            if self._has_room(fetching.process_queue):
                return
            fetching.room = fetching.room or anyio.Event()
            if fetching.process_queue.has_room(self._options.prefetch):
                self._short_of_bytes.add(fetching)
            await fetching.room.wait()

    def _has_room(self, process_queue: ProcessQueue) -> bool:
        # A queue with no messages here may always fetch, so that others do not starve it.
        return process_queue.has_room(self._options.prefetch) and (
            not process_queue or self._delivery.size < self._options.prefetch_bytes
        )

    async def _fetch(self, process_queue: ProcessQueue) -> None:
        queue = process_queue.queue
        asked = process_queue.next_offset
        found = await self._parts.reading.pull(
            queue,
            asked,
            group=self._options.group,
            count=FETCH_COUNT,
            filter=None,
            check=self._filters[queue.topic],
            wait=HOLD_SECONDS,
            make=lambda stored, queue: self._make(stored, queue, process_queue),
            version=self._version,
        )
        if process_queue.is_dropped:
            return
        if self._complaints:
            self._complaints.pop(str(queue), None)
        if found.moved:
            tell_moved(queue, asked, found)
            # Messages here come again, or an operator wants them skipped; none of them has expired.
            if process_queue and (found.next_offset < asked or found.first_offset <= asked):
                self._reset_soon(queue, found.next_offset)
                return
        process_queue.next_offset = found.next_offset
        process_queue.fetched_ms = now_ms()
        self._delivery.add(found.messages)

    # Committing.

    async def _keep_committing(self) -> None:
        while True:
            await anyio.sleep(COMMIT_SECONDS)
            await self._commit(self._owned.values())

    async def _commit(self, all_fetching: Iterable[Fetching]) -> None:
        """Commit all these queues concurrently, so that a slow broker is waited for once."""
        async with anyio.create_task_group() as tasks:
            for fetching in all_fetching:
                tasks.start_soon(self._offsets.commit, fetching.process_queue)
        await self._offsets.save()

    def _complain(self, subject: str, error: ClientError) -> None:
        """Log a problem of a topic or a queue, once as long as it stays the same."""
        if self._complaints.get(subject) != str(error):
            self._complaints[subject] = str(error)
            group = self._options.group
            _log.warning("group %s: %s: %s; trying again", group, subject, error)
