"""Which queues have files with only expired entries, found without waiting for a cold disk.

Once a segment has expired, the begin of each queue is searched for in its entries. The oldest are
seldom in memory, and right after a start no queue has been touched; so a thread first reads, for
many queues at a time, what loading and searching them will look at.
"""

from __future__ import annotations

from contextlib import ExitStack, closing, suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from cometmq.store.disk.cold import Cold
from cometmq.store.errors import StoreFilesError
from cometmq.store.queues.entry_search import NO_CUT, WINDOW_ENTRIES, Front, sound_entries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from cometmq.store.queues.batch_consume_queue import BatchConsumeQueue
    from cometmq.store.queues.consume_queue import ConsumeQueue
    from cometmq.store.queues.entry_disk import Shelf
    from cometmq.store.queues.entry_files import EntryFiles
    from cometmq.store.queues.queue_table import QueueTable

    LetsGo = Callable[[EntryFiles], bool]
    InThread = Callable[[Callable[[], None]], None]

COLD_QUEUES: Final = 64
"""Queues whose files a thread reads together."""


def queues_letting_go(
    queues: Iterable[EntryFiles | None], lets_go: LetsGo, in_thread: InThread
) -> Iterator[EntryFiles | None]:
    """Yield each queue that has files to remove, and None for others; one a step.

    Queues whose fronts are cold come later, after these were read `in_thread`; no step may be taken
    before that has ended.
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


def walk_once_read(
    table: QueueTable[ConsumeQueue] | QueueTable[BatchConsumeQueue], in_thread: InThread
) -> Iterator[EntryFiles | None]:
    """Walk all queues, as `QueueTable.walk_sound` does; one a step, and None for some more steps.

    What unloaded queues need for that is read `in_thread` first; no step may be taken before that
    has ended.
    """
    names = ((topic, queue_id) for topic in table.topics() for queue_id in table.queues(topic))
    while some := list(islice(names, COLD_QUEUES)):
        unloaded = [name for name in some if name[1] not in table.in_memory(name[0])]
        if unloaded:
            in_thread(partial(_warm, table.shelf, unloaded))
            yield None
        for name in some:
            yield table.find_sound(*name)


def _warm(shelf: Shelf, queues: list[tuple[str, int]]) -> None:
    for topic, queue_id in queues:
        with suppress(OSError, StoreFilesError):  # The load reports it.
            _warm_queue(shelf, topic, queue_id)


def _warm_queue(shelf: Shelf, topic: str, queue_id: int) -> None:
    """Read what loading a queue, and the search for where it begins, will look at."""
    numbers = shelf.numbers(f"{shelf.root}/{topic}/{queue_id}")
    with ExitStack() as opened:
        for number in reversed(numbers):
            path = shelf.path(topic, queue_id, number)
            file = opened.enter_context(closing(shelf.disk.filesystem.open(path, read_only=True)))
            count = sound_entries(file, shelf, NO_CUT)
            file.read(WINDOW_ENTRIES * shelf.entry_size, count * shelf.entry_size)
            if count:
                low, end = (each * shelf.file_entries for each in (numbers[0], number))
                offset = shelf.disk.min_physical_offset
                Front(shelf, topic, queue_id, low, end + count, end + count, offset).warm()
                return
