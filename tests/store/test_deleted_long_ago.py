"""Topics that Apache deleted, when a start reads back more than the end of the log.

It reads from earlier on for the queues or for the index, or reads all of the log.
"""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from tests.crash.disk import SimulatedFileSystem
from tests.store.held_stores import bodies, remove_all
from tests.store.records import HOST
from tests.store.test_apache_deletions import cut_off_starts, take_our_notes
from tests.store.test_deletions import CONFIG, ROOT, opened, put

from cometmq.store.log.turn import Origin
from cometmq.store.message_store import MessageStore
from cometmq.store.queues.consume_queue import ENTRY, ENTRY_SIZE
from cometmq.store.starting import foresight
from cometmq.store.starting.recovery import records_up_to

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cometmq.proto.message import StoredMessage
    from cometmq.store.log.log_stretch import Stretch
    from cometmq.store.log.segments import Segments

MANY = [b"%d" % number for number in range(300)]
"""Messages that fill more than one file of the log."""


def left_by_apache(write: Callable[[MessageStore], None], *, is_clean: bool) -> SimulatedFileSystem:
    """Return an Apache store that has two topics, and had others, whose records are all old."""
    disk = SimulatedFileSystem()
    store = opened(disk)
    write(store)
    end = store.end_offset
    assert end > CONFIG.segment_size
    assert store.close(1)
    as_apache_leaves_it(disk, end - 1, is_clean=is_clean)
    return disk


def as_apache_leaves_it(disk: SimulatedFileSystem, dispatched_to: int, *, is_clean: bool) -> None:
    take_our_notes(disk, dispatched_to)
    if is_clean:
        disk.remove(f"{ROOT}/abort")
    write_table(disk, "T", "Other")


def write_table(disk: SimulatedFileSystem, *topics: str, name: str = "topics.json") -> None:
    disk.make_directories(f"{ROOT}/config")
    table = {"topicConfigTable": {each: {"topicName": each} for each in topics}}
    with closing(disk.open(f"{ROOT}/config/{name}", create=True)) as file:
        file.resize(0)
        file.write(json.dumps(table).encode(), 0)
        file.sync()
    disk.sync_directory(f"{ROOT}/config")
    disk.sync_directory(ROOT)


def started(disk: SimulatedFileSystem, *, index: bool = True) -> MessageStore:
    """Open it without knowing any topic besides those of the table."""
    config = replace(CONFIG, index=index)
    return MessageStore.open(ROOT, config, now_ms=1, filesystem=disk, threads=False)


def made_again(store: MessageStore) -> None:
    """Recreate another topic in a later file, so that a start reads all of the log back."""
    put(store, b"gone 0", b"gone 1", topic="Gone")
    put(store, *MANY)
    store.delete_topics(["T", "Gone"])
    put(store, b"new")
    put(store, b"other", topic="Other")


def with_the_last(store: MessageStore) -> None:
    """Put the last entry of all queues into an earlier file, before the deleted topics."""
    put(store, b"new")
    put(store, b"other", topic="Other")
    put(store, b"gone 0", b"gone 1", topic="Gone")
    put(store, *MANY, topic="Long")
    store.delete_topics(["Gone", "Long"])


def behind_the_last_key(store: MessageStore) -> None:
    """Put the last key into an earlier file, too: from there on the log is read for the index."""
    store.put("T", 0, b"new", b"KEYS\x01key\x02", Origin(1, 1, HOST))
    store.commit()
    store.tick(1)
    put(store, b"gone 0", b"gone 1", topic="Gone")
    put(store, *MANY, topic="Long")
    store.delete_topics(["Gone", "Long"])
    put(store, b"other", topic="Other")


@pytest.mark.parametrize(
    ("write", "is_clean", "index"),
    [
        (made_again, False, True),
        (with_the_last, True, True),
        (with_the_last, True, False),
        (behind_the_last_key, False, True),
    ],
)
def test_they_stay_deleted_however_often_the_start_is_cut_off(
    write: Callable[[MessageStore], None], *, is_clean: bool, index: bool
) -> None:
    start = partial(started, index=index)
    left = left_by_apache(write, is_clean=is_clean)
    number = 0
    for number, disk in cut_off_starts(left, start):
        after = disk
        for _ in range(2):
            again = start(after)
            assert again.max_offset("Gone", 0) == again.max_offset("Long", 0) == 0, number
            assert (bodies(again), bodies(again, "Other")) == ([b"new"], [b"other"]), number
            after = after.kill()
    assert number > 10


def test_all_of_them_are_named(caplog: pytest.LogCaptureFixture) -> None:
    started(left_by_apache(with_the_last, is_clean=True))
    assert [each for each in caplog.messages if "nor a file: Gone, Long; they stay deleted" in each]


def test_so_they_do_where_a_queue_says_more_than_the_log_has() -> None:
    """Then all queues are rebuilt from the log, though all of it is in its last file."""
    disk = SimulatedFileSystem()
    store = opened(disk)
    put(store, b"gone", topic="Gone")
    store.delete_topics(["Gone"])
    put(store, b"new")
    put(store, b"other", topic="Other")
    end = store.end_offset
    assert store.close(1)
    as_apache_leaves_it(disk, end - 1, is_clean=True)
    with closing(disk.open(f"{ROOT}/consumequeue/Other/0/{0:020d}")) as file:
        file.write(ENTRY.pack(end, 100, 0), ENTRY_SIZE)
    again = started(disk)
    assert again.max_offset("Gone", 0) == 0
    assert (bodies(again), bodies(again, "Other")) == ([b"new"], [b"other"])


def test_without_any_file_of_a_queue_nobody_knows() -> None:
    """The table may be from another time, and the earlier files may have all that there is."""
    disk = left_by_apache(with_the_last, is_clean=True)
    for topic in ("T", "Other"):
        remove_all(disk, f"{ROOT}/consumequeue/{topic}/0")
    again = started(disk)
    assert (bodies(again, "Gone"), bodies(again, "Long")) == ([b"gone 0", b"gone 1"], MANY)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_store_without_queues_is_read_no_oftener_for_it(
    monkeypatch: pytest.MonkeyPatch, *, is_there: bool
) -> None:
    begins: list[int] = []

    def count(segments: Segments, begin: int, *args: Any) -> Iterator[StoredMessage | Stretch]:
        begins.append(begin)
        return records_up_to(segments, begin, *args)

    monkeypatch.setattr(foresight, "records_up_to", count)
    disk = left_by_apache(with_the_last, is_clean=True)
    if not is_there:
        for topic in ("T", "Other"):
            remove_all(disk, f"{ROOT}/consumequeue/{topic}/0")
    started(disk)
    assert len(begins) == (2 if is_there else 1)
