"""What the pipeline raises.

::

    PipelineError
    ├── OptionError           what was asked for cannot be: its text says which option, and what can
    │   └── UntrustedError    a server's certificate is refused, each time that it is shown
    ├── DamagedRecordError    bytes that should be records, and are not
    ├── DamagedFileError      a file that a job wrote is none any more
    ├── HeldError             another run is at work in the folder
    ├── DataLossError         messages that were to be read are gone, or their topic is
    ├── ConnectionLostError   a server is not there, or went away: trying again may help
    ├── RefusedError          a server answered with a code that says no
    │   └── BusyError         it has too much to do just now: trying again may help
    ├── SinkError             rows that cannot be written
    ├── WorkerLateError       Spark waited ten seconds for a Python process of its own
    ├── SparkStartError       Spark cannot be started with these settings
    └── JavaError             there is no Java for Spark, or one that it cannot use

Each can be pickled: it may be raised in an executor, and is read by the driver.
"""

from __future__ import annotations

from typing import Final

NO_PERMISSION: Final = 16
"""The code of a refusal of who asks: he is not known, or may not do it."""


class PipelineError(Exception):
    """Any error of the pipeline's own."""


class OptionError(PipelineError, ValueError):
    """An option is missing, unknown, or has a value that cannot be."""


class UntrustedError(OptionError):
    """A server's certificate is refused: by another one, or another file, it may be taken."""


class DamagedRecordError(PipelineError):
    """Bytes that should be a record are none."""

    def __init__(self, position: int, reason: str, source: str = "") -> None:
        self.position = position
        """Of the first byte that is wrong about it: in the log, or in the answer."""
        self.reason = reason
        self.source = source
        """The file that it is in, or whose answer it was."""
        super().__init__(position, reason, source)

    def __str__(self) -> str:
        where = f"{self.source}: " if self.source else ""
        return f"{where}no sound record at {self.position}: {self.reason}"


class DamagedFileError(PipelineError):
    """A file that a job wrote for itself is damaged; the text names it, and says what to do."""


class HeldError(PipelineError):
    """Another run is at work in the folder; the text says which one. Nothing was changed."""


class DataLossError(PipelineError):
    """Messages that were to be read are gone: they expired, or their topic was deleted."""


class ConnectionLostError(PipelineError, OSError):
    """A server is not there, went away, or did not answer in time. Trying again may help."""


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
    """A server only has too much to do, or to write, just now. Trying again may help."""


PASSING: Final = (ConnectionLostError, BusyError)
"""What may be over when it is tried again."""


class SinkError(PipelineError):
    """Rows that cannot be written as messages; it says which column, and why."""


class WorkerLateError(PipelineError):
    """A Python process of Spark's took longer to start than Spark waits: the machine is busy."""


class SparkStartError(PipelineError):
    """Spark cannot be started, by what it is told or by what it needs."""


class JavaError(PipelineError):
    """There is no Java for Spark, or one that it cannot use; it says what to do."""


def no_broker_yet(nameserver: str) -> ConnectionLostError:
    """Tell of a name server that has just started: what it does not know may be there."""
    return ConnectionLostError(f"no broker has registered with {nameserver} yet")
