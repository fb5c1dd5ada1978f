"""Values on the command line: times and numbers are read, or refused in a line."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from cometmq.admin.program import program

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
