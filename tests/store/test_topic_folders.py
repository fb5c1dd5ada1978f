"""Whatever is in a topic's folder besides its queues does not tell the topic's kind."""

from __future__ import annotations

import json
from random import Random

import pytest
from tests.crash.disk import KillAt, Killed, Moment, SimulatedFileSystem
from tests.store.damaged_stores import ROOT, contents, files_of, verified
from tests.store.records import HOST, messages_in

from cometmq.store.config import StoreConfig
from cometmq.store.deletions import Deletions
from cometmq.store.errors import StoreFormatError
from cometmq.store.log.turn import Origin
from cometmq.store.looking.inspection import inspect
from cometmq.store.looking.unlisted import unlisted_of, unlisted_topics
from cometmq.store.mending import rebuilding
from cometmq.store.message_store import MessageStore
from cometmq.store.queues.queue_ends import NO_RECORD, QueueEnd, QueueKey, without_deleted
from cometmq.store.queues.topic_folders import holds_queues

CONFIG = StoreConfig(
    segment_size=16384,
    consume_queue_file_size=200,
    batch_consume_queue_file_size=4 * 46,
    index=False,
    checkpoint_interval_ms=1,
)
FOLDERS = {False: "consumequeue", True: "batchconsumequeue"}
NEW = [b"new 0", b"new 1", b"new 2"]


class Changed:
    """A store whose topic T was deleted, and recreated as one of the other kind."""

    def __init__(self, *, was_batch: bool, foreign: str | None = None) -> None:
        self.disk = SimulatedFileSystem()
        self.is_batch, self.now_ms = was_batch, 1000
        self.opened()
        self.put(*(b"old %d" % number for number in range(15)))
        self.put(b"other", topic="Other")
        self.ticks()
        self.old = f"{ROOT}/{FOLDERS[was_batch]}/T"
        self.foreign = f"{self.old}/{foreign}"
        if foreign is not None:
            self.disk.open(self.foreign, create=True).write(b"note", 0)
        self.store.delete_topics(["T"])
        self.is_batch = not was_batch
        self.write_table()
        self.put(*NEW)

    def write_table(self) -> None:
        """Write `config/topics.json`."""
        attributes = {"queue.type": "BatchCQ"} if self.is_batch else {}
        table = {
            "T": {"topicName": "T", "attributes": attributes},
            "Other": {"topicName": "Other"},
        }
        self.disk.make_directories(f"{ROOT}/config")
        file = self.disk.open(f"{ROOT}/config/topics.json", create=True)
        file.resize(0)
        file.write(json.dumps({"topicConfigTable": table}).encode(), 0)
        file.sync()
        file.close()
        for folder in (f"{ROOT}/config", ROOT):
            self.disk.sync_directory(folder)

    def says(self, topic: str) -> bool | None:
        """Whether a topic has batches, according to `config/topics.json`."""
        return {"T": self.is_batch, "Other": False}.get(topic)

    def opened(self, *, is_listed: bool = True) -> MessageStore:
        self.now_ms += 1000
        self.store = MessageStore.open(
            ROOT,
            CONFIG,
            now_ms=self.now_ms,
            filesystem=self.disk,
            is_batch_topic=self.says if is_listed else lambda _: None,
            threads=False,
        )
        return self.store

    def put(self, *bodies: bytes, topic: str = "T") -> None:
        for body in bodies:
            self.now_ms += 1
            self.store.put(topic, 0, body, b"", Origin(self.now_ms, self.now_ms, HOST))
            self.store.commit()
            self.store.run_jobs()
            self.store.advance()

    def ticks(self) -> None:
        for _ in range(20):
            self.now_ms += 1000
            self.store.tick(self.now_ms)
            self.store.run_jobs()

    def close(self) -> None:
        assert self.store.close(self.now_ms)

    def bodies(self, topic: str = "T") -> list[bytes]:
        found: list[bytes] = []
        offset = self.store.min_offset(topic, 0)
        while offset < self.store.max_offset(topic, 0):
            result = self.store.read(topic, 0, offset, 32)
            found += [message.body for message in messages_in(result.slices)]
            offset = result.next_begin_offset
        return found

    def rebuild(self) -> None:
        store = inspect(self.disk, ROOT, CONFIG)
        for _ in rebuilding.rebuild(store, rebuilding.Rebuilt(), self.now_ms):
            pass

    def check(self) -> None:
        """Check that the deleted topic is gone, and that the recreated one has its messages."""
        self.opened()
        assert self.bodies() == NEW
        assert self.bodies("Other") == [b"other"]
        self.put(b"next")
        self.close()
        assert verified(self.disk, ROOT, CONFIG).is_sound
        for seed in range(3):
            self.disk = self.disk.power_cut(Random(seed))
            self.opened()
            assert not self.disk.exists(self.old)
            assert self.bodies() == [*NEW, b"next"]
            self.close()


def brought_back(changed: Changed) -> list[SimulatedFileSystem]:
    """Cut the power in many ways; return the disks on which old files are there again."""
    disks = [changed.disk.power_cut(Random(seed)) for seed in range(12)]
    return [disk for disk in disks if list(files_of(disk, changed.old))]


@pytest.mark.parametrize("was_batch", [False, True])
def test_what_a_power_cut_brings_back_does_not_say_of_which_kind_a_topic_is(
    was_batch: bool,
) -> None:
    changed = Changed(was_batch=was_batch)
    disks = brought_back(changed)
    assert len(disks) > 2
    for disk in disks:
        changed.disk = disk
        changed.check()


