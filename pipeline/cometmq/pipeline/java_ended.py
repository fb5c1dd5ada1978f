"""Reporting that Spark's Java process has ended during a job.

The kernel ends it if memory is short. Every call then fails with a refused connection, and py4j and
PySpark print a traceback for each, also from their own threads.
"""

from __future__ import annotations

import logging
import signal
from contextlib import suppress
from subprocess import Popen, TimeoutExpired
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError
from pyspark import SparkContext

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

_LOGGERS: Final = (None, "py4j.clientserver", "py4j.java_gateway")
"""The loggers that they use; one of them uses the root."""
_SECONDS: Final = 0.5
"""The most time from the end of its connections to the end of the process."""


def how_java_ended(seconds: float = _SECONDS) -> str:
    """Say how Java has ended, or ends within this time; return '' if it runs on."""
    java = getattr(SparkContext._gateway, "proc", None)
    if not isinstance(java, Popen):
        return ""
    with suppress(TimeoutExpired):
        java.wait(seconds)
    if java.returncode is None:
        return ""
    return f"the Java process that Spark runs in ended before the job did, {_how(java.returncode)}"


def stop_unless_java_ended(spark: SparkSession) -> None:
    """End a session after a job; if its Java ends by itself meanwhile, that no longer matters."""
    try:
        if not how_java_ended(0):
            spark.stop()
    except (Py4JError, OSError):
        if not how_java_ended():
            raise


def _how(status: int) -> str:
    if status == -signal.SIGKILL:
        return "killed by signal 9, as happens when a system runs out of memory"
    return f"killed by signal {-status}" if status < 0 else f"with status {status}"


def say_nothing_of_its_end() -> None:
    """Suppress what py4j and PySpark log about a Java that has ended."""
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        if _says_more not in logger.filters:
            logger.addFilter(_says_more)
    if (context := SparkContext._active_spark_context) is not None:
        server: Any = context._accumulatorServer
        tell: Callable[..., None] = server.handle_error

        def tell_more(*error: object) -> None:
            if not how_java_ended():
                tell(*error)

        vars(server)["handle_error"] = tell_more


def _says_more(record: logging.LogRecord) -> bool:
    """Whether a log record is about something else; those about it have an error attached."""
    return not (record.exc_info and how_java_ended())
