"""A start, `verify` and `rebuild` agree on which topics another program deleted.

In each of these stores a start reads all of the log back, so each record shows what it does.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from tests.crash.disk import SimulatedFileSystem
from tests.store.damaged_stores import (
    BATCHES,
    INNER,
    content,
    flip,
    overwrite,
    repaired,
    verified,
)
from tests.store.held_stores import bodies, remove_all
from tests.store.records import HOST
from tests.store.test_apache_deletions import take_our_notes
from tests.store.test_deleted_long_ago import started, write_table
from tests.store.test_deletions import CONFIG, ROOT, opened, put
from tests.store.test_rebuilding import rebuilt

from cometmq.store.deletions import Deletions
from cometmq.store.log.turn import Origin
from cometmq.store.looking.inspection import inspect
from cometmq.store.mending.repair_plan import Plan, make_plan
from cometmq.store.message_store import MessageStore
from cometmq.store.queues.consume_queues import BATCH_FOLDER, SIMPLE_FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable

TABLE = f"{ROOT}/config/topics.json"
ALL = [b"gone 0", b"gone 1", b"gone 2"]


def left(*, noted: int | None = None, is_clean: bool = False) -> SimulatedFileSystem:
    """Make a store in which another broker deleted a topic.

    If killed, its checkpoint notes the entries up to one of that topic's messages, or all.
    """
    disk = SimulatedFileSystem()
    store = opened(disk)
    put(store, b"old 0", b"old 1")
    places: list[int] = []
    for body in ALL:
        places.append(store.end_offset)
        put(store, body, topic="Gone")
    store.delete_topics(["Gone"])
    put(store, b"old 2")
    end = store.end_offset
    assert store.close(1)
    # A start reads it all back: a queue says more than the log has, or the checkpoint does not.
    take_our_notes(disk, end - 1 if noted is None else places[noted])
    if is_clean:
        disk.remove(f"{ROOT}/abort")
    write_table(disk, "T")
    return disk


def killed() -> SimulatedFileSystem:
    return left()


def killed_right_behind() -> SimulatedFileSystem:
    """The entries of the last two messages may merely be lost."""
    return left(noted=0)


def shut_down() -> SimulatedFileSystem:
    """The index was moved away, so the log is read for it."""
    disk = left(is_clean=True)
    remove_all(disk, f"{ROOT}/index")
    return disk


def without_a_table() -> SimulatedFileSystem:
    disk = killed()
    disk.remove(TABLE)
    return disk


def with_its_backup_alone() -> SimulatedFileSystem:
    disk = killed()
    disk.remove(TABLE)
    write_table(disk, "T", name="topics.json.bak")
    return disk


def without_any_queue() -> SimulatedFileSystem:
    disk = killed()
    remove_all(disk, f"{ROOT}/consumequeue/T/0")
    return disk


def listed() -> SimulatedFileSystem:
    disk = killed()
    write_table(disk, "T", "Gone")
    return disk


def with_a_file(folder: str = SIMPLE_FOLDER) -> SimulatedFileSystem:
    """A send recreated the topic; the kill came before the table and the entry were written."""
    disk, is_batch = killed(), folder == BATCH_FOLDER
    size = CONFIG.batch_consume_queue_file_size if is_batch else CONFIG.consume_queue_file_size
    disk.make_directories(f"{ROOT}/{folder}/Gone/1")
    with closing(disk.open(f"{ROOT}/{folder}/Gone/1/{0:020d}", create=True)) as file:
        file.resize(size)
        file.sync()
    return disk


def with_a_file_of_a_batch_queue() -> SimulatedFileSystem:
    return with_a_file(BATCH_FOLDER)


@pytest.mark.parametrize(
    ("store", "back"),
    [
        (killed, []),
        (killed_right_behind, ALL[1:]),
        (shut_down, []),
        (without_a_table, ALL),
        (with_its_backup_alone, ALL),
        (without_any_queue, ALL),
        (listed, ALL),
        (with_a_file, ALL),
        (with_a_file_of_a_batch_queue, ALL),
    ],
)
def test_a_start_and_the_tools_agree(
    store: Callable[[], SimulatedFileSystem], back: list[bytes]
) -> None:
    disk = store()
    assert verified(disk, ROOT, CONFIG).records_of_deleted_topics == len(ALL) - len(back)
    assert bodies(started(disk), "Gone") == back
    disk = store()
    gone = {"Gone": len(ALL) - len(back)} if back != ALL else {}
    assert rebuilt(disk, ROOT, CONFIG).deleted_topics == gone
    again = started(disk)
    assert (bodies(again, "Gone"), bodies(again)) == (back, [b"old 0", b"old 1", b"old 2"])
    assert again.close(1)
    assert verified(disk, ROOT, CONFIG).is_sound


def test_what_our_own_broker_deleted_is_said_of_no_other(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimulatedFileSystem()
    store = opened(disk)
    put(store, *ALL, topic="Gone")
    store.delete_topics(["Gone"])
    put(store, b"old 0")
    assert store.close(1)
    write_table(disk, "T")
    assert rebuilt(disk, ROOT, CONFIG).deleted_topics == {"Gone": len(ALL)}
    assert not [each for each in caplog.messages if "another broker" in each]


def test_what_the_list_of_queues_names_has_only_lost_its_files() -> None:
    """The table may be from an older copy; a topic that we deleted would not be in the list."""
    disk = SimulatedFileSystem()
    store = opened(disk)
    put(store, *ALL, topic="Gone")
    put(store, b"old 0")
    assert store.close(1)
    write_table(disk, "T")
    remove_all(disk, f"{ROOT}/consumequeue/Gone/0")
    report = verified(disk, ROOT, CONFIG)
    assert report.records_of_deleted_topics == 0
    assert len(report.findings) >= len(ALL)
    assert not rebuilt(disk, ROOT, CONFIG).deleted_topics
    assert bodies(started(disk), "Gone") == ALL


def test_a_start_takes_none_for_deleted_that_the_broker_knows() -> None:
    """For example its own topics, which are in no table until somebody changes them."""
    store = MessageStore.open(
        ROOT,
        CONFIG,
        now_ms=1,
        filesystem=killed(),
        is_batch_topic=lambda topic: False if topic == "Gone" else None,
        threads=False,
    )
    assert bodies(store, "Gone") == ALL


@pytest.mark.parametrize("is_repair", [False, True])
def test_no_tool_leaves_a_mark_behind_the_end_of_the_log(*, is_repair: bool) -> None:
    """Apache's broker may open the store next, and write messages of that name there."""
    disk = shut_down()
    end = opened(disk.kill()).end_offset
    disk = shut_down()
    if is_repair:
        flip(disk, f"{ROOT}/commitlog/{0:020d}", 90)
        repaired(disk, ROOT, CONFIG)
    else:
        rebuilt(disk, ROOT, CONFIG)
    assert 0 < Deletions(disk, ROOT).deleted_to("Gone") <= end


