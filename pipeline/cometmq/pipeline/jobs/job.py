"""What a job is: settings, a function and a report; and the framework around it while it runs.

A job's settings are a frozen dataclass. Each field with `setting(...)` is also an option of the
command line, with dashes in its name. The function takes the session, the settings and a `Run`, and
returns a `Report`. For invalid settings it raises an `OptionError` before it changes anything.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from cometmq.pipeline.errors import OptionError, PipelineError
from cometmq.pipeline.jobs.progress import Said, note
from cometmq.pipeline.jobs.report import Report
from cometmq.pipeline.jobs.spark_errors import ours
from cometmq.pipeline.losses import untold

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping
    from dataclasses import Field

    from _typeshed import DataclassInstance
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from cometmq.pipeline.jobs.holding import Places
    from cometmq.pipeline.jobs.metrics import LastBatch

_LOOK_SECONDS: Final = 0.2
_KINDS: Final[dict[str, tuple[type | tuple[type, ...], str]]] = {
    "str": (str, "a text"),
    "int": (int, "a whole number"),
    "float": ((int, float), "a number"),
    "bool": (bool, "True or False"),
    "tuple[str, ...]": (tuple, "a tuple of texts"),
}
"""The valid values of a setting, by the type of its field."""
_OF_ROWS: Final = ("examples", "shown")
_ROWS_MAX: Final = (1 << 31) - 1
"""The largest number in Java's `int`."""
_METAVARS: Final = {
    **dict.fromkeys(("since", "until"), "TIME"),
    **dict.fromkeys(("to_topic", "dead_letter", "trace_topic"), "TOPIC"),
    **dict.fromkeys(("key", "redrive", "time", "where"), "SQL"),
    **dict.fromkeys(("bucket", "slide", "watermark", "window"), "DURATION"),
    "filter": "TAGS|SQL92",
    "groups": "GROUP[,...]",
    "mark": "NAME=VALUE",
    "schema": "DDL",
    "sql": "SQL|@FILE",
    "trigger": "once|DURATION",
}
"""The name of a setting's value in the help, by the setting's name, for all jobs."""


class StoppedEarly(BaseException):  # Py4J would handle an Exception itself.
    """The job was asked to end before there was anything to finish."""


