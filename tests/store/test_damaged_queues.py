"""A queue with damaged files is neither written nor read; the other queues are not affected."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.store.damaged_stores import contents, files_of, flip, overwrite, verified
from tests.store.held_stores import (
    BATCH_QUEUE,
    BATCHES,
    CONFIG,
    ENTRIES_OF_A_FILE,
    MESSAGES,
    QUEUES,
    ROOT,
    SIMPLE_QUEUE,
    Held,
    behind_the_end,
    blank,
    drop_segments,
    expected,
    rebuild,
    too_long,
    too_short,
    upkeep,
)
from tests.store.records import messages_in

from cometmq.store.errors import (
    CorruptionError,
    StoreFilesError,
    StoreFormatError,
)
from cometmq.store.looking.findings import Kind
from cometmq.store.messages.reading import ReadStatus
from cometmq.store.queues.queue_ends import UNKNOWN, Sizes, load_queue_ends, save_queue_ends

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.crash.disk import SimulatedFileSystem

AGAIN = "`cometmq store rebuild` rebuilds the queue"


@pytest.mark.parametrize(("topic", "queue", "entry_size"), QUEUES)
@pytest.mark.parametrize("first", [85, MESSAGES - 2])
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
def test_a_hole_in_front_of_the_last_entry_gives_no_offset_out_again(
    clean: bool, first: int, topic: str, queue: str, entry_size: int
) -> None:
    held = Held()
    held.stop(clean=clean)
    blank(held, queue, entry_size, first, MESSAGES - 1)
    damaged = contents_of(held.disk, queue)
    held.opened()
    for _ in range(2):
        with pytest.raises(CorruptionError, match=f"not an entry, though 110 were safe.*{AGAIN}"):
            held.put(b"next", topic)
        with pytest.raises(CorruptionError, match="not an entry"):
            held.store.read(topic, 0, 5, 32)
    assert held.put(b"next", "Other") == MESSAGES
    upkeep(held)
    held.stop(clean=clean)
    assert not verified(held.disk, ROOT, CONFIG).is_sound
    assert contents_of(held.disk, queue) == damaged
    rebuild(held)
    held.opened()
    assert held.bodies(topic) == expected(topic)
    assert held.put(b"next", topic) == MESSAGES


def contents_of(disk: SimulatedFileSystem, queue: str) -> dict[str, bytes]:
    return {path: data for path, data in contents(disk).items() if path.startswith(queue)}


@pytest.mark.parametrize(("topic", "queue", "entry_size"), QUEUES)
@pytest.mark.parametrize("has_expired", [False, True], ids=["whole log", "log has expired"])
def test_zeros_in_a_full_file_are_not_read_past(
    has_expired: bool, topic: str, queue: str, entry_size: int
) -> None:
    held = Held()
    held.stop(clean=True)
    blank(held, queue, entry_size, 50, 60)
    if has_expired:
        drop_segments(held, 1)
    held.opened()
    store = held.store
    assert (store.first_offset > 0) is has_expired
    assert store.min_offset(topic, 0) < ENTRIES_OF_A_FILE
    for offset in (50, 55, 59):
        with pytest.raises(CorruptionError):
            store.read(topic, 0, offset, 32)
    result = store.read(topic, 0, 45, 5)
    assert [m.body for m in messages_in(result.slices)] == expected(topic)[45:50]
    result = store.read(topic, 0, 60, 5)
    assert [m.body for m in messages_in(result.slices)] == expected(topic)[60:65]


@pytest.mark.parametrize(("topic", "queue", "entry_size"), QUEUES)
@pytest.mark.parametrize("damage", ["missing", "zeros"])
def test_what_a_lost_file_had_does_not_pass_for_expired(
    damage: str, topic: str, queue: str, entry_size: int
) -> None:
    held = Held()
    held.stop(clean=True)
    drop_segments(held, 1)
    first_offset = held.opened().min_offset(topic, 0)
    assert 0 < first_offset < ENTRIES_OF_A_FILE
    held.stop(clean=True)
    first, lost, last = files_of(held.disk, queue)
    if damage == "missing":
        held.disk.remove(lost)
    else:
        blank(held, queue, entry_size, ENTRIES_OF_A_FILE, 2 * ENTRIES_OF_A_FILE)
    held.opened()
    assert held.store.min_offset(topic, 0) == first_offset
    upkeep(held)
    assert {first, last} <= {*files_of(held.disk, queue)}
    result = held.store.read(topic, 0, first_offset, 32)
    assert (result.status, result.next_begin_offset) == (ReadStatus.FOUND, ENTRIES_OF_A_FILE)
    with pytest.raises(CorruptionError):
        held.store.read(topic, 0, ENTRIES_OF_A_FILE, 32)


def with_expired_front() -> Held:
    """A closed store, whose first messages have expired since."""
    held = Held()
    for number in range(2 * MESSAGES):
        held.put(b"%d" % number, "Other")
    held.stop(clean=True)
    drop_segments(held, 2)
    return held


@pytest.mark.parametrize(("topic", "queue", "entry_size"), QUEUES)
@pytest.mark.parametrize("damage", ["missing", "zeros", "zeros that end inside an entry"])
def test_a_hole_among_entries_that_have_expired_holds_nothing_up(
    damage: str, topic: str, queue: str, entry_size: int
) -> None:
    held = with_expired_front()
    expected_min = held.opened().min_offset(topic, 0)
    assert expected_min > ENTRIES_OF_A_FILE
    held.stop(clean=True)
    hole(held, queue, entry_size, ENTRIES_OF_A_FILE // 2, damage)
    held.opened()
    assert held.store.min_offset(topic, 0) == expected_min
    assert held.bodies(topic) == expected(topic)[expected_min:]
    held.stop(clean=True)
    drop_segments(held, 4)
    held.opened()
    assert held.store.min_offset(topic, 0) == MESSAGES
    upkeep(held)
    assert len(contents_of(held.disk, queue)) == 1


@pytest.mark.parametrize(("topic", "queue", "entry_size"), QUEUES)
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("first", [0, 3 * ENTRIES_OF_A_FILE - 2])
def test_a_hole_in_front_of_the_last_file_holds_nothing_up_where_all_have_expired(
    first: int, topic: str, queue: str, entry_size: int, clean: bool
) -> None:
    last = 3 * ENTRIES_OF_A_FILE
    held = Held()
    for number in range(MESSAGES, last + 1):
        held.put(b"%d" % number, topic)
    for number in range(2 * MESSAGES):
        held.put(b"%d" % number, "Other")
    held.stop(clean=True)
    drop_segments(held, 6)
    blank(held, queue, entry_size, first, last)
    if not clean:
        held.disk.open(f"{ROOT}/abort", create=True).close()
    assert verified(held.disk, ROOT, CONFIG).is_sound, "all of them have expired"
    held.opened()
    assert held.store.min_offset(topic, 0) == held.store.max_offset(topic, 0) == last + 1
    assert held.put(b"next", topic) == last + 1
    assert held.bodies(topic) == [b"next"]


@pytest.mark.parametrize(("topic", "queue", "entry_size"), QUEUES)
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
def test_verify_tells_of_a_hole_at_which_readers_begin(
    clean: bool, topic: str, queue: str, entry_size: int
) -> None:
    held = with_expired_front()
    first = held.opened().min_offset(topic, 0)
    held.stop(clean=True)
    if not clean:
        held.disk.open(f"{ROOT}/abort", create=True).close()
    blank(held, queue, entry_size, first - 9, first - 5)
    assert verified(held.disk, ROOT, CONFIG).is_sound, "all of them have expired"
    blank(held, queue, entry_size, first - 3, first)
    (finding,) = verified(held.disk, ROOT, CONFIG).findings
    assert (finding.kind, finding.topic, finding.queue_offset) == (
        Kind.MISSING_ENTRY,
        topic,
        first - 3,
    )
    held.opened()
    with pytest.raises(CorruptionError):
        held.store.read(topic, 0, first - 3, 32)
    held.stop(clean=True)
    rebuild(held)
    assert verified(held.disk, ROOT, CONFIG).is_sound
    held.opened()
    assert held.bodies(topic) == expected(topic)[first:]


def hole(held: Held, queue: str, entry_size: int, first: int, damage: str) -> None:
    """Zero ten entries from `first` on, as far as their file goes, or remove this file."""
    path = list(files_of(held.disk, queue))[first // ENTRIES_OF_A_FILE]
    if damage == "missing":
        held.disk.remove(path)
        return
    size = 10 * entry_size + 8 * ("inside" in damage)
    overwrite(held.disk, path, first % ENTRIES_OF_A_FILE * entry_size, bytes(size))


@pytest.mark.parametrize(("topic", "queue", "entry_size"), QUEUES)
@pytest.mark.parametrize("damage", ["zeros", "zeros that end inside an entry"])
@pytest.mark.parametrize("first", range(1, ENTRIES_OF_A_FILE - 10, 3))
def test_what_stands_behind_a_hole_does_not_pass_for_expired(
    first: int, damage: str, topic: str, queue: str, entry_size: int
) -> None:
    held = Held()
    held.stop(clean=True)
    drop_segments(held, 1)
    expected_min = held.opened().min_offset(topic, 0)
    assert 0 < expected_min < ENTRIES_OF_A_FILE
    held.stop(clean=True)
    hole(held, queue, entry_size, ENTRIES_OF_A_FILE + first, damage)
    held.opened()
    assert held.store.min_offset(topic, 0) == expected_min
    upkeep(held)
    assert len(contents_of(held.disk, queue)) == 3


@pytest.mark.parametrize("count_in_byte", [36, 37])
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("index", [0, 1, 57])
def test_nobody_is_sent_past_messages_by_a_flipped_byte_of_a_batch_entry(
    index: int, clean: bool, count_in_byte: int
) -> None:
    held = Held()
    held.stop(clean=clean)
    number, place = divmod(index, ENTRIES_OF_A_FILE)
    path = list(files_of(held.disk, BATCH_QUEUE))[number]
    for byte in (*range(28, 36), count_in_byte):
        flip(held.disk, path, place * 46 + byte, 1)
        held.opened()
        with pytest.raises(CorruptionError, match=AGAIN):
            held.store.read(BATCHES, 0, index, 32)
        # The one before it may have a wrong end, whatever its entry says.
        for offset in range(max(0, index - 4), index - 1):
            result = held.store.read(BATCHES, 0, offset, 32)
            found = [message.body for message in messages_in(result.slices)]
            assert found == expected(BATCHES)[offset : result.next_begin_offset]
        held.stop(clean=clean)
        flip(held.disk, path, place * 46 + byte, 1)


@pytest.mark.parametrize("index", [0, 7, 38, 39, 57, None])
def test_nobody_is_sent_behind_a_queue_by_two_entries_that_are_damaged_alike(
    index: int | None,
) -> None:
    held = Held()
    held.stop(clean=True)
    if index is None:
        drop_segments(held, 1)
        index = held.opened().min_offset(BATCHES, 0)
        held.stop(clean=True)
    end = index + 24_993
    for at, position, data in (
        (index, 36, (end - index).to_bytes(2, "big")),
        (index + 1, 28, end.to_bytes(8, "big")),
    ):
        number, place = divmod(at, ENTRIES_OF_A_FILE)
        path = list(files_of(held.disk, BATCH_QUEUE))[number]
        overwrite(held.disk, path, place * 46 + position, data)
    held.opened()
    for count in (1, 2, 32):
        for offset in (index, index + 1):
            with pytest.raises(CorruptionError, match=AGAIN):
                held.store.read(BATCHES, 0, offset, count)


def zeros(held: Held, queue: str, entry_size: int) -> None:
    hole(held, queue, entry_size, 5, "zeros")


def garbage(held: Held, queue: str, entry_size: int) -> None:
    overwrite(held.disk, next(iter(files_of(held.disk, queue))), 5 * entry_size, b"\x11" * 46)


@pytest.mark.parametrize(("topic", "queue", "entry_size"), QUEUES)
@pytest.mark.parametrize("damage", [too_short, too_long, behind_the_end])
@pytest.mark.parametrize("walked_for", ["what expired", "a list of all queues"])
def test_a_queue_that_cannot_be_opened_does_not_hold_up_the_others(
    walked_for: str,
    damage: Callable[[Held, str, int], None],
    topic: str,
    queue: str,
    entry_size: int,
) -> None:
    held = Held()
    held.stop(clean=True)
    damage(held, queue, entry_size)
    if walked_for == "what expired":
        drop_segments(held, 3)
    else:
        held.disk.remove(f"{ROOT}/queue_ends.json")
    held.opened()
    upkeep(held, seconds=60)
    (problem,) = held.store.queues.problems
    assert problem.startswith(f"{queue}/")
    with pytest.raises((CorruptionError, StoreFormatError)):
        held.put(b"next", topic)
    if walked_for == "what expired":
        assert len(list(files_of(held.disk, f"{ROOT}/consumequeue/Other/0"))) == 1
    else:
        assert load_queue_ends(held.disk, ROOT) is None, "it would leave a queue out"
    assert held.put(b"next", "Other") == MESSAGES
    held.stop(clean=True)
    assert not verified(held.disk, ROOT, CONFIG).is_sound
    rebuild(held)
    assert verified(held.disk, ROOT, CONFIG).is_sound
    held.opened()
    upkeep(held)
    assert held.put(b"next", topic) == MESSAGES
    assert held.store.queues.problems == []


@pytest.mark.parametrize(("topic", "queue", "entry_size"), QUEUES)
@pytest.mark.parametrize("meets", ["a put", "a read"])
def test_a_damaged_queue_that_a_put_or_a_read_meets_is_among_the_problems(
    meets: str, topic: str, queue: str, entry_size: int
) -> None:
    held = Held()
    held.stop(clean=True)
    behind_the_end(held, queue, entry_size)
    held.opened()
    assert held.store.queues.problems == []
    with pytest.raises((CorruptionError, StoreFormatError)):
        held.put(b"next", topic) if meets == "a put" else held.store.read(topic, 0, 0, 1)
    (problem,) = held.store.queues.problems
    assert problem.startswith(f"{queue}/")


@pytest.mark.parametrize(("topic", "queue", "entry_size"), QUEUES)
@pytest.mark.parametrize("damage", [too_short, too_long, behind_the_end])
def test_a_topic_with_a_damaged_queue_can_be_deleted(
    damage: Callable[[Held, str, int], None], topic: str, queue: str, entry_size: int
) -> None:
    held = Held()
    held.stop(clean=True)
    damage(held, queue, entry_size)
    held.opened()
    with pytest.raises(StoreFilesError):
        held.store.max_offset(topic, 0)
    held.store.delete_topics([topic])
    assert held.store.max_offset(topic, 0) == 0
    assert contents_of(held.disk, queue) == {}
    assert held.put(b"again", topic) == 0
    held.stop(clean=True)
    held.opened()
    assert held.bodies(topic) == [b"again"]


@pytest.mark.parametrize(("topic", "queue", "entry_size"), QUEUES)
@pytest.mark.parametrize("damage", [too_short, too_long, behind_the_end, zeros, garbage])
def test_a_rebuild_leaves_no_damage_in_a_queue_whose_messages_have_expired(
    damage: Callable[[Held, str, int], None], topic: str, queue: str, entry_size: int
) -> None:
    held = Held()
    for number in range(2 * MESSAGES):
        held.put(b"%d" % number, "Other")
    held.stop(clean=True)
    drop_segments(held, 5)
    damage(held, queue, entry_size)
    rebuild(held)
    assert verified(held.disk, ROOT, CONFIG).is_sound
    held.opened()
    assert held.store.max_offset(topic, 0) == MESSAGES
    assert held.bodies(topic) == []
    upkeep(held)
    assert held.store.queues.problems == []
    assert held.put(b"next", topic) == MESSAGES
    held.stop(clean=True)
    assert verified(held.disk, ROOT, CONFIG).is_sound


@pytest.mark.parametrize("came_back", [False, True], ids=["not let go", "came back"])
@pytest.mark.parametrize(("topic", "queue", "entry_size"), QUEUES)
def test_a_file_that_is_lost_right_behind_expired_ones_does_not_pass_for_one_at_an_unclean_start(
    topic: str, queue: str, entry_size: int, came_back: bool
) -> None:
    held = Held()
    held.stop(clean=True)
    copy = contents_of(held.disk, queue)
    first, lost, last = copy
    drop_segments(held, 2)
    if came_back:
        held.opened()
        upkeep(held)
        held.stop(clean=False)
        assert {*files_of(held.disk, queue)} == {lost, last}
        held.disk.open(first, create=True).resize(len(copy[first]))
        overwrite(held.disk, first, 0, copy[first])
    else:
        held.disk.open(f"{ROOT}/abort", create=True).close()
    held.disk.remove(lost)
    for _ in range(2):
        held.opened()
        # Nobody knows to which messages the lost entries of batches led.
        assert held.store.min_offset(topic, 0) == (ENTRIES_OF_A_FILE if topic == "T" else 0)
        for offset in (55, 2 * ENTRIES_OF_A_FILE - 1):
            with pytest.raises(CorruptionError, match=f"{lost}: .* is missing; {AGAIN}"):
                held.store.read(topic, 0, offset, 32)
        result = held.store.read(topic, 0, 2 * ENTRIES_OF_A_FILE, 5)
        assert [m.body for m in messages_in(result.slices)] == expected(topic)[80:85]
        assert (first in files_of(held.disk, queue)) is not came_back
        upkeep(held)
        held.stop(clean=False)
        came_back = True
    assert not verified(held.disk, ROOT, CONFIG).is_sound
    rebuild(held)
    held.opened()
    assert held.bodies(topic) == expected(topic)[55:]


def test_a_file_that_a_power_cut_brought_back_is_no_damage_where_nobody_noted_the_first() -> None:
    """The list is from before `kept_from` was noted. The next start removes the file."""
    held = Held()
    while held.put(b"more") < 3 * ENTRIES_OF_A_FILE:
        pass
    gone = held.store.end_offset // CONFIG.segment_size + 1
    while held.store.end_offset < gone * CONFIG.segment_size:
        held.put(b"more", "Other")
    held.put(b"kept")  # The second message of the fourth file.
    held.stop(clean=True)
    first, data = next(iter(contents_of(held.disk, SIMPLE_QUEUE).items()))
    drop_segments(held, gone)
    held.opened()
    upkeep(held)
    held.stop(clean=False)
    assert len(contents_of(held.disk, SIMPLE_QUEUE)) == 1
    ends = load_queue_ends(held.disk, ROOT)
    assert ends is not None
    unknown = {key: end._replace(kept_from=UNKNOWN) for key, end in ends.items()}
    save_queue_ends(held.disk, ROOT, unknown, Sizes(800, 1840, CONFIG.index_shape))
    held.disk.open(first, create=True).resize(len(data))
    overwrite(held.disk, first, 0, data)
    assert verified(held.disk, ROOT, CONFIG).is_sound
    held.opened()
    assert held.bodies() == [b"kept"]
    assert first not in files_of(held.disk, SIMPLE_QUEUE)