@pytest.mark.parametrize("moment", Moment)
@pytest.mark.parametrize("was_batch", [False, True])
def test_a_start_that_is_killed_while_it_removes_that_is_followed_by_one_that_does(
    was_batch: bool, moment: Moment
) -> None:
    changed = Changed(was_batch=was_batch)
    disk = brought_back(changed)[0]
    operations, was_killed = 0, True
    while was_killed:
        operations += 1
        for seed in (None, 0, 1):
            changed.disk = disk.power_cut(Random(7))
            changed.disk.hook = KillAt(changed.disk.operations + operations, moment)
            was_killed = False
            try:
                changed.opened()
            except Killed:
                was_killed = True
            changed.disk.hook = None
            cut = changed.disk.kill() if seed is None else changed.disk.power_cut(Random(seed))
            changed.disk = cut
            changed.opened()
            assert changed.bodies() == NEW
    assert operations > 10


@pytest.mark.parametrize("was_batch", [False, True])
def test_a_rebuild_makes_them_of_the_kind_that_the_topic_has_now(was_batch: bool) -> None:
    changed = Changed(was_batch=was_batch)
    changed.disk = brought_back(changed)[0]
    changed.rebuild()
    changed.check()


@pytest.mark.parametrize("was_batch", [False, True])
def test_a_topic_that_goes_on_behind_its_mark_in_the_wrong_folder_is_refused(
    was_batch: bool,
) -> None:
    changed = Changed(was_batch=was_batch)
    changed.close()
    before = contents(changed.disk)
    changed.is_batch = was_batch
    with pytest.raises(StoreFormatError, match="but its queues lie in"):
        changed.opened()
    assert contents(changed.disk) == before


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("foreign", ["notes.txt", "0/notes.txt"])
@pytest.mark.parametrize("was_batch", [False, True])
def test_a_foreign_file_does_not_say_of_which_kind_a_topic_is(
    was_batch: bool, foreign: str, clean: bool
) -> None:
    changed = Changed(was_batch=was_batch, foreign=foreign)
    for step in ("start", "rebuild", "start", "start without topics.json"):
        if clean:
            changed.close()
        else:
            changed.ticks()
            changed.disk = changed.disk.kill()
        findings = verified(changed.disk, ROOT, CONFIG).findings
        assert [each.path for each in findings] == [changed.foreign] * (foreign != "notes.txt")
        if step == "rebuild":
            changed.rebuild()
        changed.opened(is_listed=not step.endswith("json"))
        assert changed.bodies() == NEW
        assert changed.disk.exists(changed.foreign)
        assert len(list(files_of(changed.disk, changed.old))) == 1


@pytest.mark.parametrize("is_batch", [False, True])
def test_a_folder_with_files_of_others_only_makes_no_topic(is_batch: bool) -> None:
    changed = Changed(was_batch=not is_batch)
    folder = f"{ROOT}/{FOLDERS[is_batch]}/Gone/0"
    changed.disk.make_directories(folder)
    changed.disk.open(f"{folder}/notes.txt", create=True)
    changed.close()
    changed.opened()
    listed = {"T", "Other"}
    assert unlisted_topics(changed.store.queues, listed, changed.store.deletions, 100) == {}
    changed.put(b"", topic="Fresh")
    assert unlisted_topics(changed.store.queues, listed, changed.store.deletions, 9) == {"Fresh": 1}
    changed.close()
    inspected = inspect(changed.disk, ROOT, CONFIG)
    assert unlisted_of(inspected) == {"Fresh": 1}
    assert inspected.gone_topics.gone_to("Gone")
    assert not inspected.is_batch_topic("Gone")


def test_the_last_entry_that_is_not_zeros_says_whether_a_queue_goes_on_behind_the_mark() -> None:
    disk, entries = SimulatedFileSystem(), 10_000
    disk.make_directories("/s/T/3")
    assert not holds_queues(disk, "/s/T", 20, None)
    file = disk.open("/s/T/3/00000000000000000000", create=True)
    file.resize(20 * entries)
    assert not holds_queues(disk, "/s/T", 20, None)
    assert not holds_queues(disk, "/s/T", 20, 0)
    for number in (0, 1, 5000):
        file.write((number + 7).to_bytes(8, "big") + (99).to_bytes(12, "big"), number * 20)
        assert holds_queues(disk, "/s/T", 20, None)
        assert holds_queues(disk, "/s/T", 20, number + 7)
        assert not holds_queues(disk, "/s/T", 20, number + 8)
    disk.open("/s/T/3/00000000000000200000", create=True).resize(200)
    assert holds_queues(disk, "/s/T", 20, 5007)


def test_an_offset_is_not_kept_of_a_deleted_topic_that_is_of_the_other_kind_now() -> None:
    disk = SimulatedFileSystem()
    disk.make_directories(ROOT)
    marks = Deletions(disk, ROOT)
    ends = {
        QueueKey(is_batch, topic, 0): QueueEnd(1, NO_RECORD, 1)
        for is_batch in (False, True)
        for topic in ("T", "U")
    }
    assert without_deleted(ends, marks, {"T": True}.get) == ends
    marks.add(["T", "U"], 100, 0)
    kept = without_deleted(ends, marks, {"T": True}.get)
    assert ends.keys() - kept.keys() == {QueueKey(is_batch=False, topic="T", queue_id=0)}
