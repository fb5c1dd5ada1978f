"""`cometmq dlq`, `transaction`, `message trace` and `settings` against our broker or Apache's.

`tests/admin` tests what these commands do; this, that Apache's broker understands them too.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.admin.test_client_commands import Terminal
from tests.client.running import on_loop
from tests.client.test_admin_dead_letters import give_up
from tests.client.test_admin_transactions import begun

from cometmq.client import Client, ClientConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.interop.target import Target

pytestmark = pytest.mark.slow

PATIENCE_SECONDS = 60


def until(what: Callable[[], Any], wanted: Callable[[Any], bool]) -> Any:
    """Ask until the answer is as it should be, and return it."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not wanted(found := what()):
        assert time.monotonic() < deadline, found
    return found


def test_dead_letters_are_listed_shown_redriven_and_purged(target: Target) -> None:
    terminal = Terminal(target)

    async def prepare() -> None:
        async with Client(target.nameserver, ClientConfig(timeout=15)) as mq:
            await mq.admin.create_topic("orders", queues=4)
            await give_up(mq, 3)

    on_loop("asyncio", prepare)
    (listed,) = until(lambda: terminal.json("dlq", "list"), lambda found: bool(found))
    assert (listed["group"], listed["messages"]) == ("billing", 3)
    shown = until(lambda: terminal.json("dlq", "show", "billing"), lambda found: len(found) == 3)
    assert {each["topic"] for each in shown} == {"orders"}
    (paid,) = terminal.json("dlq", "show", "billing", "--filter", "paid")
    assert terminal.lines("dlq", "redrive", "billing", "--dry-run") == ["3 would be sent"]
    one = terminal.json("dlq", "redrive", "billing", "--id", paid["id"])
    assert (one["sent"], one["complete"], one["failed"]) == (1, True, [])
    dry = ["dlq", "redrive", "billing", "--dry-run"]
    until(lambda: terminal.json(*dry), lambda found: found["earlier"] == 1)
    assert terminal.lines("dlq", "redrive", "billing") == ["2 sent, 1 were sent before"]
    assert terminal.run("consume", "orders", "-g", "billing", "-c", "3").exit_code == 0
    assert terminal.lines("dlq", "purge", "billing", "-y") == [
        "3 dead letters of billing thrown away"
    ]
    assert terminal.lines("dlq", "purge", "billing") == ["billing has no dead letters"]


def test_undecided_transactions_are_listed_shown_and_resolved(target: Target) -> None:
    terminal = Terminal(target)

    async def prepare() -> list[str]:
        config = ClientConfig(producer_group="shop", timeout=15)
        async with Client(target.nameserver, config) as mq:
            await mq.admin.create_topic("orders", queues=4)
            return [(await begun(mq, body)).id for body in (b"paid", b"failed")]

    paid, failed = on_loop("asyncio", prepare)

    def pending() -> set[str]:
        found = terminal.json("transaction", "list", "--group", "shop")
        return {each["id"] for each in found}

    until(pending, lambda found: found == {paid, failed})
    assert terminal.json("transaction", "show", paid)["body"] == "paid"
    assert terminal.lines("transaction", "resolve", paid, "commit", "--yes") == [
        f"{paid} is committed"
    ]
    terminal.run("transaction", "resolve", failed, "rollback", "--yes")
    until(pending, lambda found: not found)

    def tailed() -> list[str]:
        lines = terminal.lines("tail", "orders", "--no-follow")
        return [body for line in lines if (body := line.split("  ")[-1]) in ("paid", "failed")]

    until(tailed, lambda found: found == ["paid"])


def test_a_message_of_python_clients_is_traced(target: Target) -> None:
    terminal = Terminal(target)

    async def prepare() -> str:
        config = ClientConfig(trace=True, producer_group="shop", timeout=15)
        async with Client(target.nameserver, config) as mq:
            await mq.admin.create_topic("traced", queues=1)
            receipt = await mq.send("traced", b"body")
            async with mq.consume("traced", group="tracing", start="first") as consumer:
                (await anext(consumer)).ack()
            return receipt.id

    identifier = on_loop("asyncio", prepare)
    found = until(
        lambda: terminal.json("message", "trace", identifier), lambda found: len(found) == 2
    )
    assert [(each["kind"], each["group"], each["result"]) for each in found] == [
        ("sent", "shop", "ok"),
        ("consumed", "tracing", "ok"),
    ]


def test_settings_are_shown_and_changed(target: Target) -> None:
    terminal = Terminal(target)
    (before,) = terminal.json("settings", "show", "fileReservedTime")
    (done,) = terminal.json("settings", "set", "fileReservedTime=24")
    assert (done["before"], done["after"]) == (before["value"], "24")
    (after,) = terminal.json("settings", "show", "fileReservedTime")
    assert after["value"] == "24"
    wrong = terminal.run("settings", "set", "fileReservedTme=24", status=1).stderr
    assert "fileReservedTme: it has no such setting; did you mean fileReservedTime?" in wrong
    # Apache's broker claims to have done this.
    assert "'soon'" in terminal.run("settings", "set", "fileReservedTime=soon", status=1).stderr
    fixed = terminal.run("settings", "set", "configBlackList=a", status=1).stderr
    assert "Write it into the broker's file" in fixed
    terminal.run("settings", "set", f"fileReservedTime={before['value']}")
