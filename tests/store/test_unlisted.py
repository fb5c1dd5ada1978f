"""Topics that have queues but no entry in `config/topics.json`."""

from __future__ import annotations

import pytest
from tests.store.damaged_stores import ROOT, SMALL, small_store
from tests.store.records import HOST

from cometmq.store.checking.verify import verify
from cometmq.store.log.turn import Origin
from cometmq.store.looking.findings import Report
from cometmq.store.looking.inspection import inspect
from cometmq.store.looking.unlisted import queue_count, unlisted_of, unlisted_text, unlisted_topics
from cometmq.store.message_store import MessageStore

HERE = {"T": 2, "Batches": 1}


def test_what_has_queues_and_no_entry_is_named_with_the_number_of_its_queues() -> None:
    disk = small_store()
    assert unlisted_of(inspect(disk, ROOT, SMALL)) == HERE
    store = MessageStore.open(ROOT, SMALL, now_ms=1, filesystem=disk, threads=False)
    assert unlisted_topics(store.queues, {}, store.deletions, 8192) == HERE
    assert unlisted_topics(store.queues, {"T"}, store.deletions, 8192) == {"Batches": 1}
    assert (queue_count(store.queues, "T", 1), queue_count(store.queues, "no such", 8)) == (1, 0)


def test_deleted_topics_do_not_count() -> None:
    disk = small_store()
    store = MessageStore.open(ROOT, SMALL, now_ms=1, filesystem=disk, threads=False)
    store.delete_topics(["T"])
    disk.make_directories(f"{ROOT}/consumequeue/T/0")
    assert unlisted_topics(store.queues, {}, store.deletions, 8192) == {"Batches": 1}
    assert store.close(2)
    assert unlisted_of(inspect(disk, ROOT, SMALL)) == {"Batches": 1}


def test_one_that_was_deleted_and_made_again_counts() -> None:
    disk = small_store()
    store = MessageStore.open(ROOT, SMALL, now_ms=1, filesystem=disk, threads=False)
    store.delete_topics(["T"])
    store.put("T", 0, b"again", b"", Origin(2, 2, HOST))
    store.commit()
    store.run_jobs()
    store.advance()
    wanted = {"T": 1, "Batches": 1}
    assert unlisted_topics(store.queues, {}, store.deletions, 8192) == wanted
    assert store.close(2)
    assert unlisted_of(inspect(disk, ROOT, SMALL)) == wanted


def test_it_is_a_note_of_verify_and_no_finding() -> None:
    report = Report(10)
    for _ in verify(inspect(small_store(), ROOT, SMALL), report):
        pass
    assert report.is_sound
    (note,) = report.notes
    assert "no entry for Batches (1 queue), T (2 queues)" in note
    assert "cometmq topic create NAME --queues N" in note


@pytest.mark.parametrize(("count", "end"), [(8, "t7 (1 queue):"), (11, "t6 (1 queue) and 3 more:")])
def test_many_topics_are_counted(count: int, end: str) -> None:
    assert end in unlisted_text({f"t{number}": 1 for number in range(count)})
