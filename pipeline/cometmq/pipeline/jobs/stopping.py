"""How a job ends on request: by SIGTERM, the SIGINT of a Ctrl-C, or SIGHUP.

The first signal lets the job finish its running batch, or, if the job has no batches, cancels what
Spark is doing. While Spark is started there is nothing to finish, and the signal ends the job at
once, except for its Java, which must be known before it can be ended (`java_process`). The second
signal ends the process at once; one that comes within a second does not count as the second
(`cometmq.net.ending_signals`).
"""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from cometmq.net.ending_signals import Requests, heeded_signals
from cometmq.pipeline.jobs.job import StoppedEarly

if TYPE_CHECKING:
    from collections.abc import Generator

    from pyspark.sql import SparkSession

    from cometmq.pipeline.jobs.job import Run

_LOOK_SECONDS: Final = 0.2
_TAKING: Final = "pyspark.core.context"
"""The module that has SIGINT cancel what Spark is doing."""


@contextmanager
def stopped_by_signals(run: Run) -> Generator[None]:
    """Ask the job to stop on such a signal; the second signal ends it at once.

    While `run.is_early`, the first one raises `StoppedEarly`.
    """
    signals = heeded_signals()
    before = [signal.getsignal(number) for number in signals]
    requests = Requests()

    def stop(number: int, _frame: object) -> None:
        if requests.is_first(number):
            run.stop()
            if run.is_early:
                raise StoppedEarly

    for number in signals:
        signal.signal(number, stop)
    try:
        yield
    finally:
        requests.wait_for_the_rest()  # Another signal would end the job before its report.
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)


@contextmanager
def interrupts_kept() -> Generator[None]:
    """Keep the handler of SIGINT while a session starts, which would have it cancel batches.

    Spark only changes it in the main thread, to which signals come. Between that and the end of the
    session's start, seconds on a busy machine, a Ctrl-C would end in Spark's tracebacks. So Spark's
    module gets a substitute for Python's `signal`, and the handler is restored as well.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    named = vars(import_module(_TAKING)) if find_spec("pyspark") is not None else {}
    theirs = named.get("signal")
    named["signal"] = _NoSignals
    try:
        yield
    finally:
        named["signal"] = theirs
        signal.signal(signal.SIGINT, before)


class _NoSignals:
    """A substitute without effect for Python's `signal`, as far as Spark's module uses it."""

    SIGINT = signal.SIGINT

    @staticmethod
    def signal(number: int, handler: object) -> None:
        """Do nothing."""


@contextmanager
def heeded(run: Run, spark: SparkSession, *, has_batches: bool) -> Generator[None]:
    """While a job runs, report when it has been asked to stop; cancel it if it has no batches."""
    over = threading.Event()

    def watch() -> None:
        while not run.is_stopping:
            if over.wait(_LOOK_SECONDS) and not run.is_stopping:
                return
        then = "after the running batch, if there is one" if has_batches else "now"
        run.tell(stopping=f"{then}; a second signal ends this at once")
        while not has_batches and not over.wait(_LOOK_SECONDS):
            spark.sparkContext.cancelAllJobs()

    watching = threading.Thread(target=watch, name="stopping", daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()
