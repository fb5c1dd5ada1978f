"""A power cut brings back queue files of a deleted topic, some of them without content."""

from __future__ import annotations

from random import Random

import pytest
from tests.crash.disk import SimulatedFileSystem
from tests.store.damaged_stores import ROOT, contents, files_of
from tests.store.records import HOST, messages_in
from tests.store.test_topic_folders import CONFIG, FOLDERS, NEW

from cometmq.store.deletions import DELETIONS_NAME
from cometmq.store.errors import StoreFormatError
from cometmq.store.log.turn import Origin
from cometmq.store.looking.inspection import inspect
from cometmq.store.looking.unlisted import unlisted_of
from cometmq.store.message_store import MessageStore
from cometmq.store.queues.consume_queue import Boundary
from cometmq.store.queues.entry_search import GONE_SIZE, PRE_BLANK_SIZE
from cometmq.store.queues.topic_folders import has_queue_files, holds_queues


class Deleted:
    """A store whose topic T was deleted before its entries were synced; then the power was cut."""

    def __init__(self, seed: int, *, was_batch: bool) -> None:
        self.disk = SimulatedFileSystem()
        self.kinds = {"T": was_batch, "Other": False}
        self.now_ms = 1000
        self.folder = f"{ROOT}/{FOLDERS[was_batch]}/T"
        self.opened()
        self.put(*(b"old %d" % number for number in range(3 + seed % 2 * 40)))
        for _ in range(2):
            self.now_ms += 1000
            self.store.tick(self.now_ms)
        self.store.delete_topics(["T"])
        del self.kinds["T"]
        self.disk = self.disk.power_cut(Random(seed))

    def opened(self) -> None:
        self.now_ms += 1000
        self.store = MessageStore.open(
            ROOT,
            CONFIG,
            now_ms=self.now_ms,
            filesystem=self.disk,
            is_batch_topic=self.kinds.get,
            threads=False,
        )

    def put(self, *bodies: bytes, topic: str = "T") -> None:
        for body in bodies:
            self.now_ms += 1
            self.store.put(topic, 0, body, b"", Origin(self.now_ms, self.now_ms, HOST))
            self.store.commit()
            self.store.run_jobs()
            self.store.advance()

    def files(self) -> list[str]:
        return list(files_of(self.disk, self.folder)) if self.disk.exists(self.folder) else []

    def check(self) -> None:
        """Check that the recreated topic has its messages."""
        assert (self.store.min_offset("T", 0), self.store.max_offset("T", 0)) == (0, len(NEW))
        result = self.store.read("T", 0, 0, 32)
        assert [message.body for message in messages_in(result.slices)] == NEW


@pytest.mark.parametrize("was_batch", [False, True])
def test_a_topic_made_again_as_the_other_kind_is_read_at_once(was_batch: bool) -> None:
    came_back = 0
    for seed in range(40):
        deleted = Deleted(seed, was_batch=was_batch)
        came_back += bool(deleted.files())
        deleted.opened()
        assert not deleted.files(), "nothing that was synced is in them"
        deleted.kinds["T"] = not was_batch
        deleted.put(*NEW)
        deleted.check()
        assert deleted.store.close(deleted.now_ms)
        deleted.opened()
        deleted.check()
    assert came_back > 2


def put_blank(disk: SimulatedFileSystem, folder: str, size: int, name: int = 0) -> None:
    """Make a queue's file without an entry, and remove the marks of deleted topics."""
    marks = f"{ROOT}/{DELETIONS_NAME}"
    if disk.exists(marks):
        disk.remove(marks)
    disk.make_directories(f"{folder}/0")
    file = disk.open(f"{folder}/0/{name:020d}", create=True)
    file.resize(size)
    file.sync()
    file.close()
    for path in (f"{folder}/0", folder, folder.rpartition("/")[0], ROOT):
        disk.sync_directory(path)


@pytest.mark.parametrize("was_batch", [False, True])
def test_a_blank_file_does_not_hide_the_queue_of_the_other_kind(was_batch: bool) -> None:
    """Versions that did not remove the file, and forgot the mark, left it like this."""
    deleted = Deleted(0, was_batch=was_batch)
    deleted.opened()
    assert deleted.store.close(deleted.now_ms)
    put_blank(deleted.disk, deleted.folder, 4 * 46 if was_batch else 200)
    deleted.opened()
    deleted.store.min_offset("T", 0)
    deleted.kinds["T"] = not was_batch
    deleted.put(*NEW)
    deleted.check()
    entries = deleted.store.queues.entries("T", 0, 0, 9)
    assert entries is not None
    assert len(entries) == len(NEW)
    assert deleted.store.offset_by_time("T", 0, 0, Boundary.LOWER) == 0
    assert deleted.store.offset_by_time("T", 0, deleted.now_ms * 2, Boundary.LOWER) == len(NEW)


