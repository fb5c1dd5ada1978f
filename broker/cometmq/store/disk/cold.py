"""Bytes that are not in memory: a caller that must not wait for the disk has them fetched."""

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
    """Their offset in the log; negative if they are not of the log."""
    warm: Callable[[], None] | None = None
    """Reads, from any thread, further bytes that will be looked at."""


class ColdError(Exception):
    """Bytes that were to be read without waiting for the disk are cold."""

    def __init__(self, cold: Cold) -> None:
        super().__init__(cold)
        self.cold = cold


def fetch(filesystem: FileSystem, cold: Cold) -> bytes:
    """Read cold bytes, from any thread; none if they have expired meanwhile."""
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
