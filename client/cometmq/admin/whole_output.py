"""What is printed comes out whole, or the command fails with a word.

Left alone, Python drops what a full disk did not take of a write where it is told not to buffer
(`PYTHONUNBUFFERED`, as in many images). Where it does buffer, it tries again at its very end what
could not be written, and ends with a status and a complaint of its own.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Generator


@contextmanager
def whole_output() -> Generator[None, None, None]:
    """Run the program, which ends by `SystemExit`."""
    _prepare()
    try:
        yield
    except SystemExit as ended:
        # Who ends with another status has said why.
        if (problem := _given_up()) is None or ended.code:
            raise
    except OSError:
        if (problem := _given_up()) is None:
            raise
    else:
        return
    if isinstance(problem, KeyboardInterrupt):
        raise problem
    if not isinstance(problem, BrokenPipeError):  # Else whoever reads has seen enough.
        why = problem.strerror or problem
        print(
            f"Error: what is printed cannot be written: {why}; look where it goes", file=sys.stderr
        )
    raise SystemExit(1)


def _prepare() -> None:
    """Buffer what is printed, and escape what the terminal's encoding lacks: a name may have it."""
    stdout = cast("io.TextIOWrapper | None", sys.stdout)  # None where the shell has closed it.
    if not isinstance(stdout, io.TextIOWrapper):
        return
    if stdout.errors == "strict":
        stdout.reconfigure(errors="backslashreplace")
    raw = cast("object", stdout.buffer)
    if isinstance(raw, io.RawIOBase):
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(raw), stdout.encoding, stdout.errors, line_buffering=True
        )


def _given_up() -> OSError | KeyboardInterrupt | None:
    """Why something that was printed is not written yet; then nothing tries it again.

    Whoever reads may have stopped for a while, as a pager does: a Ctrl-C ends the wait for that.
    """
    stdout = cast("io.TextIOWrapper | None", sys.stdout)
    try:
        if stdout is not None:
            stdout.flush()
    except (OSError, KeyboardInterrupt) as error:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)
        return error
    return None
