"""What Spark says of an error, made one clear line."""

from __future__ import annotations

from itertools import takewhile
from typing import Final

from cometmq.pipeline.errors import OptionError, PipelineError, WorkerLateError

_WHERE: Final = ("\tat ", "===")
"""What lines begin with that say where in the JVM, or in which query, an error was."""
_WORKER_LATE: Final = "Python worker failed to connect back"


def ours(error: Exception) -> PipelineError:
    """Return what matters of an error of Spark: the last one of ours in it, or what it begins with.

    Where in the JVM it was matters to nobody here.
    """
    # What comes from the JVM as it is has a line in front that tells which object was called.
    text = str(error).partition("\n: ")[2] or str(error)
    for line in reversed(text.splitlines()):
        name, colon, rest = line.strip().partition(": ")
        if colon and name.startswith("cometmq.pipeline.errors."):
            is_option = name.endswith(OptionError.__name__)
            return OptionError(rest) if is_option else PipelineError(rest)
    said = takewhile(lambda line: not line.startswith(_WHERE), text.splitlines())
    if _WORKER_LATE in text:
        return WorkerLateError(
            "this machine is so busy that a Python process took more than the ten seconds to start"
            " that Spark waits for one; try again when there is less to do, or with fewer tasks at"
            " a time (--master 'local[1]')"
        )
    return PipelineError("\n".join(said).strip() or "Spark failed")


def first_line(error: Exception) -> str:
    """Return what an error of Spark says first; what it says of a syntax begins with no line."""
    return str(error).strip().partition("\n")[0]
