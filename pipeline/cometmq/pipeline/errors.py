"""The errors of the pipeline.

::

    PipelineError
    ├── OptionError           an option is wrong: the text says which, and what would be right
    │   └── UntrustedError    a server's certificate is refused, as it would be each time
    ├── DamagedRecordError    bytes that should be records are not
    ├── DamagedFileError      a file that a job wrote is damaged
    ├── HeldError             another run is at work in the folder
    ├── DataLossError         messages that were to be read, or their topic, are gone
    ├── ConnectionLostError   a server is away, or went away: a retry may help
    ├── RefusedError          a server answered with a code that says no
    │   └── BusyError         it is overloaded at the moment: a retry may help
    ├── SinkError             rows that cannot be written
    ├── WorkerLateError       Spark waited ten seconds for one of its Python processes
    ├── SparkStartError       Spark cannot be started with these settings
    └── JavaError             there is no Java for Spark, or one that it cannot use

All can be pickled: an error may be raised in an executor and read by the driver.
"""

from __future__ import annotations

from typing import Final

NO_PERMISSION: Final = 16
"""The code of a refusal because the user is unknown or has no permission."""


class PipelineError(Exception):
    """The base of the pipeline's errors."""


class OptionError(PipelineError, ValueError):
    """An option is missing or unknown, or has an invalid value."""


class UntrustedError(OptionError):
    """A server's certificate is refused; with another certificate or file it may be accepted."""


class DamagedRecordError(PipelineError):
    """Bytes that should be a record are not."""

    def __init__(self, position: int, reason: str, source: str = "") -> None:
        self.position = position
        """The position of the first wrong byte, in the log or in the answer."""
        self.reason = reason
        self.source = source
        """The file, or the server that gave the answer."""
        super().__init__(position, reason, source)

    def __str__(self) -> str:
        where = f"{self.source}: " if self.source else ""
        return f"{where}no sound record at {self.position}: {self.reason}"


class DamagedFileError(PipelineError):
    """A file that a job wrote for itself is damaged; the text names it and says what to do."""


class HeldError(PipelineError):
    """Another run is at work in the folder; the text says which. Nothing was changed."""


class DataLossError(PipelineError):
    """Messages that were to be read are gone: they expired, or their topic was deleted."""


class ConnectionLostError(PipelineError, OSError):
    """A server is away, went away, or did not answer in time. A retry may help."""


class RefusedError(PipelineError):
    """A server answered with a code that says no."""

    def __init__(self, address: str, code: int, remark: str) -> None:
        super().__init__(address, code, remark)
        self.address = address
        self.code = code
        self.remark = remark

    def __str__(self) -> str:
        return f"{self.address} refused with code {self.code}: {self.remark}"


class BusyError(RefusedError):
    """A server is only too busy, or cannot write, at the moment. A retry may help."""


PASSING: Final = (ConnectionLostError, BusyError)
"""Errors that may be gone on a retry."""


class SinkError(PipelineError):
    """Rows cannot be written as messages; the text says which column, and why."""


class WorkerLateError(PipelineError):
    """A Python process of Spark took longer to start than Spark waits: the machine is busy."""


class SparkStartError(PipelineError):
    """Spark cannot be started, because of its settings or its requirements."""


class JavaError(PipelineError):
    """There is no Java for Spark, or one that it cannot use; the text says what to do."""


def no_broker_yet(nameserver: str) -> ConnectionLostError:
    """Make the error for a name server that has just started, and may not know all brokers yet."""
    return ConnectionLostError(f"no broker has registered with {nameserver} yet")
