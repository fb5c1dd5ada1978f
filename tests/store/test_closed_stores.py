"""A closed store leaves the folder, and the numbers of its open files, to others."""

from __future__ import annotations

import gc
import os
import traceback
from functools import partial
from typing import TYPE_CHECKING

import pytest
from tests.store.damaged_stores import open_in, open_small_store, write_small_store
from tests.store.records import HOST

from cometmq.store.config import StoreConfig
from cometmq.store.disk.filesystem import RealFileSystem, read_whole
from cometmq.store.errors import StoreFormatError, StoreNotWriteableError
from cometmq.store.log.turn import Origin
from cometmq.store.message_store import MessageStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ORIGIN = Origin(1, 1, HOST)
ENTRIES_DUE_MS = 1_000_000


def put(store: MessageStore) -> None:
    store.put("T", 0, b"body", b"", ORIGIN)
    store.commit()


def opened(folder: Path) -> MessageStore:
    return open_small_store(RealFileSystem(), root=str(folder))


def notes_of(root: str) -> list[bytes | None]:
    return [read_whole(RealFileSystem(), f"{root}/{name}") for name in ("abort", "checkpoint")]


def everything_in(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_second_close_leaves_the_store_to_who_has_opened_it_meanwhile(tmp_path: Path) -> None:
    """It must not remove the running process's mark, nor write an older checkpoint."""
    first = opened(tmp_path)
    put(first)
    assert first.close(2)
    second = opened(tmp_path)
    put(second)
    before = notes_of(str(tmp_path))
    assert None not in before
    assert first.close(3)
    assert not first.tick(4)
    assert notes_of(str(tmp_path)) == before
    put(second)
    assert second.close(5)


def test_a_closed_store_keeps_no_file_open(tmp_path: Path) -> None:
    write_small_store(RealFileSystem(), str(tmp_path))
    gc.collect()
    gc.disable()
    try:
        store = opened(tmp_path)
        assert store.read("T", 0, 0, 32).record_count
        assert open_in(tmp_path)
        assert store.close(2)
        assert open_in(tmp_path) == []
    finally:
        gc.enable()


def test_what_is_put_to_a_closed_store_is_refused_and_goes_nowhere(tmp_path: Path) -> None:
    """Otherwise it would be written to whatever file has the log's file number by then."""
    store = opened(tmp_path / "s")
    put(store)
    store.put("T", 0, b"not committed", b"", ORIGIN)
    assert store.close(2)
    others = [RealFileSystem().open(f"{tmp_path}/{n}", create=True) for n in range(64)]
    for _ in range(2):
        with pytest.raises(StoreNotWriteableError, match="the store was closed"):
            put(store)
        store.commit()
        store.tick(3)
        store.refuse_puts(None)  # An operator's command reopens no store.
    with pytest.raises(StoreNotWriteableError, match="the store was closed"):
        store.delete_topics(["T"])
    with pytest.raises(StoreNotWriteableError, match="the store was closed"):
        store.change_delays((7,))
    assert not (tmp_path / "s" / "delay_levels.json").exists()
    assert [file.size() for file in others] == [0] * 64
    for file in others:
        file.close()
    again = opened(tmp_path / "s")
    assert again.max_offset("T", 0) == 1
    assert again.close(4)


def test_a_file_that_is_closed_twice_closes_no_other(tmp_path: Path) -> None:
    file = RealFileSystem().open(f"{tmp_path}/f", create=True)
    file.close()
    other = RealFileSystem().open(f"{tmp_path}/g", create=True)
    for verb in (file.close, lambda: file.write(b"x", 0)):
        with pytest.raises(OSError, match="Bad file descriptor"):
            verb()
    assert other.size() == 0
    other.close()


def in_child(work: Callable[[], bool]) -> int:
    """Fork, do something in the child, and return its exit status: 0 if it returns True."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 1
    try:
        status = int(not work())
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def test_a_child_that_was_forked_neither_writes_to_the_store_of_its_parent_nor_shuts_it_down(
    tmp_path: Path,
) -> None:
    """Otherwise both would write what was put and not committed, and the index's files."""
    store = opened(tmp_path)
    put(store)
    store.tick(2)
    store.run_jobs()
    store.put("T", 0, b"the parent's to commit", b"KEYS\x01k\x02", ORIGIN)
    before = everything_in(tmp_path)

    def use_all() -> bool:
        store.refuse_puts(None)
        for verb in (
            store.commit,
            partial(put, store),
            partial(store.delete_topics, ["T"]),
            partial(store.change_delays, (7,)),
        ):
            with pytest.raises(StoreNotWriteableError, match="this process was forked"):
                verb()
        store.tick(ENTRIES_DUE_MS)
        store.run_jobs()
        store.tick(2 * ENTRIES_DUE_MS)
        store.query("T", "k", 1, begin_ms=0, end_ms=ENTRIES_DUE_MS, now_ms=ENTRIES_DUE_MS)
        return not store.finish_log() and not store.close(2)

    assert in_child(use_all) == 0
    assert everything_in(tmp_path) == before
    put(store)
    store.run_jobs()
    store.advance()
    assert store.max_offset("T", 0) == 3
    assert store.close(3)


def test_a_child_that_was_forked_leaves_jobs_keys_and_syncs_of_its_parent_to_it(
    tmp_path: Path,
) -> None:
    store = opened(tmp_path)
    store.put("T", 0, b"body", b"KEYS\x01k\x02", ORIGIN)
    store.commit()
    store.run_jobs()
    store.advance()  # It waits for the index.
    put(store)  # It waits for its sync, with the zeros ahead of it.
    before = everything_in(tmp_path)

    def use_all() -> bool:
        store.run_jobs()
        store.query("T", "k", 1, begin_ms=0, end_ms=ENTRIES_DUE_MS, now_ms=ENTRIES_DUE_MS)
        return not store.finish_log()

    assert in_child(use_all) == 0
    assert everything_in(tmp_path) == before
    store.run_jobs()
    store.advance()
    assert store.query("T", "k", 1, begin_ms=0, end_ms=9, now_ms=2) == [0]
    assert store.close(3)


def test_a_store_stays_where_it_was_opened_when_its_process_changes_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    store = MessageStore.open("s", StoreConfig(), now_ms=1)
    monkeypatch.chdir(tmp_path / "elsewhere")
    put(store)
    assert not store.tick(10_000)
    put(store)
    assert store.close(2)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_delays_that_no_start_would_take_are_not_noted_down(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for delays in ((), (-1,), (1,) * 1001):
        with pytest.raises(StoreFormatError, match="delay_levels_ms"):
            store.change_delays(delays)
    store.change_delays((7,))
    assert store.close(2)
    assert opened(tmp_path).close(3)
