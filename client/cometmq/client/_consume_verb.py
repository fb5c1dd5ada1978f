"""The verb of a client that consumes as a member of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.client._consumption import Consumption
from cometmq.client._core.filters import ALL, Sql
from cometmq.client._core.names import check_group
from cometmq.client._core.options import ConsumeOptions, OnError, Start, read_topics
from cometmq.client._life import Life
from cometmq.client.consumer import Consumer, Message

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cometmq.client._core.process_queue import ProcessQueue
    from cometmq.client._core.queues import Queue
    from cometmq.client._core.rebalance import Strategy
    from cometmq.proto.message import StoredMessage

_MIB = 1 << 20


class ConsumeVerb(Life):
    """`consume` of a `Client`."""

    def consume(
        self,
        topics: str | Mapping[str, str | Sql],
        *,
        group: str,
        filter: str | Sql = ALL,
        start: Start = "last",
        broadcast: bool = False,
        ordered: bool = False,
        concurrency: int = 64,
        prefetch: int = 1000,
        prefetch_bytes: int = 100 * _MIB,
        max_retries: int = 16,
        strategy: Strategy = "AVG",
        on_error: OnError = "retry",
    ) -> Consumer:
        """Consume one or several topics as a member of a group.

        ::

            async for message in mq.consume("orders", group="billing", filter="paid || refunded"):
                async with message:
                    ...

        The members of a group, in whatever language, share the topics' queues; with `broadcast`,
        each member gets all messages. To consume several topics, pass a mapping of topics to
        filters: ``{"orders": "paid", "bills": Sql("amount > 100")}``. All members of a group must
        ask for the same topics and filters; otherwise brokers apply one member's filter to another.

        A group that has consumed before continues where it was. A new group begins at `start`:
        "last" (only messages from now on), "first" (the first message there is), or a `datetime`
        (the first message stored then or later). With "last", brokers still let a new group begin
        with the first message of a queue that has that message in memory.

        With `ordered`, the messages of a queue are delivered one at a time, each after the one
        before it is settled. A queue is locked for its member, and a message that fails is retried
        in its place, a second later. Send messages that must stay in order with a `sharding_key`.

        At most `concurrency` messages are in hand, that is, handed out and not settled; up to
        `prefetch` messages of each queue and `prefetch_bytes` in total are fetched ahead. A message
        that fails is delivered again up to `max_retries` times (0: not at all), and then goes to
        the dead letters. With ``on_error="raise"``, an exception in `async with message` also
        propagates to the caller. `strategy` is how members share queues, and must be the same for
        all of them. It is one of Apache's: "AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH", `ByConfig`,
        `ByMachineRoom` or `ByNearbyRoom`.
        """
        self._check_here()
        found = read_topics(topics, filter)
        options = ConsumeOptions(
            group=self._named(check_group(group)),
            filters={self._named(topic): each for topic, each in found.items()},
            start=start,
            is_broadcast=broadcast,
            is_ordered=ordered,
            concurrency=concurrency,
            prefetch=prefetch,
            prefetch_bytes=prefetch_bytes,
            max_retries=max_retries,
            strategy=strategy,
            on_error=on_error,
        )
        consumption = Consumption(self._parts, options, self._make_message, self._consumption_ended)
        self._consumption_begins(consumption)
        return Consumer(consumption)

    def _make_message(
        self,
        consumption: Consumption,
        stored: StoredMessage,
        queue: Queue,
        process_queue: ProcessQueue,
    ) -> Message:
        config = self.config
        return Message(
            consumption, stored, queue, process_queue, config.inflated_size_max, config.namespace
        )
