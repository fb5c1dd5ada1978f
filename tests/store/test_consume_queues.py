from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from tests.crash.disk import SimulatedFileSystem
from tests.store.queue_model import EVERYTHING, files_below, open_queues, small_config

from cometmq.store.config import StoreConfig
from cometmq.store.disk.filesystem import RealFileSystem
from cometmq.store.disk.unsynced import SYNCED_EACH_MAX
from cometmq.store.queues.batch_consume_queue import BatchEntry
from cometmq.store.queues.consume_queues import ConsumeQueues
from cometmq.store.queues.entry_files import WRITE_BYTES_MAX

FILE_ENTRIES = 10


def opened(
    disk: SimulatedFileSystem, file_entries: int = FILE_ENTRIES, *, clean: bool = True
) -> ConsumeQueues:
    return open_queues(disk, small_config(file_entries), clean=clean)


def stored(disk: SimulatedFileSystem, file_entries: int = FILE_ENTRIES) -> None:
    """Write three queues: a/0, a/3, b/0."""
    queues = opened(disk, file_entries)
    for at, (topic, queue_id) in enumerate((("a", 0), ("a", 3), ("b", 0))):
        queues.simple.get(topic, queue_id).append(at * 100, 100, 0)
    queues.batch.get("c", 1).append(BatchEntry(300, 100, 0, 1, 0, 4))
    assert queues.write_behind(EVERYTHING, EVERYTHING)
    queues.take_unsynced().sync()
    queues.close()


def test_queues_are_found_by_topic_and_id() -> None:
    disk = SimulatedFileSystem()
    stored(disk)
    queues = opened(disk)
    assert queues.simple.topics() == ["a", "b"]
    assert queues.simple.queues("a") == [0, 3]
    assert queues.simple.queues("x") == []
    assert queues.simple.find("a", 1) is None
    assert queues.simple.find("x", 0) is None
    assert queues.simple.topics() == ["a", "b"]
    found = queues.simple.find("a", 3)
    assert found is not None
    assert found.max_offset == 1
    assert queues.simple.get("a", 3) is found
    assert queues.batch.topics() == ["c"]
    assert [queue.topic for queue in queues.simple.walk()] == ["a", "a", "b"]


def test_opening_a_store_loads_no_queue() -> None:
    disk = SimulatedFileSystem()
    stored(disk)
    assert list(opened(disk).simple.loaded()) == []


def test_a_new_queue_gets_its_files_with_its_first_entry() -> None:
    disk = SimulatedFileSystem()
    queues = opened(disk)
    queue = queues.simple.get("t", 5)
    assert not disk.exists("/store/consumequeue")
    queue.append(0, 100, 0)
    queues.write_behind(EVERYTHING, 1)
    assert list(files_below(disk, "/store")) == ["/store/consumequeue/t/5/00000000000000000000"]


def test_new_files_outlive_a_power_cut_once_synced() -> None:
    disk = SimulatedFileSystem()
    stored(disk)
    for seed in range(8):
        after = opened(disk.power_cut(Random(seed)), clean=False)
        assert after.simple.get("a", 3).max_offset == after.simple.get("b", 0).max_offset == 1
        assert after.batch.get("c", 1).max_offset == 4


@pytest.mark.parametrize("seed", range(8))
def test_names_made_by_a_process_that_was_killed_are_synced_by_the_next(seed: int) -> None:
    disk = SimulatedFileSystem()
    queues = opened(disk)
    queues.simple.get("t", 0).append(0, 100, 0)
    assert queues.write_behind(EVERYTHING, EVERYTHING)
    disk = disk.kill()
    again = opened(disk, clean=False)
    again.truncate(0)
    again.simple.get("t", 0).place(0, 0, 100, 0)
    assert again.write_behind(EVERYTHING, EVERYTHING)
    again.take_unsynced().sync()
    after = opened(disk.power_cut(Random(seed)), clean=False)
    assert after.simple.get("t", 0).max_offset == 1


@pytest.mark.parametrize("seed", range(8))
def test_removals_of_a_process_that_was_killed_are_synced_by_the_next(seed: int) -> None:
    """Otherwise files of a deleted queue may come back under the entries of a new one."""
    disk = SimulatedFileSystem()
    stored(disk)
    disk.remove(f"/store/consumequeue/a/0/{0:020d}")
    disk = disk.kill()
    again = opened(disk, clean=False)
    again.truncate(400)
    assert again.simple.get("a", 0).max_offset == 0
    again.take_unsynced().sync()
    after = opened(disk.power_cut(Random(seed)), clean=False)
    assert after.simple.get("a", 0).max_offset == 0


