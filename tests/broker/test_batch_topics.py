"""Topics whose batches stay one record, over starts of the broker."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from tests.broker.running import config_of, send_request
from tests.broker.wired import Wired
from tests.crash.disk import SimulatedFileSystem

from cometmq.proto.batch import BatchItem, encode_batch
from cometmq.proto.bodies import TopicConfig
from cometmq.proto.commands import SendMessageResponse
from cometmq.store.config import Flush

CONFIG = config_of(Path("/broker"), flush=Flush.SYNC)
BATCH = encode_batch("B", [BatchItem(b"%d" % number, b"") for number in range(100)])


def broker_with_batches(disk: SimulatedFileSystem, count: int) -> Wired:
    wired = Wired(CONFIG, disk, threads=False)
    attributes = {"queue.type": "BatchCQ"}
    wired.broker.state.topics.put(TopicConfig(topic_name="B", attributes=attributes), 0)
    wired.save()
    peer = wired.connect()
    for _ in range(count):
        wired.give(peer, wired.frame(peer, send_request("B", BATCH, code=320, batch=True)))
        wired.sync()
        assert [answer.code for answer in wired.answers(peer)] == [0]
    return wired


@pytest.mark.parametrize("end", ["closed", "killed", "power cut"])
def test_a_start_finds_batches_as_they_were(end: str) -> None:
    disk = SimulatedFileSystem()
    wired = broker_with_batches(disk, 3)
    match end:
        case "closed":
            wired.close()
        case "killed":
            disk = disk.kill()
        case _:
            disk = disk.power_cut(Random(1))
    for expected in (300, 400):
        wired = Wired(CONFIG, disk, threads=False)
        assert wired.broker.store.max_offset("B", 0) == expected
        peer = wired.connect()
        wired.give(peer, wired.frame(peer, send_request("B", BATCH, code=320, batch=True)))
        wired.sync()
        (answer,) = wired.answers(peer)
        assert answer.read(SendMessageResponse).queue_offset == expected
        wired.close()


def test_what_is_left_of_a_deleted_topic_does_not_stop_a_start() -> None:
    disk = SimulatedFileSystem()
    broker_with_batches(disk, 3).close()
    wired = Wired(CONFIG, disk, threads=False)
    wired.broker.state.topics.discard("B", wired.now_ms)
    wired.save()  # And killed before its queues are gone.
    disk = disk.kill()
    assert any(entry.name == "B" for entry in disk.list(f"{CONFIG.store_path}/batchconsumequeue"))
    wired = Wired(CONFIG, disk, threads=False)
    assert wired.broker.state.topics.find("B") is None
    wired.close()
