"""`cometmq group`, `offset` and `message` against a broker on real sockets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.admin.test_client_commands import Terminal
from tests.client.running import Servers, play

if TYPE_CHECKING:
    from pathlib import Path


def test_a_group_is_made_shown_and_deleted(tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        terminal = Terminal(servers)
        made = terminal.json("group", "create", "billing", "--max-retries", "5")
        assert made == {"group": "billing", "brokers": ["broker-a"]}
        (shown,) = [each for each in terminal.json("group", "list") if each["group"] == "billing"]
        assert shown["max_retries"] == 5
        assert any(line.startswith("billing ") for line in terminal.lines("group", "list"))
        assert terminal.json("group", "members", "billing") == []
        terminal.run("group", "delete", "billing", given="n\n", status=1)
        assert terminal.lines("group", "delete", "billing", "--yes") == ["billing is deleted"]
        assert "billing" not in {each["group"] for each in terminal.json("group", "list")}
        assert "group 'bad name'" in terminal.run("group", "create", "bad name", status=2).stderr

    play(tmp_path, scenario)


def test_offsets_are_shown_set_and_reset(tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        terminal = Terminal(servers)
        queue = terminal.json("send", "orders", "o-17")["queue"]
        terminal.run("consume", "orders", "--group", "billing", "--start", "first", "-c", "1")

        def offset() -> int:
            shown = terminal.json("offset", "show", "billing", "orders")
            return next(int(each["offset"]) for each in shown if each["queue"] == queue)

        assert offset() == 1
        moved = terminal.json("offset", "reset", "billing", "orders", "--to", "first")
        assert {each["queue"]: each["offset"] for each in moved}[queue] == 0
        assert offset() == 0
        assert terminal.lines("group", "progress", "billing")[-1] == "1 message behind"
        terminal.run("offset", "set", "billing", "orders", "broker-a", str(queue), "1")
        assert offset() == 1
        terminal.run("offset", "reset", "billing", "orders", "--to", "2020-01-01T00:00:00+00:00")
        assert offset() == 0
        wrong = terminal.run("offset", "reset", "billing", "orders", "--to", "soon", status=2)
        assert "neither milliseconds" in wrong.stderr

    play(tmp_path, scenario)


def test_messages_are_found_and_shown(tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        terminal = Terminal(servers)
        sent = terminal.json("send", "orders", "o-17 paid", "--key", "o-17", "--tag", "paid")
        while terminal.json("message", "find", "orders", "o-17") == []:
            pass  # The index comes a moment later.
        (found,) = terminal.json("message", "find", "orders", "o-17")
        assert (found["id"], found["body"]) == (sent["id"], "o-17 paid")
        shown = terminal.run("message", "show", sent["id"], "--topic", "orders").stdout
        assert "o-17 paid" in shown
        offset_id = next(
            line.split()[-1] for line in shown.splitlines() if line.startswith("offset id ")
        )
        assert terminal.json("message", "show", offset_id)["tag"] == "paid"
        nothing = terminal.run("message", "find", "orders", "o-99", status=1)
        assert "orders has no message with the key o-99" in nothing.stderr
        terminal.run("message", "show", "nonsense", status=2)

    play(tmp_path, scenario)
