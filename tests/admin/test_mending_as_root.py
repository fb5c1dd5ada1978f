"""When root mends a store of another user, that user can continue with it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

import pytest
from tests.admin.test_store_commands import run
from tests.store.damaged_stores import flip, write_small_store

from cometmq.store.disk.filesystem import RealFileSystem
from cometmq.store.mending.owned_files import OwnedFileSystem, file_system_for

USER: Final = 65534


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mends what is of others")
@pytest.mark.parametrize("command", [("rebuild",), ("repair", "--yes"), ("repair", "--cut")])
def test_all_that_root_makes_in_the_store_of_a_user_is_of_that_user(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    root = tmp_path / "store"
    write_small_store(RealFileSystem(), str(root))
    for name in ("queue_ends.json", "checkpoint"):
        (root / name).unlink(missing_ok=True)
    if command == ("rebuild",):
        shutil.rmtree(root / "consumequeue")
    else:
        flip(RealFileSystem(), f"{root}/commitlog/{0:020d}", 8, 255)
        command = (*command, "--yes") if "--cut" in command else command
    for path in (root, *root.rglob("*")):
        os.chown(path, USER, USER)
    assert run(*command, str(root)).exit_code == 0
    assert (root / "consumequeue" / "T" / "0").exists()
    owners = {(each.stat().st_uid, each.stat().st_gid) for each in (root, *root.rglob("*"))}
    assert owners == {(USER, USER)}


@pytest.mark.parametrize(("of_broker", "of_tool"), [(0o077, 0o022), (0o022, 0o077)])
def test_what_is_made_is_as_open_to_others_as_what_it_replaces(
    of_broker: int, of_tool: int, tmp_path: Path
) -> None:
    """Otherwise a store made with umask 077 would get queues and an index that all can read."""
    before = os.umask(of_broker)
    try:
        root = tmp_path / "store"
        write_small_store(RealFileSystem(), str(root))
        modes = {each.stat().st_mode for each in (root, *root.rglob("*"))}
        os.umask(of_tool)
        assert run("rebuild", str(root)).exit_code == 0
        assert os.umask(of_tool) == of_tool
    finally:
        os.umask(before)
    assert len(modes) == 2  # One mode for files, and one for folders.
    assert {each.stat().st_mode for each in (root, *root.rglob("*"))} == modes


def test_what_is_made_for_a_user_is_given_away_and_what_is_there_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[str] = []

    def fchown(descriptor: int, user: int, group: int) -> None:
        given.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        assert (user, group) == (USER, USER)

    (tmp_path / "old").write_bytes(b"")
    monkeypatch.setattr(os, "fchown", fchown)
    disk = OwnedFileSystem(USER, USER)
    disk.make_directories(f"{tmp_path}/a/b")
    for name in ("old", "a/b/new"):
        disk.open(f"{tmp_path}/{name}", create=True).close()
    lock = disk.lock(f"{tmp_path}/lock")
    assert lock is not None
    lock.close()
    assert sorted(given) == [f"{tmp_path}/{each}" for each in ("a", "a/b", "a/b/new", "lock")]


def test_nobody_else_gives_anything_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert type(file_system_for(str(tmp_path))) is RealFileSystem
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert type(file_system_for(f"{tmp_path}/missing")) is RealFileSystem
