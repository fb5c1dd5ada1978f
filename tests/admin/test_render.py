"""Times and numbers on the command line are read, or refused in one line."""

from __future__ import annotations

import io
import re
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner

from cometmq.admin.parameters import TimeParameter
from cometmq.admin.program import program
from cometmq.admin.render import body_text, progress_bar, show_facts, show_table
from cometmq.store.looking.findings import Progress

TIME_COMMANDS = [
    ["offset", "reset", "billing", "orders", "--to"],
    ["consume", "orders", "--start"],
    ["dlq", "show", "billing", "--since"],
    ["dlq", "redrive", "billing", "--until"],
    ["store", "dump", ".", "--since"],
]


@pytest.mark.parametrize("command", TIME_COMMANDS)
@pytest.mark.parametrize(
    "given", ["1763719200000000", "9" * 20, "9" * 5000, "9999-12-31T23:59:59.999-05:00"]
)
def test_a_time_behind_the_last_year_is_refused_in_a_line(command: list[str], given: str) -> None:
    result = CliRunner().invoke(program, [*command, given])
    assert result.exit_code == 2, result.exception
    assert "milliseconds since" in result.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["consume", "orders", "--idle", "nan"],
        ["consume", "orders", "--idle", "inf"],
        ["consume", "orders", "--idle", "0"],
        ["consume", "orders", "--idle", "-1"],
        ["bench", "e2e", "--rate", "nan"],
        ["bench", "e2e", "--rate", "inf"],
        ["bench", "send", "--seconds", "nan"],
    ],
)
def test_a_number_that_nothing_can_be_counted_with_is_refused_in_a_line(command: list[str]) -> None:
    result = CliRunner().invoke(program, command)
    assert result.exit_code == 2, result.exception
    assert f"Invalid value for '{command[-2]}'" in result.stderr


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set a time zone five hours behind UTC."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "EST5")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(
    "given",
    [
        "2025-11-21T10:00:00.001",
        "2025-11-21 10:00:00.001",
        "2025-11-21T10:00:00.001Z",
        "2025-11-21T11:00:00.001+01:00",
        "1763719200001",
    ],
)
def test_a_time_without_a_zone_is_utc_wherever_the_machine_is(given: str) -> None:
    at = datetime(2025, 11, 21, 10, 0, 0, 1000, UTC)
    assert TimeParameter().convert(given, None, None) == at


@pytest.mark.parametrize("command", TIME_COMMANDS)
def test_each_command_that_takes_a_time_says_that_it_is_utc(command: list[str]) -> None:
    names = [each for each in command[:2] if each not in ("orders", "billing")]
    assert "UTC" in CliRunner().invoke(program, [*names, "--help"]).stdout


@pytest.mark.parametrize(
    ("body", "cut", "shown"),
    [
        (b"paid", 0, "paid"),
        (b"paid", 4, "paid"),
        (b"paid", 3, "pai ... (4 bytes)"),
        ("zażółć".encode(), 3, "za ... (10 bytes)"),
        (b"a\x1b[2J\n", 0, "a\\x1b[2J\\n"),
        (b"\x00\xff\x00", 2, "b'\\x00\\xff' ... (3 bytes)"),
        (b"cut in the middle \xc5", 0, "b'cut in the middle \\xc5'"),
    ],
)
def test_a_body_is_shown_in_a_line_that_no_terminal_obeys(
    body: bytes, cut: int, shown: str
) -> None:
    assert body_text(body, cut) == shown


def test_what_peers_wrote_into_facts_and_tables_is_shown_and_not_obeyed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_facts([("property a", "\x1b[2J")])
    show_table(["group"], [["g\x1b[2J"]])
    facts, _, row = capsys.readouterr().out.splitlines()
    assert (facts, row) == ("property a  \\x1b[2J", "g\\x1b[2J")


@pytest.mark.parametrize("terminal", ["xterm", "dumb"])
def test_a_table_is_not_cut_on_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: str
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # As on a terminal.
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("TERM", terminal)
    topic = "orders-" * 12
    show_table(("topic", "#end", "#lag"), [(topic, 1234567, 7654321)])
    assert capsys.readouterr().out.splitlines()[1] == f"{topic}  1234567  7654321"


class _Terminal(io.StringIO):
    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_bar_is_shown_on_a_terminal_and_a_stage_that_is_over_is_full(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    stderr = _Terminal(is_terminal=is_terminal)
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar() as bar:
        bar.follow([Progress("log", 0, 7), Progress("log", 3, 7), Progress("queues", 0, 2)])
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stderr.getvalue()).rpartition("log")[2]
    assert re.findall(r"\d+/\d+", last) == (["7/7", "2/2"] if is_terminal else [])
