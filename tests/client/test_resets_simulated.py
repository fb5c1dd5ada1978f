"""Resets of a group by an operator, while members, brokers and the network do what they may do.

After a reset the group goes on from there: nothing else is committed over it, nothing after it is
skipped, whoever has which message in hand, and whichever answer is lost.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from tests.client.simulated_broker import Broker
from tests.client.simulated_cluster import TOPIC
from tests.client.simulated_network import runtime_of
from tests.client.simulated_run import run, seeds_of
from tests.client.test_consuming_simulated import GROUP, Watching, World

from cometmq.client import Queue
from cometmq.proto.codes import RequestCode, ResponseCode as Code
from cometmq.proto.commands import (
    PullMessage,
    PullMessageResponse,
    QueryConsumerOffset,
    UpdateConsumerOffset,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cometmq.proto.command import Command

    Respond = Callable[[Command], None]


class ResettingBroker(Broker):
    """A broker whose groups can be reset.

    It tells pulls of the reset until one comes from there; until then, commits do not count.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.pending: dict[Queue, bool] = {}
        """Whether a pull was told of each reset."""

    def reset(self, offsets: Mapping[Queue, int]) -> None:
        """Have the group go on elsewhere."""
        for queue, offset in offsets.items():
            self.offsets[GROUP, queue] = self._saved[GROUP, queue] = offset
            self.pending[queue] = False
            for look in self._held.pop(queue, []):
                look(True)

    def crash(self) -> None:
        """Forget who was told."""
        super().crash()
        for queue in self.pending:
            self._resets.forgotten(queue)
        self.pending.clear()

    @property
    def _resets(self) -> Resets:
        assert isinstance(self.cluster.listener, Resets)
        return self.cluster.listener

    def _update(self, request: Command) -> Command:
        header = request.read(UpdateConsumerOffset)
        queue = Queue(header.topic, self.name, header.queue_id)
        if queue in self.pending:
            self.network.count("ignored")
            return request.answer(0)
        self._resets.updated(queue, self._from.owner.name)
        return super()._update(request)

    def _query(self, request: Command) -> Command:
        header = request.read(QueryConsumerOffset)
        self._resets.knows(Queue(header.topic, self.name, header.queue_id), self._from.owner.name)
        return super()._query(request)

    def _pull(self, request: Command, respond: Respond) -> None:
        header = request.read(PullMessage)
        queue = Queue(header.topic, self.name, header.queue_id)
        if queue in self.pending:
            offset, log = self.offsets[GROUP, queue], self.logs[queue]
            if not (self.pending[queue] and offset == header.queue_offset):
                self.network.count("told again" if self.pending[queue] else "told")
                self.pending[queue] = True
                fields = PullMessageResponse(0, offset, log.lowest, log.end)
                respond(request.answer(Code.PULL_OFFSET_MOVED, fields, remark="OFFSET_RESET"))
                return
            del self.pending[queue]
            self._resets.knows(queue, self._from.owner.name)
        super()._pull(request, respond)


class Resets(Watching):
    """Checks what members commit after a reset."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.least: dict[Queue, int] = {}
        """Below this a commit is from before the reset."""

        self._unaware: dict[Queue, set[str]] = {}
        """The members that had a queue when it was reset, and that were not told so far."""

    def unhandled(self, queue: Queue, until: int) -> list[int]:
        """Until a member is told of a reset, it goes on."""
        broker = self._world.cluster.brokers[queue.broker]
        assert isinstance(broker, ResettingBroker)
        return [] if queue in broker.pending else super().unhandled(queue, until)

    def reset(self, queue: Queue, offset: int) -> None:
        """The group has to go on from there: whatever was done of that is to be done again."""
        self.least[queue] = self._clean[queue] = offset
        self._unaware[queue] = {
            each.machine.name
            for each in self._world.members
            if each.consumer is not None and queue in each.consumer.queues
        }
        done = self.done.setdefault(queue, set())
        done -= {each for each in done if each >= offset and not self._is_filtered(queue, each)}

    def has_begun(self, queue: Queue) -> bool:
        """Whether the group reads a queue."""
        return queue in self._clean

    def knows(self, queue: Queue, member: str) -> None:
        """A member has been told, or begins with the queue."""
        self._unaware.get(queue, set()).discard(member)

    def updated(self, queue: Queue, member: str) -> None:
        """A member that was cut off while another one had the queue may commit what it knows."""
        if member in self._unaware.get(queue, ()):
            self._world.network.count("unaware")
            self.forgotten(queue)

    def forgotten(self, queue: Queue) -> None:
        """The broker no longer knows that members have to be told."""
        self.least.pop(queue, None)
        self._clean[queue] = self._world.cluster.log(queue).end

    def committed(self, group: str, queue: Queue, offset: int) -> None:
        """Nothing is committed over a reset."""
        least = self.least.get(queue, 0)
        self.check(offset >= least, f"{queue}: {offset} is committed, over a reset to {least}")
        super().committed(group, queue, offset)

    def _is_filtered(self, queue: Queue, offset: int) -> bool:
        return self._world.is_filtered and (
            self._world.cluster.log(queue).messages[offset].tag != "paid"
        )


class ResetWorld(World):
    """One history with resets."""

    broker_kind = ResettingBroker

    def __init__(self, seed: int, *, is_ordered: bool) -> None:
        super().__init__(seed, is_ordered=is_ordered)
        self.resets = self.watching = Resets(self)
        self.is_apache = False
        self.network.in_order.add(RequestCode.UPDATE_CONSUMER_OFFSET)  # It could undo a reset.
        self.network.trouble = (0.0, 0.01, 0.05, 0.1)[seed % 4]

    def disasters(self) -> tuple[Any, ...]:
        """Add resets, as many as of all others that members do."""
        return (*super().disasters(), *[self._reset] * 5)

    async def _reset(self) -> None:
        for broker in self.cluster.brokers.values():
            assert isinstance(broker, ResettingBroker)
            if not broker.is_up:
                continue
            place = self.choose(("first", "last", "between"))
            offsets: dict[Queue, int] = {}
            for queue, log in broker.logs.items():
                if queue.topic == TOPIC and self.resets.has_begun(queue):
                    ends = {"first": log.lowest, "last": log.end}
                    offsets[queue] = ends.get(place, self.random.randint(log.lowest, log.end))
            for queue, offset in offsets.items():
                self.resets.reset(queue, offset)
            broker.reset(offsets)


def play(seed: int, loop: str, *, ordered: bool) -> Counter[str]:
    """Play one history, check that nothing went wrong in it, and return what happened."""
    world = ResetWorld(seed, is_ordered=ordered)
    run(loop, seed, world.play, lambda: runtime_of(world.network, world.opening))
    assert not world.watching.problems, world.watching.problems[0]
    return world.network.counts


@pytest.mark.parametrize(("loop", "seeds"), [("asyncio", 8), ("trio", 2)])
@pytest.mark.parametrize("ordered", [False, True])
def test_the_group_goes_on_from_where_it_is_reset_to(ordered: bool, loop: str, seeds: int) -> None:
    counts = sum((play(seed, loop, ordered=ordered) for seed in seeds_of(seeds)), Counter[str]())
    if seeds > 2:
        assert counts.keys() >= {"told", "ignored", "_reset", "crash"}, counts
