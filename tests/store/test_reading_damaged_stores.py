"""A reader of another process's store is told the name of a queue that is damaged or lost."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.store.damaged_stores import files_of
from tests.store.held_stores import (
    CONFIG,
    ENTRIES_OF_A_FILE,
    MESSAGES,
    QUEUES,
    ROOT,
    Held,
    behind_the_end,
    expected,
    hole,
    killed,
    remove_all,
    remove_last,
    upkeep,
)
from tests.store.records import messages_in

from cometmq.store.errors import CorruptionError
from cometmq.store.looking.store_reader import StoreReader
from cometmq.store.messages.reading import ReadStatus
from cometmq.store.queues.consume_queue import Boundary

if TYPE_CHECKING:
    from collections.abc import Callable

AGAIN = "`cometmq store rebuild` rebuilds the queue"
BOTH = pytest.mark.parametrize(("topic", "queue", "entry_size"), QUEUES)


def reader_of(held: Held) -> StoreReader:
    return StoreReader(ROOT, CONFIG, filesystem=held.disk.other_process())


def check_told(reader: StoreReader, topic: str, queue: str) -> None:
    """Check that each question about that queue is told its name, and that the others are read."""
    assert topic in reader.topics()
    assert reader.queues(topic) == [0]
    asks: list[Callable[[], object]] = [
        lambda: reader.min_offset(topic, 0),
        lambda: reader.max_offset(topic, 0),
        lambda: reader.read(topic, 0, 5, 32),
        lambda: reader.offset_by_time(topic, 0, 1, Boundary.LOWER),
    ]
    for ask in asks:
        with pytest.raises(CorruptionError, match=f"{queue}.*{AGAIN}"):
            ask()
    result = reader.read("Other", 0, 0, 8)
    assert [m.body for m in messages_in(result.slices)] == [b"O%d" % n for n in range(8)]
    reader.close()


def lost(held: Held, queue: str, entry_size: int) -> None:
    remove_all(held.disk, queue)


def without_its_last_file(held: Held, queue: str, entry_size: int) -> None:
    remove_last(held.disk, queue)


@BOTH
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("damage", [hole, lost, without_its_last_file])
def test_of_a_store_that_is_not_open(
    damage: Callable[[Held, str, int], None], clean: bool, topic: str, queue: str, entry_size: int
) -> None:
    held = Held()
    held.stop(clean=clean)
    damage(held, queue, entry_size)
    check_told(reader_of(held), topic, queue)


@BOTH
@pytest.mark.parametrize("damage", [hole, behind_the_end])
def test_of_a_store_that_has_no_list_what_stands_behind_a_queues_end_tells(
    damage: Callable[[Held, str, int], None], topic: str, queue: str, entry_size: int
) -> None:
    held = Held()
    held.stop(clean=True)
    held.disk.remove(f"{ROOT}/queue_ends.json")
    damage(held, queue, entry_size)
    check_told(reader_of(held), topic, queue)


@BOTH
@pytest.mark.parametrize("ends", ["open", "clean", "killed"])
def test_of_a_queue_that_lacks_entries(ends: str, topic: str, queue: str, entry_size: int) -> None:
    held = killed(topic)
    hole(held, queue, entry_size)
    held.opened()
    upkeep(held)
    if ends != "open":
        held.stop(clean=ends == "clean")
    check_told(reader_of(held), topic, queue)


@BOTH
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
def test_of_a_first_file_that_is_lost(clean: bool, topic: str, queue: str, entry_size: int) -> None:
    held = Held()
    held.stop(clean=clean)
    held.disk.remove(next(iter(files_of(held.disk, queue))))
    reader = reader_of(held)
    for offset in (0, 5, ENTRIES_OF_A_FILE - 1):
        with pytest.raises(CorruptionError, match=f"{queue}/0*: .* is missing; {AGAIN}"):
            reader.read(topic, 0, offset, 32)
    result = reader.read(topic, 0, ENTRIES_OF_A_FILE, 5)
    assert [m.body for m in messages_in(result.slices)] == expected(topic)[40:45]


@BOTH
def test_what_is_behind_the_last_checkpoint_of_a_killed_store_is_no_loss(
    topic: str, queue: str, entry_size: int
) -> None:
    held = killed(topic)
    reader = reader_of(held)
    assert 0 < reader.max_offset(topic, 0) <= MESSAGES
    assert reader.read(topic, 0, 5, 8).record_count == 8


@BOTH
def test_a_topic_that_its_broker_deletes_meanwhile_is_no_loss(
    topic: str, queue: str, entry_size: int
) -> None:
    held = Held()
    upkeep(held)
    reader, late = reader_of(held), reader_of(held)
    assert reader.max_offset(topic, 0) == MESSAGES
    held.store.delete_topics([topic])
    for _ in range(3):
        assert late.max_offset(topic, 0) == 0
        late.refresh()
    held.put(b"again", topic)
    upkeep(held)
    late = reader_of(held)
    held.store.delete_topics([topic])
    held.put(b"again", topic)
    held.put(b"again", topic)
    upkeep(held)
    assert late.max_offset(topic, 0) == 2
    reader.refresh()
    assert [m.body for m in messages_in(reader.read(topic, 0, 0, 32).slices)] == [b"again"] * 2


@BOTH
def test_what_its_broker_lets_expire_meanwhile_is_no_loss(
    topic: str, queue: str, entry_size: int
) -> None:
    held = Held()
    held.stop(clean=True)
    held.opened(replace(CONFIG, retention_size_max=3 * CONFIG.segment_size))
    readers = [reader_of(held) for _ in range(3)]
    assert readers[0].max_offset(topic, 0) == MESSAGES
    assert readers[1].read(topic, 0, 0, 32).status is ReadStatus.FOUND
    upkeep(held)
    first = held.store.min_offset(topic, 0)
    assert first > ENTRIES_OF_A_FILE
    assert len(list(files_of(held.disk, queue))) == 2
    for reader in readers:
        result = reader.read(topic, 0, 5, 1)
        if result.status is not ReadStatus.FOUND:  # Else from files held open.
            assert result.next_begin_offset in (ENTRIES_OF_A_FILE, first)
        assert reader.read(topic, 0, first, 32).status is ReadStatus.FOUND
        reader.refresh()
        assert reader.min_offset(topic, 0) == first
        assert reader.max_offset(topic, 0) == MESSAGES
