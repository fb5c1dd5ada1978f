"""What both implementations of the seam to the disk do, the real one and the simulated one."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crash.disk import SimulatedFileSystem

from cometmq.store.disk.filesystem import Entry, FileSystem, RealFileSystem, Space, read_whole
from cometmq.store.errors import StoreFormatError, disk_error_text

LOCK_FROM_ELSEWHERE = """
import sys
from cometmq.store.disk.filesystem import RealFileSystem
print(RealFileSystem().lock(sys.argv[1]) is not None)
"""

HOLD_LOCK = """
import sys
from cometmq.store.disk.filesystem import RealFileSystem
lock = RealFileSystem().lock(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=["real", "simulated"])
def disk(request: pytest.FixtureRequest) -> FileSystem:
    return RealFileSystem() if request.param == "real" else SimulatedFileSystem()


@pytest.fixture
def root(disk: FileSystem, tmp_path: Path) -> str:
    disk.make_directories(str(tmp_path))
    return str(tmp_path)


def can_lock_from_elsewhere(disk: FileSystem, path: str) -> bool:
    if isinstance(disk, SimulatedFileSystem):
        lock = disk.other_process().lock(path)
        if lock is not None:
            lock.close()
        return lock is not None
    shown = subprocess.run(
        [sys.executable, "-c", LOCK_FROM_ELSEWHERE, path],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    return shown.stdout.strip() == "True"


def test_a_file_is_blank_from_where_only_zeros_follow(disk: FileSystem, root: str) -> None:
    file = disk.open(f"{root}/f", create=True)
    assert file.is_blank(0)
    file.resize(100_000)
    assert file.is_blank(0)
    file.write(b"end", 30)
    assert [file.is_blank(position) for position in (0, 32, 33, 4096, 99_999)] == [
        *(False, False),
        *(True, True, True),
    ]
    file.write(b"\1", 50_000)
    assert not file.is_blank(33)
    assert not file.is_blank(4096)
    assert file.is_blank(60_000)
    file.close()


def test_outside_of_the_ranges_of_its_data_a_file_is_blank(disk: FileSystem, root: str) -> None:
    file = disk.open(f"{root}/f", create=True)
    assert [*file.data_ranges()] in ([], [(0, 0)])
    file.resize(1_000_000)
    file.write(b"a", 5)
    file.write(b"b", 500_000)
    ranges = list(file.data_ranges())
    assert all(any(start <= at < end for start, end in ranges) for at in (5, 500_000))
    assert all(0 <= start < end <= 1_000_000 for start, end in ranges)
    assert ranges == sorted(ranges)
    file.close()
    assert 0 < disk.room_of(f"{root}/f") <= 1_048_576


def test_what_is_written_is_read_back_at_its_position(disk: FileSystem, root: str) -> None:
    file = disk.open(f"{root}/f", create=True)
    file.write(b"world", 5)
    for position, data in ((0, b"he"), (2, bytearray(b"l")), (3, memoryview(b"lo"))):
        file.write(data, position)
    file.sync()
    assert file.read(100, 0) == b"helloworld"
    assert file.read(3, 4) == b"owo"
    assert file.read(1, 10) == b""
    file.close()


def test_a_map_shows_what_is_written_later_and_closes_only_when_no_slice_is_held(
    disk: FileSystem, root: str
) -> None:
    file = disk.open(f"{root}/f", create=True)
    file.allocate(8192)
    mapping = file.map()
    file.write(b"late", 4096)
    piece = mapping.view[4096:4100]
    assert bytes(piece) == b"late"
    assert not mapping.close()
    piece.release()
    assert mapping.close()
    file.close()


def test_a_missing_file_is_an_error_unless_it_is_to_be_created(disk: FileSystem, root: str) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open(f"{root}/none")
    disk.open(f"{root}/none", create=True).close()
    assert disk.exists(f"{root}/none")


def test_a_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    path = f"{tmp_path}/pipe"
    os.mkfifo(path)
    for read_only in (True, False):
        with pytest.raises(OSError, match="a pipe or device is where a file") as refused:
            RealFileSystem().open(path, read_only=read_only)
        assert disk_error_text(refused.value).startswith(f"{path}: a pipe or device is where")


def test_a_socket_in_the_place_of_a_file_is_refused_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # The name of a socket has 107 bytes at most.
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
    with pytest.raises(OSError, match="a pipe or device is where a file"):
        RealFileSystem().open("socket", read_only=True)


def test_a_file_that_is_too_long_to_be_read_as_a_whole_is_refused(tmp_path: Path) -> None:
    """Otherwise a start, and each command, would end in a MemoryError."""
    path = tmp_path / "queue_ends.json"
    path.touch()
    os.truncate(path, 1 << 43)
    with pytest.raises(StoreFormatError, match="8796093022208 bytes, far too large for this file"):
        read_whole(RealFileSystem(), str(path))


def test_a_folder_that_cannot_be_made_has_not_vanished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for path in ("/proc/nope", "here"):
        with pytest.raises(OSError, match="no folder can be created there") as refused:
            RealFileSystem().make_directories(path)
        assert disk_error_text(refused.value).startswith(
            f"{path}: no folder can be created there: "
        )
        assert "disappeared" not in disk_error_text(refused.value)


def test_a_file_opened_read_only_refuses_writes(disk: FileSystem, root: str) -> None:
    disk.open(f"{root}/f", create=True).close()
    file = disk.open(f"{root}/f", read_only=True)
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.write(b"x", 0)
    file.close()


def test_a_lock_keeps_other_processes_out_until_it_is_closed(disk: FileSystem, root: str) -> None:
    path = f"{root}/lock"
    lock = disk.lock(path)
    assert lock is not None
    assert not can_lock_from_elsewhere(disk, path)
    lock.close()
    assert can_lock_from_elsewhere(disk, path)


def test_a_file_system_without_locks_is_not_taken_for_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.lockf", refuse)
    with pytest.raises(OSError, match="No locks available") as refused:
        RealFileSystem().lock(str(tmp_path / "lock"))
    assert disk_error_text(refused.value).startswith(f"{tmp_path}/lock: No locks available; this")


def test_names_are_listed_sorted_with_their_kind_and_size(disk: FileSystem, root: str) -> None:
    disk.make_directories(f"{root}/b/c")
    file = disk.open(f"{root}/a", create=True)
    file.resize(7)
    file.close()
    disk.sync_directory(root)
    assert disk.list(root) == [
        Entry("a", is_directory=False, size=7),
        Entry("b", is_directory=True, size=disk.list(root)[1].size),
    ]
    assert disk.list(f"{root}/missing") == []
    disk.rename(f"{root}/a", f"{root}/z")
    disk.remove_directory(f"{root}/b/c")
    disk.remove(f"{root}/z")
    assert [entry.name for entry in disk.list(root)] == ["b"]


def test_a_link_that_leads_nowhere_does_not_hide_the_names_beside_it(tmp_path: Path) -> None:
    for name in ("a", "z"):
        (tmp_path / name).write_bytes(b"abc")
    (tmp_path / "link").symlink_to(tmp_path / "none")
    listed = RealFileSystem().list(str(tmp_path))
    assert [entry.name for entry in listed] == ["a", "link", "z"]
    assert not any(entry.is_directory for entry in listed)


def test_a_read_from_the_page_cache_is_what_was_written_or_says_that_it_would_wait(
    disk: FileSystem, root: str
) -> None:
    file = disk.open(f"{root}/f", create=True)
    file.write(b"hot", 0)
    assert file.read_cached(3, 0) in (b"hot", None)
    assert file.read_cached(10, 0) in (b"hot", None)
    file.close()


def test_a_file_that_is_said_to_be_cached_can_be_read_from_the_cache(
    disk: FileSystem, root: str
) -> None:
    file = disk.open(f"{root}/f", create=True)
    file.write(bytes(20_000), 0)
    file.sync()
    if file.is_cached(12_000, 5_000):
        assert file.read_cached(12_000, 5_000) in (bytes(12_000), None)
    assert not file.is_cached(1, 1 << 30)
    file.close()


def test_the_space_of_a_partition_is_known(disk: FileSystem, root: str) -> None:
    space = disk.space(root)
    assert space.total >= space.free >= 0
    assert space.total > 0


def test_room_that_is_reserved_for_others_does_not_make_a_partition_look_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.statvfs(tmp_path)
    # 1,000 blocks, 200 of them used, 300 reserved.
    blocks = {"f_bsize": 4096, "f_frsize": 4096, "f_blocks": 1000, "f_bfree": 800, "f_bavail": 500}
    fields = (*blocks.values(), *tuple(real)[5:])

    def statvfs(_: str) -> os.statvfs_result:
        return os.statvfs_result(fields)

    monkeypatch.setattr(os, "statvfs", statvfs)
    device = tmp_path.stat().st_dev
    assert RealFileSystem().space(str(tmp_path)) == Space(700 * 4096, 500 * 4096, device)


def test_a_file_removed_stays_readable_to_whoever_has_it_open(disk: FileSystem, root: str) -> None:
    file = disk.open(f"{root}/f", create=True)
    file.write(b"still here", 0)
    mapping = file.map()
    disk.remove(f"{root}/f")
    assert not disk.exists(f"{root}/f")
    assert file.read(100, 0) == b"still here"
    assert bytes(mapping.view) == b"still here"
    assert mapping.close()
    file.close()


def test_a_rename_takes_the_place_of_what_had_the_name(disk: FileSystem, root: str) -> None:
    for name in ("old", "new"):
        file = disk.open(f"{root}/{name}", create=True)
        file.write(name.encode(), 0)
        file.close()
    disk.rename(f"{root}/new", f"{root}/old")
    file = disk.open(f"{root}/old", read_only=True)
    assert file.read(10, 0) == b"new"
    file.close()
    assert [entry.name for entry in disk.list(root)] == ["old"]


def test_a_folder_renamed_takes_what_is_in_it_along(disk: FileSystem, root: str) -> None:
    disk.make_directories(f"{root}/a/b")
    disk.open(f"{root}/a/b/f", create=True).close()
    disk.rename(f"{root}/a", f"{root}/z")
    assert disk.exists(f"{root}/z/b/f")
    assert not disk.exists(f"{root}/a")


def test_what_is_cut_off_reads_as_zeros_when_the_file_grows_again(
    disk: FileSystem, root: str
) -> None:
    file = disk.open(f"{root}/f", create=True)
    file.write(b"x" * 9000, 0)
    mapping = file.map()
    file.resize(5000)
    assert file.read(9000, 0) == b"x" * 5000
    file.resize(9000)
    assert file.read(9000, 0) == b"x" * 5000 + bytes(4000)
    file.write(b"y", 8999)
    assert mapping.view[8999] == ord("y")
    assert mapping.close()
    file.allocate(20_000)
    assert file.size() == 20_000
    file.allocate(100)
    assert file.size() == 20_000
    file.close()


REFUSED: list[tuple[Callable[[FileSystem, str], object], type[OSError]]] = [
    (lambda disk, root: disk.open(f"{root}/none/f", create=True), FileNotFoundError),
    (lambda disk, root: disk.open(f"{root}/folder"), IsADirectoryError),
    (lambda disk, root: disk.remove(f"{root}/none"), FileNotFoundError),
    (lambda disk, root: disk.remove(f"{root}/folder"), IsADirectoryError),
    (lambda disk, root: disk.remove_directory(f"{root}/folder"), OSError),
    (lambda disk, root: disk.remove_directory(f"{root}/file"), NotADirectoryError),
    (lambda disk, root: disk.rename(f"{root}/none", f"{root}/f"), FileNotFoundError),
    (lambda disk, root: disk.rename(f"{root}/file", f"{root}/folder"), IsADirectoryError),
    (lambda disk, root: disk.make_directories(f"{root}/file"), FileExistsError),
    (lambda disk, root: disk.make_directories(f"{root}/file/none"), NotADirectoryError),
    (lambda disk, root: disk.list(f"{root}/file"), NotADirectoryError),
    (lambda disk, root: disk.list(f"{root}/file/none"), NotADirectoryError),
    (lambda disk, root: disk.open(f"{root}/file/none/f"), NotADirectoryError),
    (lambda disk, root: disk.sync_directory(f"{root}/none"), FileNotFoundError),
    (lambda disk, root: disk.sync_directory(f"{root}/file"), NotADirectoryError),
    (lambda disk, root: disk.partition(f"{root}/none"), FileNotFoundError),
    (lambda disk, root: disk.partition(f"{root}/file"), NotADirectoryError),
    (lambda disk, root: disk.modified_ms(f"{root}/none"), FileNotFoundError),
    (lambda disk, root: disk.space(f"{root}/none"), FileNotFoundError),
]


@pytest.mark.parametrize(("verb", "error"), REFUSED)
def test_what_cannot_be_done_is_the_same_error_everywhere(
    disk: FileSystem, root: str, verb: Callable[[FileSystem, str], object], error: type[OSError]
) -> None:
    disk.make_directories(f"{root}/folder/inner")
    disk.open(f"{root}/file", create=True).close()
    with pytest.raises(error):
        verb(disk, root)
    assert [entry.name for entry in disk.list(root)] == ["file", "folder"]


def test_a_closed_file_is_refused(disk: FileSystem, root: str) -> None:
    file = disk.open(f"{root}/f", create=True)
    file.close()
    for verb in (file.size, file.sync, file.close, lambda: file.read(1, 0)):
        with pytest.raises(OSError, match="Bad file descriptor"):
            verb()


def test_what_an_open_file_refuses_names_the_file(tmp_path: Path) -> None:
    folder = RealFileSystem().open(str(tmp_path), read_only=True)
    file = RealFileSystem().open(str(tmp_path / "f"), create=True)
    unwritable = RealFileSystem().open(str(tmp_path / "f"), read_only=True)
    for verb in (
        lambda: folder.read(1, 0),
        lambda: unwritable.write(b"x", 0),
        lambda: unwritable.allocate(9),
        lambda: unwritable.resize(9),
        lambda: file.write(b"x", -1),
        folder.map,
    ):
        with pytest.raises(OSError, match=r"\[Errno \d+\]") as refused:
            verb()
        assert str(refused.value.filename).startswith(str(tmp_path))
    for each in (folder, file, unwritable):
        each.close()
    with pytest.raises(OSError, match="Bad file descriptor") as closed:
        file.sync()
    assert closed.value.filename == str(tmp_path / "f")


@pytest.mark.parametrize(
    ("call", "verb"), [("os.fsync", "sync_directory"), ("fcntl.fcntl", "lock_owner")]
)
def test_what_a_folder_or_a_lock_refuses_names_it(
    call: str, verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This tells it from output that cannot be written, whose errors have no name."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    disk, path = RealFileSystem(), str(tmp_path)
    if verb == "lock_owner":
        path += "/lock"
        disk.open(path, create=True).close()
    monkeypatch.setattr(call, refuse)
    with pytest.raises(OSError, match="Input/output") as refused:
        getattr(disk, verb)(path)
    assert refused.value.filename == path


def test_a_partition_is_synced_as_a_whole(disk: FileSystem, root: str) -> None:
    disk.make_directories(f"{root}/folder")
    partition = disk.partition(root)
    file = disk.open(f"{root}/folder/file", create=True)
    file.write(b"data", 0)
    partition.sync()
    partition.close()
    assert file.read(9, 0) == b"data"


def test_folders_are_exchanged_with_all_that_is_in_them(disk: FileSystem, root: str) -> None:
    for folder in ("left", "right/deep"):
        disk.make_directories(f"{root}/{folder}")
    disk.open(f"{root}/left/a", create=True).close()
    disk.open(f"{root}/right/a", create=True).close()
    disk.open(f"{root}/right/deep/b", create=True).close()
    disk.exchange(f"{root}/left", f"{root}/right")
    assert [entry.name for entry in disk.list(f"{root}/left")] == ["a", "deep"]
    assert [entry.name for entry in disk.list(f"{root}/left/deep")] == ["b"]
    assert [entry.name for entry in disk.list(f"{root}/right")] == ["a"]
    with pytest.raises(FileNotFoundError):
        disk.exchange(f"{root}/left", f"{root}/nothing")


def test_who_holds_a_lock_is_told_to_others_and_nothing_is_made(
    disk: FileSystem, root: str
) -> None:
    path = f"{root}/lock"
    assert disk.lock_owner(path) is None
    assert not disk.exists(path)
    if isinstance(disk, SimulatedFileSystem):
        lock = disk.lock(path)
        assert (disk.lock_owner(path), disk.other_process().lock_owner(path)) == (1, 1)
        assert lock is not None
        assert disk.lock(path) is None
        lock.close()
        assert disk.other_process().lock_owner(path) is None
        return
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    owner = disk.lock_owner(path)
    holder.communicate(b"\n")
    assert owner == holder.pid
    assert disk.lock_owner(path) is None
