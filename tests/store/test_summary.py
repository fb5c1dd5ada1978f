"""What `stat` says about a store."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.crash.disk import SimulatedFile, SimulatedFileSystem
from tests.store.damaged_stores import (
    ROOT,
    SMALL,
    contents,
    open_small_store,
    overwrite,
    small_store,
    write_small_store,
)
from tests.store.records import HOST

from cometmq.admin.program import program
from cometmq.store.disk.filesystem import RealFileSystem
from cometmq.store.log.log_scan import LogScan
from cometmq.store.log.turn import Origin
from cometmq.store.looking.inspection import inspect
from cometmq.store.looking.summary import Summary, summarize
from cometmq.store.mending.repair_plan import Plan, make_plan
from cometmq.store.mending.repairing import carry_out


def summary_of(disk: SimulatedFileSystem) -> Summary:
    return summarize(inspect(disk, ROOT, SMALL))


def test_the_end_of_a_log_that_was_repaired_is_told() -> None:
    disk = small_store()
    before = summary_of(disk)
    last = disk.open(f"{ROOT}/commitlog/{8192:020d}")
    last.resize(500)
    last.resize(4096)  # As the refusal of its length says.
    inspected, plan = inspect(disk, ROOT, SMALL), Plan()
    list(make_plan(inspected, plan, cut=False))
    carry_out(inspected, plan, 1)
    after = summary_of(disk)
    assert 8192 < after.end_offset == plan.cut_at
    assert after.first_time == before.first_time
    assert after.last_time is not None
    assert before.last_time is not None
    assert after.last_time <= before.last_time


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("kept", [0, 1, 2])
def test_files_that_the_end_of_the_log_lacks_are_missed(kept: int, clean: bool) -> None:
    disk = small_store(close=clean)
    disk = disk if clean else disk.kill()
    assert summary_of(disk).missing_end is None
    assert "damage" not in stat(disk)
    end = inspect(disk, ROOT, SMALL).start.synced_offset
    for path in sorted(contents(disk, f"{ROOT}/commitlog"))[kept:]:
        disk.remove(path)
    text = (
        f"files of the log are missing: it is there from 0 to {kept * 4096},"
        f" but was on the disk up to {end}; a start"
    )
    assert text in stat(disk)
    assert summary_of(disk).missing_end == end


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("data", [b"\xff" * 8, bytes(3000)], ids=["a torn head", "zeros"])
def test_a_log_that_breaks_off_in_front_of_what_was_synced_is_told(
    data: bytes, clean: bool
) -> None:
    disk = small_store(close=clean)
    disk = disk if clean else disk.kill()
    store = inspect(disk, ROOT, SMALL)
    safe_offset = store.start.synced_offset
    offsets = [message.physical_offset for message in LogScan(store.segments, 0)]
    assert summary_of(disk).safe_offset is None
    for offset in (offsets[-1], offsets[30], offsets[3]):
        start = offset - offset % SMALL.segment_size
        room = start + SMALL.segment_size - offset
        overwrite(disk, f"{ROOT}/commitlog/{start:020d}", offset - start, data[:room])
        summary = summary_of(disk)
        assert (summary.end_offset, summary.safe_offset) == (offset, safe_offset)
        text = f"no sound record begins at {offset}, but the log was safe on the disk up to"
        assert f"{text} {safe_offset}: run `cometmq store verify`" in stat(disk)


@pytest.mark.parametrize("more", [0, 3])
def test_messages_that_no_file_of_a_queue_has_yet_are_told(more: int) -> None:
    disk = small_store()
    store = open_small_store(disk)
    assert "yet" not in stat(disk)
    for _ in range(1 + more):
        store.put("T", 0, b"half", b"", Origin(1, 1, HOST, 0x4))  # No queue ever gets it.
        store.put("T", 0, b"late", b"", Origin(1, 1, HOST))
        store.commit()
    noun = "messages" if more else "message"
    text = f"{1 + more} {noun} more at the end of the log, in no file of a queue yet"
    assert f"{text}\n" in stat(disk)
    disk = disk.kill()
    assert f"{text}: the next start puts {'them' if more else 'it'} there\n" in stat(disk)
    killed = summary_of(disk)
    open_small_store(disk).close(1)
    found = summary_of(disk)
    assert (killed.behind_queues, found.behind_queues) == (1 + more, 0)
    assert found.messages == killed.messages + killed.behind_queues


def test_messages_of_a_topic_that_was_deleted_are_none_of_them() -> None:
    disk = small_store()
    store = open_small_store(disk)
    store.put("Late", 0, b"late", b"", Origin(1, 1, HOST))
    store.commit()
    store.delete_topics(["Late"])
    assert summary_of(disk.kill()).behind_queues == 0


def stat(disk: SimulatedFileSystem) -> str:
    return CliRunner().invoke(program, ["store", "stat", ROOT], obj=disk).stdout


def test_a_damaged_table_whose_backup_a_start_takes_is_a_note_of_stat() -> None:
    disk, path = small_store(), f"{ROOT}/config/topics.json"
    disk.make_directories(f"{ROOT}/config")
    disk.open(f"{path}.bak", create=True).write(b"{}", 0)
    assert "is damaged" not in stat(disk)
    disk.open(path, create=True).write(b"{", 0)
    text = stat(disk)
    assert f"note        {path} is damaged (" in text
    assert f"): a start takes {path}.bak" in text
    found = CliRunner().invoke(program, ["store", "stat", "--json", ROOT], obj=disk).stdout
    assert list(json.loads(found)["backed_tables"]) == [path]


def test_so_is_one_that_has_no_content_and_no_backup() -> None:
    disk, path = small_store(), f"{ROOT}/config/delayOffset.json"
    disk.make_directories(f"{ROOT}/config")
    assert "no content" not in stat(disk)
    disk.open(path, create=True).write(bytes(40), 0)
    assert f"note        {path} has no content, and there is no good {path}.bak" in stat(disk)
    found = CliRunner().invoke(program, ["store", "stat", "--json", ROOT], obj=disk).stdout
    assert json.loads(found)["empty_tables"] == [path]


@pytest.mark.parametrize("times", [1, 2])
def test_a_file_that_expires_meanwhile_is_no_error(
    times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker removed it between the listing and the look into it."""
    disk, vanished = small_store(), 0
    expected, segment = stat(disk), f"{ROOT}/commitlog/{0:020d}"
    open_file = SimulatedFileSystem.open

    def open_or_miss(self: SimulatedFileSystem, path: str, **how: bool) -> SimulatedFile:
        nonlocal vanished
        if path == segment and vanished < times:
            vanished += 1
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return open_file(self, path, **how)

    monkeypatch.setattr(SimulatedFileSystem, "open", open_or_miss)
    found = CliRunner().invoke(program, ["store", "stat", ROOT], obj=disk)
    assert vanished == times
    if times == 1:
        assert (found.exit_code, found.stdout) == (0, expected)
    else:
        assert found.exit_code == 1
        assert segment in found.stderr
        assert "it disappeared while this ran" in found.stderr


def test_of_sparse_files_it_is_told_what_the_disk_has_of_them(tmp_path: Path) -> None:
    root, name = str(tmp_path / "s"), "index/99991231000000000"
    write_small_store(RealFileSystem(), root)
    assert "commitlog 12.0 KiB, " in CliRunner().invoke(program, ["store", "stat", root]).stdout
    file = RealFileSystem().open(f"{root}/{name}", create=True)
    file.resize(400 << 20)
    file.close()
    overwrite(RealFileSystem(), f"{root}/{name}", 200 << 20, b"x")
    text = CliRunner().invoke(program, ["store", "stat", root]).stdout
    assert "index 400.0 MiB (" in text
    found = json.loads(CliRunner().invoke(program, ["store", "stat", "--json", root]).stdout)
    assert found["sizes"]["index"] > 400 << 20
    assert 4096 <= found["rooms"]["index"] < 1 << 20
    (tmp_path / "s/index/nowhere").symlink_to("none")
    assert CliRunner().invoke(program, ["store", "stat", root]).stdout.count("index 400.0 MiB") == 1
