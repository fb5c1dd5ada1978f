"""What is told when the process of Java that Spark runs in has ended under a job.

The kernel does so where memory is short. Each call then fails with a connection that is refused,
and py4j and PySpark tell of each in a traceback of its own, on threads of their own, too.
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
"""What they tell it to; one of them to the root."""
_SECONDS: Final = 0.5
"""From the end of its connections to that of the process, at most."""


def how_java_ended(seconds: float = _SECONDS) -> str:
    """Say how Java has ended, or ends within this time; nothing while it runs."""
    java = getattr(SparkContext._gateway, "proc", None)
    if not isinstance(java, Popen):
        return ""
    with suppress(TimeoutExpired):
        java.wait(seconds)
    if java.returncode is None:
        return ""
    return f"the Java process that Spark runs in ended before the job did, {_how(java.returncode)}"


def stop_unless_java_ended(spark: SparkSession) -> None:
    """End a session behind a job, whose Java may end of itself meanwhile: the job is over."""
    try:
        if not how_java_ended(0):
            spark.stop()
    except (Py4JError, OSError):
        if not how_java_ended():
            raise


def _how(status: int) -> str:
    if status == -signal.SIGKILL:
        return "killed by signal 9, as systems do that run out of memory"
    return f"killed by signal {-status}" if status < 0 else f"with status {status}"


def say_nothing_of_its_end() -> None:
    """Leave out what py4j and PySpark tell of a Java that has ended."""
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
    """Whether a record is of something else; it has an error with it, if it is not."""
    return not (record.exc_info and how_java_ended())
