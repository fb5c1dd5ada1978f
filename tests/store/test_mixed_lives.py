"""A deleted and recreated topic, of which Apache brought old messages back after a kill.

Apache's start reads the records of both lives, and gives the queue those whose numbers follow. So
the second life is followed by the rest of the first, and later messages are numbered after that.
"""

from __future__ import annotations

from contextlib import closing

import pytest
from tests.crash.disk import SimulatedFileSystem
from tests.store.damaged_stores import verified
from tests.store.held_stores import bodies
from tests.store.test_apache_deletions import take_our_notes
from tests.store.test_deletions import CONFIG, ROOT, opened, put
from tests.store.test_rebuilding import rebuilt

from cometmq.store.deletions import DELETIONS_NAME
from cometmq.store.errors import CorruptionError
from cometmq.store.looking.inspection import inspect
from cometmq.store.looking.log_check import LogCheck
from cometmq.store.queues.consume_queue import ENTRY

OLD, NEW, BEHIND = 20, 5, 3
QUEUE = f"{ROOT}/consumequeue/T/0"
MIXED = [
    *(b"new %d" % number for number in range(NEW)),
    *(b"old %d" % number for number in range(NEW, OLD)),
    *(b"behind %d" % number for number in range(BEHIND)),
]


def write(disk: SimulatedFileSystem, path: str, data: bytes, at: int = 0) -> None:
    with closing(disk.open(path, create=not disk.exists(path))) as file:
        file.write(data, at)
        file.sync()


def mixed(*, is_clean: bool, has_mark: bool) -> SimulatedFileSystem:
    """Make what Apache leaves of it; with a mark, we deleted the topic; without, Apache did."""
    disk = SimulatedFileSystem()
    store = opened(disk)
    put(store, *(b"old %d" % number for number in range(OLD)))
    put(store, b"other 0", topic="Other")
    store.delete_topics(["T"])
    put(store, *(b"new %d" % number for number in range(NEW)))
    put(store, *(b"behind %d" % number for number in range(BEHIND)))
    end = store.end_offset
    put(store, b"other 1", topic="Other")
    assert store.close(1)
    records = [each for each in LogCheck(inspect(disk, ROOT, CONFIG)) if each.topic == "T"]
    old, new, behind = records[:OLD], records[OLD : OLD + NEW], records[OLD + NEW :]
    for number, each in enumerate(behind, OLD):
        write(
            disk, f"{ROOT}/commitlog/{0:020d}", number.to_bytes(8, "big"), each.physical_offset + 20
        )
    entries = b"".join(
        ENTRY.pack(each.physical_offset, each.size, 0) for each in (*new, *old[NEW:], *behind)
    )
    size = CONFIG.consume_queue_file_size
    for at in range(0, len(entries), size):
        write(disk, f"{QUEUE}/{at:020d}", entries[at : at + size].ljust(size, b"\0"))
    mark = disk.open(f"{ROOT}/{DELETIONS_NAME}").read(1 << 16, 0)
    take_our_notes(disk, end)
    if has_mark:
        write(disk, f"{ROOT}/{DELETIONS_NAME}", mark)
    if is_clean:
        disk.remove(f"{ROOT}/abort")
    return disk


@pytest.mark.parametrize("has_mark", [False, True])
def test_behind_a_clean_stop_it_is_served_and_verify_says_what_a_kill_would_do(
    *, has_mark: bool
) -> None:
    disk = mixed(is_clean=True, has_mark=has_mark)
    report = verified(disk, ROOT, CONFIG)
    assert not report.findings
    (note,) = [each for each in report.notes if "brought old messages" in each]
    assert note.startswith("T/0: ")
    store = opened(disk)
    assert bodies(store) == MIXED
    with pytest.raises(CorruptionError, match="the log has none from 5 to 19"):
        opened(disk.kill())


@pytest.mark.parametrize("has_mark", [False, True])
def test_it_is_deleted_and_made_again_as_the_note_says(*, has_mark: bool) -> None:
    disk = mixed(is_clean=True, has_mark=has_mark)
    store = opened(disk)
    store.delete_topics(["T"])
    put(store, b"next")
    store = opened(disk.kill())
    assert bodies(store) == [b"next"]
    assert bodies(store, "Other") == [b"other 0", b"other 1"]


@pytest.mark.parametrize("has_mark", [False, True])
def test_behind_a_kill_the_command_that_the_refusal_names_lets_the_broker_start(
    *, has_mark: bool
) -> None:
    disk = mixed(is_clean=False, has_mark=has_mark)
    with pytest.raises(CorruptionError, match="rebuild --accept-gaps"):
        opened(disk)
    disk = disk.kill()
    rebuilt(disk, ROOT, CONFIG, accept_gaps=True)
    assert bodies(opened(disk)) == MIXED[-BEHIND:]


def test_one_whose_second_life_is_the_longer_one_needs_no_note() -> None:
    disk = SimulatedFileSystem()
    store = opened(disk)
    put(store, b"old 0", b"old 1")
    store.delete_topics(["T"])
    put(store, b"new 0", b"new 1", b"new 2")
    assert store.close(1)
    take_our_notes(disk, 0)
    disk.remove(f"{ROOT}/abort")
    assert not [each for each in verified(disk, ROOT, CONFIG).notes if "old messages" in each]
