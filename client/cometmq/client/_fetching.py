"""A queue of a consumer while messages are fetched from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import anyio

    from cometmq.client._core.process_queue import ProcessQueue
    from cometmq.client._runtime import BackgroundTask


class Fetching:
    """A queue that this member has, and the task that fetches from it."""

    __slots__ = ("process_queue", "room", "task")

    def __init__(self, process_queue: ProcessQueue) -> None:
        self.process_queue = process_queue
        self.room: anyio.Event | None = None
        self.task: BackgroundTask

    def look_again(self) -> None:
        """Have the task check whether there is room now."""
        if self.room is not None:
            self.room.set()
            self.room = None
