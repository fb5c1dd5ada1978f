"""A broker whose `config/` was lost says so, and recreates topics as they were."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.broker.running import config_of, send_request
from tests.broker.test_topic_admin import topic_request
from tests.broker.wired import Wired
from tests.crash.disk import SimulatedFileSystem
from tests.store.damaged_stores import verified

from cometmq.proto.batch import BatchItem, encode_batch
from cometmq.proto.bodies import TopicConfig
from cometmq.proto.codes import ResponseCode
from cometmq.proto.commands import SendMessageResponse
from cometmq.store.config import Flush
from cometmq.store.looking.inspection import inspect
from cometmq.store.mending.rebuilding import Rebuilt, rebuild

CONFIG = config_of(Path("/broker"), flush=Flush.SYNC)
TOPICS = (
    TopicConfig(topic_name="orders", read_queue_nums=8, write_queue_nums=8),
    TopicConfig(topic_name="B", attributes={"queue.type": "BatchCQ"}),
    TopicConfig(topic_name="%RETRY%g", read_queue_nums=3, write_queue_nums=3),
    TopicConfig(topic_name="gone"),
)


def send(wired: Wired, topic: str, queue_id: int) -> int:
    peer = wired.connect()
    wired.give(peer, wired.frame(peer, send_request(topic, b"body", queue_id=queue_id)))
    wired.sync()
    wired.save()
    (answer,) = wired.answers(peer)
    assert answer.code == 0, answer.remark
    return answer.code


def without_config() -> SimulatedFileSystem:
    """A store with topics whose broker lost its `config/`."""
    disk = SimulatedFileSystem()
    wired = Wired(CONFIG, disk, threads=False)
    for config in TOPICS:
        wired.broker.state.topics.put(config, 0)
    wired.save()
    for topic, queue_id in (("orders", 7), ("orders", 2), ("B", 1), ("%RETRY%g", 2), ("gone", 0)):
        send(wired, topic, queue_id)
    wired.broker.state.topics.discard("gone", 0)
    wired.broker.store.delete_topics(["gone"])
    wired.close()
    folder = f"{CONFIG.store_path}/config"
    for entry in disk.list(folder):
        disk.remove(f"{folder}/{entry.name}")
    return disk


def test_a_start_names_the_topics_that_were_lost_and_is_silent_once_they_are_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = without_config()
    wired = Wired(CONFIG, disk, threads=False)
    (message,) = caplog.messages
    assert "no entry for %RETRY%g (3 queues), B (2 queues), orders (8 queues): " in message
    assert "cometmq topic create NAME --queues N" in message
    for topic in TOPICS[:3]:
        wired.broker.state.topics.put(topic, 0)
    wired.close()
    caplog.clear()
    Wired(CONFIG, disk, threads=False).close()
    assert caplog.messages == []


def test_topics_that_sends_make_again_have_all_queues_that_are_there() -> None:
    wired = Wired(CONFIG, without_config(), threads=False)
    for topic, queue_id in (("orders", 6), ("B", 1), ("%RETRY%g", 1), ("gone", 0)):
        send(wired, topic, queue_id)
    topics = wired.broker.state.topics.configs()
    assert [topics[name].read_queue_nums for name in ("orders", "B", "%RETRY%g", "gone")] == [
        *(8, 4, 3, 4)
    ]
    assert topics["B"].attributes == {"queue.type": "BatchCQ"}
    assert topics["orders"].attributes == {}
    assert wired.broker.store.max_offset("B", 1) == 2
    wired.close()


def test_a_start_says_that_it_made_the_queues_again_when_their_folder_was_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk, root = SimulatedFileSystem(), CONFIG.store_path
    wired = Wired(CONFIG, disk, threads=False)
    for config in TOPICS:
        wired.broker.state.topics.put(config, 0)
    for topic, queue_id in (("orders", 7), ("orders", 2), ("B", 1)):
        send(wired, topic, queue_id)
    wired.save()
    wired.close()
    Wired(CONFIG, disk, threads=False).close()
    assert caplog.messages == []  # Neither the first start nor the second says anything.
    disk.rename(f"{root}/consumequeue", "/lost")
    wired = Wired(CONFIG, disk, threads=False)
    (message,) = caplog.messages  # It counts only the ordinary queues, and B has batch queues.
    assert message.startswith(f"{root}/consumequeue: was missing: 2 queues were rebuilt")
    assert wired.broker.store.max_offset("orders", 7) == 1
    wired.close()
    caplog.clear()
    Wired(CONFIG, disk, threads=False).close()
    assert caplog.messages == []


def killed_with_batches() -> SimulatedFileSystem:
    """A store that lost `config/`, killed before an entry of its batch topic was written."""
    disk = SimulatedFileSystem()
    wired = Wired(CONFIG, disk, threads=False)
    wired.broker.state.topics.put(TOPICS[1], 0)
    wired.save()
    send(wired, "B", 0)
    assert [send_batch(wired), send_batch(wired)] == [1, 4]
    disk = disk.kill()
    for folder in ("config", "batchconsumequeue"):
        path = f"{CONFIG.store_path}/{folder}"
        for entry in disk.list(path) if disk.exists(path) else ():
            disk.remove(f"{path}/{entry.name}")
    return disk


def killed_with_a_backup(newest: TopicConfig) -> SimulatedFileSystem:
    """A store that lost the table of topics. Its backup has all topics but the newest.

    The kill came before an entry of the newest topic was written.
    """
    disk = SimulatedFileSystem()
    wired = Wired(CONFIG, disk, threads=False)
    for config in (TOPICS[2], newest):
        wired.broker.state.topics.put(config, 0)
        wired.save()
    send(wired, TOPICS[2].topic_name, 0)
    assert send_batch(wired, newest.topic_name) == 0
    disk = disk.kill()
    disk.remove(f"{CONFIG.store_path}/config/topics.json")
    assert disk.exists(f"{CONFIG.store_path}/config/topics.json.bak")
    return disk


def send_batch(wired: Wired, topic: str = "B") -> int:
    """Send three messages; return the number of the first."""
    peer = wired.connect()
    body = encode_batch(topic, [BatchItem(b"one of three")] * 3)
    request = send_request(topic, body, code=320, batch=True)
    wired.give(peer, wired.frame(peer, request))
    wired.sync()
    wired.save()
    (answer,) = wired.answers(peer)
    assert answer.code == 0, answer.remark
    return answer.read(SendMessageResponse).queue_offset


@pytest.mark.parametrize("is_rebuilt", [False, True])
def test_the_batches_of_a_topic_say_of_which_kind_it_is_where_nothing_else_does(
    is_rebuilt: bool,
) -> None:
    disk = killed_with_batches()
    root, store = CONFIG.store_path, CONFIG.store
    assert not any("lacks" in note for note in verified(disk, root, store).notes)
    if is_rebuilt:
        for _ in rebuild(inspect(disk, root, store), Rebuilt(), 0):
            pass
    wired = Wired(CONFIG, disk, threads=False)
    assert wired.broker.store.max_offset("B", 0) == 7
    assert send_batch(wired) == 7
    assert wired.broker.state.topics.configs()["B"].attributes == {"queue.type": "BatchCQ"}
    wired.close()
    wired = Wired(CONFIG, disk, threads=False)
    assert wired.broker.store.max_offset("B", 0) == 10
    wired.close()
    assert not verified(disk, root, store).findings


@pytest.mark.parametrize("newest", TOPICS[:2], ids=["ordinary", "of batches"])
@pytest.mark.parametrize("is_rebuilt", [False, True])
def test_the_newest_topic_is_not_gone_where_only_the_backup_of_the_table_is_left(
    is_rebuilt: bool, newest: TopicConfig
) -> None:
    disk, topic = killed_with_a_backup(newest), newest.topic_name
    root, store = CONFIG.store_path, CONFIG.store
    assert not any("lacks" in note for note in verified(disk, root, store).notes)
    if is_rebuilt:
        done = Rebuilt()
        for _ in rebuild(inspect(disk, root, store), done, 0):
            pass
        assert not done.deleted_topics
    wired = Wired(CONFIG, disk, threads=False)
    assert wired.broker.store.max_offset(topic, 0) == 3
    assert send_batch(wired, topic) == 3
    wired.close()
    assert not verified(disk, root, store).findings


@pytest.mark.parametrize(
    ("topic", "attributes", "is_refused"),
    [
        ("B", None, False),
        ("B", "+queue.type=BatchCQ", False),
        ("B", "+queue.type=SimpleCQ", True),
        ("orders", None, False),
        ("orders", "+queue.type=BatchCQ", True),
    ],
)
def test_a_topic_that_is_made_again_by_hand_is_of_the_kind_that_its_queues_are(
    topic: str, attributes: str | None, is_refused: bool
) -> None:
    disk = without_config()
    wired = Wired(CONFIG, disk, threads=False)
    queue_id = {"B": 1, "orders": 2}[topic]
    answer = wired.ask(wired.connect(), topic_request(topic, attributes, write_queue_nums=3))
    if is_refused:
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert answer.remark is not None
        assert f"topic {topic}: has queues with messages here, which are" in answer.remark
        assert wired.broker.state.topics.find(topic) is None
    else:
        assert answer.code == 0, answer.remark
    send(wired, topic, queue_id)  # The numbers continue.
    assert wired.broker.store.max_offset(topic, queue_id) == 2
    wired.close()
    Wired(CONFIG, disk, threads=False).close()


def test_a_topic_that_was_deleted_may_be_made_again_as_one_of_the_other_kind() -> None:
    wired = Wired(CONFIG, without_config(), threads=False)
    peer = wired.connect()
    wired.broker.store.delete_topics(["B"])
    answer = wired.ask(peer, topic_request("B", "+queue.type=SimpleCQ"))
    assert answer.code == 0, answer.remark
    send(wired, "B", 1)
    assert wired.broker.store.max_offset("B", 1) == 1
    wired.close()
