"""Jobs that end at any step, with or without a power cut: what they do next must be right.

A step is a change of a file or folder by a job's own hand, or a sync of one. Spark's own writing is
not divided into steps; what a power cut leaves of it is (`CutDisk`).
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from tests.pipeline.cut_disk import CutDisk

from cometmq.pipeline.jobs import durable
from cometmq.pipeline.jobs.folders import Folder
from cometmq.pipeline.jobs.job import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import pytest
    from pyspark.sql import SparkSession

_STEPS_MAX = 130
"""About as many as a run of a few batches has."""
_CUT = 0.7
"""How often the power is cut, too."""


class EndedError(Exception):
    """The process was ended here."""


class Process:
    """A process that ends at a step, after which nothing that it does has an effect."""

    def __init__(self, disk: CutDisk) -> None:
        self._disk = disk
        self.left = -1
        """How many steps it still does; -1 for all."""

    def step(self, do: Callable[..., Any], *given: Any) -> Any:
        """Do something, unless the process has ended."""
        if self.left == 0:
            raise EndedError
        self.left -= self.left > 0
        return do(*given)

    def fsync(self, descriptor: int) -> None:
        """Sync a file or folder."""
        self.step(self._disk.fsync, descriptor)


class _System:
    """Hadoop's file system, each of whose changes is a step."""

    def __init__(self, system: Any, process: Process) -> None:
        self._system = system
        self._process = process

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._system, name)
        if name in {"create", "delete", "mkdirs", "rename"}:
            return partial(self._process.step, found)
        if name == "getRawFileSystem":
            return lambda: _System(found(), self._process)
        return found


class Lives:
    """A folder in which jobs work, each for the life of a process."""

    def __init__(
        self, path: Path, seed: int, monkeypatch: pytest.MonkeyPatch, *, in_order: bool
    ) -> None:
        self.path = path / f"seed {seed}"
        self.path.mkdir()
        self.random = Random(seed)
        self.told = [f"seed {seed}"]
        self._disk = CutDisk(self.path, path / "kept", self.random, in_order=in_order)
        self._process = Process(self._disk)
        self._end_at_steps(monkeypatch)

    def _end_at_steps(self, monkeypatch: pytest.MonkeyPatch) -> None:
        opened: Any = Folder.__init__

        def stepping(folder: Any, spark: SparkSession, path: str) -> None:
            opened(folder, spark, path)
            folder._system = _System(folder._system, self._process)

        monkeypatch.setattr(Folder, "__init__", stepping)
        monkeypatch.setattr(durable, "fsync", self._process.fsync)

    def live(self, works: Sequence[Callable[[], object]]) -> None:
        """Have some of these jobs work until they are done or ended."""
        for _ in range(self.random.randrange(1, 6)):
            work = self.random.choice(works)
            self._process.left = self.random.randrange(_STEPS_MAX)
            self.told.append(f"{work.__name__} of {self._process.left} steps")
            self._do(work)
            self._process.left = -1
            if self.random.random() < _CUT:
                self.told.append("power cut")
                self._disk.cut()

    def _do(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:
            if EndedError.__name__ not in f"{error!r} {error.__cause__!r}":
                raise

    def run(self) -> Run:
        """Return a run whose news are told with a failure."""

        def tell(news: Mapping[str, Any]) -> None:
            if "total" not in news:  # Not for each batch.
                self.told.append(str(dict(news)))

        return Run(progress=tell)

    def close(self) -> None:
        """Remove what was kept."""
        self._disk.close()
