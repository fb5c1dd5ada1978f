"""Transactions, as far as no server is needed: what they do is tested against Apache's broker."""

from __future__ import annotations

from typing import Any, cast

import pytest
from tests.client.running import on_loop

from cometmq.client import Client, ClosedError, NetworkError, UsageError


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
