"""Ticks remove expired data from an open store; a full disk refuses puts until there is room.

None of this depends on real time: jobs run when the test lets them.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from tests.crash.disk import KillAt, Killed, Moment, SimulatedFileSystem
from tests.store.damaged_stores import files_of, verified
from tests.store.records import HOST, messages_in

from cometmq.store.config import Flush, StoreConfig
from cometmq.store.disk.filesystem import Space
from cometmq.store.errors import StoreNotWriteableError
from cometmq.store.log.turn import Origin
from cometmq.store.message_store import MessageStore
from cometmq.store.messages.reading import ReadStatus
from cometmq.store.queues.consume_queue import ENTRY
from cometmq.store.queues.queue_ends import QUEUE_ENDS_NAME, load_queue_ends

if TYPE_CHECKING:
    from tests.crash.disk import Operation

ROOT = "/s"
SEGMENT = 8192
TOPICS = ("A", "B")
TICKS_A_SECOND = 500
CONFIG = StoreConfig(
    segment_size=SEGMENT,
    consume_queue_file_size=20 * 10,
    batch_consume_queue_file_size=46 * 5,
    index_slots=16,
    index_items=30,
    retention_size_max=4 * SEGMENT,
    flush=Flush.SYNC,
    checkpoint_bytes=SEGMENT,
)


class Life:
    """A store whose time passes with each action."""

    def __init__(self, config: StoreConfig = CONFIG, disk: SimulatedFileSystem | None = None):
        self.disk = SimulatedFileSystem(total=64 * SEGMENT) if disk is None else disk
        self.config = config
        self.now_ms = 1_700_000_000_000
        self.count = 0
        self.store = self.open()

    def open(self) -> MessageStore:
        return MessageStore.open(
            ROOT,
            self.config,
            now_ms=self.now_ms,
            filesystem=self.disk,
            is_batch_topic=lambda topic: topic == "Batches",
            threads=False,
        )

    def put(self, count: int, topics: tuple[str, ...] = (*TOPICS, "Batches")) -> None:
        for _ in range(count):
            self.count += 1
            origin = Origin(self.now_ms, self.now_ms, HOST)
            properties = b"KEYS\x01k%d\x02" % self.count
            for topic in topics:
                self.store.put(topic, 0, b"%06d" % self.count * 40, properties, origin)
            self.store.commit()
            self.store.run_jobs()
            self.store.advance()

    def upkeep(self, seconds: int = 30) -> None:
        for _ in range(seconds):
            self.now_ms += 1000
            for _ in range(TICKS_A_SECOND):
                is_done = not self.store.tick(self.now_ms)
                self.store.run_jobs()
                if is_done:
                    break
            else:
                pytest.fail("it always has more to do at once")

    def checkpoint(self) -> None:
        """Take a checkpoint of everything within one second."""
        for _ in range(50):
            self.store.tick(self.now_ms)
            self.store.run_jobs()

    def files(self, folder: str) -> list[int]:
        return [int(entry.name) for entry in self.disk.list(f"{ROOT}/{folder}")]

    def bodies(self, topic: str) -> list[int]:
        """Return the numbers of all messages that a queue still serves."""
        found: list[int] = []
        offset, end = self.store.min_offset(topic, 0), self.store.max_offset(topic, 0)
        while offset < end:
            result = self.store.read(topic, 0, offset, 32, fetched=[])
            assert result.status is ReadStatus.FOUND
            found += [int(message.body[:6]) for message in messages_in(result.slices)]
            offset = result.next_begin_offset
        return found


def test_segments_over_the_quota_go_one_by_one_and_all_else_follows() -> None:
    life = Life()
    for _ in range(4):
        life.put(25)
        life.upkeep(3)
    before = life.store.end_offset
    life.upkeep()
    first = life.store.first_offset
    assert first == life.files("commitlog")[0] > 0
    assert len(life.files("commitlog")) <= 5
    assert life.files("integrity")[0] == first
    assert life.store.end_offset == before
    for topic in TOPICS:
        kept = life.bodies(topic)
        assert kept == list(range(kept[0], 101))
        assert kept[0] > 50
        assert life.files(f"consumequeue/{topic}/0")[0] > 0
        assert life.store.read(topic, 0, 0, 1).status is ReadStatus.OFFSET_TOO_SMALL
    assert life.bodies("Batches")[1:] == life.bodies("A")[-len(life.bodies("Batches")) + 1 :]
    assert life.files("batchconsumequeue/Batches/0")[0] > 0
    assert not life.store.query("A", "k1", 9, begin_ms=0, end_ms=1 << 60, now_ms=1)
    assert len(life.files("index")) < 11
    assert life.store.close(life.now_ms)
    life.store = life.open()
    assert life.bodies("A")[-1] == 100
    life.put(100)
    life.upkeep()
    assert life.bodies("A")[-1] == 200


def test_one_removal_is_sure_before_the_next_and_waits_for_the_thread() -> None:
    life = Life()
    life.put(100)
    life.checkpoint()
    count = len(life.files("commitlog"))
    seen: list[tuple[str, str]] = []

    def note(operation: Operation) -> None:
        if "commitlog" in operation.path and operation.moment is Moment.AFTER:
            seen.append((operation.verb, operation.path[-20:]))

    life.disk.hook = note
    life.now_ms += 20_000
    life.store.tick(life.now_ms)
    life.store.tick(life.now_ms)
    assert life.store.first_offset == SEGMENT  # Out of the log, but still in the folder.
    assert seen == []
    life.store.run_jobs()
    assert [verb for verb, _ in seen] == ["remove", "sync_directory"]
    life.upkeep()
    verbs = [verb for verb, _ in seen if verb != "sync"]
    assert verbs == ["remove", "sync_directory"] * (count - len(life.files("commitlog")))


def kept_from(disk: SimulatedFileSystem) -> dict[str, int]:
    """Return, by queue folder, the position of the first file that the list still keeps."""
    size = {False: 20, True: 46}
    return {
        f"{'batch' * key.is_batch}consumequeue/{key.topic}/{key.queue_id}": end.kept_from
        * size[key.is_batch]
        for key, end in (load_queue_ends(disk, ROOT) or {}).items()
    }


def test_a_queues_file_goes_when_the_list_lets_it_go_and_not_before() -> None:
    life = Life()
    life.put(100)
    life.checkpoint()
    removed: list[str] = []

    def look(operation: Operation) -> None:
        folder, _, name = operation.path.removeprefix(f"{ROOT}/").rpartition("/")
        if operation.verb == "remove" and "consumequeue" in folder:
            removed.append(folder)
            assert int(name) < kept_from(life.disk)[folder]

    life.disk.hook = look
    life.upkeep()
    assert set(removed) == {f"consumequeue/{topic}/0" for topic in TOPICS} | {
        "batchconsumequeue/Batches/0"
    }
    assert kept_from(life.disk) == {folder: life.files(folder)[0] for folder in set(removed)}
    assert verified(life.disk, ROOT, CONFIG).findings == []


@pytest.mark.parametrize("is_cut", [False, True])
def test_killed_anywhere_while_old_files_go_the_next_start_misses_none(is_cut: bool) -> None:
    config = replace(CONFIG, consume_queue_file_size=20)  # The next one's message is in the log.
    room = 1024 * SEGMENT
    counting = Life(config, SimulatedFileSystem(total=room))
    counting.put(100)
    counting.checkpoint()
    before = counting.disk.operations
    counting.upkeep()
    total = counting.disk.operations - before
    for number in range(1, total, 7):
        life = Life(config, SimulatedFileSystem(total=room))
        life.put(100)
        life.checkpoint()
        life.disk.hook = KillAt(life.disk.operations + number)
        with suppress(Killed):
            life.upkeep()
        life.disk.hook = None
        life = Life(config, life.disk.power_cut(Random(number)) if is_cut else life.disk.kill())
        for topic in TOPICS:
            kept = life.bodies(topic)
            assert kept == list(range(kept[0], 101)), (number, topic)
        life.count = 100
        life.put(50)
        life.upkeep()
        assert life.store.close(life.now_ms)
        assert verified(life.disk, ROOT, config).findings == [], number
        life.store = life.open()
        assert life.bodies("A")[-1] == 150


def test_verify_takes_no_file_that_a_power_cut_brought_back_for_a_hole() -> None:
    """Not even if the next start will read all of the log, because the index was lost."""
    config = replace(CONFIG, consume_queue_file_size=20 * 2)
    life = Life(config, SimulatedFileSystem(total=1024 * SEGMENT))
    life.put(100)
    life.checkpoint()
    old = [*files_of(life.disk, f"{ROOT}/consumequeue/A/0")]
    life.upkeep()
    disk = life.disk.kill()
    for path in files_of(disk, f"{ROOT}/index"):
        disk.remove(path)
    disk.remove_directory(f"{ROOT}/index")
    disk = Life(config, disk).disk.kill()
    gone = [path for path in old if not disk.exists(path)]
    for path in gone:
        after = disk.kill()
        file = after.open(path, create=True)
        at = int(path[-20:])
        file.write(ENTRY.pack(at, 20, 0) + ENTRY.pack(at + 20, 20, 0), 0)
        file.close()
        assert verified(after, ROOT, config).findings == [], path
        life = Life(config, after)
        assert life.bodies("A")[-1] == 100
        assert life.store.close(life.now_ms)
        assert verified(after, ROOT, config).findings == [], path


def test_killed_while_it_makes_a_queue_again_behind_expired_files_a_start_misses_none() -> None:
    """A file that a power cut brought back before them sets no end for a later start to find."""
    config = replace(CONFIG, consume_queue_file_size=20)
    room = 1024 * SEGMENT

    def half_expired() -> SimulatedFileSystem:
        life = Life(config, SimulatedFileSystem(total=room))
        life.put(60, ("A",))
        life.put(60, ("B",))
        assert life.store.close(life.now_ms)
        old = max(files_of(life.disk, f"{ROOT}/consumequeue/A/0"))
        content = life.disk.open(old).read(20, 0)
        off = Life(replace(config, index=False), life.disk)
        begin = off.store.end_offset
        off.put(30, ("A",))
        off.upkeep()
        assert not off.disk.exists(old)
        assert off.store.first_offset < begin
        on = Life(config, off.disk.kill())  # Will read the log from there for the index.
        disk = on.disk.kill()
        assert kept_from(disk)["consumequeue/A/0"] == 20 * 60
        disk.open(old, create=True).write(content, 0)
        return disk

    disk = half_expired()
    before = disk.operations
    Life(config, disk)
    for number in range(1, disk.operations - before + 1):
        killed = half_expired()
        killed.hook = KillAt(killed.operations + number)
        with suppress(Killed):
            Life(config, killed)
        life = Life(config, killed.kill())
        assert len(life.bodies("A")) == 30, number
        assert life.store.max_offset("A", 0) == 90
        assert life.store.close(life.now_ms)
        assert verified(life.disk, ROOT, config).findings == [], number


@pytest.mark.parametrize("goes_on", [False, True])
def test_where_the_list_cannot_be_saved_no_file_goes_until_it_can(goes_on: bool) -> None:
    life = Life()
    life.put(100)
    life.checkpoint()

    def refuse(operation: Operation) -> None:
        is_list = QUEUE_ENDS_NAME in operation.path and operation.moment is Moment.BEFORE
        if is_list and operation.verb == "rename":
            raise OSError(5, "Input/output error", operation.path)

    life.disk.hook = refuse
    life.upkeep(60)
    assert life.store.first_offset > 3 * SEGMENT
    if goes_on:  # Then checkpoints are to say so, too.
        life.put(10)
        life.upkeep(60)
    assert life.files("consumequeue/A/0")[0] == 0
    assert max(kept_from(life.disk).values()) == 0
    life.disk.hook = None
    life.upkeep(20)
    assert life.files("consumequeue/A/0")[0] > 0


def test_a_segment_that_a_reader_holds_stays_readable_and_too_many_of_them_stop_it() -> None:
    life = Life(replace(CONFIG, segment_pins_max=1, retention_files_max=1))
    life.put(100)
    life.checkpoint()
    result = life.store.read("A", 0, 0, 1)
    piece = memoryview(result.slices[0])
    content = bytes(piece)
    life.upkeep(1)
    life.upkeep(60)
    assert life.store.first_offset == SEGMENT
    assert bytes(piece) == content
    piece.release()
    del result
    life.upkeep(60)
    assert life.store.first_offset > 3 * SEGMENT


@pytest.mark.parametrize(("force", "again"), [(85, 85), (96, 90)])
def test_a_full_disk_says_where_puts_are_taken_again(force: int, again: int) -> None:
    life = Life(replace(CONFIG, disk_used_percent_force=force))
    life.put(1)
    filler = life.disk.open("/filler", create=True)
    filler.allocate(life.disk.space("/").free - 2 * SEGMENT)
    life.upkeep(1)
    with pytest.raises(StoreNotWriteableError, match=rf"and the limit is 90%.* at {again}%: make"):
        life.put(1)
    assert life.store.expiry.disk_used_percent > again


@pytest.mark.parametrize("keep", [None, 4 * SEGMENT])
def test_a_full_disk_refuses_puts_and_takes_them_again_as_soon_as_there_is_room(
    keep: int | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    life = Life(replace(CONFIG, retention_size_max=keep))
    life.put(6)
    life.upkeep()
    filler = life.disk.open("/filler", create=True)
    filler.allocate(life.disk.space("/").free - 2 * SEGMENT)
    life.upkeep(1)
    with pytest.raises(StoreNotWriteableError, match=r"disk is 97% full.*at 85%"):
        life.put(1)
    assert life.bodies("A") == [1, 2, 3, 4, 5, 6]
    life.upkeep()
    with pytest.raises(StoreNotWriteableError):
        life.put(1)
    filler.resize(0)
    life.upkeep(1)
    told = [message for message in caplog.messages if message.startswith("puts are ")]
    assert [message.partition(":")[0] for message in told] == [
        "puts are refused",
        "puts are accepted again",
    ]
    life.count = 6
    life.put(2)
    assert life.bodies("A") == [1, 2, 3, 4, 5, 6, 7, 8]
    assert life.store.close(life.now_ms)
    life.store = life.open()
    assert life.bodies("A") == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_disk_that_the_store_fills_itself_is_emptied_by_the_store_itself() -> None:
    life = Life(replace(CONFIG, retention_size_max=None))
    refused = 0
    for _ in range(2000):
        try:
            life.put(1, ("A",))
        except StoreNotWriteableError:
            refused += 1
        life.upkeep(1)
    assert refused < 100
    assert life.store.first_offset > 50 * SEGMENT
    kept = life.bodies("A")
    assert kept[-1] == 2000
    assert life.store.close(life.now_ms)


@pytest.mark.parametrize("has_old_log", [True, False])
def test_a_disk_that_others_fill_to_the_last_byte_is_left_alone_between_ticks(
    has_old_log: bool,
) -> None:
    """Old log that is safe, if any, makes room; otherwise nothing goes until there is room."""
    config = replace(CONFIG, retention_size_max=None, consume_queue_file_size=20 * 1000)
    life = Life(config)
    if has_old_log:
        life.put(100)
        life.checkpoint()
    life.put(40)
    filler = life.disk.open("/filler", create=True)
    with pytest.raises(OSError, match="No space"):
        filler.allocate(life.disk.total)
    life.upkeep(60)
    if not has_old_log:
        assert life.store.first_offset == 0
        tries: list[str] = []
        life.disk.hook = lambda operation: tries.append(operation.verb)
        life.now_ms += 1000
        assert not life.store.tick(life.now_ms)
        assert len(tries) < 10
        with pytest.raises(StoreNotWriteableError, match="No space left on device"):
            life.put(1)
        life.disk.hook = None
    filler.resize(0)
    life.upkeep()
    life.count = 140 if has_old_log else 40
    life.put(1)
    kept = life.bodies("A")
    assert kept == list(range(kept[0], life.count + 1))
    assert (kept[0] > 1) == has_old_log
    assert life.store.close(life.now_ms)


NO_CHECKPOINTS = replace(CONFIG, checkpoint_bytes=1 << 40, checkpoint_interval_ms=1 << 40)


def test_a_full_disk_waits_for_no_regular_checkpoint_before_old_segments_go() -> None:
    config = replace(NO_CHECKPOINTS, consume_queue_file_size=20 * 1000, index_items=3000)
    life = Life(replace(config, retention_size_max=None))  # The log is what fills the disk.
    refused = 0
    for number in range(2000):
        try:
            life.put(1, ("A",))
        except StoreNotWriteableError:
            refused += 1
            life.upkeep(8)  # Neither the ten until the next round nor a checkpoint of its own.
            life.count -= 1
            life.put(1, ("A",))
        if number % 60 == 59:
            life.upkeep(1)
    assert refused > 1
    assert life.store.first_offset > 50 * SEGMENT
    assert life.bodies("A")[-1] == 2000


class BusyDisk(SimulatedFileSystem):
    """A disk to which others write all the time: each look at it finds less room."""

    asked = 0

    def space(self, path: str) -> Space:
        self.asked += 1
        space = super().space(path)
        return space._replace(free=space.free - self.asked)


def test_of_a_full_disk_that_others_write_to_no_more_goes_than_has_to() -> None:
    """Two looks at one disk must not pass for two disks, on one of which no removal makes room."""
    life = Life(replace(CONFIG, retention_size_max=None), BusyDisk(total=64 * SEGMENT))
    life.disk.now_ms = life.now_ms  # Nothing is old enough to expire by itself.
    life.put(300, ("A",))
    life.upkeep()
    kept = len(life.files("commitlog"))
    assert kept > 10
    filler = life.disk.open("/filler", create=True)
    filler.allocate(life.disk.space("/").free - 8 * SEGMENT)
    life.upkeep()
    assert 1 <= kept - len(life.files("commitlog")) <= 3


def test_a_quota_below_what_a_checkpoint_waits_for_holds() -> None:
    life = Life(replace(NO_CHECKPOINTS, retention_size_max=3 * SEGMENT))
    for _ in range(10):
        life.put(25)
        life.upkeep(12)
        assert len(life.files("commitlog")) <= 4
    end = life.store.end_offset
    life.upkeep(60)
    assert life.store.end_offset == end


def test_what_no_checkpoint_can_cover_asks_for_one_a_round_and_no_more() -> None:
    life = Life(replace(NO_CHECKPOINTS, retention_size_max=3 * SEGMENT))
    life.put(100)
    asked: list[str] = []

    def refuse(operation: Operation) -> None:
        if operation.path.startswith(f"{ROOT}/checkpoint") and operation.moment is Moment.BEFORE:
            asked.append(operation.verb)
            raise OSError(28, "No space left on device", operation.path)

    life.disk.hook = refuse
    life.upkeep(60)
    assert 1 <= len(asked) <= 12
    assert life.store.first_offset == 0
    life.disk.hook = None
    life.upkeep(20)
    assert len(life.files("commitlog")) <= 4


def test_what_the_disk_refuses_to_remove_is_removed_in_a_later_round() -> None:
    life = Life()
    life.put(100)
    life.checkpoint()

    def refuse(operation: Operation) -> None:
        if operation.verb == "remove" and operation.moment is Moment.BEFORE:
            raise OSError(5, "Input/output error", operation.path)

    life.disk.hook = refuse
    life.upkeep(60)
    assert life.files("commitlog")[0] == 0
    assert life.store.first_offset == SEGMENT
    life.put(3)
    life.disk.hook = None
    life.upkeep(60)
    assert life.files("commitlog")[0] == life.store.first_offset > 3 * SEGMENT
    assert life.bodies("A")[-1] == 103


@pytest.mark.parametrize("folder", ["consumequeue/A/0", "index"])
def test_a_file_that_the_disk_refuses_to_remove_goes_in_a_later_round(
    folder: str, caplog: pytest.LogCaptureFixture
) -> None:
    life = Life()
    life.put(100)
    life.checkpoint()
    first = life.files(folder)[0]

    def refuse(operation: Operation) -> None:
        is_there = f"{ROOT}/{folder}/" in operation.path
        if operation.verb == "remove" and is_there and operation.moment is Moment.BEFORE:
            raise OSError(5, "Input/output error", operation.path)

    refused: list[int] = []
    again: list[str] = []
    for _ in range(2):  # After a notice that it is over, the next time is reported as well.
        life.disk.hook = refuse
        life.upkeep(60)
        assert life.store.first_offset > 3 * SEGMENT
        assert life.files(folder)[0] == first
        life.disk.hook = None
        life.upkeep(60)
        first, before = life.files(folder)[0], first
        assert first > before
        refused.append(before)
        again.append("what has expired is removed again")
        life.put(100)
        life.checkpoint()
    told = [message for message in caplog.messages if "has expired" in message]
    assert told[1::2] == again
    for message, name in zip(told[::2], refused, strict=True):
        digits = 17 if folder == "index" else 20
        assert f"{ROOT}/{folder}/{name:0{digits}d}: Input/output error" in message


def test_what_a_crash_left_in_front_of_the_log_goes_after_the_next_start() -> None:
    for seed in range(20):
        life = Life()
        life.put(100)
        life.checkpoint()
        life.now_ms += 20_000
        for _ in range(1 + seed):
            life.store.tick(life.now_ms)
            life.store.run_jobs()
        life.disk = life.disk.kill() if seed % 2 else life.disk.power_cut(Random(seed))
        life.store = life.open()
        kept = life.bodies("A")
        assert kept == list(range(kept[0], 101))
        life.upkeep(3)
        life.put(20)
        life.upkeep()
        assert life.files("commitlog")[0] == life.store.first_offset > 3 * SEGMENT
        assert life.files("consumequeue/A/0")[0] > 0
        assert len(life.files("index")) < 11
        assert life.store.close(life.now_ms)


def test_a_removal_that_a_kill_left_unsure_is_sure_before_the_next_start_removes_more() -> None:
    """Otherwise a power cut may undo only the older of the two, and leave a gap in the log."""
    life = Life()
    life.put(100)
    life.checkpoint()
    for _ in range(2):
        life.disk.hook = kill_behind_removal
        with pytest.raises(Killed):
            life.upkeep()
        life.disk = life.disk.kill()
        life.store = life.open()
    for seed in range(20):
        after = Life(disk=life.disk.power_cut(Random(seed)))
        assert after.bodies("A")[-1] == 100


def kill_behind_removal(operation: Operation) -> None:
    is_removal = operation.verb == "remove" and operation.moment is Moment.AFTER
    if is_removal and "commitlog/" in operation.path:
        raise Killed(operation)


def test_an_operator_may_have_old_segments_removed_at_any_hour() -> None:
    life = Life(replace(CONFIG, retention_size_max=None))
    life.put(50)
    life.checkpoint()
    life.now_ms += 73 * 3_600_000
    another_hour = (time.localtime(life.now_ms / 1000).tm_hour + 12) % 24
    life.store.configure(replace(life.store.expiry.config, retention_hours_of_day=(another_hour,)))
    life.upkeep()
    assert life.store.first_offset == 0
    life.store.expiry.ask()
    life.upkeep(2)
    assert life.store.first_offset > 0


@pytest.mark.parametrize("loses_list", [False, True])
def test_a_queue_keeps_the_file_whose_next_one_a_power_cut_could_take(loses_list: bool) -> None:
    """The file keeps the offset if the cut also takes the end of the log and the list of ends."""
    config = replace(
        CONFIG, flush=Flush.ASYNC, flush_interval_ms=1 << 40, flush_thorough_interval_ms=1 << 40
    )
    for seed in range(30):
        life = Life(config)
        life.put(10, ("A",))  # A file of A's queue.
        life.put(120, ("B",))
        life.checkpoint()
        life.put(1, ("A",))
        life.checkpoint()
        life.upkeep(5)
        assert life.store.first_offset > 0
        life.disk = life.disk.power_cut(Random(seed))
        if loses_list:
            life.disk.remove(f"{ROOT}/queue_ends.json")
        life.store = life.open()
        assert life.store.max_offset("A", 0) in (10, 11)
