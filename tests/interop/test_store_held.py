"""Queues whose messages are all gone from the log continue at their offsets under a live Apache."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.interop.apache_broker import ApacheBroker
from tests.interop.apache_client import SECONDS, BrokerClient
from tests.interop.store_config_files import write_config_files
from tests.interop.store_content import (
    APACHE_SETTINGS,
    INNER,
    IPV4,
    PLAIN,
    SEGMENT_SIZE,
    message,
    store_config,
)
from tests.interop.store_sessions import now_ms, opened

from cometmq.proto.batch import BatchItem
from cometmq.proto.properties import encode_properties
from cometmq.store.disk.filesystem import RealFileSystem
from cometmq.store.log.turn import Origin
from cometmq.store.looking.inspection import inspect
from cometmq.store.mending.rebuilding import Rebuilt, rebuild

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cometmq.store.message_store import MessageStore

pytestmark = [pytest.mark.slow, pytest.mark.long]

HELD = 3
"""The number of the plain queue all of whose messages are expired."""
BATCH = 14
"""The number of a message that is a batch, in the batch queue 0."""


def put(root: Path, numbers: list[int], filling: int = 0) -> None:
    """Put messages, and after them `filling` bytes into another queue."""
    with opened(root) as store:
        for number in numbers:
            sent = message(number)
            origin = Origin(now_ms(), now_ms(), IPV4, sent.sys_flag)
            properties = encode_properties(sent.properties)
            store.put(sent.topic, sent.queue_id, sent.body, properties, origin)
            store.commit()
        end = store.end_offset + filling
        while store.end_offset < end:
            store.put(PLAIN, 0, bytes(4000), b"", Origin(now_ms(), now_ms(), IPV4))
            store.commit()


@pytest.mark.parametrize("by", ["expiry", "rebuild"])
def test_a_queue_whose_messages_are_all_gone_goes_on_with_apache_where_it_was(
    tmp_path: Path, by: str
) -> None:
    root = tmp_path / "store"
    put(root, [HELD, HELD + 16, HELD + 32, BATCH, BATCH + 32], 3 * SEGMENT_SIZE)
    write_config_files(str(root))
    for segment in sorted((root / "commitlog").iterdir())[:-2]:
        segment.unlink()
    put(root, [])
    if by == "rebuild":
        shutil.rmtree(root / "consumequeue" / PLAIN / str(HELD))
        shutil.rmtree(root / "batchconsumequeue" / INNER / "0")
        for _ in rebuild(inspect(RealFileSystem(), str(root), store_config()), Rebuilt(), now_ms()):
            pass
    ends = {(PLAIN, HELD): 3, (INNER, 0): 6}
    with opened(root) as store:
        assert bounds(store, ends) == [(end, end) for end in ends.values()]

    with ApacheBroker(tmp_path, APACHE_SETTINGS) as broker:
        with BrokerClient(broker.port) as client:
            assert bounds(client, ends) == [(end, end) for end in ends.values()]
            assert client.send(PLAIN, HELD, b"next", {}).queue_offset == ends[PLAIN, HELD]
            items = [BatchItem(b"one"), BatchItem(b"two")]
            assert client.send_batch(INNER, 0, items, {}).queue_offset == ends[INNER, 0]
            ended = time.monotonic() + SECONDS
            while bounds(client, ends) != [(3, 4), (6, 8)]:  # Entries are made in the background.
                assert time.monotonic() < ended
                time.sleep(0.01)
            assert [each.queue_offset for each in client.pull_all(PLAIN, HELD)] == [3]
            assert [each.queue_offset for each in client.pull_all(INNER, 0)] == [6, 7]
        broker.stop()
    with opened(root) as store:
        assert bounds(store, ends) == [(3, 4), (6, 8)]
        assert [store.read(*queue, end, 32).record_count for queue, end in ends.items()] == [1, 2]


def bounds(
    asked: MessageStore | BrokerClient, queues: Iterable[tuple[str, int]]
) -> list[tuple[int, int]]:
    """Return the least offset of each queue, and the one after its last message."""
    return [(asked.min_offset(*queue), asked.max_offset(*queue)) for queue in queues]
