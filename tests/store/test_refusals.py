"""A start leaves a refused store as it was, to the byte, and says in one line what to do."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.crash.disk import Moment, SimulatedFileSystem
from tests.store.damaged_stores import (
    ROOT,
    SMALL,
    contents,
    files_of,
    flip,
    open_small_store,
    small_store,
    write_small_store,
)
from tests.store.records import HOST

from cometmq.proto.checksum import crc32
from cometmq.store.disk.filesystem import RealFileSystem
from cometmq.store.errors import StoreError, disk_error_text
from cometmq.store.log.turn import Origin
from cometmq.store.looking.inspection import inspect
from cometmq.store.message_store import MessageStore
from cometmq.store.upkeep import checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from tests.crash.disk import Operation

FIRST = f"{ROOT}/commitlog/{0:020d}"


def make(disk: SimulatedFileSystem, path: str, content: bytes, size: int = 0) -> None:
    disk.make_directories(path.rpartition("/")[0])
    file = disk.open(path, create=True)
    file.write(content, 0)
    file.resize(max(len(content), size))
    file.close()


def last_of_log(disk: SimulatedFileSystem) -> str:
    files = contents(disk, f"{ROOT}/commitlog")
    return max(path for path, data in files.items() if any(data))


def no_store(disk: SimulatedFileSystem) -> None:
    for path in list(contents(disk)):
        disk.remove(path)
    for folder in sorted(disk._disk.names.below(ROOT), key=len, reverse=True):  # pyright: ignore[reportPrivateUsage]  # To empty the disk.
        disk.remove_directory(folder)
    make(disk, f"{ROOT}/letter.txt", b"Dear Sir")


def newer_checkpoint(disk: SimulatedFileSystem) -> None:
    file = disk.open(f"{ROOT}/checkpoint")
    data = bytearray(file.read(4096, 0))
    at = data.index(checkpoint._MAGIC) + len(checkpoint._MAGIC)  # pyright: ignore[reportPrivateUsage]  # The version is behind it.
    data[at : at + 4] = (9).to_bytes(4, "big")
    crc = crc32(bytes(data[checkpoint._OURS_AT : checkpoint._CRC_AT]))  # pyright: ignore[reportPrivateUsage]  # As the file has it.
    data[checkpoint._CRC_AT : checkpoint._CRC_AT + 4] = crc.to_bytes(4, "big")  # pyright: ignore[reportPrivateUsage]  # As the file has it.
    file.write(data, 0)


BAD: dict[str, tuple[Callable[[SimulatedFileSystem], None], str]] = {
    "something else": (no_store, "name an empty folder"),
    "a file of a wrong size": (
        lambda disk: make(disk, f"{ROOT}/commitlog/{4096:020d}", b"", 8192),
        "restore it from a copy",
    ),
    "a segment is missing": (
        lambda disk: disk.remove(f"{ROOT}/commitlog/{4096:020d}"),
        "restore it from a copy",
    ),
    "a segment of another store far behind": (
        lambda disk: make(disk, f"{ROOT}/commitlog/{1 << 40:020d}", b"", 4096),
        f"while {1 << 40:020d} after it is there; restore it from a copy, or move what comes after",
    ),
    "a foreign file among segments": (
        lambda disk: make(disk, f"{ROOT}/commitlog/notes.txt", b"hello"),
        "move it elsewhere",
    ),
    "a newer format": (newer_checkpoint, "use a newer one"),
    "damaged deletions": (
        lambda disk: make(disk, f"{ROOT}/deleted_topics.json", b'{"version":1,"crc32":1}'),
        "restore it from a copy",
    ),
    "deletions of a format to come": (
        lambda disk: make(disk, f"{ROOT}/deleted_topics.json", b'{"version":2,"marks":[]}'),
        "use a newer one",
    ),
    "delay levels of a format to come": (
        lambda disk: make(disk, f"{ROOT}/delay_levels.json", b'{"version":2,"levels":[]}'),
        "use a newer one",
    ),
    "delay levels whose version is no number": (
        lambda disk: make(
            disk,
            f"{ROOT}/delay_levels.json",
            b'{"changes":[{"from":0,"delays":[5]}],"version":"2"}',
        ),
        "restore it from a copy",
    ),
    "damaged delay levels": (
        lambda disk: make(disk, f"{ROOT}/delay_levels.json", b'{"changes":[{"from":0}]}'),
        "may be due at another time",
    ),
    "a damaged record": (lambda disk: flip(disk, FIRST, 31), "cometmq store"),
    "a damaged block": (lambda disk: flip(disk, FIRST, 44), "cometmq store"),
    "an index of another size": (
        lambda disk: make(disk, f"{ROOT}/index/99990101000000000", bytes(100), 1 << 20),
        "run `cometmq store rebuild --index-slots 20 --index-items 40`",
    ),
    "a last file of the log that was cut short": (
        lambda disk: disk.open(last_of_log(disk)).resize(600),
        " 600 bytes",
    ),
    "a file of the log that is too long": (
        lambda disk: disk.open(last_of_log(disk)).resize(2 * SMALL.segment_size),
        f"cut it off (`truncate -s {SMALL.segment_size}`)",
    ),
    "an index file that was cut short": (
        lambda disk: disk.open(next(files_of(disk, f"{ROOT}/index"))).resize(100),
        "run `cometmq store rebuild --index-slots 20 --index-items 40`",
    ),
}


@pytest.mark.parametrize("lock", [b"lock", b"", b"of another program", None])
@pytest.mark.parametrize("abort", [None, b"424242"])
@pytest.mark.parametrize("what", BAD)
def test_what_is_refused_is_not_changed(what: str, lock: bytes | None, abort: bytes | None) -> None:
    """Not even its times change: nothing is written."""
    spoil, advice = BAD[what]
    disk = small_store()
    disk.remove(f"{ROOT}/lock")  # As in a copy.
    if abort is not None:
        make(disk, f"{ROOT}/abort", abort)
    if lock is not None:
        make(disk, f"{ROOT}/lock", lock)
    spoil(disk)
    before, operations = contents(disk), disk.operations
    with pytest.raises(StoreError, match=ROOT) as refused:
        opened(disk)
    assert advice in str(refused.value)
    assert "\n" not in str(refused.value)
    assert (contents(disk), disk.operations) == (before, operations)


@pytest.mark.parametrize("lock", [b"lock", None])
@pytest.mark.parametrize("abort", [b"424242", None])
@pytest.mark.parametrize(
    ("verb", "name"),
    [
        ("write", "abort"),
        ("sync", "abort"),
        ("resize", "checkpoint.new"),
        ("write", "checkpoint.new"),
        ("sync", "checkpoint.new"),
        ("rename", "checkpoint.new"),
    ],
)
def test_a_disk_that_refuses_the_first_writes_of_a_start_leaves_the_store_as_it_was(
    verb: str, name: str, abort: bytes | None, lock: bytes | None
) -> None:
    disk = small_store()
    disk.remove(f"{ROOT}/lock")
    for path, content in (("abort", abort), ("lock", lock)):
        if content is not None:
            make(disk, f"{ROOT}/{path}", content)
    before = contents(disk)

    def refuse(operation: Operation) -> None:
        is_it = operation.verb == verb and f"{ROOT}/{name}" in operation.path
        if is_it and operation.moment is Moment.BEFORE:
            disk.hook = None
            raise OSError(errno.ENOSPC, "No space left on device", operation.path)

    disk.hook = refuse
    with pytest.raises(OSError, match="No space"):
        opened(disk)
    assert contents(disk) == before
    assert opened(disk).close(1)


FOREIGN = {
    "a folder of settings of somebody else": ["config/notes.txt", "lock"],
    "a file named config": ["config"],
    "foreign files, one of which is named config": ["config", "letter.txt"],
    "foreign files, one of which is named checkpoint": ["checkpoint", "model.bin"],
    "foreign files and a folder of an index": ["index/readme", "letter.txt"],
}


@pytest.mark.parametrize("what", FOREIGN)
def test_a_folder_of_somebody_else_is_no_store_whatever_its_names(what: str) -> None:
    disk = SimulatedFileSystem()
    for name in FOREIGN[what]:
        make(disk, f"{ROOT}/{name}", b"Dear Sir")
    before, operations = contents(disk), disk.operations
    with pytest.raises(StoreError, match="but nothing of a store; name an empty folder"):
        opened(disk)
    assert (contents(disk), disk.operations) == (before, operations)


@pytest.mark.parametrize(
    "names",
    [
        ["lock"],
        ["lock", "abort"],
        ["lock", "abort", "checkpoint.new"],
        ["config/topics.json"],
        ["config/topics.json.bak", "config/notes.txt"],
        ["consumequeue/notes.txt", "letter.txt"],
    ],
)
def test_what_a_start_that_was_killed_left_and_settings_that_wait_for_a_store_are_taken(
    names: list[str],
) -> None:
    disk = SimulatedFileSystem()
    for name in names:
        make(disk, f"{ROOT}/{name}", b"")
    assert opened(disk).close(1)


def test_a_file_in_the_place_of_the_folder_is_refused() -> None:
    disk = SimulatedFileSystem()
    make(disk, ROOT, b"text")
    with pytest.raises(StoreError, match="is a file; name the folder of a store"):
        opened(disk)
    assert disk.open(ROOT, read_only=True).read(9, 0) == b"text"


@pytest.mark.parametrize("name", ["commitlog", "config", "entryjournal", "index", "cut"])
def test_a_file_where_a_folder_has_to_be_is_named(name: str, tmp_path: Path) -> None:
    root = real_copy(tmp_path)
    shutil.rmtree(root / name, ignore_errors=True)
    (root / name).write_text("text")
    assert f"{name}: a file is where a folder has to be: move it" in refused_by_up(root)


@pytest.mark.parametrize("kind", ["folder", "pipe or device"])
@pytest.mark.parametrize(
    "name",
    [
        *("checkpoint", "checkpoint.new", "commitlog.new", "abort", "lock", "index_off"),
        *("queue_ends.json", "queue_ends.json.new", "deleted_topics.json", "delay_levels.json.tmp"),
    ],
)
def test_what_is_no_file_where_one_has_to_be_is_named_and_nothing_is_changed(
    name: str, kind: str, tmp_path: Path
) -> None:
    root = real_copy(tmp_path)
    (root / name).unlink(missing_ok=True)
    if kind == "folder":
        (root / name).mkdir()
    else:
        os.mkfifo(root / name)
    before = [(each, each.lstat()) for each in sorted(root.rglob("*"))]
    said = f"{name}: a {kind} is where a file has to be: move it elsewhere"
    with pytest.raises(StoreError, match=said):
        MessageStore.open(str(root), SMALL, now_ms=1, threads=False)
    with pytest.raises(StoreError, match=said):
        inspect(RealFileSystem(), str(root), SMALL)
    assert [(each, each.lstat()) for each in sorted(root.rglob("*"))] == before


def test_a_read_only_disk_is_refused_with_what_to_do() -> None:
    disk = small_store()
    disk.read_only = True
    operations = disk.operations
    with pytest.raises(OSError, match="Read-only") as refused:
        opened(disk)
    assert disk_error_text(refused.value) == (
        f"{ROOT}/lock: Read-only file system; mount it for writing, or copy the store elsewhere"
    )
    assert disk.operations == operations


def test_the_lock_of_another_process_is_respected_and_it_is_named() -> None:
    disk = SimulatedFileSystem()
    write_small_store(disk, ROOT, close=False)
    other = disk.other_process()  # The owner would lose its lock by looking at the file.
    before, operations = contents(other), disk.operations
    with pytest.raises(StoreError, match=r"open in another process \(pid \d+\); stop it first"):
        opened(other)
    assert (contents(other), disk.operations) == (before, operations)


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EACCES, "run it as the user that the store belongs to"),
        (errno.EPERM, "chattr"),
        (errno.ENOSPC, "df -i"),
        (errno.EDQUOT, "raise the quota"),
        (errno.EFBIG, "ulimit -f"),
        (errno.EMFILE, "ulimit -n"),
        (errno.EIO, "from a copy"),
    ],
)
def test_what_the_disk_refuses_is_told_in_one_line(number: int, advice: str) -> None:
    text = disk_error_text(OSError(number, os.strerror(number), "/s/lock"))
    assert text.startswith(f"/s/lock: {os.strerror(number)}; ")
    assert advice in text
    assert disk_error_text(OSError(errno.ENXIO, "No such device", "/s")) == "/s: No such device"
    assert disk_error_text(OSError("something")) == "something"


@pytest.mark.parametrize("name", ["s/commitlog/segment", "s/lock", "s/commitlog", "s"])
@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM])
def test_who_owns_a_file_is_told_to_look_at_its_permissions(
    name: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s/commitlog").mkdir(parents=True)
    (tmp_path / "s/commitlog/segment").touch()
    error = OSError(number, os.strerror(number), str(tmp_path / name))
    text = disk_error_text(error)
    assert "it belongs to the user that this runs as: check its permissions" in text
    assert "run it as" not in text
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert "run it as the user that the store belongs to" in disk_error_text(error)


def test_what_a_closed_folder_hides_belongs_to_whom_the_folder_belongs_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel hides it from everybody but root."""
    (tmp_path / "s/commitlog").mkdir(parents=True)
    hidden, stat = f"{tmp_path}/s/", os.stat

    def stat_of_others(path: str) -> os.stat_result:
        if path.startswith(hidden):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return stat(path)

    monkeypatch.setattr(os, "stat", stat_of_others)
    error = PermissionError(errno.EACCES, "Permission denied", f"{hidden}commitlog/segment")
    assert "check its permissions" in disk_error_text(error)


