"""`cometmq group`, `offset` and `message` against a broker on real sockets."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.admin.test_client_commands import Terminal
from tests.client.running import Servers, play

if TYPE_CHECKING:
    from pathlib import Path


def test_a_group_is_made_shown_and_deleted(tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        terminal = Terminal(servers)
        made = terminal.json("group", "create", "billing", "--max-retries", "5")
        assert made == {"group": "billing", "brokers": {"broker-a": "made"}}
        (shown,) = [each for each in terminal.json("group", "list") if each["group"] == "billing"]
        assert shown["max_retries"] == 5
        assert any(line.startswith("billing ") for line in terminal.lines("group", "list"))
        assert terminal.json("group", "members", "billing") == []
        terminal.run("group", "delete", "billing", given="n\n", status=1)
        assert terminal.lines("group", "delete", "billing", "--yes") == ["billing is deleted"]
        assert "billing" not in {each["group"] for each in terminal.json("group", "list")}
        terminal.run("group", "create", "billing")
        asked = terminal.run("group", "delete", "billing", "--json", given="y\n")
        # Before Click 8.4, its runner echoes the answer there.
        said = json.loads(asked.stdout.removeprefix(" y\n"))
        assert said == {"group": "billing", "members": 0}
        assert "Delete billing" in asked.stderr
        assert "group 'bad name'" in terminal.run("group", "create", "bad name", status=2).stderr

    play(tmp_path, scenario)


def test_the_systems_groups_are_listed_only_when_all_are_asked_for(tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        terminal = Terminal(servers)
        terminal.run("send", "orders", "x")
        terminal.run("group", "create", "billing")
        terminal.run("tail", "orders", "--no-follow")  # The broker makes a group for this.
        listed = terminal.json("group", "list")
        assert [each["group"] for each in listed] == ["billing"]
        everything = {each["group"] for each in terminal.json("group", "list", "--all")}
        assert everything >= {"billing", "TOOLS_CONSUMER", "CID_RMQ_SYS_TRANS", "cometmq-reader"}

    play(tmp_path, scenario)


def test_a_group_without_members_is_told_in_words(tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        terminal = Terminal(servers)
        terminal.run("group", "create", "billing")
        shown = terminal.run("group", "members", "billing")
        assert (shown.stdout, shown.stderr) == ("", "billing has no member at the moment\n")

    play(tmp_path, scenario)


def test_offsets_are_shown_set_and_reset(tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        terminal = Terminal(servers)
        queue = terminal.json("send", "orders", "o-17")["queue"]
        terminal.run("group", "create", "billing")
        for words in (("group", "progress", "billing"), ("offset", "show", "billing")):
            assert "billing has no offsets there" in terminal.run(*words).stdout
            assert terminal.json(*words) == []
        terminal.run("consume", "orders", "--group", "billing", "--start", "first", "-c", "1")

        def offset() -> int:
            shown = terminal.json("offset", "show", "billing", "orders")
            return next(int(each["offset"]) for each in shown if each["queue"] == queue)

        assert offset() == 1
        moved = terminal.json("offset", "reset", "billing", "orders", "--to", "first")
        assert {each["queue"]: each["offset"] for each in moved}[queue] == 0
        assert offset() == 0
        assert terminal.lines("group", "progress", "billing")[-1] == "1 message behind"
        done = terminal.json("offset", "set", "billing", "orders", "broker-a", str(queue), "1")
        assert (done["group"], done["queue"], done["offset"]) == ("billing", queue, 1)
        assert offset() == 1
        terminal.run("offset", "reset", "billing", "orders", "--to", "2020-01-01T00:00:00+00:00")
        assert offset() == 0
        wrong = terminal.run("offset", "reset", "billing", "orders", "--to", "soon", status=2)
        assert "neither first, last, milliseconds" in wrong.stderr
        wrong = terminal.run("offset", "reset", "billing", "orders", "--to", "17", status=2)
        assert "17 is not a time" in wrong.stderr
        assert "`cometmq offset set" in wrong.stderr
        terminal.run("offset", "reset", "billing", "orders", "--to", "1577836800000")
        assert offset() == 0

    play(tmp_path, scenario)


def test_messages_are_found_and_shown(tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        terminal = Terminal(servers)
        sent = terminal.json("send", "orders", "o-17 paid", "--key", "o-17", "--tag", "paid")
        while terminal.json("message", "find", "orders", "o-17") == []:
            pass  # The index comes a moment later.
        (found,) = terminal.json("message", "find", "orders", "o-17")
        assert (found["id"], found["body"]) == (sent["id"], "o-17 paid")
        shown = terminal.run("message", "show", sent["id"]).stdout
        assert "o-17 paid" in shown
        assert terminal.run("message", "show", sent["id"], "--topic", "orders").stdout == shown
        offset_id = next(
            line.split()[-1] for line in shown.splitlines() if line.startswith("offset id ")
        )
        assert terminal.json("message", "show", offset_id)["tag"] == "paid"
        find = ["message", "find", "orders", "o-17"]
        assert terminal.json(*find, "--since", found["stored_at"]) == [found]
        nothing = terminal.run(*find, "--until", found["stored_at"], status=1)
        assert "with the key o-17 in that time" in nothing.stderr
        times = "--since", found["stored_at"], "--until", found["stored_at"]
        assert "must be before until" in terminal.run(*find, *times, status=2).stderr
        nothing = terminal.run("message", "find", "orders", "o-99", status=1)
        assert "orders has no message with the key o-99" in nothing.stderr
        nothing = terminal.run("message", "show", "0" * 32, status=1)
        assert f"no message with the id {'0' * 32} in any of" in nothing.stderr
        nothing = terminal.run("message", "show", sent["id"], "-t", "broker-a", status=1)
        assert "in broker-a" in nothing.stderr
        wrong = terminal.run("message", "show", "nonsense", status=2)
        assert "32 hexadecimal digits" in wrong.stderr

    play(tmp_path, scenario)


def test_making_again_what_is_there_changes_what_is_named_and_nothing_else(tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        terminal = Terminal(servers)
        create = ("group", "create", "billing")
        assert terminal.lines(*create, "--max-retries", "5") == ["billing: made on broker-a"]
        assert terminal.lines(*create, "--disabled") == ["billing: changed on broker-a"]
        assert terminal.lines(*create) == ["billing: is there, and stays as it is, on broker-a"]
        (shown,) = [each for each in terminal.json("group", "list") if each["group"] == "billing"]
        assert (shown["max_retries"], shown["enabled"]) == (5, False)
        create = ("topic", "create", "orders")
        assert terminal.json(*create, "-q", "3")["brokers"] == {"broker-a": "made"}
        assert terminal.json(*create, "--permission", "r")["brokers"] == {"broker-a": "changed"}
        assert terminal.json(*create)["brokers"] == {"broker-a": "kept"}
        (route,) = terminal.json("topic", "route", "orders")
        assert (route["read_queues"], route["permission"]) == (3, "r")

    play(tmp_path, scenario)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["group", "delete", "biling", "--yes"], "'biling'; did you mean 'billing'?"),
        (["group", "members", "nobody"], "'nobody'; `cometmq group list` shows all"),
        (["group", "progress", "nobody"], "no broker knows the group 'nobody'"),
        (["offset", "show", "nobody", "orders"], "no broker knows the group 'nobody'"),
        (["offset", "show", "billing", "nothing"], "no broker serves the topic 'nothing'"),
        (["message", "find", "ordrs", "o-17"], "the topic 'ordrs'; did you mean 'orders'?"),
        (["message", "find", "ordrs", "o-17", "--json"], "the topic 'ordrs'"),
        (["message", "show", "0" * 32, "-t", "ordrs"], "the topic 'ordrs'; did you mean 'orders'?"),
        (["offset", "reset", "nobody", "orders", "--to", "first"], "Group nobody does not"),
        (["offset", "set", "nobody", "orders", "broker-a", "0", "1"], "Group nobody does not"),
    ],
)
def test_names_that_do_not_exist_are_an_error(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    def scenario(servers: Servers) -> None:
        terminal = Terminal(servers)
        terminal.run("topic", "create", "orders")
        terminal.run("group", "create", "billing")
        assert said in terminal.run(*arguments, status=1).stderr

    play(tmp_path, scenario)
