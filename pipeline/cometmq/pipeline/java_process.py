"""The Java process that a session of Spark runs in, and what of its stderr is shown.

PySpark starts it, and has it end when this process does. Two things are done otherwise here: some
lines that say nothing to anybody are left out of what it writes, and, for jobs, it gets no signal
that is sent to the job's process group: it would die under the batch that is to be finished. (Of a
Ctrl-C it is spared by PySpark.)
"""

from __future__ import annotations

import os
import re
import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from pyspark import SparkConf, SparkContext

if TYPE_CHECKING:
    from collections.abc import Mapping

LOG_VARIABLE: Final = "COMETMQ_SPARK_LOG"
"""The level of Spark's log, in the environment."""
QUIET: Final = "ERROR"
_NOISE: Final = re.compile(
    rb"WARNING: Using incubator modules: jdk\.incubator\.vector"
    rb"|Using Spark's default log4j profile: "
    rb'|Setting default log level to "WARN"'
    rb"|To adjust logging level use sc\.setLogLevel"
    rb"|\d\d/\d\d/\d\d \d\d:\d\d:\d\d WARN NativeCodeLoader: "
    rb"|Warning: Java versions > Java 11 can only operate in restricted mode"
)
"""What lines begin with that Spark writes however sound all is: as it starts, but for the last,
which a function for counting says when it is used for the first time."""
_CHUNK: Final = 1 << 16
_LAST_WORDS_SECONDS: Final = 5.0


class Stderr:
    """Passes on what a process writes to its stderr, but for the noise."""

    def __init__(self, read: int, to: int = 2) -> None:
        self._read = read
        self._to = to
        self._is_starting = True
        self._thread = threading.Thread(target=self._pass_on, name="stderr of Java", daemon=True)
        self._thread.start()

    def started(self) -> None:
        """From now on pass on what comes at once, be it half a line."""
        self._is_starting = False

    def wait(self) -> None:
        """Wait for the last words of a process that has ended."""
        self._thread.join(_LAST_WORDS_SECONDS)

    def _pass_on(self) -> None:
        begun = b""
        while chunk := os.read(self._read, _CHUNK):
            lines = (begun + chunk).splitlines(keepends=True)
            begun = b""
            # Later on somebody may wait for the end of a line that does not come.
            if self._is_starting and not lines[-1].endswith(b"\n"):
                begun = lines.pop()
            self._write(b"".join(each for each in lines if not _NOISE.match(each)))
        self._write(begun)
        os.close(self._read)

    def _write(self, text: bytes) -> None:
        while text:
            try:
                text = text[os.write(self._to, text) :]
            except OSError:  # Nobody reads it any more; Java must not wait for that.
                return


def start_java(settings: Mapping[str, str], *, apart: bool) -> Stderr | None:
    """Start the process for a session with these settings, if there is none already.

    `apart`: in a process group of its own. With a quiet log its stderr is returned.
    """
    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return None  # The latter is set by `spark-submit`, which has started Java itself.
    conf = SparkConf()
    for name, value in settings.items():
        conf.set(name, value)
    options: dict[str, Any] = {"process_group": 0} if apart else {}
    launch: Any = import_module("pyspark.java_gateway").launch_gateway  # It has no types.
    if os.environ.get(LOG_VARIABLE, QUIET).upper() not in (QUIET, "FATAL"):
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
    SparkContext._ensure_initialized(gateway=gateway)
    return stderr
