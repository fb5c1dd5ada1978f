"""Reads of data that is not in memory, by a few threads, so that no disk holds up the loop."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cometmq.store.disk.cold import Cold
    from cometmq.store.message_store import MessageStore

    Fetched: TypeAlias = "Sequence[tuple[Cold, bytes]]"

_THREADS: Final = 2
"""One slow read should not hold up all others; more threads would only queue at the disk."""


class ColdReads:
    """Fetches in threads and calls back on the loop. The threads start with the first read."""

    def __init__(
        self, store: MessageStore, call_soon_threadsafe: Callable[[Callable[[], None]], object]
    ) -> None:
        self._store = store
        self._soon = call_soon_threadsafe
        self._pool = ThreadPoolExecutor(_THREADS, "cometmq-read")

    def fetch(
        self,
        cold: Sequence[Cold],
        then: Callable[[Fetched], None],
        failed: Callable[[OSError], None],
    ) -> None:
        """Fetch these; later, either `then` or `failed` is called on the loop, once."""
        self._pool.submit(self._fetch, tuple(cold), then, failed)

    def _fetch(
        self,
        cold: Sequence[Cold],
        then: Callable[[Fetched], None],
        failed: Callable[[OSError], None],
    ) -> None:
        try:
            fetched = [self._store.fetch(each) for each in cold]
        except OSError as error:
            problem = error
            self._soon(lambda: failed(problem))
            return
        self._soon(lambda: then(fetched))

    def close(self) -> None:
        """Wait for the running reads, and drop the waiting ones."""
        self._pool.shutdown(wait=True, cancel_futures=True)
