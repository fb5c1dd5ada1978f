"""A start refuses before it writes, even what it could find only while reading the log back."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.store.damaged_stores import contents, flip, overwrite
from tests.store.held_stores import BATCHES, CONFIG, ROOT, Held
from tests.store.records import HOST

from cometmq.store.errors import CorruptionError
from cometmq.store.log.log_scan import LogScan
from cometmq.store.log.turn import Origin
from cometmq.store.starting import foresight
from cometmq.store.upkeep.checkpoint import load_checkpoint

if TYPE_CHECKING:
    from cometmq.store.config import StoreConfig

NUMBER_AT, QUEUE_ID_AT = 20, 12
TAIL = 30
WITHOUT_JOURNAL = replace(
    CONFIG,
    checkpoint_interval_ms=100_000,
    consume_queue_journal_queues_min=1000,
)
WITH_JOURNAL = replace(WITHOUT_JOURNAL, consume_queue_journal_queues_min=1)


@pytest.fixture(autouse=True, params=["one by one", "in stretches"])
def _reading(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read records in both ways in which a start may."""
    if request.param == "in stretches":
        monkeypatch.setattr(LogScan, "stretches_after", 0)


class Tailed(Held):
    """A killed store with a tail of one queue after its last checkpoint, and where it begins."""

    def __init__(self, topic: str, config: StoreConfig, *, synced: bool) -> None:
        super().__init__()
        self.stop(clean=False)
        self.config = config
        self.opened(config)
        if config is WITH_JOURNAL:
            for _ in range(3):
                for number in range(10):
                    self.put(b"J%d" % number, topic)
                self.now_ms += config.checkpoint_interval_ms
                for _ in range(8):
                    self.store.tick(self.now_ms)
                    self.store.run_jobs()
            claims = load_checkpoint(self.disk, f"{ROOT}/checkpoint").claims
            assert claims is not None
            assert claims.journal is not None
        self.places: list[int] = []
        for number in range(TAIL):
            self.places.append(self.store.end_offset)
            body = b"tail %d" % number
            if synced:
                self.put(body, topic)
            else:
                self.store.put(topic, 0, body, b"", Origin(self.now_ms, self.now_ms, HOST))
                self.store.commit()
        self.disk = self.disk.kill()

    def change(self, number: int, field_at: int, data: bytes) -> str:
        """Damage the record of a message of the tail; return how its place is named."""
        place = self.places[number]
        segment = place // CONFIG.segment_size * CONFIG.segment_size
        path = f"{ROOT}/commitlog/{segment:020d}"
        overwrite(self.disk, path, place - segment + field_at, data)
        return f"{path}: at byte {place - segment}: "

    def start(self) -> None:
        """Open it with settings by which an unsynced tail of a few messages is a long one."""
        self.opened(replace(self.config, unsynced_size_max=1000))

    def check_refused(self, problem: str) -> None:
        """Check that a start is refused, and that no byte changes, not even for a moment."""
        before, operations = contents(self.disk), self.disk.operations
        with pytest.raises(CorruptionError, match=problem):
            self.start()
        assert (contents(self.disk), self.disk.operations) == (before, operations)


