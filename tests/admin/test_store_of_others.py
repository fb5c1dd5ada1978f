"""A store that belongs to another user, and one on a file system that is really read-only.

Every command either exits with 0 and changes nothing, or says in one line what to do and exits with
1. Names, sizes, contents, modes and times stay.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from tests.admin.test_full_disk import OWN_MOUNTS, can_mount
from tests.admin.test_store_commands import fingerprint
from tests.store.damaged_stores import write_small_store

from cometmq.store.disk.filesystem import RealFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

pytestmark = pytest.mark.slow

NOBODY: Final = (
    ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
)
SHAPE: Final = ["--index-slots=20", "--index-items=40"]
SETTINGS: Final = [
    *("--set", "index_slots=20", "--set", "index_items=40", "--set", "consume_queue_file_size=400"),
    *("--set", "batch_consume_queue_file_size=460", "--log-level", "error", "--metrics-port", "0"),
]
READING: Final = [["stat"], ["verify"], ["dump"], ["repair", "--dry-run"]]
WRITING: Final = [["rebuild"], ["repair", "--yes"]]
SERVERS: Final = [
    ["up", "--broker-port", "0", "--nameserver-port", "0"],
    ["broker", "--port", "0"],
]
PATIENCE_SECONDS: Final = 60


def can_be_nobody() -> bool:
    if NOBODY and shutil.which("setpriv") is None:
        return False
    program = [*NOBODY, sys.executable, "-c", "import cometmq.admin"]
    return subprocess.run(program, capture_output=True, check=False).returncode == 0


@pytest.fixture
def root() -> Generator[Path]:
    """A small store that other users can reach, unlike the folders of pytest."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        root = Path(folder) / "store"
        write_small_store(RealFileSystem(), str(root))
        yield root
        for path in (root, *root.rglob("*")):
            path.chmod(0o700)


def commands(root: Path, which: list[list[str]]) -> list[list[str]]:
    program = [sys.executable, "-m", "cometmq.admin"]
    if which is SERVERS:
        return [[*program, *each, "--dir", str(root), *SETTINGS] for each in which]
    return [[*program, "store", *each, str(root), *SHAPE] for each in which]


