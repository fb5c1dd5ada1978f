"""Files that a user may read but not write are found before a byte of the store changes."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest
from tests.crash.disk import SimulatedFileSystem
from tests.store.damaged_stores import (
    BATCHES,
    ROOT,
    SMALL,
    contents,
    open_small_store,
    small_store,
)

from cometmq.store.config import StoreConfig
from cometmq.store.errors import StoreFormatError
from cometmq.store.index.index_off import INDEX_OFF
from cometmq.store.looking.inspection import inspect
from cometmq.store.mending.rebuilding import check_rebuildable
from cometmq.store.message_store import MessageStore
from cometmq.store.queues.queue_ends import QUEUE_ENDS_NAME, QueueKey, load_queue_ends


def forbid(disk: SimulatedFileSystem, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    """Let the disk say, when asked, that it refuses changes in one folder."""

    def refuse(path: str) -> None:
        if path == folder:
            raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(disk, "check_writable", refuse)


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("folder", ["commitlog", "consumequeue", "index", "integrity", "config"])
def test_a_folder_without_the_right_to_write_refuses_the_start_and_nothing_is_changed(
    folder: str, closed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = small_store() if closed else small_store(close=False).kill()
    forbid(disk, monkeypatch, f"{ROOT}/{folder}")
    before = contents(disk)
    with pytest.raises(PermissionError) as caught:
        MessageStore.open(ROOT, SMALL, now_ms=1, filesystem=disk, threads=False)
    assert caught.value.filename == f"{ROOT}/{folder}"
    assert contents(disk) == before


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("name", ["", "/checkpoint", f"/{QUEUE_ENDS_NAME}"])
def test_so_does_the_folder_of_the_store_itself_and_a_note_in_it(
    name: str, closed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = small_store() if closed else small_store(close=False).kill()
    forbid(disk, monkeypatch, f"{ROOT}{name}")
    assert_refused(disk, f"{ROOT}{name}")


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("folder", ["index", "integrity"])
def test_so_does_the_newest_file_of_the_index_and_of_the_checksums(
    folder: str, closed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = small_store() if closed else small_store(close=False).kill()
    newest = [path for path in contents(disk) if path.startswith(f"{ROOT}/{folder}/")][-1]
    forbid(disk, monkeypatch, newest)
    assert_refused(disk, newest)


@pytest.mark.parametrize("queue", ["consumequeue/T/1", f"batchconsumequeue/{BATCHES}/0"])
def test_a_start_behind_a_kill_asks_for_the_queues_that_it_is_about_to_write_to(
    queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = small_store(close=False).kill()
    forbid(disk, monkeypatch, f"{ROOT}/{queue}")
    assert_refused(disk, f"{ROOT}/{queue}")


@pytest.mark.parametrize("is_listed", [True, False])
@pytest.mark.parametrize("queue", ["consumequeue/T/1", f"batchconsumequeue/{BATCHES}/0"])
def test_and_for_their_last_files(
    queue: str, is_listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    often = replace(SMALL, checkpoint_interval_ms=40_000)
    disk = small_store(often if is_listed else SMALL, close=False).kill()
    assert disk.exists(f"{ROOT}/{QUEUE_ENDS_NAME}") == is_listed
    newest = f"{ROOT}/{queue}/{disk.list(f'{ROOT}/{queue}')[-1].name}"
    forbid(disk, monkeypatch, newest)
    assert_refused(disk, newest)


@pytest.mark.parametrize("is_last", [True, False])
def test_where_a_queue_is_listed_to_end_with_a_file_that_and_the_next_one_are_asked_for(
    is_last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    often = replace(SMALL, checkpoint_interval_ms=40_000)
    ends = load_queue_ends(small_store(often, close=False).kill(), ROOT)
    assert ends is not None
    count = ends[QueueKey(is_batch=False, topic="T", queue_id=1)].next_offset
    config = replace(often, consume_queue_file_size=20 * count)
    disk, folder = small_store(config, close=False).kill(), f"{ROOT}/consumequeue/T/1"
    files = [f"{folder}/{entry.name}" for entry in disk.list(folder)]
    assert len(files) == 2
    forbid(disk, monkeypatch, files[is_last])
    assert_refused(disk, files[is_last], config)


def test_the_folder_of_an_index_that_is_off_need_not_be_writable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = small_store()
    forbid(disk, monkeypatch, f"{ROOT}/index")
    config = replace(SMALL, index=False)
    assert MessageStore.open(ROOT, config, now_ms=1, filesystem=disk, threads=False).close(1)


@pytest.mark.parametrize("folder", ["consumequeue", "consumequeue/T/1", "index"])
def test_a_rebuild_refuses_folders_that_it_may_not_move_before_it_does_any_work(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = small_store()
    forbid(disk, monkeypatch, f"{ROOT}/{folder}")
    with pytest.raises(PermissionError) as caught:
        check_rebuildable(inspect(disk, ROOT, SMALL))
    assert caught.value.filename == f"{ROOT}/{folder}"


def test_no_tool_looks_at_a_store_whose_index_a_newer_version_turned_off() -> None:
    disk = small_store()
    file = disk.open(f"{ROOT}/{INDEX_OFF}", create=True)
    file.write(b'{"crc32":1,"offset":0,"version":2}', 0)
    file.close()
    with pytest.raises(StoreFormatError, match="version 2, but this program knows up to 1"):
        inspect(disk, ROOT, SMALL)


def assert_refused(disk: SimulatedFileSystem, path: str, config: StoreConfig = SMALL) -> None:
    """Check that a start is refused because of this file or folder, and changes nothing."""
    before = contents(disk)
    with pytest.raises(PermissionError) as caught:
        open_small_store(disk, config)
    assert caught.value.filename == path
    assert contents(disk) == before
