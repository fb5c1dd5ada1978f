"""Transactional messages: sent at once, but delivered only when the transaction is committed.

How it works. The broker holds the message back until the client commits or rolls back. If it hears
neither, because the client or the network failed, it asks some client of the same `producer_group`
after some seconds, and repeatedly after that; `Client.on_transaction_check` answers.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Literal, Self

import anyio

from cometmq.client._connections import WORTH_AN_ATTEMPT_MS, elapsed_ms
from cometmq.client._core.names import check_topic_to_send
from cometmq.client._core.outgoing import AT_ONCE, NewMessage, check_body
from cometmq.client._core.queues import Queue
from cometmq.client._read_verbs import ReadVerbs
from cometmq.client._receipts import receipt_of
from cometmq.client.errors import ClosedError, UnreachableError, UsageError, refusal
from cometmq.proto import property_names as names
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands import CheckTransactionState, EndTransaction
from cometmq.proto.commands.transaction import TransactionEnd
from cometmq.proto.message import read_message
from cometmq.proto.message_id import decode_offset_id
from cometmq.proto.sysflag import SysFlag

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from types import TracebackType

    from cometmq.client._parts import Parts
    from cometmq.client.messages import Receipt, ReceivedMessage
    from cometmq.net import Peer
    from cometmq.proto.buffer import Buffer

_log = logging.getLogger("cometmq.client")

Decision = Literal["commit", "rollback", "unknown"]

_PREPARED: Final = int(SysFlag.TRANSACTION_PREPARED)
_ENDS: Final = {"commit": TransactionEnd.COMMIT, "rollback": TransactionEnd.ROLLBACK}
_RETRY_SECONDS: Final = 0.1


class Transaction:
    """One message that is delivered or not, depending on how a block ends.

    ::

        async with mq.transaction("orders", b"o-17 paid", key="o-17") as transaction:
            await database.execute("update orders ...")

    If the block ends normally, the message is delivered; if it ends with an exception, it never is.
    `commit` and `rollback` decide earlier. If the decision does not reach the broker, the broker
    asks: see `Client.on_transaction_check`.
    """

    def __init__(
        self,
        parts: Callable[[], Parts],
        topic: str,
        message: NewMessage,
        timeout: float,
    ) -> None:
        self._parts = parts
        self._topic = topic
        self._message = message
        self._timeout = timeout
        self._receipt: Receipt | None = None
        self._is_decided = False
        self._tried: Decision | None = None  # May have reached the broker, even without an answer.

    @property
    def id(self) -> str:
        """The message's id, available from the start of the block.

        ::

            await database.execute("insert into sent values (?)", transaction.id)
        """
        return self._sent().id

    async def __aenter__(self) -> Self:
        if self._receipt is not None:
            raise UsageError("a transaction can be begun only once: make another one")
        parts = self._parts()
        body = check_body(self._message.body, parts.config.body_size_max)
        more = {names.TRAN_MSG: "true", names.PGROUP: parts.identity.producer_group}
        parcel = parts.packing.pack(self._topic, self._message, body, AT_ONCE, None, more)
        parcel.sys_flag |= _PREPARED
        self._receipt = receipt_of(
            parcel.id,
            *await parts.producer.send(
                self._topic, parcel, queue=None, sharding_key=None, timeout=self._timeout
            ),
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._is_decided:
            return
        if error is None:
            await self._decide(self._tried or "commit")
            return
        with anyio.move_on_after(self._timeout, shield=True):
            try:
                await self.rollback()
            except Exception as failure:  # The caller must see the error of the block.
                _log.warning("rollback of %s failed: %s; the broker will ask", self.id, failure)

    async def commit(self) -> None:
        """Have the message delivered.

        ::

            await transaction.commit()
        """
        await self._decide("commit")

    async def rollback(self) -> None:
        """Have the message never delivered.

        ::

            await transaction.rollback()
        """
        await self._decide("rollback")

    async def _decide(self, decision: Decision) -> None:
        receipt = self._sent()
        if self._is_decided:
            raise UsageError("the transaction is already committed or rolled back")
        if self._tried not in (None, decision):  # The caller has acted on the first decision.
            raise UsageError(
                f"the {self._tried} got no answer, but may be done: {self._tried} again, or leave"
                " it to `Client.on_transaction_check`"
            )
        self._tried = decision
        header = EndTransaction(
            self._parts().identity.producer_group,
            receipt.offset,
            decode_offset_id(receipt.offset_id).physical_offset,
            int(_ENDS[decision]),
            receipt.id,
            transaction_id=receipt.id,
            topic=self._topic,
        )
        await _end(self._parts(), receipt.queue, header, self._timeout)
        self._is_decided = True

    def _sent(self) -> Receipt:
        if self._receipt is None:
            raise ClosedError("the transaction has not begun: use `async with`")
        return self._receipt


async def _end(parts: Parts, queue: Queue, header: EndTransaction, timeout: float) -> None:
    """Send the decision to the broker that has the message; retry if it cannot be reached."""
    deadline_ms = elapsed_ms() + timeout * 1000
    extras = {"bname": queue.broker}
    request = Command.request(RequestCode.END_TRANSACTION, header, extras=extras)
    while True:
        try:
            route = await parts.routes.get_to_send(queue.topic, timeout=_seconds_to(deadline_ms))
            address = route.master_of(queue.broker)
            if address is None:
                raise UnreachableError(f"broker {queue.broker!r} has no master at the moment")
            response = await parts.connections.call(
                address, request, timeout=_seconds_to(deadline_ms)
            )
        except UnreachableError:
            parts.routes.doubt(queue.topic)
            if _seconds_to(deadline_ms) <= _RETRY_SECONDS + WORTH_AN_ATTEMPT_MS / 1000:
                raise
            await anyio.sleep(_RETRY_SECONDS)
            continue
        if response.code != ResponseCode.SUCCESS:
            raise refusal(response.code, response.remark, address)
        return


def _seconds_to(deadline_ms: float) -> float:
    return max(deadline_ms - elapsed_ms(), 1) / 1000


class TransactionVerbs(ReadVerbs):
    """`transaction` and `on_transaction_check` of a `Client`."""

    def transaction(
        self,
        topic: str,
        body: Buffer,
        *,
        key: str | None = None,
        keys: Sequence[str] = (),
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Transaction:
        """Send a message that is delivered only if a block ends without an exception.

        ::

            async with mq.transaction("orders", b"o-17 paid", key="o-17"):
                await database.execute("update orders ...")

        A transactional message cannot be delayed, batched or sent to a chosen queue.
        """
        self._check_here()
        topic = self._named(check_topic_to_send(topic))
        message = NewMessage(body=body, key=key, keys=keys, tag=tag, properties=properties)
        check_body(body, self.config.body_size_max)
        return Transaction(self._open_parts, topic, message, self._seconds(timeout))

    def on_transaction_check(self, check: Callable[[ReceivedMessage], Awaitable[Decision]]) -> None:
        """Set the function that decides transactions whose decision did not reach the broker.

        ::

            async def check(message: ReceivedMessage) -> Literal["commit", "rollback", "unknown"]:
                return "commit" if await is_paid(message.key) else "rollback"

            mq.on_transaction_check(check)

        It is called for messages of all clients of the same `producer_group`, including undecided
        ones of this client, and of processes that have ended. From now on, the client stays
        connected to all brokers. With "unknown", the broker asks again later.
        """
        self._check_here()
        if self._transaction_check is None:
            self._parts.runtime.spawn(self._meet_brokers, "brokers that ask")
        self._transaction_check = check

    def _asked_about_transaction(self, request: Command, peer: Peer) -> None:
        """Answer the broker's question, in the background."""
        header = request.read(CheckTransactionState)
        check = self._transaction_check
        if check is None:
            _log.warning("a transaction is undecided, but no on_transaction_check is set")
            return
        stored = read_message(bytes(request.body or b""))
        queue = Queue(stored.topic, "", stored.queue_id)
        message = self._make_received(stored, queue)

        async def answer() -> None:
            try:
                decision = await check(message)
            except Exception:
                _log.exception("on_transaction_check failed on %r; it will be asked again", message)
                return
            if decision == "unknown":
                return
            if decision not in _ENDS:
                _log.error(
                    "on_transaction_check returned %r on %r: it must return 'commit', 'rollback'"
                    " or 'unknown'; it will be asked again",
                    decision,
                    message,
                )
                return
            peer.tell(
                Command.request(
                    RequestCode.END_TRANSACTION,
                    EndTransaction(
                        self._parts.identity.producer_group,
                        header.tran_state_table_offset,
                        header.commit_log_offset,
                        int(_ENDS[decision]),
                        header.msg_id or message.id,
                        from_transaction_check=True,
                        transaction_id=header.transaction_id,
                        topic=stored.topic,
                    ),
                )
            )

        self._parts.runtime.spawn(answer, "transaction check")
