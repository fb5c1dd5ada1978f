"""Removing from Spark's stderr what it writes even if nothing is wrong.

That is a few lines at its start, and tracebacks of its Python processes: Spark closes the sockets
of processes that it no longer needs, and these report it at length. Such a traceback is removed as
a whole, and only if every line of it is known: its files are PySpark's own, and its errors are
those of a closed socket, or of one that was gone when a process came that was slow to start, which
Spark reports, too. So what a user's function or a reader raises is shown, with everything chained
to it.
"""

from __future__ import annotations

import re
from typing import Final

_LINES: Final = re.compile(
    rb"WARNING: Using incubator modules: jdk\.incubator\.vector"
    rb"|WARNING: package sun\.security\.action not in java\.base"
    rb"|Using Spark's default log4j profile: "
    rb'|Setting default log level to "WARN"'
    rb"|To adjust logging level use sc\.setLogLevel"
    rb"|\d\d/\d\d/\d\d \d\d:\d\d:\d\d WARN (?:NativeCodeLoader: "
    rb"|Utils: (?:Your hostname, |Set SPARK_LOCAL_IP ))"
    rb"|Warning: Java versions > Java 11 can only operate in restricted mode"
    # What Ivy says about JARs that it has or downloads, but not about those that it cannot find.
    rb"|:: (?:loading settings|resolving dependencies|resolution report|retrieving) :: "
    rb"|Ivy Default Cache set to: |The jars for the packages stored in: "
    rb"|\S+ added as a (?:dependency$|remote repository with the name: )"
    rb"|downloading \S+ \.\.\.$"
    rb"|\t(?:confs: \[|found \S+ in |\[SUCCESSFUL \] |\d+ artifacts copied, "
    rb"|:: (?:modules in use|evicted modules):$|\S+#\S+ (?:from \S+|by \[.*\]) in \["
    rb"|-{40,}$|\|[ |a-z0-9]+\|$)"
    # The logger in the JARs of Amazon's SDK, at the first use of `s3a://`.
    rb'|SLF4J: (?:Failed to load class "org\.slf4j\.impl\.StaticLoggerBinder"'
    rb"|Defaulting to no-operation |See \S+#StaticLoggerBinder )",
    re.MULTILINE,
)
"""The beginnings of lines that Spark writes as it starts. That of Java 11 comes from a function for
counting, when it is first used; the second one is of Java 25."""
_HEADER: Final = b"Traceback (most recent call last):"
_FLUSHING: Final = b"PySpark daemon failed to flush the output to the worker process:"
"""What the daemon writes before a traceback; it writes an empty line after it."""
_CHAINS: Final = (
    b"During handling of the above exception, another exception occurred:",
    b"The above exception was the direct cause of the following exception:",
)
_ERRORS: Final = (
    b"BrokenPipeError: [Errno 32] Broken pipe",
    b"ConnectionResetError: [Errno 104] Connection reset by peer",
    b"EOFError",
    b"SystemExit: -1",
)
"""The errors that the processes find, and how they end after an error that they told Spark."""
_LATE: Final = (
    b"FileNotFoundError: [Errno 2] No such file or directory",
    b"pyspark.errors.exceptions.base.PySparkRuntimeError: [CANNOT_OPEN_SOCKET] ",
)
"""The beginnings of the errors of a process that starts too late."""
_BEGINNINGS: Final = (_HEADER, _FLUSHING)
_KNOWN: Final = (*_BEGINNINGS, *_CHAINS, *_ERRORS, *_LATE)
_FRAME: Final = re.compile(
    rb'  File "(?:<frozen runpy>|[^"]*/(?:contextlib|socket|pyspark/(?:daemon|serializers|util|'
    rb'worker_util|sql/streaming/python_streaming_source_runner))\.py)", line \d+, in '
)
"""Where a PySpark process can be when the other end closes its socket."""
_ITS_OWN: Final = re.compile(rb"/pyspark/(?:daemon|\S+/python_streaming_source_runner)\.py")
"""The programs that these processes run; each such traceback has one of them."""
_INDENT: Final = b"    "
_CARETS: Final = re.compile(rb" +[~^]+")


