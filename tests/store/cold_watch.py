"""Notes where a loop waits for a cold disk while threads read."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.crash.disk import SimulatedFile

from cometmq.store.message_store import MessageStore

if TYPE_CHECKING:
    from collections.abc import Generator

    import pytest

    from cometmq.store.disk.cold import Cold

PAGE = 4096


class Watch:
    """Notes which pages of the queues' files threads read, and for which reads the loop waits.

    A page that a thread has read is in the page cache from then on. Data that a store is asked to
    fetch is read as if by a thread.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_in_thread = False
        self.pages: set[tuple[str, int]] = set()
        self.waited: list[tuple[str, int]] = []
        read, loop = SimulatedFile.read, threading.current_thread()

        def note(file: SimulatedFile, count: int, position: int) -> bytes:
            if "consumequeue/" in file.path:
                reached = range(position // PAGE, (position + count - 1) // PAGE + 1)
                pages = {(file.path, number) for number in reached}
                if self.is_in_thread or threading.current_thread() is not loop:
                    self.pages |= pages
                elif not pages <= self.pages:
                    self.waited.append((file.path, position))
            return read(file, count, position)

        monkeypatch.setattr(SimulatedFile, "read", note)
        fetch = MessageStore.fetch

        def fetch_in_thread(store: MessageStore, cold: Cold) -> tuple[Cold, bytes]:
            if threading.current_thread() is not loop:
                return fetch(store, cold)
            with self.in_thread():
                return fetch(store, cold)

        monkeypatch.setattr(MessageStore, "fetch", fetch_in_thread)

    @contextmanager
    def in_thread(self) -> Generator[None]:
        """Treat everything read in here as read by a thread."""
        was_in_thread, self.is_in_thread = self.is_in_thread, True
        yield
        self.is_in_thread = was_in_thread