def test_many_files_are_synced_with_their_partition() -> None:
    disk = SimulatedFileSystem()
    queues = opened(disk)
    for queue_id in range(SYNCED_EACH_MAX):
        queues.simple.get("t", queue_id).append(queue_id * 100, 100, 0)
    assert queues.write_behind(EVERYTHING, EVERYTHING)
    before = disk.operations
    queues.take_unsynced().sync()
    assert disk.operations == before + 1
    after = opened(disk.power_cut(Random(5)), clean=False)
    assert len(after.simple.queues("t")) == SYNCED_EACH_MAX
    assert all(queue.max_offset == 1 for queue in after.simple.walk())


def test_the_file_size_of_an_existing_store_is_taken_from_its_files() -> None:
    disk = SimulatedFileSystem()
    stored(disk, 7)
    queues = opened(disk)
    assert (queues.simple.file_size, queues.batch.file_size) == (7 * 20, 7 * 46)
    assert queues.simple.get("a", 3).max_offset == 1


def test_a_lone_short_file_after_a_crash_does_not_set_the_file_size() -> None:
    disk = SimulatedFileSystem()
    queues = opened(disk)
    queues.simple.get("a", 0).append(0, 100, 0)
    queues.write_behind(EVERYTHING, 1)
    disk.open("/store/consumequeue/a/0/00000000000000000000").resize(20)
    again = opened(disk, clean=False)
    assert again.simple.file_size == FILE_ENTRIES * 20
    again.truncate(100)
    assert again.simple.get("a", 0).max_offset == 1
    assert disk.open("/store/consumequeue/a/0/00000000000000000000").size() == FILE_ENTRIES * 20


def test_destroying_a_topic_removes_its_queues_and_folders() -> None:
    disk = SimulatedFileSystem()
    stored(disk)
    queues = opened(disk)
    queues.simple.get("a", 0).append(500, 100, 0)
    queues.destroy("a", 3)
    assert queues.simple.queues("a") == [0]
    queues.destroy("a")
    queues.destroy("nothing")
    assert queues.simple.topics() == ["b"]
    assert not disk.exists("/store/consumequeue/a")
    assert queues.settled_offset is None
    queues.take_unsynced().sync()
    queues.simple.get("a", 0).append(600, 100, 0)
    assert queues.simple.get("a", 0).max_offset == 1


def test_queues_are_written_in_the_order_in_which_they_have_waited() -> None:
    queues = opened(SimulatedFileSystem())
    for at, queue_id in enumerate((2, 0, 1, 2)):
        queues.simple.get("t", queue_id).append(at * 100, 100, 0)
    assert queues.settled_offset == 0
    assert not queues.write_behind(EVERYTHING, 1)
    assert queues.settled_offset == 100
    assert queues.write_behind(200, 9)
    assert queues.settled_offset == 200