def test_the_first_record_behind_what_we_noted_may_be_of_a_topic_that_is_too_new() -> None:
    """Apache was killed before it noted a new offset, and left ours, where our log ended."""
    disk = SimulatedFileSystem()
    store = opened(disk)
    put(store, b"old 0", b"old 1")
    assert store.close(1)
    checkpoint = content(disk, f"{ROOT}/checkpoint")
    store = opened(disk)
    put(store, b"new", topic="New")
    assert store.close(1)
    overwrite(disk, f"{ROOT}/checkpoint", 0, checkpoint)
    overwrite(disk, f"{ROOT}/checkpoint", 0, (1000).to_bytes(8, "big"))
    remove_all(disk, f"{ROOT}/consumequeue/New/0")
    disk.open(f"{ROOT}/abort", create=True)
    write_table(disk, "T")
    assert verified(disk, ROOT, CONFIG).records_of_deleted_topics == 0
    assert bodies(started(disk), "New") == [b"new"]


def test_a_killed_broker_that_noted_no_offset_says_nothing_of_the_first_record() -> None:
    disk = SimulatedFileSystem()
    store = opened(disk)
    put(store, b"new", topic="New")
    put(store, b"old 0", b"old 1")
    assert store.close(1)
    take_our_notes(disk, 0)
    remove_all(disk, f"{ROOT}/consumequeue/New/0")
    write_table(disk, "T")
    assert verified(disk, ROOT, CONFIG).records_of_deleted_topics == 0
    assert bodies(started(disk), "New") == [b"new"]


def test_a_damaged_record_of_a_topic_that_is_gone_was_no_message() -> None:
    disk = left(is_clean=True)
    log = content(disk, f"{ROOT}/commitlog/{0:020d}")
    flip(disk, f"{ROOT}/commitlog/{0:020d}", log.index(ALL[-1]))
    plan = Plan()
    for _ in make_plan(inspect(disk, ROOT, CONFIG), plan, cut=False):
        pass
    (step,) = plan.steps
    assert step.lost == []


def test_batches_of_a_topic_that_is_gone_are_no_records_that_say_what_they_are_not() -> None:
    """It was an ordinary topic first, and nothing says that its records hold several messages."""
    disk = SimulatedFileSystem()
    store = started(disk)
    put(store, b"old 0", b"old 1", topic=BATCHES)
    store.delete_topics([BATCHES])
    assert store.close(1)
    store = opened(disk)
    for _ in range(2):
        store.put(BATCHES, 0, b"abc", INNER, Origin(1, 1, HOST, 0xC0))
    put(store, b"single", topic=BATCHES)
    store.delete_topics([BATCHES])
    put(store, b"T 0")
    end = store.end_offset
    assert store.close(1)
    take_our_notes(disk, end - 1)
    disk.remove(f"{ROOT}/abort")
    write_table(disk, "T")
    assert not verified(disk, ROOT, CONFIG).findings
    assert rebuilt(disk, ROOT, CONFIG).deleted_topics == {BATCHES: 5}
    assert repaired(disk, ROOT, CONFIG).is_empty
