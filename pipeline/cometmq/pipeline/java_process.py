"""The Java process of a Spark session, and which part of its stderr is shown.

PySpark starts it, and has it end when this process does. Three things are different here. Noise is
removed from what it and its Python processes write (`java_noise`). For jobs, it does not get
signals that are sent to the job's process group, as it would die during the batch that is to be
finished (PySpark itself spares it a Ctrl-C). And until PySpark knows it, what signals raise here is
held back (`signals_held`).
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import threading
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from pyspark import SparkConf, SparkContext

from cometmq.net.ending_signals import Requests, heeded_signals
from cometmq.pipeline.java_noise import Sieve
from cometmq.pipeline.spark_log import LOG_VARIABLE, SILENT

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from subprocess import Popen

_CHUNK: Final = 1 << 16
_LAST_WORDS_SECONDS: Final = 5.0


class Stderr:
    """Passes on what a process writes to its stderr, without the noise, until it ends."""

    def __init__(self, read: int, to: int = 2) -> None:
        self._read = read
        self._to = to
        self._sieve = Sieve()
        self._thread = threading.Thread(target=self._pass_on, name="stderr of Java", daemon=True)
        self._thread.start()

    def started(self) -> None:
        """From now on, pass on input at once, even half a line."""
        self._sieve.holds_half_lines = False

    def wait(self) -> None:
        """Wait for the last output of a process that has ended."""
        self._thread.join(_LAST_WORDS_SECONDS)

    def _pass_on(self) -> None:
        while chunk := os.read(self._read, _CHUNK):
            self._write(self._sieve.sift(chunk))
        self._write(self._sieve.end())
        os.close(self._read)

    def _write(self, text: bytes) -> None:
        while text:
            try:
                text = text[os.write(self._to, text) :]
            except OSError:  # The reader is gone; Java must not wait for it.
                return


def start_java(settings: Mapping[str, str], *, apart: bool) -> Stderr | None:
    """Start the process for a session with these settings, if there is none yet.

    With `apart`, it gets its own process group. Its stderr is returned, without the noise, unless
    the log level shows more than fatal errors.
    """
    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return None  # `spark-submit` sets the latter, and has started Java itself.
    conf = SparkConf()
    for name, value in settings.items():
        conf.set(name, value)
    options: dict[str, Any] = {"process_group": 0} if apart else {}
    with signals_held():
        return _launch(conf, options)


@contextmanager
def signals_held() -> Generator[None]:
    """Defer signal handlers to the end of the block; a second signal ends the process.

    PySpark gives Java a folder for its port, and removes it if anything is raised before the port
    has come. Java then fails in one thread, is kept alive by another, and nobody knows its process.
    A signal without a handler ends this process and leaves the folder: Java finds its stdin closed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Signals come only to the main thread.
        return
    before = {
        number: handler
        for number in heeded_signals()
        if callable(handler := signal.getsignal(number))
    }
    came: list[int] = []
    requests = Requests()

    def hold(number: int, _frame: object) -> None:
        if requests.is_first(number):
            came.append(number)

    for held in before:
        signal.signal(held, hold)
    try:
        yield
    finally:
        for held, handler in before.items():
            signal.signal(held, handler)
        for number in came:
            signal.raise_signal(number)


def _launch(conf: Any, options: dict[str, Any]) -> Stderr | None:
    launch: Any = import_module("pyspark.java_gateway").launch_gateway  # It has no types.
    if os.environ.get(LOG_VARIABLE, SILENT).upper() != SILENT:
        SparkContext._ensure_initialized(gateway=launch(conf, options))
        return None
    read, write = os.pipe()
    stderr = Stderr(read)
    try:
        gateway = launch(conf, {**options, "stderr": write})
    except BaseException:
        os.close(write)
        stderr.wait()
        raise
    os.close(write)
    atexit.register(_end, gateway.proc, stderr)
    SparkContext._ensure_initialized(gateway=gateway)
    return stderr


def _end(java: Popen[bytes], stderr: Stderr) -> None:
    """End Java as the end of this process would, and wait for its last output.

    Calls of threads fail from now on, which py4j would report at length, as would Spark's
    accumulator server when its connection ends. A signal to end this process is now too late to
    change anything but the exit status, which says what was done.
    """
    assert java.stdin is not None
    for number in heeded_signals():
        signal.signal(number, signal.SIG_IGN)
    logging.disable()
    if (context := SparkContext._active_spark_context) is not None:
        vars(context._accumulatorServer)["handle_error"] = _say_nothing
    java.stdin.close()
    stderr.wait()


def _say_nothing(*_: object) -> None:
    """Ignore an error."""
