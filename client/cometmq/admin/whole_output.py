"""Output is written in full, or the command fails with an error message.

By default, an unbuffered Python (`PYTHONUNBUFFERED`, as in many images) drops the part of a write
that a full disk did not take. A buffered Python retries unwritten output when it exits, and then
fails with its own status and message.
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
    """Run the program, which ends with `SystemExit`, in the block."""
    _prepare()
    try:
        yield
    except SystemExit as ended:
        # A program that ends with another status has already said why.
        if (problem := _given_up()) is None or ended.code:
            raise
    except OSError:
        if (problem := _given_up()) is None:
            raise
    else:
        return
    if isinstance(problem, KeyboardInterrupt):
        raise problem
    if not isinstance(problem, BrokenPipeError):  # Otherwise the reader has seen enough.
        why = problem.strerror or problem
        print(f"Error: the output cannot be written: {why}; check where it goes", file=sys.stderr)
    raise SystemExit(1)


def _prepare() -> None:
    """Buffer the output, and escape characters that its encoding does not have, as names may."""
    stdout = cast("io.TextIOWrapper | None", sys.stdout)  # None if the shell has closed it.
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
    """Return why some output could not be written, and discard it, so that nothing retries.

    A reader may have paused, as a pager does; a Ctrl-C ends the wait for it.
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
