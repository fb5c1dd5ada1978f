"""What is not in memory: who must not wait for the disk is told of it, and has it fetched."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.store.disk.filesystem import FileSystem


class Cold(NamedTuple):
    """Bytes that only the disk has."""

    path: str
    position: int
    size: int
    physical_offset: int = -1
    """Where they stand in the log; negative when they are not of the log."""
    warm: Callable[[], None] | None = None
    """Reads, from any thread, more that will be looked at than these."""


class ColdError(Exception):
    """What was to be read without waiting for the disk is cold."""

    def __init__(self, cold: Cold) -> None:
        super().__init__(cold)
        self.cold = cold


def fetch(filesystem: FileSystem, cold: Cold) -> bytes:
    """Read what is cold, from any thread; empty when it has expired meanwhile."""
    if cold.warm is not None:
        cold.warm()
    try:
        file = filesystem.open(cold.path, read_only=True)
    except FileNotFoundError:
        return b""
    try:
        return file.read(cold.size, cold.position)
    finally:
        file.close()