class Run:
    """One run of a job: whether it is a dry run, how it reports progress, and when to stop."""

    def __init__(
        self,
        *,
        dry_run: bool = False,
        progress: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> None:
        self.dry_run = dry_run
        """Whether to say what would be done, and to change nothing."""
        self.is_early = False
        """Whether there is nothing to finish yet: servers are asked, or Spark is started."""
        self.start_seconds: float | None = None
        """How long the start of Spark took."""
        self.report: Report | None = None
        """What the job has done so far; `None` before it begins."""
        self.last_batch: LastBatch | None = None
        """The last batch of its stream."""
        self._progress = progress
        self._stop = threading.Event()
        self._has_refused = False

    def report_of(self, job: str, *, counts_bytes: bool = False) -> Report:
        """Begin the report of a job; the caller has it even if the job fails."""
        self.report = Report(job, dry_run=self.dry_run, start_seconds=self.start_seconds)
        if counts_bytes:
            self.report.count_bytes(0)
        return self.report

    def report_so_far(self, job: str) -> Report:
        """Return the current report of a job, or an empty one."""
        return self.report or self.report_of(job)

    @property
    def is_stopping(self) -> bool:
        """Whether the job is to end as soon as its current step is complete."""
        return self._stop.is_set()

    @contextmanager
    def early(self) -> Generator[None]:
        """Have a request to stop end the job at once in the block: there is nothing to finish."""
        self.is_early = True
        try:
            yield
        except KeyboardInterrupt:  # From the handler that Spark installs when it starts.
            raise StoppedEarly from None
        finally:
            self.is_early = False

    @contextmanager
    def starting(self) -> Generator[None]:
        """Report that Spark is being started, which takes a while, and how long it took."""
        began = time.monotonic()
        self.tell(starting="Spark")
        try:
            with self.early():
                yield
        finally:
            self.start_seconds = time.monotonic() - began
        self.tell(started="Spark", seconds=round(self.start_seconds, 1))

    def stop(self) -> None:
        """Ask the job to stop; from any thread or a signal handler."""
        self._stop.set()

    def begin_batch(self) -> None:
        """Refuse to begin a batch if the job is to stop, which ends its stream.

        Spark would begin one batch after another, and stopping it within a batch prints a thousand
        lines.
        """
        if self.is_stopping:
            self._has_refused = True
            raise PipelineError("the job shall end")

    def tell(self, **news: Any) -> None:
        """Report progress."""
        if self._progress is not None:
            self._progress(news)

    def pause(self, seconds: float) -> None:
        """Wait, but no longer than until the job is to stop."""
        self._stop.wait(seconds)

    def watch(
        self,
        query: StreamingQuery,
        report: Report,
        checkpoint: str = "",
        *,
        refuses_batches: bool = False,
    ) -> None:
        """Wait for the end of a stream, and note its batches in the report.

        If the job is to stop, wait for the running batch; if the next batch is refused
        (`begin_batch`), do not interrupt Spark on its way to it. If the stream fails, raise a
        `PipelineError` with what Spark says; a restart continues. It is never an `OptionError`,
        which would say that nothing was changed: a stream has begun its checkpoint, maybe a batch.
        """
        seen = -1
        said = Said(query)
        stopping_at: int | None = None
        while True:
            try:
                is_over = self._ended(query, checkpoint)
            except PipelineError:
                if not self._has_refused:
                    raise
                report.stopped = is_over = True
            finally:
                seen = note(said.news(), report, seen, self)
            if is_over:
                return
            if self.is_stopping:
                stopping_at = seen if stopping_at is None else stopping_at
                is_behind = seen > stopping_at and not refuses_batches
                is_idle = not query.status["isTriggerActive"]
                if is_behind or is_idle:
                    # Unless it is idle, the next batch reports them.
                    if is_idle and (lost := untold(checkpoint)):
                        report.count("lost", lost)
                    query.stop()
                    note(said.news(), report, seen, self)  # A batch may just have ended.
                    report.stopped = True
                    return

    def _ended(self, query: StreamingQuery, checkpoint: str) -> bool:
        from pyspark.errors import StreamingQueryException

        try:
            ended: bool = query.awaitTermination(_LOOK_SECONDS)
        except StreamingQueryException as error:
            said = ours(error, checkpoint)
            raise (PipelineError(str(said)) if isinstance(said, OptionError) else said) from error
        return ended


def _nothing(_settings: Any) -> Places:
    return ()


@dataclass(frozen=True, slots=True)
class Job:
    """A job, as the command line knows it."""

    name: str
    settings: type[Any]
    function: Callable[[SparkSession, Any, Run], Report]
    summary: str
    """Its line in the list of jobs."""
    about: str = ""
    """The rest of its `--help`."""
    goes_on: bool = True
    """Whether a restart after a failure continues where it was; otherwise it starts over."""
    examples: tuple[str, ...] = ()
    """Command lines for `--help`, starting with the job's name."""
    holds: Callable[[Any], Places] = _nothing
    """Returns the folders that it holds while it runs, by its settings."""
    look: Callable[[Any], object] | None = None
    """Checks, before Spark is started, that what the settings name exists."""


def setting(
    meaning: str,
    default: Any = MISSING,
    *,
    metavar: str = "",
    in_environment: bool = False,
    secret: bool = False,
) -> Any:
    """Declare a field of a job's settings; without a default, it is required.

    With `in_environment`, an environment variable may give it, too. A `secret` is never shown, and
    the command line only names a file that contains it.
    """
    metadata = {
        "meaning": meaning,
        "metavar": metavar,
        "in_environment": in_environment,
        "secret": secret,
    }
    return field(default=default, repr=not secret, metadata=metadata)


def check_types(settings: DataclassInstance) -> None:
    """Refuse settings of wrong types: the text "false" would be true. Texts must be UTF-8.

    The command line makes the right types, but other callers may read settings from a file.
    """
    for each in fields(settings):
        value = getattr(settings, each.name)
        kind, must_be = _KINDS.get(str(each.type), (object, ""))
        if each.type == "Credentials" and not isinstance(value, type(each.default)):
            # Without the value, which may contain a secret.
            raise OptionError(f"{each.name}: must be Credentials, not {type(value).__name__}")
        if (
            not isinstance(value, kind)
            or (isinstance(value, bool) and kind is not bool and must_be)
            or (kind is tuple and not _are_texts(value))
        ):
            if each.metadata.get("secret"):
                raise OptionError(f"{_named(each)}: must be {must_be}, not {type(value).__name__}")
            raise OptionError(f"{_named(each)}: {value!r} is not {must_be}")
        if isinstance(value, str) and not _is_utf8(value):
            shown = "the secret" if each.metadata.get("secret") else repr(value)
            raise OptionError(f"{_named(each)}: {shown} is not UTF-8, which Java needs")


def check_settings(settings: DataclassInstance) -> None:
    """Refuse settings of wrong types, and empty texts, as from a variable that is not set.

    Only optional settings may be empty; if such a setting has a default, the job decides.
    """
    check_types(settings)
    for each in fields(settings):
        value = getattr(settings, each.name)
        if isinstance(value, str) and not value.strip() and (value or each.default is MISSING):
            what = metavar_of(each)
            must = f"write {what}" if what else "leave it out, or write a value"
            raise OptionError(
                f"{_named(each)}: must not be {'blank' if value else 'empty'}; {must}"
            )
        if each.name in _OF_ROWS and getattr(settings, each.name) > _ROWS_MAX:
            raise OptionError(
                f"{_named(each)}: {value} is more than {_ROWS_MAX}, the most there can be"
            )


def _is_utf8(text: str) -> bool:
    """Whether a text can be encoded; Python reads other bytes of a command line as surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _are_texts(values: Any) -> bool:
    return all(isinstance(each, str) for each in values)


def metavar_of(declared: Field[Any]) -> str:
    """Return the name of a setting's value in the help; empty if the help text says it."""
    return declared.metadata.get("metavar") or _METAVARS.get(declared.name, "")


def _named(declared: Field[Any]) -> str:
    return declared.name.rstrip("_").replace("_", "-")


@contextmanager
def running(spark: SparkSession, report: Report) -> Generator[None]:
    """Let a job write with the session from this thread, and note how long the job takes."""
    from cometmq.pipeline.spark_session import make_active

    make_active(spark)
    began = time.monotonic()
    try:
        yield
    finally:
        report.seconds = time.monotonic() - began
