"""A power cut brings back queue files of a deleted topic, some of them without their contents."""

from __future__ import annotations

from random import Random

import pytest
from tests.crash.disk import SimulatedFileSystem
from tests.store.damaged_stores import ROOT, files_of
from tests.store.records import HOST, messages_in

from cometmq.store.config import StoreConfig
from cometmq.store.consume_queue import Boundary
from cometmq.store.message_store import MessageStore
from cometmq.store.turn import Origin

CONFIG = StoreConfig(
    segment_size=16384,
    consume_queue_file_size=200,
    batch_consume_queue_file_size=4 * 46,
    index=False,
    checkpoint_interval_ms=1,
)
FOLDERS = {False: "consumequeue", True: "batchconsumequeue"}
NEW = [b"new 0", b"new 1", b"new 2"]


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
        """The topic that was made again has its messages."""
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
    """Make a queue's file without an entry."""
    disk.make_directories(f"{folder}/0")
    file = disk.open(f"{folder}/0/{name:020d}", create=True)
    file.resize(size)
    file.sync()
    file.close()
    for path in (f"{folder}/0", folder, folder.rpartition("/")[0], ROOT):
        disk.sync_directory(path)


@pytest.mark.parametrize("was_batch", [False, True])
def test_a_blank_file_does_not_hide_the_queue_of_the_other_kind(was_batch: bool) -> None:
    """As it was left by versions that did not remove it, and forgot the mark."""
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
