"""Undecided transactions: read from a broker's half queue, and decided by hand.

How it works. A broker stores its progress in two queues as offsets of a group: in the queue of half
messages, and in that of op messages, which name the half messages that have ended. A half message
after the first offset that no op message after the second names is undecided. Apache's brokers
write op messages some seconds late, so a transaction that has just ended there may still be shown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from cometmq.client._admin_asking import AdminAsking
from cometmq.client._core.queues import Queue
from cometmq.client.errors import NotFoundError, UsageError
from cometmq.proto import property_names as names
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.commands import EndTransaction, TransactionEnd

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from datetime import datetime

    from cometmq.client.messages import ReceivedMessage

Resolution = Literal["commit", "rollback"]

_HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
_OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
_GROUP: Final = "CID_RMQ_SYS_TRANS"
_ENDS: Final = {"commit": TransactionEnd.COMMIT, "rollback": TransactionEnd.ROLLBACK}
_ENDED: Final = "ENDS"
_MOVED: Final = "m"
_NUMBER: Final = re.compile(rb"\d{1,18}")


@dataclass(frozen=True, slots=True)
class PendingTransaction:
    """A half message that is neither committed nor rolled back.

    ::

        stuck = [each for each in await mq.admin.transactions.pending() if each.checks >= 3]

    `id` is the message's own; `topic` is where it goes when it is committed. `checks` is how often
    the producers of `producer_group` were asked about it without an answer.
    """

    id: str
    topic: str
    producer_group: str
    broker: str
    checks: int
    message: ReceivedMessage

    @property
    def sent_at(self) -> datetime:
        """When its producer sent it, by that machine's clock."""
        return self.message.sent_at


class TransactionAdmin(AdminAsking):
    """The calls about undecided transactions: `Admin.transactions`.

    ::

        for pending in await mq.admin.transactions.pending():
            print(pending.id, pending.topic, pending.sent_at, pending.checks)
    """

    async def pending(self, broker: str | None = None) -> list[PendingTransaction]:
        """Return the undecided transactions of all brokers, or of one, the oldest first.

        ::

            groups = {each.producer_group for each in await mq.admin.transactions.pending()}
        """
        found: list[PendingTransaction] = []
        for name in await self._masters(broker):
            found += await self._pending(name)
        return sorted(found, key=lambda each: each.sent_at)

    async def find(self, transaction_id: str) -> PendingTransaction:
        """Return the undecided transaction with an id; `NotFoundError` if there is none.

        ::

            pending = await mq.admin.transactions.find(transaction.id)
        """
        for each in await self.pending():
            if each.id == transaction_id:
                return each
        raise NotFoundError(
            ResponseCode.QUERY_NOT_FOUND,
            f"no broker has an undecided transaction {transaction_id}: it is over or never existed",
            "each broker",
        )

    async def resolve(self, pending: PendingTransaction, how: Resolution) -> None:
        """Commit a transaction or roll it back, in place of its producer.

        ::

            await mq.admin.transactions.resolve(pending, "rollback")

        The producer is not asked any more. If it later decides otherwise, CometMQ's brokers refuse
        that, and Apache's accept it.
        """
        if how not in _ENDS:
            raise UsageError(f"how={how!r}: must be 'commit' or 'rollback'")
        header = EndTransaction(
            pending.producer_group,
            pending.message.offset,
            pending.message.physical_offset,
            int(_ENDS[how]),
            pending.id,
            from_transaction_check=True,
            transaction_id=pending.id,
            topic=pending.topic,
        )
        for address in (await self._masters(pending.broker)).values():
            await self._ask(address, RequestCode.END_TRANSACTION, header)

    async def _pending(self, broker: str) -> list[PendingTransaction]:
        half_queue, op_queue = Queue(_HALF_TOPIC, broker, 0), Queue(_OP_TOPIC, broker, 0)
        # In this order, so that one that ends or is stepped over meanwhile does not look undecided.
        ops_from = await self._progress(op_queue)
        halves = self._behind(half_queue, await self._progress(half_queue))
        newest = {half.id: half async for half in halves}
        over: set[int] = set()
        async for op in self._behind(op_queue, ops_from):
            over |= _over(op)
        return [_described(half, broker) for half in newest.values() if half.offset not in over]

    async def _progress(self, queue: Queue) -> int:
        """Return where the broker would continue; before its first half it has neither queue."""
        parts = self._get_parts()
        timeout = parts.config.timeout
        try:
            reached = await parts.reading.committed(queue, _GROUP, timeout) or 0
            return max(reached, await parts.reading.first_offset(queue, timeout))
        except NotFoundError:
            return 0

    async def _behind(self, queue: Queue, offset: int) -> AsyncGenerator[ReceivedMessage, None]:
        """Yield the messages of a queue, starting at an offset."""
        parts = self._get_parts()
        try:
            end = await parts.reading.end_offset(queue, parts.config.timeout)
        except NotFoundError:
            return
        async for each in self._messages(queue, offset, end):
            yield each


def _over(op: ReceivedMessage) -> set[int]:
    """Return the offsets of half messages that an op message names as ended.

    CometMQ's have a letter for each that says how; one that was stored again has not ended.
    """
    offsets = [int(part) for part in op.body.split(b",") if _NUMBER.fullmatch(part)]
    letters = op.properties.get(_ENDED, "")
    if len(letters) != len(offsets):
        return set(offsets)
    return {offset for offset, letter in zip(offsets, letters, strict=True) if letter != _MOVED}


def _described(half: ReceivedMessage, broker: str) -> PendingTransaction:
    properties = half.properties
    checks = properties.get(names.TRANSACTION_CHECK_TIMES, "")
    return PendingTransaction(
        half.id,
        properties.get(names.REAL_TOPIC, ""),
        properties.get(names.PGROUP, ""),
        broker,
        int(checks) if checks.isdecimal() else 0,
        half,
    )
