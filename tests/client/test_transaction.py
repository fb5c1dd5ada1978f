"""Transactions without a real server. Their effect is tested against Apache's broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import anyio
import pytest
from tests.client.running import on_every_loop, on_loop
from tests.client.test_faults import Scripted, silent_server
from tests.client.test_outages import OFFSET_ID

from cometmq.client import (
    Client,
    ClosedError,
    DeadlineError,
    NetworkError,
    UnreachableError,
    UsageError,
)
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.commands import EndTransaction, SendMessageResponse, SendMessageV2
from cometmq.proto.commands.transaction import TransactionEnd
from cometmq.proto.sysflag import SysFlag

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


@on_every_loop
def test_a_message_is_sent_as_undecided_and_decided_once(loop: str) -> None:
    flags: list[int] = []

    def answer(request: Command) -> Command:
        if request.code == RequestCode.END_TRANSACTION:
            return request.answer(ResponseCode.SUCCESS)
        flags.append(request.read(SendMessageV2).sys_flag)
        fields = SendMessageResponse(OFFSET_ID, 0, queue_offset=0)
        return request.answer(ResponseCode.SUCCESS, fields)

    scripted = Scripted(answer)

    async def scenario() -> None:
        async with (
            Client(scripted.address) as mq,
            mq.transaction("orders", b"paid") as transaction,
        ):
            await transaction.commit()
            for again in (transaction.commit, transaction.rollback):
                with pytest.raises(UsageError, match="already committed or rolled back"):
                    await again()
        assert flags == [SysFlag.TRANSACTION_PREPARED]
        assert scripted.asked.count(RequestCode.END_TRANSACTION) == 1

    with scripted.serve():
        on_loop(loop, scenario)


@on_every_loop
def test_a_commit_finds_the_broker_at_its_new_address(loop: str) -> None:
    def answer(request: Command) -> Command:
        fields = SendMessageResponse(OFFSET_ID, 0, queue_offset=0)
        ended = request.code == RequestCode.END_TRANSACTION
        return request.answer(ResponseCode.SUCCESS, None if ended else fields)

    names, before = Scripted(answer), Scripted(answer)

    async def scenario() -> None:
        async with Client(names.address) as mq:
            with before.serve():
                own_address, names.address = names.address, before.address
                transaction = await mq.transaction("orders", b"paid").__aenter__()
            for address, link in mq._open_parts().connections:  # pyright: ignore[reportPrivateUsage]  # The broker dies.
                if address == before.address:
                    link.drop("killed")
            names.address = own_address
            await transaction.commit()
        assert names.asked.count(RequestCode.END_TRANSACTION) == 1

    with names.serve():
        on_loop(loop, scenario)


@on_every_loop
def test_a_commit_that_reaches_nobody_says_why_and_not_that_time_ran_out_later(loop: str) -> None:
    def answer(request: Command) -> Command:
        fields = SendMessageResponse(OFFSET_ID, 0, queue_offset=0)
        return request.answer(ResponseCode.SUCCESS, fields)

    names = Scripted(answer)

    async def scenario() -> None:
        async with Client(names.address) as mq:
            transaction = await mq.transaction("orders", b"paid").__aenter__()
            transaction._timeout = 0.5  # pyright: ignore[reportPrivateUsage]  # Of the commit only.
            names.address = silent
            await anyio.sleep(0.25)  # Then the route may be fetched again.
            mq._open_parts().routes.doubt("orders")  # pyright: ignore[reportPrivateUsage]  # As after a failure.
            with pytest.raises(UnreachableError, match=r"no connection within 0\.[1-5]"):
                await transaction.commit()

    with silent_server() as silent, names.serve():
        on_loop(loop, scenario)
