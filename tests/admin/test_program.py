"""The tree of commands, of which most are imported only when they are asked for."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from cometmq.admin.program import program


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("snd orders x", "send"),
        ("topics", "topic"),
        ("pipeline archiv --to x", "archive"),
        ("pipeline doctr", "doctor"),
    ],
)
def test_a_misspelt_command_is_told_with_the_one_that_may_be_meant(line: str, meant: str) -> None:
    done = CliRunner().invoke(program, line.split())
    assert done.exit_code == 2
    assert f". Did you mean '{meant}'?" in done.stderr


def test_one_that_is_like_none_is_told_alone() -> None:
    done = CliRunner().invoke(program, ["zzzz"])
    assert done.exit_code == 2
    assert done.stderr.endswith("Error: No such command 'zzzz'.\n")