class Sieve:
    """Holds back noise, and passes on everything else as soon as it is known not to be noise."""

    def __init__(self) -> None:
        self.holds_half_lines = True
        """Whether to wait for the end of each line; otherwise only lines that may become noise
        wait, as somebody may want to see the beginning of another line."""
        self._half = b""
        self._block: _Block | None = None
        self._is_amid = False
        """Whether the beginning of the current line has been passed on."""
        self._is_chained = False
        """Whether what was passed on last says that a traceback follows that belongs to it."""

    def sift(self, chunk: bytes) -> bytes:
        """Take the next input, and return what can be passed on."""
        lines = (self._half + chunk).splitlines(keepends=True)
        self._half = b""
        through: list[bytes] = []
        for line in lines:
            is_whole = line.endswith((b"\n", b"\r"))
            if not is_whole and self._waits(line):
                self._half = line
            else:
                through += self._sift_line(line)
                self._is_amid = not is_whole
        return b"".join(through)

    def end(self) -> bytes:
        """Return what was held back and is not noise, at the end of the input.

        Java may end in the middle of a traceback. One that could still be noise does not say yet
        what happened, so it is dropped.
        """
        half, self._half = self._half, b""
        block, self._block = self._block, None
        if block is not None:
            return b"" if block.is_open or half else b"".join(block.left())
        return b"" if half and _begins(half, _BEGINNINGS) else b"".join(self._sift_line(half))

    def _waits(self, half: bytes) -> bool:
        if self._is_amid:
            return False
        if self._block is not None:
            return half.startswith((b" ", *_LATE)) or _begins(half, _KNOWN)
        return self.holds_half_lines or _begins(half, (*_BEGINNINGS, *_CHAINS))

    def _sift_line(self, line: bytes) -> list[bytes]:
        if self._is_amid:
            return [line]
        if block := self._block:
            if block.take(line):
                return []
            self._block = None
            if block.is_open:  # An unknown error, or another writer's output.
                return [*block.lines, line]
            return [*block.left(), *self._sift_line(line)]
        text = line.rstrip(b"\r\n")
        if text in _BEGINNINGS and not self._is_chained:
            self._block = _Block()
            self._block.take(line)
            return []
        if text:
            self._is_chained = text in _CHAINS
        return [] if _LINES.match(line) else [line]


class _Block:
    """Lines that may be noise: tracebacks, of several processes if they write at once."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self._open = 0
        self._code = 0
        self._empty = 0
        self._is_its_own = False
        self._is_followed = True
        """Whether another traceback must follow, by the last line."""

    @property
    def is_open(self) -> bool:
        """Whether a traceback has no error yet, or another one must follow."""
        return self._open > 0 or self._is_followed

    def take(self, line: bytes) -> bool:
        """Take the next line if it can belong to such tracebacks."""
        text = line.rstrip(b"\r\n")
        code, self._code = self._code, 0
        if code and text.startswith(_INDENT) and (code == 2 or _CARETS.fullmatch(text)):
            self._code = code - 1
        elif self._open and _FRAME.match(text):
            self._code = 2  # A source line may follow, and one that marks the place in it.
            self._is_its_own |= _ITS_OWN.search(text) is not None
        elif self._open and (text in _ERRORS or text.startswith(_LATE)):
            self._open -= 1
        elif text in _BEGINNINGS and (self._open or self._is_followed):
            self._open += text == _HEADER
            self._empty += text == _FLUSHING
        elif text and text not in _CHAINS:
            return False
        if text:
            self._is_followed = text == _FLUSHING or text in _CHAINS
        self.lines.append(line)
        return True

    def left(self) -> list[bytes]:
        """Return the lines that are not noise, now that the next line is not part of the block."""
        if not self._is_its_own:
            return self.lines
        empty = 0
        while not self.lines[-1 - empty].strip():
            empty += 1
        return self.lines[len(self.lines) - max(empty - self._empty, 0) :]


def _begins(half: bytes, known: tuple[bytes, ...]) -> bool:
    return any(each.startswith(half) for each in known)
