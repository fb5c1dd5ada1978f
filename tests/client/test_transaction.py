"""Transactions without a real server. Their effect is tested against Apache's broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.client.running import on_every_loop, on_loop
from tests.client.test_faults import Scripted
from tests.client.test_outages import OFFSET_ID

from cometmq.client import Client, ClosedError, DeadlineError, NetworkError, UsageError
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.commands import EndTransaction, SendMessageResponse
from cometmq.proto.commands.transaction import TransactionEnd

if TYPE_CHECKING:
    from cometmq.proto.command import Command


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_what_cannot_be_a_transaction_is_refused_before_anything_is_sent(loop: str) -> None:
    async def scenario() -> None:
        async with Client("127.0.0.1:1") as mq:
            with pytest.raises(UsageError, match="encode it first"):
                mq.transaction("orders", cast("Any", "text"))
            with pytest.raises(UsageError, match="letters, digits"):
                mq.transaction("a b", b"x")
            not_begun = mq.transaction("orders", b"x")
            for decide in (not_begun.commit, not_begun.rollback):
                with pytest.raises(ClosedError, match="not begun"):
                    await decide()
            with pytest.raises(NetworkError):
                await mq.transaction("orders", b"x", timeout=0.1).__aenter__()

    on_loop(loop, scenario)


@on_every_loop
def test_a_commit_without_an_answer_is_not_undone_by_its_exception(loop: str) -> None:
    """The work that goes with the message is done by then: the broker's question must end it."""
    ends: list[int] = []

    def answer(request: Command) -> Command | bytes:
        if request.code != RequestCode.END_TRANSACTION:
            fields = SendMessageResponse(OFFSET_ID, 0, queue_offset=0)
            return request.answer(ResponseCode.SUCCESS, fields)
        ends.append(request.read(EndTransaction).commit_or_rollback)
        return b"" if len(ends) == 1 else request.answer(ResponseCode.SUCCESS)

    scripted = Scripted(answer)

    async def scenario() -> None:
        async with Client(scripted.address) as mq:
            transaction = mq.transaction("orders", b"paid", timeout=0.3)
            with pytest.raises(DeadlineError):
                async with transaction:
                    await transaction.commit()
            assert ends == [TransactionEnd.COMMIT]
            with pytest.raises(UsageError, match="commit got no answer"):
                await transaction.rollback()
            await transaction.commit()
            assert ends == [TransactionEnd.COMMIT] * 2

    with scripted.serve():
        on_loop(loop, scenario)


@on_every_loop
def test_a_block_that_raises_rolls_back_at_once_and_its_exception_goes_on(loop: str) -> None:
    """The rollback does not wait for the broker's question, a minute later."""
    ends: list[int] = []

    def answer(request: Command) -> Command | bytes:
        if request.code != RequestCode.END_TRANSACTION:
            fields = SendMessageResponse(OFFSET_ID, 0, queue_offset=0)
            return request.answer(ResponseCode.SUCCESS, fields)
        ends.append(request.read(EndTransaction).commit_or_rollback)
        return b"" if len(ends) == 2 else request.answer(ResponseCode.SUCCESS)

    scripted = Scripted(answer)

    async def scenario() -> None:
        async with Client(scripted.address) as mq:
            for count in (1, 2):  # The second rollback gets no answer.
                with pytest.raises(KeyError, match="no such order"):
                    async with mq.transaction("orders", b"paid", timeout=0.3):
                        raise KeyError("no such order")
                assert ends == [TransactionEnd.ROLLBACK] * count

    with scripted.serve():
        on_loop(loop, scenario)
