"""`cometmq settings` against brokers on real sockets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.admin.test_client_commands import Terminal
from tests.client.running import Servers, play

from cometmq.client import SyncClient, UsageError

if TYPE_CHECKING:
    from pathlib import Path

OF_ITS_LIFE = "It holds until the broker stops; the next start goes by its file (--config)"


def test_settings_are_shown_under_our_names_and_marked_where_they_can_change(
    tmp_path: Path,
) -> None:
    def scenario(servers: Servers) -> None:
        terminal = Terminal(servers)
        shown = terminal.lines("settings", "show", "flushDiskType", "retention_hours")
        assert shown == ["  flush            async", "* retention_hours  72"]
        everything = {line[2:].split()[0] for line in terminal.lines("settings", "show")}
        assert everything > {"delay_levels_ms", "listen_port", "segment_size"}
        (told,) = terminal.json("settings", "show", "fileReservedTime")
        assert told == {
            "broker": "broker-a",
            "setting": "retention_hours",
            "value": "72",
            "apache_key": "fileReservedTime",
            "changeable": True,
        }

    play(tmp_path, scenario)


def test_a_setting_is_changed_at_once_and_it_is_said_that_a_restart_forgets_it(
    tmp_path: Path,
) -> None:
    def scenario(servers: Servers) -> None:
        terminal = Terminal(servers)
        done = terminal.run("settings", "set", "retention_hours=24", "messageDelayLevel=1s 10s")
        first, second = done.stdout.splitlines()
        assert first == "broker-a: retention_hours is 24, was 72"
        assert second.startswith("broker-a: delay_levels_ms is 1000,10000, was ")
        assert done.stderr.startswith(OF_ITS_LIFE)
        again = terminal.lines("settings", "set", "fileReservedTime=24")
        assert again == ["broker-a: retention_hours is 24 already"]
        assert terminal.json("settings", "set", "retention_hours=48") == [
            {
                "broker": "broker-a",
                "setting": "retention_hours",
                "before": "24",
                "after": "48",
                "survives_restart": False,
            }
        ]
        servers.stop("broker")
        servers.start("broker")
        assert terminal.lines("settings", "show", "retention_hours") == ["* retention_hours  72"]

    play(tmp_path, scenario)


@pytest.mark.parametrize(
    ("pair", "status", "said"),
    [
        ("retention_hors=1", 1, "retention_hors: it has no such setting; did you mean retention_h"),
        ("xyzzy=1", 1, "xyzzy: it has no such setting; `cometmq settings show` has all"),
        ("sendMessageThreadPoolNums=4", 1, "a setting of Apache's that has no meaning in CometMQ"),
        ("listen_port=1", 1, "listen_port: fixed while the broker runs\nWrite it into the broker"),
        ("retention_hours=soon", 1, "retention_hours: 'soon' is not an integer"),
        ("disk_used_percent_max=500", 1, "disk_used_percent_max: 500 is not between 0 and 100"),
        ("retention_hours", 2, "retention_hours: write NAME=VALUE"),
    ],
)
def test_what_cannot_be_set_is_told_and_nothing_is_changed(
    tmp_path: Path, pair: str, status: int, said: str
) -> None:
    def scenario(servers: Servers) -> None:
        terminal = Terminal(servers)
        wrong = terminal.run("settings", "set", "long_polling_enable=false", pair, status=status)
        assert said in wrong.stderr
        shown = terminal.lines("settings", "show", "long_polling_enable")
        assert shown == ["* long_polling_enable  true"]

    play(tmp_path, scenario)


def test_all_brokers_are_set_or_the_one_that_is_named(tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        servers.add("broker-b", tmp_path / "b", broker_name="broker-b")
        terminal = Terminal(servers)
        terminal.run("settings", "set", "retention_hours=24")
        terminal.run("settings", "set", "retention_hours=48", "--broker", "broker-b")
        assert terminal.lines("settings", "show", "retention_hours") == [
            "broker-a:",
            "* retention_hours  24",
            "broker-b:",
            "* retention_hours  48",
        ]
        wrong = terminal.run("settings", "show", "--broker", "broker-c", status=2)
        assert (
            "'broker-c' is not registered: the name servers know broker-a, broker-b" in wrong.stderr
        )

    play(tmp_path, scenario)


def test_programs_change_settings_too(tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        with SyncClient(servers.nameserver) as mq:
            wanted = {"retention_hours": "24"}
            assert mq.admin.change_settings(wanted) == {"broker-a": "changed"}
            assert mq.admin.change_settings(wanted, broker="broker-a") == {"broker-a": "kept"}
            assert mq.admin.settings()["broker-a"]["fileReservedTime"] == "24"
            with pytest.raises(UsageError, match="nothing to change"):
                mq.admin.change_settings({})

    play(tmp_path, scenario)
