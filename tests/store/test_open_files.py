from __future__ import annotations

import pytest
from tests.crash.disk import SimulatedFileSystem

from cometmq.store.disk.filesystem import File
from cometmq.store.disk.open_files import OpenFiles


def opened(filesystem: SimulatedFileSystem, name: str) -> File:
    filesystem.make_directories("/d")
    return filesystem.open(f"/d/{name}", create=True)


def test_the_file_unused_for_longest_is_closed_to_make_room() -> None:
    filesystem = SimulatedFileSystem()
    files = OpenFiles(2)
    first = files.put("a", 0, opened(filesystem, "a0"))
    second = files.put("a", 1, opened(filesystem, "a1"))
    assert files.get("a", 0) is first
    files.put("b", 0, opened(filesystem, "b0"))
    assert len(files) == 2
    assert files.get("a", 1) is None
    assert files.get("a", 0) is first
    with pytest.raises(OSError, match="Bad file descriptor"):
        second.size()


def test_a_closed_file_is_forgotten() -> None:
    filesystem = SimulatedFileSystem()
    files = OpenFiles(2)
    files.put("a", 0, opened(filesystem, "a0"))
    files.put("b", 0, opened(filesystem, "b0"))
    files.close("a", 0)
    files.close("a", 7)
    assert files.get("a", 0) is None
    files.close_all()
    assert len(files) == 0
