"""The output of the tools: tables for people, JSON for programs, progress on a terminal.

Results go to stdout, everything else (progress, warnings, errors) to stderr.
"""

from __future__ import annotations

import json
import sys
from codecs import getincrementaldecoder
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress as Bars,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping, Sequence
    from typing import TextIO

    from rich.progress import Task, TaskID


BODY_SHOWN_MAX: Final = 1000
"""How many bytes of a body a terminal shows by default."""


class Step(Protocol):
    """The progress of a long task."""

    @property
    def stage(self) -> str:
        """The current stage."""
        ...

    @property
    def done(self) -> int:
        """How much of it is done."""
        ...

    @property
    def total(self) -> int:
        """How much there is to do."""
        ...


def need_output() -> None:
    """Refuse to run a command that is of no use if nobody sees its output."""
    if cast("TextIO | None", sys.stdout) is None:  # As after `>&-`.
        raise click.UsageError("standard output is closed, so nothing can be shown")


def show_json(document: Any) -> None:
    """Print one JSON document."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def show_line(document: Any) -> None:
    """Print one JSON document on one line, as one of many."""
    click.echo(json.dumps(document, ensure_ascii=False, separators=(",", ":")))


def show_done(text: str, document: Mapping[str, Any], *, as_json: bool) -> None:
    """Print what a command has done."""
    if as_json:
        show_json(document)
    else:
        click.echo(text)


def ask(question: str, *, as_json: bool) -> None:
    """Ask whether to continue; a no ends the command. With JSON output, print nothing else."""
    click.confirm(question, abort=True, err=as_json)


def count_text(count: int, noun: str) -> str:
    """Return a count with its noun: `1 message`, `2 messages`, `2 queue entries`."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun[:-1]}ies" if noun.endswith("ry") else f"{count} {noun}s"


def say(text: str) -> None:
    """Print a line of text, which stays one line whatever names it contains."""
    click.echo(one_line(text))


def show_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print names and values, one pair per line, with the values aligned."""
    pairs = list(facts)
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        say(f"{name:<{width}}  {value}")


def show_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table, as wide as it needs to be; columns that begin with `#` are numbers.

    A narrow terminal wraps its lines: if a number were cut, it would be another number.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        is_number = column.startswith("#")
        table.add_column(column.lstrip("#"), justify="right" if is_number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(one_line(str(cell))) for cell in row))
    # The height is needed: without it, Rich assumes 80 columns for a dumb terminal.
    Console(width=10_000, height=25).print(table, soft_wrap=True)


def show_documents(
    documents: Sequence[Mapping[str, Any]], columns: Mapping[str, str], *, as_json: bool
) -> None:
    """Print a list of documents, as JSON or as a table of some of their members.

    `columns` maps these members to their headings; see `show_table`.
    """
    if as_json:
        show_json(documents)
        return
    rows = [[_cell(document[name]) for name in columns] for document in documents]
    show_table(list(columns.values()), rows)


def _cell(value: Any) -> str:
    """Return a member of a document as people write it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        pairs = cast("Mapping[str, object]", value)
        return ", ".join(f"{name}: {each}" for name, each in pairs.items())
    if isinstance(value, list):
        return ", ".join(map(str, cast("Sequence[object]", value)))
    return str(value)


def one_line(text: str) -> str:
    """Escape, as Python does, characters that end a line or that a terminal obeys."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def body_text(body: bytes, cut: int = 0) -> str:
    """Return a body on one line, as text or else as bytes; at most `cut` bytes of it, or all."""
    part = body[:cut] if cut else body
    is_whole = len(part) == len(body)
    try:
        # Only a character that the cut splits is left out; the rest must be text.
        shown = one_line(getincrementaldecoder("utf-8")().decode(part, is_whole))
    except UnicodeDecodeError:
        shown = repr(part)
    return shown if is_whole else f"{shown} ... ({len(body)} bytes)"


def cut_of(asked: int | None) -> int:
    """Return how much of a body to show: without a terminal all, as it may be the only copy."""
    if asked is not None:
        return asked
    stdout: TextIO | None = sys.stdout  # None if the shell has closed it (`>&-`).
    return BODY_SHOWN_MAX if stdout is not None and stdout.isatty() else 0


def warn(text: str) -> None:
    """Print a warning to stderr."""
    click.echo(text, err=True)


class _Amount(ProgressColumn):
    """Bytes with their speed, or a count."""

    def __init__(self) -> None:
        super().__init__()
        self._bytes = DownloadColumn()
        self._speed = TransferSpeedColumn()
        self._count = MofNCompleteColumn()

    def render(self, task: Task) -> Text:
        """Show how much of a task is done."""
        if task.total is not None and task.total >= 1 << 20:
            return Text.assemble(self._bytes.render(task), "  ", self._speed.render(task))
        return self._count.render(task)


@contextmanager
def progress_bar() -> Generator[_Bar, None, None]:
    """Show a progress bar on stderr if that is a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), _Amount(), TimeRemainingColumn())
    bars = Bars(*columns, console=console, transient=True)
    # Before 14.3, Rich ends a bar with an empty line even where it is not shown.
    with bars if console.is_terminal else nullcontext():
        yield _Bar(bars)


class _Bar:
    """One bar for each stage of a task."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._stage: str | None = None
        self._task: TaskID | None = None

    def follow(self, steps: Iterable[Step]) -> None:
        """Run a task to its end, and show its progress."""
        for step in steps:
            if step.stage != self._stage or self._task is None:
                self._end()
                self._stage = step.stage
                self._task = self._bars.add_task(step.stage, total=step.total)
            self._bars.update(self._task, completed=step.done)
        self._end()

    def _end(self) -> None:
        """Show a stage as done: its last step may have been far from its end."""
        for task in self._bars.tasks[-1:]:
            self._bars.update(task.id, completed=task.total)


def size_text(size: float) -> str:
    """Return a number of bytes with a readable unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def time_text(time_ms: int | None) -> str:
    """Return a time in milliseconds as ISO 8601 in UTC."""
    if time_ms is None:
        return "-"
    try:
        at = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
