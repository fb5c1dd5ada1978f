"""The real side of the seam. The simulated side must pass the same tests (see its own module)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cometmq.store.filesystem import BUFFERS_MAX, RealFileSystem

LOCK_FROM_ELSEWHERE = """
import sys
from cometmq.store.filesystem import RealFileSystem
print(RealFileSystem().lock(sys.argv[1]) is not None)
"""


@pytest.fixture
def disk() -> RealFileSystem:
    return RealFileSystem()


def test_what_is_written_is_read_back_at_its_position(disk: RealFileSystem, tmp_path: Path) -> None:
    file = disk.open(str(tmp_path / "f"), create=True)
    file.write(b"world", 5)
    file.write_many([b"he", bytearray(b"l"), memoryview(b"lo")], 0)
    file.sync()
    assert file.read(100, 0) == b"helloworld"
    assert file.read(3, 4) == b"owo"
    assert file.read(1, 10) == b""
    file.close()


def test_more_buffers_than_one_call_takes_are_all_written(
    disk: RealFileSystem, tmp_path: Path
) -> None:
    file = disk.open(str(tmp_path / "f"), create=True)
    buffers = [bytes([i % 251]) * (i % 7) for i in range(3 * BUFFERS_MAX + 5)]
    file.write_many(buffers, 11)
    assert file.read(1 << 20, 11) == b"".join(buffers)
    file.close()


def test_a_map_shows_what_is_written_later_and_closes_only_when_no_slice_is_held(
    disk: RealFileSystem, tmp_path: Path
) -> None:
    file = disk.open(str(tmp_path / "f"), create=True)
    file.allocate(8192)
    mapping = file.map()
    file.write(b"late", 4096)
    piece = mapping.view[4096:4100]
    assert bytes(piece) == b"late"
    assert not mapping.close()
    piece.release()
    assert mapping.close()
    file.close()


def test_a_missing_file_is_an_error_unless_it_is_to_be_created(
    disk: RealFileSystem, tmp_path: Path
) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open(str(tmp_path / "none"))
    disk.open(str(tmp_path / "none"), create=True).close()
    assert disk.exists(str(tmp_path / "none"))


def test_a_file_opened_read_only_refuses_writes(disk: RealFileSystem, tmp_path: Path) -> None:
    disk.open(str(tmp_path / "f"), create=True).close()
    file = disk.open(str(tmp_path / "f"), read_only=True)
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.write(b"x", 0)
    file.close()


def test_a_lock_keeps_other_processes_out_until_it_is_closed(
    disk: RealFileSystem, tmp_path: Path
) -> None:
    path = str(tmp_path / "lock")

    def locked_from_elsewhere() -> bool:
        shown = subprocess.run(
            [sys.executable, "-c", LOCK_FROM_ELSEWHERE, path],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        return shown.stdout.strip() == "True"

    lock = disk.lock(path)
    assert lock is not None
    assert not locked_from_elsewhere()
    lock.close()
    assert locked_from_elsewhere()


def test_names_are_listed_sorted_with_their_kind_and_size(
    disk: RealFileSystem, tmp_path: Path
) -> None:
    disk.make_directories(str(tmp_path / "b" / "c"))
    file = disk.open(str(tmp_path / "a"), create=True)
    file.resize(7)
    file.close()
    disk.sync_directory(str(tmp_path))
    assert disk.list(str(tmp_path)) == [
        ("a", False, 7),
        ("b", True, disk.list(str(tmp_path))[1].size),
    ]
    assert disk.list(str(tmp_path / "missing")) == []
    disk.rename(str(tmp_path / "a"), str(tmp_path / "z"))
    disk.remove_directory(str(tmp_path / "b" / "c"))
    disk.remove(str(tmp_path / "z"))
    assert [entry.name for entry in disk.list(str(tmp_path))] == ["b"]


def test_a_read_from_the_page_cache_is_what_was_written_or_says_that_it_would_wait(
    disk: RealFileSystem, tmp_path: Path
) -> None:
    file = disk.open(str(tmp_path / "f"), create=True)
    file.write(b"hot", 0)
    assert file.read_cached(3, 0) in (b"hot", None)
    assert file.read_cached(10, 0) in (b"hot", None)
    file.close()


def test_the_space_of_a_partition_is_known(disk: RealFileSystem, tmp_path: Path) -> None:
    space = disk.space(str(tmp_path))
    assert space.total >= space.free >= 0
    assert space.total > 0
