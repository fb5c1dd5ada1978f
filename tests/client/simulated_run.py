"""Runs a scenario on a loop whose time passes only while every task waits."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import selectors
import threading
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol

import pytest
import trio
from tests.client.simulated_network import in_trio, runtime_of
from trio.testing import MockClock

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Awaitable, Callable

    from tests.client.simulated_network import Machine, Network

EPOCH: Final = 1_800_000_000.0


def seeds_of(count: int) -> range:
    """Return the seeds to play; `SIMULATED_SEEDS=1000..9000` in the environment names others.

    A history is the same each time only with the same `PYTHONHASHSEED`, for example 0.
    """
    first, _, end = os.environ.get("SIMULATED_SEEDS", f"0..{count}").partition("..")
    return range(int(first), int(end))


class _Selector(selectors.SelectSelector):
    """Instead of waiting, it moves its clock."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "everything waits for ever"
        self.now += timeout
        return []


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _Selector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


class _Told(logging.Handler):
    """What this thread logs, without the effort to format it."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []
        self._thread = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self._thread:
            self.lines.append(record.getMessage())


def run(
    loop: str, seed: int, scenario: Callable[[], Awaitable[None]], runtime: Callable[[], Any]
) -> list[str]:
    """Run a scenario on asyncio or trio, with the simulated clock as that of the machine.

    Clients get their runtimes from `runtime`. Return the warnings; none of them is of a bug.
    """
    told = _Told()
    logger = logging.getLogger("cometmq")
    random.seed(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logger, "handlers", [told])
        patch.setattr(logger, "propagate", False)
        patch.setattr("cometmq.client._life.local_address", lambda: "127.0.0.1")
        patch.setattr("cometmq.client._life.current_runtime", runtime)
        if loop == "trio":
            # Trio draws the order in which it runs what is ready.
            scheduler = import_module("trio._core._run")
            patch.setattr(scheduler, "_ALLOW_DETERMINISTIC_SCHEDULING", True)
            vars(scheduler)["_r"].seed(seed)
            trio.run(_timed, scenario, patch, clock=MockClock(autojump_threshold=0))
        else:
            _run_on_asyncio(scenario, patch)
    bugs = [line for line in told.lines if "bug" in line]
    assert not bugs, f"seed {seed}: {bugs[0]}"
    return told.lines


def _run_on_asyncio(scenario: Callable[[], Awaitable[None]], patch: pytest.MonkeyPatch) -> None:
    failed: list[dict[str, Any]] = []
    with asyncio.Runner(loop_factory=_Loop) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: failed.append(context))
        runner.run(_timed(scenario, patch))
    assert not failed, failed[0]


async def _timed(scenario: Callable[[], Awaitable[None]], patch: pytest.MonkeyPatch) -> None:
    """Run a scenario with the loop's clock in this thread; those of other tests keep theirs."""
    clock = trio.current_time if in_trio() else asyncio.get_running_loop().time
    thread, monotonic_ns, time_ns = threading.get_ident(), time.monotonic_ns, time.time_ns

    def jumping_monotonic_ns() -> int:
        return int(clock() * 1e9) if threading.get_ident() == thread else monotonic_ns()

    def jumping_time_ns() -> int:
        return int((EPOCH + clock()) * 1e9) if threading.get_ident() == thread else time_ns()

    patch.setattr(time, "monotonic_ns", jumping_monotonic_ns)
    patch.setattr(time, "time_ns", jumping_time_ns)
    await scenario()


class History(Protocol):
    """What a seed makes happen between clients and servers."""

    network: Network
    problems: list[str]

    async def play(self) -> None:
        """Let it happen."""
        ...


def played(history: History, seed: int, loop: str, opening: Callable[[], Machine]) -> Counter[str]:
    """Play a history, check that nothing went wrong in it, and return what happened.

    `opening` returns the machine on which a client is opened at the moment.
    """
    run(loop, seed, history.play, lambda: runtime_of(history.network, opening()))
    assert not history.problems, f"seed {seed}: {history.problems[0]}"
    return history.network.counts
