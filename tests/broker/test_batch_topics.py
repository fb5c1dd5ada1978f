"""Topics whose batches stay one record, over starts of the broker."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.broker.running import config_of, send_request
from tests.broker.wired import Wired
from tests.crash.disk import SimulatedFileSystem

from cometmq.proto.batch import BatchItem, encode_batch
from cometmq.proto.bodies import TopicConfig
from cometmq.proto.codes import ResponseCode
from cometmq.proto.commands import SendMessageResponse
from cometmq.proto.sysflag import SysFlag
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
    wired.save()  # The kill comes before the queues are gone.
    disk = disk.kill()
    assert any(entry.name == "B" for entry in disk.list(f"{CONFIG.store_path}/batchconsumequeue"))
    wired = Wired(CONFIG, disk, threads=False)
    assert wired.broker.state.topics.find("B") is None
    wired.close()


def ordinary(item: bytes = b"", **fields: Any) -> tuple[Wired, int]:
    """Send a batch of two to an ordinary topic; return the broker and the answer's code."""
    wired = Wired(CONFIG, SimulatedFileSystem(), threads=False)
    wired.broker.state.topics.put(TopicConfig(topic_name="B"), 0)
    wired.save()
    peer = wired.connect()
    body = encode_batch("B", [BatchItem(b"one", item), BatchItem(b"two", item)])
    request = send_request("B", body, code=320, batch=True, **fields)
    wired.give(peer, wired.frame(peer, request))
    wired.sync()
    (answer,) = wired.answers(peer)
    return wired, answer.code


@pytest.mark.parametrize(
    ("properties", "code"),
    [
        ("DELAY\x013\x02", ResponseCode.MESSAGE_ILLEGAL),
        ("TIMER_DELAY_MS\x013000\x02", ResponseCode.MESSAGE_ILLEGAL),
        ("DELAY\x01abc\x02", ResponseCode.SYSTEM_ERROR),
        ("DELAY\x010\x02", ResponseCode.SUCCESS),
    ],
)
def test_a_batch_that_is_to_wait_as_a_whole_is_refused(properties: str, code: int) -> None:
    wired, answered = ordinary(properties=properties)
    assert answered == code
    assert wired.broker.store.max_offset("B", 0) == (0 if code else 2)


def test_messages_of_a_batch_that_say_they_are_halves_are_messages_like_any_as_with_apache() -> (
    None
):
    half = b"UNIQ_KEY\x01K\x02TRAN_MSG\x01true\x02PGROUP\x01p\x02"
    wired, code = ordinary(half, properties=half.decode())
    assert (code, wired.broker.store.max_offset("B", 0)) == (0, 2)
    assert wired.broker.state.transactions.table.count == 0


def test_a_batch_whose_flags_say_that_it_is_half_of_a_transaction_is_refused() -> None:
    wired, code = ordinary(sys_flag=int(SysFlag.TRANSACTION_PREPARED))
    assert code == ResponseCode.MESSAGE_ILLEGAL
    assert wired.broker.store.max_offset("B", 0) == 0