@pytest.mark.parametrize("what", [what for what in BAD if "index" not in what])
def test_up_exits_with_one_line_and_changes_no_byte(what: str, tmp_path: Path) -> None:
    spoil, advice = BAD[what]
    assert advice in refused_by_up(real_copy(tmp_path, spoil))


def real_copy(folder: Path, spoil: Callable[[SimulatedFileSystem], None] | None = None) -> Path:
    """Write a store, maybe spoilt, to the machine's disk; return its root."""
    disk = SimulatedFileSystem()
    with closing_store(disk) as store:
        for number in range(60):
            store.put("T", 0, bytes(150), b"", Origin(number, number, HOST))
            store.commit()
    if spoil is not None:
        spoil(disk)
    root = folder / "store"
    for path, content in contents(disk).items():
        target = root / path.removeprefix(f"{ROOT}/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    return root


def refused_by_up(root: Path) -> str:
    """Return the one line with which `cometmq up` refuses a store, leaving it as it was."""
    before = contents(RealFileSystem(), str(root))
    command = [sys.executable, "-m", "cometmq.admin", "up", "--dir", str(root)]
    ports = ["--broker-port", "0", "--nameserver-port", "0", "--log-level", "error"]
    done = subprocess.run([*command, *ports], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: ")
    assert contents(RealFileSystem(), str(root)) == before
    return line


@contextmanager
def closing_store(disk: SimulatedFileSystem) -> Generator[MessageStore]:
    """A store without an index, whose shape `up` would not know; shut down at the end."""
    config = replace(SMALL, index=False)
    store = MessageStore.open(ROOT, config, now_ms=1, filesystem=disk, threads=False)
    yield store
    assert store.close(1)


def opened(disk: SimulatedFileSystem) -> MessageStore:
    return open_small_store(disk)
