"""Dangling links in a store's folder: mostly, the disk to which they lead is not mounted."""

from __future__ import annotations

import json
import re
import shutil
from typing import TYPE_CHECKING

import pytest
from tests.admin.test_store_commands import COMMANDS, run, told
from tests.store.damaged_stores import open_small_store, write_small_store

from cometmq.store.disk.filesystem import RealFileSystem
from cometmq.store.errors import LEADS_NOWHERE, StoreFilesError, disk_error_text

if TYPE_CHECKING:
    from pathlib import Path

OF_THE_ROOT = (
    *("commitlog", "consumequeue", "batchconsumequeue", "index", "config", "integrity", "cut"),
    *("entryjournal", "checkpoint", "abort", "lock", "queue_ends.json", "deleted_topics.json"),
    *("config/topics.json", "commitlog/00000000000000000000", "commitlog/00000000000000008192"),
)


def with_link(folder: Path, place: str, target: str = "/not/mounted") -> str:
    """Write a store with such a link in place of a file or a folder; return the link's path."""
    root = folder / "s"
    write_small_store(RealFileSystem(), str(root))
    path = root / place
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(target)
    return str(root)


@pytest.mark.parametrize("place", ["consumequeue", "checkpoint", OF_THE_ROOT[-1]])
def test_so_is_a_link_to_itself(tmp_path: Path, place: str) -> None:
    root = with_link(tmp_path, place, place.rpartition("/")[2])
    assert f"{root}/{place}: a {LEADS_NOWHERE}" in told(run("verify", root), 1)
    with pytest.raises(StoreFilesError, match=f"{place}: a {LEADS_NOWHERE}"):
        open_small_store(RealFileSystem(), root=root)


@pytest.mark.parametrize("place", OF_THE_ROOT)
def test_a_link_that_leads_nowhere_is_refused_as_that_by_a_start_and_by_each_command(
    tmp_path: Path, place: str
) -> None:
    """It must not pass for a file that is missing or too short, and so for a lost one."""
    root = with_link(tmp_path, place)
    for command in COMMANDS:
        assert f"{root}/{place}: a {LEADS_NOWHERE}" in told(run(*command, root), 1)
    with pytest.raises(StoreFilesError, match=f"{place}: a {LEADS_NOWHERE}"):
        open_small_store(RealFileSystem(), root=root)
    assert (tmp_path / "s" / place).is_symlink()


@pytest.mark.parametrize("command", [*COMMANDS, ("start",)])
def test_a_store_whose_folder_is_such_a_link_is_refused_as_that(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    root = tmp_path / "link"
    root.symlink_to("/not/mounted")
    if command != ("start",):
        assert f"{root}: a {LEADS_NOWHERE}; mount what" in told(run(*command, str(root)), 1)
        return
    with pytest.raises(StoreFilesError, match=f"{root}: a {LEADS_NOWHERE}; mount what"):
        open_small_store(RealFileSystem(), root=str(root))


@pytest.mark.parametrize(
    ("place", "what"),
    [
        ("consumequeue/T/0", "folder"),
        ("consumequeue/T/0/00000000000000000000", "file"),
        ("batchconsumequeue/Batches/0", "folder"),
        ("index/99991231000000000", "file"),
    ],
)
def test_one_among_queues_and_the_index_is_misplaced(tmp_path: Path, place: str, what: str) -> None:
    root = with_link(tmp_path, place)
    result = run("verify", root)
    assert result.exit_code == 1
    said = result.stdout
    assert f"misplaced: {root}/{place}: byte 0: a {LEADS_NOWHERE} in place of a {what}" in said


def test_one_in_the_place_of_an_index_file_refuses_the_start(tmp_path: Path) -> None:
    root = with_link(tmp_path, "index/99991231000000000")
    with pytest.raises(StoreFilesError, match=f"{LEADS_NOWHERE} in place of a file of the"):
        open_small_store(RealFileSystem(), root=root)


def test_what_the_disk_says_of_one_is_told_as_that(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("/not/mounted")
    for go in (link.stat, link.mkdir):
        with pytest.raises(OSError, match="link") as refused:
            go()
        refused.value.filename = str(link)
        assert f"; it is a {LEADS_NOWHERE}: mount what it leads to" in disk_error_text(
            refused.value
        )


def test_a_file_in_a_folder_that_is_a_link_to_itself_is_told_as_that(tmp_path: Path) -> None:
    folder = tmp_path / "0"
    folder.symlink_to("0")
    with pytest.raises(OSError, match="symbolic links") as raised:
        RealFileSystem().open(f"{folder}/00000000000000000000", read_only=True)
    assert "a folder on its path is a link to itself: move it elsewhere" in disk_error_text(
        raised.value
    )


def test_the_room_where_a_log_is_that_may_be_on_another_disk_is_shown(tmp_path: Path) -> None:
    """The store's folder may have room while puts are refused because of the log's disk."""
    root = tmp_path / "s"
    write_small_store(RealFileSystem(), str(root))
    assert "log's disk" not in run("stat", str(root)).stdout
    (root / "commitlog").rename(tmp_path / "log")
    (root / "commitlog").symlink_to(tmp_path / "log")
    assert re.search(r"^log's disk  .* free of ", run("stat", str(root)).stdout, re.MULTILINE)
    document = json.loads(run("stat", "--json", str(root)).stdout)
    assert document["log_disk"]["total"] == document["disk"]["total"] > 0


def test_what_others_put_beside_is_left_alone_though_it_leads_nowhere(tmp_path: Path) -> None:
    root = with_link(tmp_path, "consumequeue/notes")
    (tmp_path / "s/mine").symlink_to("/not/mounted")
    told(run("stat", root), 0)
    told(run("rebuild", root), 0)
    assert open_small_store(RealFileSystem(), root=root).close(2_000_000_000_000)
    for name in ("mine", "consumequeue/notes"):
        assert (tmp_path / "s" / name).is_symlink()
