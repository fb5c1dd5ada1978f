"""Which queues have files that lie in front of the log, without waiting for a cold disk.

Once a segment has expired, where each queue begins is searched for in its entries. The oldest are
seldom in memory, so a thread reads what the search looks at, of many queues at a time.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from cometmq.store.disk.cold import Cold

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from cometmq.store.queues.entry_files import EntryFiles

    LetsGo = Callable[[EntryFiles], bool]
    InThread = Callable[[Callable[[], None]], None]

COLD_QUEUES: Final = 64
"""Their fronts are read together, in a thread."""


def queues_letting_go(
    queues: Iterable[EntryFiles | None], lets_go: LetsGo, in_thread: InThread
) -> Iterator[EntryFiles | None]:
    """Give each queue that has files to remove, and None for others; one a step.

    Those whose fronts are cold come later, once they were read `in_thread`; no step may be taken
    before that ended.
    """
    cold: list[EntryFiles] = []
    for queue in queues:
        if queue is None:
            yield None
            continue
        has_files = queue.without_waiting(partial(lets_go, queue))
        if isinstance(has_files, Cold):
            cold.append(queue)
        yield queue if has_files is True else None
        if len(cold) == COLD_QUEUES:
            yield from _once_read(cold, lets_go, in_thread)
            cold.clear()
    if cold:
        yield from _once_read(cold, lets_go, in_thread)


def _once_read(
    cold: list[EntryFiles], lets_go: LetsGo, in_thread: InThread
) -> Iterator[EntryFiles | None]:
    fronts = [queue.front for queue in cold]

    def warm() -> None:
        for front in fronts:
            front.warm()

    in_thread(warm)
    yield None
    for queue in cold:
        yield queue if lets_go(queue) else None