@pytest.mark.parametrize("name", [0, 1])
@pytest.mark.parametrize("was_batch", [False, True])
def test_files_without_an_entry_do_not_say_of_which_kind_a_topic_is(
    was_batch: bool, name: int
) -> None:
    """Old versions left them, as above. But a file whose name keeps an offset does say so."""
    deleted = Deleted(0, was_batch=was_batch)
    deleted.opened()
    deleted.kinds["T"] = not was_batch
    deleted.put(*NEW)
    assert deleted.store.close(deleted.now_ms)
    size = 4 * 46 if was_batch else 200
    put_blank(deleted.disk, deleted.folder, size, name * size)
    inspected = inspect(deleted.disk, ROOT, CONFIG)
    assert unlisted_of(inspected) == {"T": 1}
    if name:
        with pytest.raises(StoreFormatError, match="but its queues lie in"):
            deleted.opened()
        return
    assert inspected.is_batch_topic("T") is not was_batch
    deleted.opened()
    assert not deleted.files()
    deleted.check()


@pytest.mark.parametrize("is_listed", [False, True])
@pytest.mark.parametrize("was_batch", [False, True])
def test_a_topic_that_has_just_begun_is_of_the_kind_of_its_files(
    was_batch: bool, is_listed: bool
) -> None:
    """A kill after a power cut: the records are in the log, but the entries not in the files."""
    deleted = Deleted(0, was_batch=was_batch)
    deleted.opened()
    deleted.kinds["T"] = was_batch
    deleted.put(*NEW)
    deleted.disk = deleted.disk.kill()
    put_blank(deleted.disk, deleted.folder, 4 * 46 if was_batch else 200)
    if not is_listed:
        del deleted.kinds["T"]
    assert inspect(deleted.disk, ROOT, CONFIG).is_batch_topic("T") is was_batch
    deleted.opened()
    deleted.check()
    queue = deleted.store.queues.find("T", 0)
    assert queue is not None
    assert queue.is_batch is was_batch


@pytest.mark.parametrize("was_batch", [False, True])
def test_blank_leftovers_of_the_other_kind_do_not_count_beside_entries(was_batch: bool) -> None:
    deleted = Deleted(0, was_batch=was_batch)
    deleted.opened()
    deleted.kinds["T"] = not was_batch
    deleted.put(*NEW)
    assert deleted.store.close(deleted.now_ms)
    put_blank(deleted.disk, deleted.folder, 4 * 46 if was_batch else 200)
    del deleted.kinds["T"]
    assert inspect(deleted.disk, ROOT, CONFIG).is_batch_topic("T") is not was_batch
    deleted.opened()
    deleted.put(b"next")
    assert deleted.store.max_offset("T", 0) == len(NEW) + 1


def test_a_queue_that_only_keeps_an_offset_says_of_which_kind_a_topic_is() -> None:
    """Its entries are blank ones, not zeros, as before a first message."""
    disk = SimulatedFileSystem()
    folder = f"{ROOT}/consumequeue/T"
    put_blank(disk, folder, 200)
    assert has_queue_files(disk, folder)
    assert not holds_queues(disk, folder, 20, None)
    file = disk.open(f"{folder}/0/{0:020d}")
    file.write(bytes(8) + PRE_BLANK_SIZE.to_bytes(4, "big") + bytes(8), 0)
    assert holds_queues(disk, folder, 20, None)
    file.write(bytes(20), 0)
    file.write(bytes(8) + GONE_SIZE.to_bytes(4, "big") + bytes(8), 180)
    assert holds_queues(disk, folder, 20, None)


@pytest.mark.parametrize("was_batch", [False, True])
def test_a_queue_that_lost_its_entries_keeps_its_topic_from_becoming_of_the_other_kind(
    was_batch: bool,
) -> None:
    """The list of the queues' ends names it."""
    deleted = Deleted(0, was_batch=was_batch)
    deleted.opened()
    deleted.kinds["T"] = was_batch
    deleted.put(*NEW)
    assert deleted.store.close(deleted.now_ms)
    put_blank(deleted.disk, deleted.folder, 0)
    put_blank(deleted.disk, deleted.folder, 4 * 46 if was_batch else 200)
    deleted.kinds["T"] = not was_batch
    before = contents(deleted.disk)
    with pytest.raises(StoreFormatError, match="but its queues lie in"):
        deleted.opened()
    assert contents(deleted.disk) == before