def refusals(prefix: list[str], root: Path, which: list[list[str]]) -> list[str]:
    """Return each command's one line, and check that the store stays as it was."""
    before = fingerprint(str(root))
    found: list[str] = []
    for command in commands(root, which):
        ended = subprocess.run(
            [*prefix, *command],
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        (line,) = ended.stderr.splitlines()
        assert (ended.returncode, ended.stdout) == (1, ""), command
        assert line.startswith("Error: ")
        found.append(line)
    assert fingerprint(str(root)) == before
    return found


def hide_all(root: Path) -> None:
    root.chmod(0o700)


def hide_one_segment(root: Path) -> None:
    for path in (root, *root.rglob("*")):
        path.chmod(0o777)
    (root / "commitlog" / f"{4096:020d}").chmod(0o600 if NOBODY else 0)


def hide_nothing(root: Path) -> None:
    for path in (root, *root.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o444)
        if not NOBODY:
            path.chmod(0o555 if path.is_dir() else 0o444)


@pytest.mark.skipif(not can_be_nobody(), reason="another user cannot run this program here")
@pytest.mark.parametrize(
    ("hide", "named"),
    [(hide_all, ""), (hide_one_segment, f"commitlog/{4096:020d}"), (hide_nothing, "lock")],
)
def test_a_store_without_the_rights_to_it_is_refused_and_not_changed(
    root: Path, hide: Callable[[Path], None], named: str
) -> None:
    if hide is hide_all and not NOBODY:
        pytest.skip("its owner can always come in")
    hide(root)
    which = [WRITING, SERVERS]
    if hide is hide_all:
        which.append(READING)
    elif hide is hide_one_segment:
        which.append([["verify"], ["repair", "--dry-run"]])
    for each in which:
        for line in refusals(NOBODY, root, each):
            assert f"{root}/{named}".rstrip("/") in line
            whose = (
                "run it as the user that the store belongs to" if NOBODY else "it belongs to the"
            )
            assert f": Permission denied; {whose}" in line


@pytest.mark.skipif(not can_be_nobody(), reason="another user cannot run this program here")
@pytest.mark.parametrize("closed", ["consumequeue", "config"])
@pytest.mark.parametrize("killed", [True, False])
def test_a_folder_that_somebody_else_restored_is_refused_before_a_byte_is_changed(
    root: Path, closed: str, killed: bool
) -> None:
    (root / closed).mkdir(exist_ok=True)
    for path in (root, *root.rglob("*")):
        os.chown(path, *((65534, 65534) if NOBODY else (-1, -1)))
    if killed:
        (root / "abort").write_text("1")
        (root / "abort").chmod(0o666)
    if NOBODY:
        os.chown(root / closed, 0, 0)
    (root / closed).chmod(0o555)
    for line in refusals(NOBODY, root, SERVERS):
        assert f"{root}/{closed}: Permission denied; " in line
    if closed == "consumequeue":
        for line in refusals(NOBODY, root, [["rebuild"]]):
            assert f"{root}/{closed}: Permission denied; " in line


@pytest.mark.skipif(not can_be_nobody(), reason="another user cannot run this program here")
@pytest.mark.parametrize("killed", [True, False])
def test_a_queues_file_that_somebody_else_restored_is_refused_before_a_byte_is_changed(
    root: Path, killed: bool
) -> None:
    """It may be read and not written."""
    restored = root / "consumequeue" / "T" / "0" / f"{0:020d}"
    if killed:
        (root / "abort").write_text("1")
    for path in (root, *root.rglob("*")):
        os.chown(path, *((65534, 65534) if NOBODY else (-1, -1)))
    if NOBODY:
        os.chown(restored, 0, 0)
    restored.chmod(0o444)
    for line in refusals(NOBODY, root, SERVERS):
        assert f"{restored}: Permission denied; " in line


@pytest.mark.skipif(not can_be_nobody(), reason="another user cannot run this program here")
@pytest.mark.parametrize("closed", ["", "commitlog", f"commitlog/{4096:020d}", "consumequeue/T"])
def test_who_took_the_rights_from_oneself_is_told_to_look_at_them(root: Path, closed: str) -> None:
    if NOBODY:
        for path in (root, *root.rglob("*")):
            os.chown(path, 65534, 65534)
    (root / closed).chmod(0)
    for line in refusals(NOBODY, root, [["verify"]]):
        assert ": Permission denied; it belongs to the user that this runs as: check" in line


@pytest.mark.skipif(not can_be_nobody(), reason="another user cannot run this program here")
def test_who_may_read_a_store_may_look_into_it(root: Path) -> None:
    hide_nothing(root)
    before = fingerprint(str(root))
    for command in commands(root, READING):
        subprocess.run([*NOBODY, *command], check=True, capture_output=True)
    assert fingerprint(str(root)) == before


@pytest.mark.skipif(not can_mount(), reason="no mounts of our own here (unshare)")
@pytest.mark.parametrize("has_lock", [True, False])
def test_a_read_only_file_system_is_read_and_refused_to_be_written(
    root: Path, has_lock: bool
) -> None:
    if not has_lock:
        (root / "lock").unlink()
    mount = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
    prefix = [*OWN_MOUNTS, "sh", "-c", mount, str(root)]
    before = fingerprint(str(root))
    for command in commands(root, READING):
        subprocess.run([*prefix, *command], check=True, capture_output=True)
    assert fingerprint(str(root)) == before
    for which in (WRITING, SERVERS):
        for line in refusals(prefix, root, which):
            assert "Read-only file system; mount it for writing, or copy the store" in line
