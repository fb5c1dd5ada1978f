"""Turning Spark's errors into one clear line.

An error that is not ours may come from the user's input: SQL that fails on a row, or a Python
function. Spark reports it at the end of tracebacks, its own and ours, which do not help the user.
What matters is what went wrong, and where in the SQL or the function.
"""

from __future__ import annotations

import re
import sysconfig
from contextlib import contextmanager
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from cometmq.pipeline.errors import (
    DamagedFileError,
    DataLossError,
    OptionError,
    PipelineError,
    RefusedError,
    UntrustedError,
    WorkerLateError,
)
from cometmq.pipeline.jobs.full_disks import about_full
from cometmq.pipeline.jobs.hidden_modules import about_hidden

if TYPE_CHECKING:
    from collections.abc import Generator

_WHERE: Final = ("\tat ", "===")
"""The beginnings of lines that say where in the JVM, or in which query, an error was."""
_TOLD_APART: Final = {
    f"{each.__module__}.{each.__name__}": each
    for each in (DamagedFileError, DataLossError, OptionError, UntrustedError)
}
"""By name, our errors that a command reports in a special way, not just as a failure."""
_REFUSED: Final = re.compile(r"(\S+) refused with code ([0-9]+): (.*)")
"""The text of a refusal."""
_WRITE_FAILED: Final = re.compile(r"\[(?:TASK_WRITE_FAILED\]|CANNOT_WRITE_STATE_STORE\b)")
"""The names of errors that say where Spark was writing, but not what went wrong."""
_CAUSE: Final = re.compile(r"^Caused by: (?:[\w.$]+: )?(.+)", re.MULTILINE)
_WORKER_LATE: Final = "Python worker failed to connect back"
_RAISED: Final = re.compile(r"^pyspark\.errors\.exceptions\.captured\.\w+: ", re.MULTILINE)
"""After a traceback, this precedes the error that was raised first."""
_TRACEBACK: Final = "Traceback (most recent call last):"
_FRAME: Final = re.compile(r'^ *File "(.+)", line ([0-9]+), in (.+)$', re.MULTILINE)
_NOT_USERS: Final = (f"{sysconfig.get_path('stdlib')}/", "/site-packages/", "/pyspark/", "<frozen ")
_OWN: Final = "/cometmq/pipeline/"
_ERROR: Final = re.compile(r"^[A-Za-z_][\w.]*(: .*)?$", re.MULTILINE)
"""The line of a traceback that says what went wrong; all others are indented."""
_CONDITION: Final = re.compile(r"\[[A-Z_.0-9]+\] ")
_STATE: Final = re.compile(r"(\.?)\s*SQLSTATE: \w{5};?(?: \(?line (\d+),? pos (\d+)\)?;?)?")
"""The SQL standard's code for the kind of error, and the place that may follow it."""
_IN_SQL: Final = re.compile(
    r"^== SQL.*\(line ([0-9]+), position ([0-9]+)\) ==\n(.*)\n( *)(\^+)", re.MULTILINE
)


def ours(error: Exception, written: str = "") -> PipelineError:
    """Return what matters in an error of Spark: the last of our errors in it, or its beginning.

    The place in the JVM does not matter. `written` is the folder that Spark was writing to, if any.
    """
    # An unconverted error from the JVM begins with a line that says which object was called.
    text = str(error).partition("\n: ")[2] or str(error)
    for line in reversed(text.splitlines()):
        name, colon, rest = line.strip().partition(": ")
        if colon and name.startswith("cometmq.pipeline.errors."):
            if refused := _REFUSED.fullmatch(rest):
                return RefusedError(refused[1], int(refused[2]), refused[3])
            return _TOLD_APART.get(name, PipelineError)(rest)
    if full := about_full(error, written):
        return PipelineError(full)
    if _WORKER_LATE in text:
        return WorkerLateError(
            "this machine is so busy that a Python process took longer to start than the ten"
            " seconds that Spark waits for one; try again when it is less busy, or with fewer tasks"
            " at a time (--master 'local[1]')"
        )
    if of_user := _of_user(text):
        return PipelineError(of_user)
    if hidden := about_hidden(text):
        return PipelineError(hidden)
    lines = takewhile(lambda line: not line.startswith(_WHERE), text.splitlines())
    said = _without_state("\n".join(lines).strip()) or "Spark failed"
    if _WRITE_FAILED.search(said) and (causes := _CAUSE.findall(text)):
        said = f"{said} {causes[-1]}"
    return PipelineError(said)


def _of_user(text: str) -> str:
    """Return what ended the user's SQL or function, and where.

    Return '' for other errors: whoever fixes those needs to see everything.
    """
    first = text[[0, *(each.end() for each in _RAISED.finditer(text))][-1] :]
    if _TRACEBACK in first:
        return _of_function(first)
    if not _CONDITION.match(first):
        return ""
    found = _IN_SQL.search(first)
    if found is None:
        # What was raised here is shown in full; otherwise, it is the first line of Spark's text.
        return first_line(first) if len(first) < len(text) else ""
    line, position, sql, before, marked = found.groups()
    part = sql[len(before) : len(before) + len(marked)]
    said = _without_state(first[: found.start()].strip())
    return f"{said} In the SQL, line {line}, position {position}: {part}"


def _of_function(text: str) -> str:
    frames = list(_FRAME.finditer(text))
    if not frames or _OWN in frames[-1][1]:
        return ""
    of_user = [each for each in frames if not any(part in each[1] for part in _NOT_USERS)]
    raised = _ERROR.search(text, frames[-1].end())
    if not of_user or raised is None:
        return ""
    path, line, function = of_user[-1].groups()
    return f"{path}, line {line}, in {function}: {raised[0]}"


def first_line(error: Exception | str) -> str:
    """Return the first line of an error of Spark; a syntax error begins with an empty line."""
    return _without_state(str(error).strip().partition("\n")[0])


def _without_state(text: str) -> str:
    def place(found: re.Match[str]) -> str:
        return f" (line {found[2]}, pos {found[3]})." if found[2] else found[1]

    return _STATE.sub(place, text)


@contextmanager
def told_as(option: str) -> Generator[None]:
    """If Spark does not understand SQL or a type, say which option it is."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        raise OptionError(f"{option}: {first_line(error)}") from None