def test_a_busy_queue_is_written_in_parts_and_hides_nobody_behind_it() -> None:
    queues = opened(SimulatedFileSystem(), 100_000)
    busy, quiet = queues.simple.get("t", 0), queues.simple.get("t", 1)
    busy.append(0, 100, 0)
    quiet.append(100, 100, 0)
    parts = 3
    for n in range(parts * WRITE_BYTES_MAX // 20 - parts):
        busy.append(200 + n * 100, 100, 0)
    assert not queues.write_behind(EVERYTHING, 1)
    assert queues.settled_offset == 0  # Not the busy queue's next: the quiet one waits at 100.
    assert not queues.write_behind(EVERYTHING, parts - 1)
    assert queues.settled_offset == 100
    assert queues.write_behind(EVERYTHING, 1)
    assert queues.settled_offset is None


def test_until_all_queues_are_cut_the_settled_offset_stays_at_the_cut() -> None:
    disk = SimulatedFileSystem()
    stored(disk)
    queues = opened(disk, clean=False)
    queues.truncate(200)
    assert queues.settled_offset == 200
    assert queues.simple.get("a", 0).max_offset == 1
    assert sum(1 for _ in queues.settle()) == 4
    assert queues.settled_offset is None
    again = opened(disk)
    assert again.simple.get("b", 0).max_offset == again.batch.get("c", 1).max_offset == 0
    assert again.simple.get("a", 3).max_offset == 1


def test_a_second_cut_does_not_forget_the_first() -> None:
    """Recovery cuts to where it starts to read, then to where the log ends."""
    disk = SimulatedFileSystem()
    stored(disk)
    queues = opened(disk, clean=False)
    queues.truncate(0)
    queues.truncate(400)
    assert queues.settled_offset == 0
    assert queues.simple.get("a", 0).max_offset == 0
    list(queues.settle())
    assert queues.batch.get("c", 1).max_offset == 0


def test_files_cut_short_by_a_crash_do_not_set_the_file_size_of_longer_ones() -> None:
    disk = SimulatedFileSystem()
    disk.make_directories("/store/consumequeue/t/0")
    for number, size in enumerate((20, 20, FILE_ENTRIES * 10)):
        file = disk.open(f"/store/consumequeue/t/0/{number * FILE_ENTRIES * 20:020d}", create=True)
        file.resize(size)
        file.close()
    queues = opened(disk, clean=False)
    assert queues.simple.file_size == FILE_ENTRIES * 20


def test_files_of_one_wrong_length_do_not_set_the_size_that_the_store_noted() -> None:
    disk = SimulatedFileSystem()
    for queue_id in range(3):
        disk.make_directories(f"/store/consumequeue/T/{queue_id}")
        file = disk.open(f"/store/consumequeue/T/{queue_id}/{0:020d}", create=True)
        file.resize(200)
    config = StoreConfig(consume_queue_file_size=400)
    fooled = ConsumeQueues(disk, "/store", config, clean=False)
    assert fooled.simple.file_size == 200
    queues = ConsumeQueues(disk, "/store", config, clean=False, file_sizes=(600, None))
    assert queues.simple.file_size == 600
    assert (
        ConsumeQueues(disk, "/other", config, clean=False, file_sizes=(600, 1)).simple.file_size
        == 400
    )


def test_what_does_not_belong_among_queues_hinders_no_put_to_their_topic() -> None:
    disk = SimulatedFileSystem()
    queues = opened(disk)
    queues.simple.get("T", 0).append(0, 100, 0)
    assert queues.write_behind(EVERYTHING, EVERYTHING)
    queues.close()
    disk.make_directories("/store/consumequeue/T/zero")
    disk.make_directories("/store/consumequeue/T/0/notes")
    disk.open("/store/consumequeue/T/0/README", create=True).write(b"hello", 0)
    again = opened(disk)
    assert again.simple.queues("T") == [0]
    assert again.simple.get("T", 0).max_offset == 1
    assert again.simple.get("T", 1).max_offset == 0
    assert disk.open("/store/consumequeue/T/0/README").read(9, 0) == b"hello"


def test_of_many_queues_that_are_written_only_some_files_stay_open(tmp_path: Path) -> None:
    config = small_config(FILE_ENTRIES, open_files=4)
    queues = ConsumeQueues(RealFileSystem(), str(tmp_path), config, clean=True)
    written: list[tuple[int, int, int]] = []
    for round_number in range(FILE_ENTRIES + 1):
        for number in range(20):
            entry = (len(written) * 100, 100, round_number)
            queues.simple.get(f"t{number}", 0).append(*entry)
            written.append(entry)
        assert queues.write_behind(EVERYTHING, EVERYTHING)
        assert 1 <= len(open_below(tmp_path / "consumequeue")) <= 4 + 1  # One is the partition's.
    queues.close()
    again = ConsumeQueues(RealFileSystem(), str(tmp_path), config, clean=True)
    for number in range(20):
        of_queue = [entry for at in (0, FILE_ENTRIES) for entry in entries_of(again, number, at)]
        assert of_queue == written[number::20]
        sizes = [file.stat().st_size for file in (tmp_path / "consumequeue").glob(f"t{number}/0/*")]
        assert sizes == [FILE_ENTRIES * 20] * 2
    again.close()


def open_below(folder: Path) -> list[str]:
    """Return what this process has open below a folder."""
    found: list[str] = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # It may be closed by now.
            found.append(str(descriptor.readlink()))
    return [path for path in found if path.startswith(str(folder))]


def entries_of(queues: ConsumeQueues, number: int, at: int) -> list[tuple[int, int, int]]:
    return queues.entries(f"t{number}", 0, at, FILE_ENTRIES) or []
