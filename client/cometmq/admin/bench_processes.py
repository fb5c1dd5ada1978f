"""A load from several processes, each with a share of the connections.

Each process is started with its share and has a pipe: the parent uses it to end the process early,
and the process sends its result through it. Only the parent handles Ctrl-C: a terminal also sends
it to the others, but they ignore it from their first instruction on.
"""

from __future__ import annotations

import signal
import threading
from array import array
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Final

from cometmq.admin.bench_load import BenchError, Done, Interrupt, Load, interruptible, run

if TYPE_CHECKING:
    from collections.abc import Generator
    from multiprocessing.connection import Connection

NOTICE_SECONDS: Final = 0.1
"""How long a Ctrl-C may go unnoticed."""
_END: Final = b"end"
_context = get_context("spawn")


class _Share:
    """A process that generates its share of a load."""

    def __init__(self, load: Load) -> None:
        pipe, far_end = _context.Pipe()
        self.pipe: Connection[bytes, Done | BenchError] = pipe
        self._process = _context.Process(target=_make_share, args=(load, far_end), daemon=True)
        with far_end:  # If it stayed open here, the end of the process would not show.
            self._process.start()

    def end(self) -> None:
        """Have it end early."""
        with suppress(OSError):  # It has ended; `done` reads its result, or finds it missing.
            self.pipe.send_bytes(_END)

    def done(self) -> Done:
        """Return its result."""
        try:
            done = self.pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            status = self._process.exitcode
            raise BenchError(f"a process of the load ended with status {status}") from None
        if isinstance(done, BenchError):
            raise done
        return done

    def close(self) -> None:
        """Make sure that it has ended."""
        self.pipe.close()
        self._process.kill()
        self._process.join()


def run_in_processes(load: Load, processes: int) -> Done:
    """Generate a load from several processes, until its end or a Ctrl-C."""
    with interruptible() as interrupt, ExitStack() as stack:
        if processes == 1:
            return run(load, interrupt)
        shares: list[_Share] = []
        for number in range(processes):
            with _unheard_by_those_started():
                share = _Share(load._replace(share=range(number, load.connections, processes)))
            stack.callback(share.close)
            shares.append(share)
        return _sum(_wait_for_all(shares, interrupt))


@contextmanager
def _unheard_by_those_started() -> Generator[None]:
    """Block Ctrl-C within the block, and in processes that are started there."""
    resource_tracker.ensure_running()  # The first start would run it, and unblock Ctrl-C again.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait_for_all(shares: list[_Share], interrupt: Interrupt) -> list[Done]:
    found: list[Done] = []
    waiting: list[_Share] = shares
    is_told = False
    while waiting:
        ready = wait([share.pipe for share in waiting], NOTICE_SECONDS)
        found += [share.done() for share in waiting if share.pipe in ready]
        waiting = [share for share in waiting if share.pipe not in ready]
        if interrupt.has_come and not is_told:
            is_told = True
            for share in waiting:
                share.end()
    return found


def _make_share(load: Load, pipe: Connection[Done | BenchError, bytes]) -> None:
    """Generate a share of a load: the main function of a process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    interrupt = Interrupt()
    threading.Thread(target=_listen, args=(pipe, interrupt), daemon=True).start()
    found: Done | BenchError
    try:
        found = run(load, interrupt)
    except BenchError as error:
        found = error
    with suppress(OSError):  # The parent is gone.
        pipe.send(found)


def _listen(pipe: Connection[Done | BenchError, bytes], interrupt: Interrupt) -> None:
    """Wait until the parent says to end, or ends itself."""
    with suppress(EOFError, OSError):
        pipe.recv_bytes()
    interrupt.has_come = True


def _sum(found: list[Done]) -> Done:
    return Done(
        sum(done.messages for done in found),
        sum(done.requests for done in found),
        max(done.seconds for done in found),
        sum((done.refused for done in found), Counter[int]()),
        {code: text for done in found for code, text in done.remarks.items()},
        sum((done.latencies_us for done in found), array("f")),
    )
