"""The threads of a store, and what the disk has confirmed.

Threads run only calls that release the interpreter's lock: syncing, allocating. They leave their
results in attributes that the store's own thread reads, and notify it by a callback, which need
only wake that thread's loop.

A `Syncer` does group commit: whatever is written while a sync runs shares the next one. Nothing
here depends on the clock. If its thread is not started, a `BackgroundThread` does its work when
`step` is called; so the crash tests need only one thread.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from threading import Lock, Thread
from typing import TYPE_CHECKING

from cometmq.proto.durations import Durations

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.store.disk.filesystem import File


class BackgroundThread:
    """A thread that takes one step each time it is woken."""

    def __init__(self, name: str, step: Callable[[], None]) -> None:
        self.step = step
        self._name = name
        self._thread: Thread | None = None
        self._stopping = False
        # A lock as a binary semaphore: `wake` costs 60 ns, an Event's `set` ten times that.
        self._woken = Lock()
        self._woken.acquire()

    def start(self) -> None:
        """Start the thread; without it the work waits for `step`."""
        self._thread = Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Have a step taken soon."""
        with suppress(RuntimeError):  # It is woken already, and has not begun the step yet.
            self._woken.release()

    def _run(self) -> None:
        while True:
            self._woken.acquire()
            if self._stopping:
                return
            self.step()

    def stop(self) -> None:
        """End the thread after the step that it is taking."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stopping = True
            self.wake()
            thread.join()


class Syncer:
    """Brings the log to the disk, on request, in the order in which it was written.

    `synced_offset` only grows. `failure` is the first error of a sync, and stays: `SyncFailedError`
    says why there is no second try.
    """

    def __init__(
        self,
        synced_offset: int,
        *,
        note: Callable[[int], None],
        on_change: Callable[[], None],
    ) -> None:
        """`note` is called with each new synced offset, then `on_change`; both in the thread."""
        self.synced_offset = synced_offset
        self.failure: OSError | None = None
        self.durations = Durations()
        """Those of the successful syncs."""
        self.thread = BackgroundThread("store-sync", self.step)
        self._note = note
        self._on_change = on_change
        self._requested = synced_offset
        self._step = Lock()
        self._files: list[tuple[File, int]] = []

    def add(self, file: File, end_offset: int) -> None:
        """Sync this file, too, from now on until everything before `end_offset` is synced."""
        if (file, end_offset) not in self._files:
            self._files.append((file, end_offset))

    def request(self, offset: int) -> None:
        """Sync the log up to `offset`; its files must have been added and written before."""
        self._requested = offset
        self.thread.wake()

    def finish(self, offset: int) -> None:
        """Sync the log up to `offset`, in this thread; raise `OSError` if any sync ever failed."""
        self._requested = offset
        self.step()
        if self.failure is not None:
            raise self.failure

    def fail(self, error: OSError) -> None:
        """Note a sync that failed elsewhere: it is just as final."""
        self.failure = error
        self._on_change()

    def step(self) -> None:
        """Sync once for everything requested so far."""
        with self._step:
            self._sync()

    def _sync(self) -> None:
        # Read this before the files: a file is added before an offset in it is requested.
        requested = self._requested
        if self.failure is not None or requested <= self.synced_offset:
            return
        begun_ns = time.perf_counter_ns()
        try:
            for file, end_offset in tuple(self._files):
                file.sync()
                if end_offset <= requested:
                    self._files.remove((file, end_offset))
            self._note(requested)
        except OSError as error:
            self.failure = error
        else:
            self.synced_offset = requested
            self.durations.add((time.perf_counter_ns() - begun_ns) // 1000)
        self._on_change()


class Errand:
    """A job, one at a time, that knows whether it is under way."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self.is_under_way = False

    def begin(self, work: Callable[[], None]) -> None:
        """Have work done soon."""

        def job() -> None:
            work()
            self.is_under_way = False

        self.is_under_way = True
        self._jobs.submit(job)


class Jobs:
    """Work that is slower than a sync and must not hold one up, one job after another.

    A job handles its own errors. Jobs that wait when the thread is stopped are not done.
    """

    def __init__(self) -> None:
        self.thread = BackgroundThread("store-jobs", self.step)
        self._waiting: deque[Callable[[], None]] = deque()

    def submit(self, job: Callable[[], None]) -> None:
        """Have a job done soon."""
        self._waiting.append(job)
        self.thread.wake()

    def step(self) -> None:
        """Do all waiting jobs."""
        while self._waiting:
            self._waiting.popleft()()
