"""`cometmq dlq`, `transaction` and `message trace` against a broker on real sockets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.admin.test_client_commands import Terminal
from tests.client.running import Servers, on_loop, play
from tests.client.test_admin_dead_letters import give_up
from tests.client.test_admin_transactions import SHOP, begun

from cometmq.client import Client, ClientConfig

if TYPE_CHECKING:
    from pathlib import Path


def test_dead_letters_are_listed_shown_sent_again_and_purged(tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        terminal = Terminal(servers)

        async def prepare() -> None:
            async with Client(servers.nameserver) as mq:
                await give_up(mq, 3)

        on_loop("asyncio", prepare)
        (listed,) = terminal.json("dlq", "list")
        assert (listed["group"], listed["messages"]) == ("billing", 3)
        assert terminal.lines("dlq", "list")[1].split()[:3] == ["billing", "broker-a", "3"]
        lines = terminal.lines("dlq", "show", "billing", "--filter", "paid")
        assert len(lines) == 1
        assert lines[0].endswith("1x  [paid]  o-1  o-1")
        shown = terminal.json("dlq", "show", "billing", "--since", "2020-01-01", "-c", "2")
        assert [each["topic"] for each in shown] == ["orders", "orders"]
        assert terminal.json("dlq", "show", "billing", "--until", "2020-01-01") == []
        dry = ["dlq", "redrive", "billing", "--dry-run"]
        assert terminal.lines(*dry) == ["3 would be sent"]
        one = terminal.json("dlq", "redrive", "billing", "--id", shown[0]["id"], "--rate", "1000")
        assert (one["sent"], one["complete"], one["failed"]) == (1, True, [])
        while terminal.json(*dry)["earlier"] == 0:
            pass  # The index comes a moment later.
        again = terminal.lines("dlq", "redrive", "billing", "--topic", "orders")
        assert again == ["2 sent, 1 were sent before"]
        assert terminal.run("consume", "orders", "-g", "billing", "-c", "3").exit_code == 0
        terminal.run("dlq", "purge", "billing", given="n\n", status=1)
        assert terminal.lines("dlq", "purge", "billing", "-y") == [
            "3 dead letters of billing thrown away"
        ]
        assert terminal.lines("dlq", "purge", "billing") == ["billing has no dead letters"]
        assert terminal.json("dlq", "purge", "billing") == {"group": "billing", "thrown_away": 0}
        misspelt = terminal.run("dlq", "purge", "bilinng", "-y", status=1)
        assert "no broker knows the group 'bilinng'" in misspelt.stderr
        assert terminal.json("dlq", "list") == []

    play(tmp_path, scenario)


def test_a_redrive_that_a_broker_refuses_says_why(tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        terminal = Terminal(servers)

        async def prepare() -> None:
            async with Client(servers.nameserver) as mq:
                await give_up(mq, 1)
                await mq.admin.delete_topic("orders")

        on_loop("asyncio", prepare)
        failed = terminal.run("dlq", "redrive", "billing", "--to", "topic", status=1)
        assert failed.stdout == "0 sent, 1 refused\n"
        assert "orders" in failed.stderr

    play(tmp_path, scenario)


def test_undecided_transactions_are_listed_shown_and_resolved(tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        terminal = Terminal(servers)

        async def prepare() -> list[str]:
            async with Client(servers.nameserver, SHOP) as mq:
                return [(await begun(mq, body)).id for body in (b"paid", b"failed")]

        paid, failed = on_loop("asyncio", prepare)
        lines = terminal.lines("transaction", "list", "--group", "shop")
        assert lines[1].split()[:4] == [paid, "orders", "shop", "broker-a"]
        assert lines[-1] == "2 undecided transactions"
        assert terminal.json("transaction", "list", "--group", "inn") == []
        shown = terminal.run("transaction", "show", paid).stdout
        assert "producer group" in shown
        assert terminal.json("transaction", "show", paid)["body"] == "paid"
        asked = terminal.run("transaction", "resolve", paid, "commit", given="n\n", status=1)
        assert "body paid" in asked.stdout
        assert terminal.lines("transaction", "resolve", paid, "commit", "--yes") == [
            f"{paid} is committed"
        ]
        resolved = terminal.run("transaction", "resolve", failed, "rollback", given="y\n")
        assert resolved.stdout.endswith(f"{failed} is rolled back\n")
        gone = terminal.run("transaction", "show", paid, status=1)
        assert "is over or never existed" in gone.stderr
        bodies = terminal.lines("tail", "orders", "--no-follow")
        assert [line.split("  ")[-1] for line in bodies] == ["paid"]

    play(tmp_path, scenario)


def test_a_message_is_traced(tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        terminal = Terminal(servers)

        async def prepare() -> str:
            config = ClientConfig(trace=True, producer_group="shop")
            async with Client(servers.nameserver, config) as mq:
                return (await mq.send("orders", b"body")).id

        identifier = on_loop("asyncio", prepare)
        while not (found := terminal.json("message", "trace", identifier)):
            pass  # The index comes a moment later.
        assert (found[0]["kind"], found[0]["group"], found[0]["result"]) == ("sent", "shop", "ok")
        assert "shop" in terminal.lines("message", "trace", identifier)[1]
        nothing = terminal.run("message", "trace", "nobody", status=1)
        assert "do its clients trace?" in nothing.stderr

    play(tmp_path, scenario)
