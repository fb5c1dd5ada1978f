"""For whoever is paged: the commands of docs/operations.md exist, and its steps mend a store."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest
from tests.admin.test_client_commands import Terminal
from tests.broker.test_up import running
from tests.interop.target import Target

from cometmq.admin.program import program

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text()
ALERTS = (ROOT / "deploy" / "alerts.yml").read_text()
COMETMQ = shlex.join([sys.executable, "-m", "cometmq.admin"])
SEGMENT_SIZE = 1 << 20
COUNT = 2_000
MISSING = f"{SEGMENT_SIZE:020d}"


def commands() -> Iterator[str]:
    """Yield each command of the page, whether between backticks or on a line of a block."""
    yield from re.findall(r"`(cometmq [a-z][^`]*)`", PAGE)
    for block in re.findall(r"^ *```\w*\n(.*?)^ *```$", PAGE, re.MULTILINE | re.DOTALL):
        for line in map(str.strip, block.splitlines()):
            if line.startswith("cometmq ") and not line.startswith("cometmq ready"):
                yield line


@pytest.mark.parametrize("command", sorted(set(commands())))
def test_a_command_of_the_page_is_one_and_takes_what_stands_there(
    command: str, tmp_path: Path
) -> None:
    """A text that only names a command ends before its arguments."""
    text = command.replace("DIR", str(tmp_path)).replace("TIME", "2026-11-21T10:00:00")
    words = shlex.split(text, comments=True)[1:]
    found: click.Command = program
    context = click.Context(program)
    while isinstance(found, click.Group) and words:
        name = words.pop(0)
        child = found.get_command(context, name)
        assert child is not None, f"{command}: there is no {name}"
        found = child
    if words:
        found.make_context(found.name, words)


def test_each_alert_has_its_row_and_each_row_its_alert() -> None:
    alerts = re.findall(r"- alert: (\w+)", ALERTS)
    rows = re.findall(r"^\| (CometMQ\w+) \|", PAGE, re.MULTILINE)
    assert sorted(rows) == sorted(alerts)


def shell(line: str, status: int = 0) -> str:
    """Run a line of the page and return its output."""
    line = re.sub(r"^cometmq\b", lambda _: COMETMQ, line)
    done = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=120)
    assert done.returncode == status, (line, done.stdout, done.stderr)
    return done.stdout + done.stderr


@pytest.mark.slow
def test_a_lost_file_in_the_middle_of_the_log_is_mended_by_the_steps_of_the_page(
    tmp_path: Path,
) -> None:
    store = tmp_path / "store"
    options = ("--segment-size", str(SEGMENT_SIZE))
    with running(store, *options) as (process, found):
        terminal = Terminal(Target(f"127.0.0.1:{found[1]}", f"127.0.0.1:{found[2]}"))
        terminal.run("topic", "create", "orders", "--queues", "2")
        lines = "\n".join(f"{number:06} {'x' * 1_200}" for number in range(COUNT))
        terminal.run("send", "orders", "-", "--lines", given=lines)
        process.terminate()
        process.wait(60)
    (store / "commitlog" / MISSING).unlink()
    start = f"cometmq up --dir {store} --broker-port 0 --nameserver-port 0 --metrics-port 0"
    refusal = shell(f"{start} {shlex.join(options)}", status=1)
    told = re.search(r"(\S+): missing, while .* make it of (\d+) zeros", refusal)
    assert told is not None, refusal

    truncate, dry_run = (
        line.partition("#")[0].strip() for line in _block_behind("a whole file of the log")
    )
    truncate = truncate.replace("DIR/commitlog/00000000001073741824", told[1])
    shell(truncate.replace("1073741824", told[2]))
    lost = _lost(shell(dry_run.replace("DIR", str(store))))
    assert "repair --dry-run" in shell(f"cometmq store verify {store}", status=1)
    assert _lost(shell(f"cometmq store repair {store} --yes")) == lost
    assert "result    sound" in shell(f"cometmq store verify {store}")

    with running(store, *options) as (_, found):
        terminal = Terminal(Target(f"127.0.0.1:{found[1]}", f"127.0.0.1:{found[2]}"))
        consume = ("consume", "orders", "-g", "g", "--start", "first", "-c", str(COUNT), "--json")
        read = [json.loads(line) for line in terminal.lines(*consume)]
        places = {f"orders queue {each['queue']} offset {each['offset']}" for each in read}
        assert len(places) == COUNT, "a queue has a gap"
        empty = {
            f"orders queue {each['queue']} offset {each['offset']}"
            for each in read
            if not each["body"]
        }
        assert 0 < len(lost) < COUNT
        assert empty == lost
        asked_for_again = terminal.json("send", "orders", "000001")
        assert asked_for_again["offset"] * 2 >= COUNT - 1


def _block_behind(words: str) -> list[str]:
    """Return the lines of the first block after these words."""
    found = re.search(r"```\n(.*?)```", PAGE[PAGE.index(words) :], re.DOTALL)
    assert found is not None
    return found[1].splitlines()


def _lost(said: str) -> set[str]:
    return set(re.findall(r"lost: (.*)", said))
