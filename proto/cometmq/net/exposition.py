"""The pages of a process for metrics, health and readiness: `/metrics /healthz /readyz`.

A daemon is a source: it is asked to prepare what takes time, and then for its families, which it
makes one by one from plain counters. While nobody asks for this page, only the pulse of the process
is measured for it. prometheus-client renders the families, a few samples at a time.

::

    exposition = Exposition(repeat_on_loop)
    async with trio.open_nursery() as nursery:
        await nursery.start(exposition.serve, listening)
        ...
        exposition.add(source)
"""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import trio
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Metric, generate_latest

from cometmq.net.pages import Page, serve_pages
from cometmq.net.pulse import Pulse
from cometmq.proto.durations import BUCKETS

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

    from cometmq.net.pages import Pages
    from cometmq.proto.durations import Durations
    from cometmq.proto.host import Host

SAMPLES_A_PIECE: Final = 5
"""Samples rendered in one go, some 50 µs."""
_SHORTEST: Final = 4
"""The first bucket of durations with a separate line ends at 2**4 microseconds."""


_BUCKET_ENDS: Final = [repr((1 << bucket) / 1_000_000) for bucket in range(BUCKETS)]


class Source(Protocol):
    """Something with metrics to show."""

    async def prepare(self) -> None:
        """Do the work that takes longer than a slice, a slice at a time."""
        ...

    def collect(self) -> Iterator[Metric]:
        """Yield the families, each as consecutive pieces of a few samples."""
        ...

    def problems(self) -> list[str]:
        """Return why it is not ready; nothing if it is."""
        ...


class Family(NamedTuple):
    """The name, kind and meaning of samples."""

    name: str
    kind: str
    """`counter`, `gauge` or `histogram`."""
    help: str


class Scribe:
    """Makes pieces of families, with the labels common to all samples of a source."""

    def __init__(self, **constant: str) -> None:
        self._constant = constant

    def family(
        self, family: Family, samples: Iterable[tuple[Mapping[str, str], float]]
    ) -> Iterator[Metric]:
        """Make a family of counters or gauges."""
        piece = _metric(family)
        for labels, value in samples:
            piece.add_sample(family.name, {**self._constant, **labels}, value)
            if len(piece.samples) == SAMPLES_A_PIECE:
                yield piece
                piece = _metric(family)
        if piece.samples:
            yield piece

    def single(self, family: Family, value: float, **labels: str) -> Iterator[Metric]:
        """Make a family of one sample."""
        return self.family(family, [(labels, value)])

    def durations(
        self, family: Family, found: Iterable[tuple[Mapping[str, str], Durations]]
    ) -> Iterator[Metric]:
        """Make a family of histograms, in seconds."""
        for labels, durations in found:
            piece = _metric(family)
            own = {**self._constant, **labels}
            counts = tuple(durations.counts)
            below = sum(counts[:_SHORTEST])
            for bucket in range(_SHORTEST, BUCKETS - 1):
                below += counts[bucket]
                labels = {**own, "le": _BUCKET_ENDS[bucket]}
                piece.add_sample(f"{family.name}_bucket", labels, below)
            below += counts[-1]
            piece.add_sample(f"{family.name}_bucket", {**own, "le": "+Inf"}, below)
            piece.add_sample(f"{family.name}_sum", own, durations.total_us / 1_000_000)
            piece.add_sample(f"{family.name}_count", own, below)
            yield piece


def _metric(family: Family) -> Metric:
    name = family.name.removesuffix("_total") if family.kind == "counter" else family.name
    return Metric(name, family.help, family.kind)


class _Window:
    """A collector that shows one piece at a time."""

    def __init__(self) -> None:
        self.piece: Metric | None = None

    def collect(self) -> Iterable[Metric]:
        """Return the piece, if there is one."""
        return [] if self.piece is None else [self.piece]


def render(pieces: Iterable[Metric]) -> Iterator[bytes]:
    """Render pieces in the text format; consecutive pieces with the same name are one family."""
    window = _Window()
    registry = CollectorRegistry(auto_describe=False)
    registry.register(window)
    last = ""
    for window.piece in pieces:
        text = generate_latest(registry)
        if window.piece.name == last:
            _, _, text = text.split(b"\n", 2)  # Without the lines HELP and TYPE.
        last = window.piece.name
        yield text


BUILD = Family("cometmq_build_info", "gauge", "1; what runs, in the labels.")
CPU = Family("process_cpu_seconds_total", "counter", "Processor time of the process.")
MEMORY = Family("process_resident_memory_bytes", "gauge", "Memory of the process.")
START = Family("process_start_time_seconds", "gauge", "When the process started.")
LAG = Family(
    "cometmq_loop_lag_seconds", "histogram", "How late a timer of the loop was, ten times a second."
)
PAUSES = Family(
    "cometmq_gc_pause_seconds", "histogram", "How long the garbage collector stopped the process."
)


class Exposition:
    """The pages of one process, and the sources shown on them."""

    def __init__(self, repeat: Callable[[Callable[[], float]], Awaitable[None]]) -> None:
        """`repeat` calls a function again and again, each time after the seconds it returned."""
        self.pulse = Pulse()
        self._repeat = repeat
        self._sources: list[Source] = []
        self._started = time.time()

    def add(self, source: Source) -> None:
        """Add a source to the pages."""
        self._sources.append(source)

    async def serve(
        self,
        listening: socket.socket,
        *,
        task_status: trio.TaskStatus[Host] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve the pages on a socket, which it takes over, until cancelled."""
        self.pulse.watch()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._repeat, self.pulse.beat)
                task_status.started(await nursery.start(serve_pages, listening, self._pages()))
        finally:
            self.pulse.unwatch()

    def _pages(self) -> Pages:
        return {"/metrics": self._metrics, "/healthz": self._health, "/readyz": self._readiness}

    async def _metrics(self) -> Page:
        for source in self._sources:
            await source.prepare()
        return Page(render(self._collect()), content_type=CONTENT_TYPE_LATEST)

    async def _health(self) -> Page:
        return Page([b"ok\n"])

    async def _readiness(self) -> Page:
        problems = [problem for source in self._sources for problem in source.problems()]
        if not self._sources:
            problems.append("it is starting")
        if problems:
            return Page([f"{problem}\n".encode() for problem in problems], 503)
        return Page([b"ready\n"])

    def _collect(self) -> Iterator[Metric]:
        scribe = Scribe()
        yield from scribe.single(
            BUILD, 1, version=version("cometmq"), python=platform.python_version()
        )
        yield from scribe.single(CPU, time.process_time())
        yield from scribe.single(MEMORY, _resident_size())
        yield from scribe.single(START, self._started)
        yield from scribe.durations(LAG, [({}, self.pulse.lag)])
        generations = enumerate(self.pulse.pauses)
        yield from scribe.durations(PAUSES, [({"generation": str(n)}, d) for n, d in generations])
        for source in self._sources:
            yield from source.collect()


def _resident_size() -> int:
    return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
