"""A store goes from a live Apache 5.5.0 with `enableConsumeQueueExt` to us and back."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from tests.crash.oracle import consume_queues
from tests.interop.apache_broker import ApacheBroker
from tests.interop.apache_client import BrokerClient
from tests.interop.store_checks import (
    check_by_apache,
    check_by_us,
    check_index_files,
    found_in_log,
    log_of,
    queue_content,
)
from tests.interop.store_config_files import write_config_files
from tests.interop.store_content import APACHE_SETTINGS, INNER, PLAIN, Known, send, write
from tests.interop.store_sessions import now_ms, opened

from cometmq.proto.java import string_hash
from cometmq.store.disk.filesystem import RealFileSystem
from cometmq.store.message_store import MessageStore
from cometmq.store.messages.reading import Filter
from cometmq.store.queues.consume_queue_ext import ConsumeQueueExt, is_address

pytestmark = [pytest.mark.slow, pytest.mark.long]

SETTINGS = {
    **APACHE_SETTINGS,
    "enableConsumeQueueExt": "true",
    "enableCalcFilterBitMap": "true",
    "mappedFileSizeConsumeQueueExt": "4096",
}


def tagged(known: list[Known], queue_id: int, tag: str) -> list[int]:
    return [
        each.physical_offset
        for each in known
        if (each.topic, each.queue_id) == (PLAIN, queue_id) and each.properties.get("TAGS") == tag
    ]


def picked_by_us(store: MessageStore, queue_id: int, tag: str) -> int:
    """Count the messages of a queue that the store finds by a tag."""
    wanted = Filter(codes={string_hash(tag)})
    count = offset = 0
    while offset < store.max_offset(PLAIN, queue_id):
        result = store.read(PLAIN, queue_id, offset, 32, wanted=wanted)
        count += result.record_count
        offset = result.next_begin_offset
    return count


def check_tags(store: MessageStore, known: list[Known]) -> None:
    for queue_id, tag in enumerate(("TagA", "TagB", "标签😀")):
        expected = tagged(known, queue_id, tag)
        assert len(expected) > 5
        assert picked_by_us(store, queue_id, tag) == len(expected)


def check_entries(root: Path, addresses_min: int) -> None:
    """Each entry leads to its record, and to its tags code, directly or through the extension."""
    extension = ConsumeQueueExt(RealFileSystem(), str(root))
    addresses = 0
    for (topic, queue_id), entries in consume_queues(log_of(root)).items():
        if topic == INNER:
            continue
        content = queue_content(root / "consumequeue" / topic / str(queue_id))
        for queue_offset, expected in entries.items():
            entry = content[queue_offset * 20 : queue_offset * 20 + 20]
            code = struct.unpack(">12xq", entry)[0]
            addresses += is_address(code)
            code = extension.tags_code(topic, queue_id, code)
            assert entry[:12] + struct.pack(">q", code) == expected
    extension.close()
    assert addresses >= addresses_min


def test_with_extensions_a_store_goes_from_apache_to_us_and_back(tmp_path: Path) -> None:
    root = tmp_path / "store"
    write_config_files(str(root))
    with ApacheBroker(tmp_path, SETTINGS) as broker:
        with BrokerClient(broker.port) as client:
            known = send(client, 0, 300)
        broker.stop()
    check_entries(root, 200)

    with opened(root) as store:
        check_by_us(store, known)
        check_tags(store, known)
        known += write(store, len(known), 200, now_ms())
        check_by_us(store, known)
        check_tags(store, known)
    check_entries(root, 200)
    check_index_files(root)

    with ApacheBroker(tmp_path, SETTINGS) as broker:
        with BrokerClient(broker.port) as client:
            check_by_apache(client, known)
            for queue_id, tag in enumerate(("TagA", "TagB", "标签😀")):
                found = client.pull_all(PLAIN, queue_id, subscription=tag)
                assert [m.physical_offset for m in found] == tagged(known, queue_id, tag)
            known += send(client, len(known), 50)
        broker.kill()
    known = found_in_log(root, known)
    with opened(root) as store:
        check_by_us(store, known)
        check_tags(store, known)
    check_entries(root, 0)
