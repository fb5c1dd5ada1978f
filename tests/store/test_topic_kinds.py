from __future__ import annotations

import pytest
from tests.crash.disk import SimulatedFileSystem
from tests.store.records import HOST
from tests.store.test_consume_queues import opened, stored

from cometmq.proto.message import StoredMessage, read_message
from cometmq.proto.record import encode_record
from cometmq.proto.sysflag import SysFlag
from cometmq.store.errors import StoreFormatError
from cometmq.store.queues.queue_ends import QueueEnd, QueueKey
from cometmq.store.starting.topic_kinds import topic_kinds

END = QueueEnd(1, 0, 1)


def test_a_topic_whose_queues_are_of_the_wrong_kind_is_named() -> None:
    disk = SimulatedFileSystem()
    stored(disk)
    queues = opened(disk)
    known = topic_kinds(queues, {"b": False, "c": True}.get, {}).is_batch
    assert [known("b"), known("c"), known("x")] == [False, True, False]
    unknown = topic_kinds(queues, lambda _: None, {}).is_batch  # The folders say.
    assert [unknown("b"), unknown("c"), unknown("x")] == [False, True, False]
    with pytest.raises(StoreFormatError, match=r"topic b is queue\.type=BatchCQ"):
        topic_kinds(queues, {"b", "c"}.__contains__, {})
    with pytest.raises(StoreFormatError, match=r"topic c is not queue\.type=BatchCQ"):
        topic_kinds(queues, lambda _topic: False, {})


@pytest.mark.parametrize("mark", [None, 100])
def test_where_nothing_else_tells_a_batch_does_unless_its_topic_was_deleted_behind_it(
    mark: int | None,
) -> None:
    disk = SimulatedFileSystem()
    stored(disk)  # b has ordinary entries.
    queues = opened(disk)
    key = QueueKey(is_batch=False, topic="listed", queue_id=0)
    queues.ends.begin_with({key: END}, {key: END})
    marks = {} if mark is None else {topic.encode(): mark for topic in ("new", "listed")}
    kinds = topic_kinds(queues, {"ordinary": False}.get, marks)
    for place in (99, 100):
        for topic in ("new", "listed", "ordinary", "b"):
            plain, batch = (batch_of(topic, place, flag) for flag in (0, SysFlag.INNER_BATCH))
            kinds.learn_from(plain)
            is_known = place == 100 and (topic == "new" and mark is None)
            assert kinds.is_batch(topic) is is_known, (topic, place)
            kinds.learn_from(batch)
            assert kinds.is_batch(topic) is (topic == "new" and place >= (mark or 0)), topic


def batch_of(topic: str, place: int, flag: int) -> StoredMessage:
    return read_message(
        encode_record(
            topic=topic.encode(),
            body=b"body",
            properties=b"INNER_NUM\x013\x02",
            queue_id=0,
            queue_offset=0,
            physical_offset=place,
            born_timestamp=1,
            born_host=HOST,
            store_timestamp=1,
            store_host=HOST,
            sys_flag=flag,
        )
    )


@pytest.mark.parametrize("mark", [None, 100])
def test_blank_files_of_a_batch_queue_say_nothing_of_a_topic_that_was_deleted(
    mark: int | None,
) -> None:
    """It may have been recreated as the other kind; but a topic that has just begun has such."""
    disk = SimulatedFileSystem()
    disk.make_directories("/store/batchconsumequeue/new/0")
    file = disk.open(f"/store/batchconsumequeue/new/0/{0:020d}", create=True)
    file.resize(460)
    file.close()
    kinds = topic_kinds(opened(disk), lambda _: None, {} if mark is None else {b"new": mark})
    assert kinds.is_batch("new") is (mark is None)