@pytest.mark.parametrize("number", [0, TAIL // 2, TAIL - 1])
@pytest.mark.parametrize("config", [WITHOUT_JOURNAL, WITH_JOURNAL], ids=["plain", "journal"])
@pytest.mark.parametrize("topic", ["T", BATCHES])
def test_a_gap_in_front_of_a_promised_record_is_refused_before_anything_is_written(
    topic: str, config: StoreConfig, number: int
) -> None:
    held = Tailed(topic, config, synced=True)
    place = held.change(number, NUMBER_AT, (7000).to_bytes(8, "big"))
    held.check_refused(f"{place}.*is message 7000 of {topic}/0")


@pytest.mark.parametrize("to", [(7000).to_bytes(8, "big"), bytes(8)], ids=["later", "earlier"])
@pytest.mark.parametrize("number", [0, 3])
@pytest.mark.parametrize("config", [WITHOUT_JOURNAL, WITH_JOURNAL], ids=["plain", "journal"])
@pytest.mark.parametrize("topic", ["T", BATCHES])
def test_a_contradiction_with_too_much_behind_it_is_refused_before_anything_is_written(
    topic: str, config: StoreConfig, number: int, to: bytes
) -> None:
    held = Tailed(topic, config, synced=False)
    place = held.change(number, NUMBER_AT, to)
    held.check_refused(f"{place}the record here is not the next one of its queue")


def test_so_is_one_of_a_new_queue_that_does_not_begin_at_0() -> None:
    held = Tailed("New", WITHOUT_JOURNAL, synced=False)
    places = [held.change(n, NUMBER_AT, (7000 + n).to_bytes(8, "big")) for n in range(TAIL)]
    held.check_refused(f"{places[0]}the record here is not the next one of its queue")


def test_one_with_little_behind_it_is_cut_as_ever() -> None:
    held = Tailed("T", WITHOUT_JOURNAL, synced=False)
    held.change(TAIL - 3, NUMBER_AT, (7000).to_bytes(8, "big"))
    held.start()
    assert held.store.kept is not None
    assert held.bodies()[-1] == b"tail %d" % (TAIL - 4)


@pytest.mark.parametrize("damage", ["removed", "damaged"])
def test_a_gap_is_found_without_a_good_list_too(damage: str) -> None:
    held = Tailed("T", WITHOUT_JOURNAL, synced=True)
    if damage == "removed":
        held.disk.remove(f"{ROOT}/queue_ends.json")
    else:
        flip(held.disk, f"{ROOT}/queue_ends.json", 40)
    place = held.change(0, NUMBER_AT, (7000).to_bytes(8, "big"))
    held.check_refused(f"{place}.*is message 7000 of T/0")


def test_a_gap_behind_a_journal_that_is_damaged_is_found_before_anything_is_written() -> None:
    held = Tailed("T", WITH_JOURNAL, synced=True)
    (journal,) = held.disk.list(f"{ROOT}/entryjournal")
    flip(held.disk, f"{ROOT}/entryjournal/{journal.name}", journal.size // 2)
    place = held.change(5, NUMBER_AT, (7000).to_bytes(8, "big"))
    held.check_refused(f"{place}.*is message 7000 of T/0")


def test_a_gap_is_found_where_all_queues_are_made_anew() -> None:
    held = Tailed("T", WITHOUT_JOURNAL, synced=True)
    for path in contents(held.disk, f"{ROOT}/consumequeue"):
        held.disk.remove(path)
    for folder in ("T/0", "T", "Other/0", "Other", ""):
        held.disk.remove_directory(f"{ROOT}/consumequeue/{folder}".rstrip("/"))
    held.disk.remove(f"{ROOT}/queue_ends.json")
    place = held.change(5, NUMBER_AT, (7000).to_bytes(8, "big"))
    held.check_refused(f"{place}.*is message 7000 of T/0")


@pytest.mark.parametrize("config", [WITHOUT_JOURNAL, WITH_JOURNAL], ids=["plain", "journal"])
@pytest.mark.parametrize("synced", [True, False])
@pytest.mark.parametrize("topic", ["T", BATCHES])
def test_a_sound_store_is_opened_without_a_rehearsal(
    topic: str, synced: bool, config: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(foresight, "Overlay")
    held = Tailed(topic, config, synced=synced)
    held.start()
    assert held.bodies(topic)[-1] == b"tail %d" % (TAIL - 1)


@pytest.mark.parametrize("folder", ["consumequeue/Other", f"batchconsumequeue/{BATCHES}"])
@pytest.mark.parametrize("listed", [True, False])
def test_a_queue_that_the_disk_does_not_give_is_refused_before_anything_is_written(
    folder: str, listed: bool
) -> None:
    held = Tailed("T", WITHOUT_JOURNAL, synced=True)
    if not listed:
        held.disk.remove(f"{ROOT}/queue_ends.json")
    for entry in held.disk.list(f"{ROOT}/{folder}/0"):
        held.disk.make_unreadable(f"{ROOT}/{folder}/0/{entry.name}", 0, entry.size)
    operations = held.disk.operations
    with pytest.raises(OSError, match=folder) as refused:
        held.start()
    assert refused.value.errno == errno.EIO
    assert held.disk.operations == operations
