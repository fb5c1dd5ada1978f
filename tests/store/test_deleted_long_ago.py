"""Topics that Apache deleted, and of which a start reads more back than the end of the log.

Where the log is read for the queues from further in front, or for the index, or all of it.
"""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest
from tests.crash.disk import SimulatedFileSystem
from tests.store.held_stores import bodies
from tests.store.records import HOST
from tests.store.test_apache_deletions import cut_off_starts, take_our_notes
from tests.store.test_deletions import CONFIG, ROOT, opened, put

from cometmq.store.log.turn import Origin
from cometmq.store.message_store import MessageStore

if TYPE_CHECKING:
    from collections.abc import Callable

MANY = [b"%d" % number for number in range(300)]
"""Messages that fill more than one file of the log."""


def left_by_apache(write: Callable[[MessageStore], None], *, is_clean: bool) -> SimulatedFileSystem:
    """Return a store of Apache's that has two topics, and had others, whose records are all old."""
    disk = SimulatedFileSystem()
    store = opened(disk)
    write(store)
    end = store.end_offset
    assert end > CONFIG.segment_size
    assert store.close(1)
    take_our_notes(disk, end - 1)
    if is_clean:
        disk.remove(f"{ROOT}/abort")
    disk.make_directories(f"{ROOT}/config")
    table = {"topicConfigTable": {each: {"topicName": each} for each in ("T", "Other")}}
    with closing(disk.open(f"{ROOT}/config/topics.json", create=True)) as file:
        file.write(json.dumps(table).encode(), 0)
        file.sync()
    disk.sync_directory(f"{ROOT}/config")
    disk.sync_directory(ROOT)
    return disk


def started(disk: SimulatedFileSystem, *, index: bool = True) -> MessageStore:
    """Open it as one who knows no topic but those of the table."""
    config = replace(CONFIG, index=index)
    return MessageStore.open(ROOT, config, now_ms=1, filesystem=disk, threads=False)


def made_again(store: MessageStore) -> None:
    """Have another topic made again, in a later file: a start reads all of the log back."""
    put(store, b"gone 0", b"gone 1", topic="Gone")
    put(store, *MANY)
    store.delete_topics(["T", "Gone"])
    put(store, b"new")
    put(store, b"other", topic="Other")


def with_the_last(store: MessageStore) -> None:
    """Have the last entry of all queues in an earlier file, in front of what was deleted."""
    put(store, b"new")
    put(store, b"other", topic="Other")
    put(store, b"gone 0", b"gone 1", topic="Gone")
    put(store, *MANY, topic="Long")
    store.delete_topics(["Gone", "Long"])


def behind_the_last_key(store: MessageStore) -> None:
    """Have the last key in an earlier file, too: from there on the log is read for the index."""
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
    assert [each for each in caplog.messages if "nor a file: Gone, Long; they stay so" in each]
