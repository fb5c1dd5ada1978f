"""A store goes from us to a live Apache 5.5.0 and back, shut down cleanly each time."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.interop.apache_broker import ApacheBroker
from tests.interop.apache_client import BrokerClient
from tests.interop.store_checks import (
    check_by_apache,
    check_by_us,
    check_index_files,
    check_queue_files,
    found_in_log,
    store_times,
    times_by_apache,
    times_by_us,
)
from tests.interop.store_config_files import (
    COMMITTED,
    GROUP,
    read_config_file,
    write_config_files,
)
from tests.interop.store_content import (
    APACHE_SETTINGS,
    INNER,
    PLAIN,
    send,
    write,
    write_prepared,
)
from tests.interop.store_sessions import now_ms, opened, write_and_close

from cometmq.store.config import Flush
from cometmq.store.disk.filesystem import RealFileSystem
from cometmq.store.tables import CONSUMER_OFFSETS, SUBSCRIPTION_GROUPS, TOPICS
from cometmq.store.upkeep.checkpoint import load_checkpoint

pytestmark = pytest.mark.slow


def check_claims_are_old(root: Path, end: int) -> None:
    """Our part of the checkpoint is still there, and known to be older than Apache's."""
    checkpoint = load_checkpoint(RealFileSystem(), str(root / "checkpoint"))
    assert checkpoint.claims is None
    assert checkpoint.last_claims is not None
    assert checkpoint.last_claims.recover_from == end


def test_a_store_goes_to_apache_and_back_and_forth_without_losing_or_doubling_a_message(
    tmp_path: Path,
) -> None:
    root = tmp_path / "store"
    known = write_and_close(root, 0, 700, before_ms=60_000, flush=Flush.SYNC)
    with opened(root) as store:
        # Apache does not look at the record after the last one that has an entry. But of a batch
        # queue's record it knows only the start, and would index what follows it again.
        known += write(store, 20_000, 1, now_ms())
        known.append(write_prepared(store, 10_000, now_ms()))
        end = store.end_offset
    write_config_files(str(root))
    known = found_in_log(root, known)
    check_queue_files(root)
    check_index_files(root)
    assert len(list((root / "commitlog").iterdir())) > 4
    times = store_times(root, 20)
    with opened(root) as store:
        offsets = times_by_us(store, known, times)

    with ApacheBroker(tmp_path, APACHE_SETTINGS) as broker:
        with BrokerClient(broker.port) as client:
            check_by_apache(client, known)
            assert times_by_apache(client, known, times) == offsets
            for queue_id, offset in COMMITTED.items():
                assert client.consumer_offset(GROUP, PLAIN, queue_id) == offset
            client.commit_offset(GROUP, PLAIN, 1, 11)
            known += send(client, len(known), 60)
            check_by_apache(client, known)
        broker.stop()

    check_claims_are_old(root, end)
    known = found_in_log(root, known)
    offsets_file = read_config_file(str(root), CONSUMER_OFFSETS)
    committed = offsets_file["offsetTable"][f"{PLAIN}@{GROUP}"]
    assert {int(queue): offset for queue, offset in committed.items()} == {**COMMITTED, 1: 11}
    topics = read_config_file(str(root), TOPICS)["topicConfigTable"]
    assert topics[INNER]["attributes"] == {"queue.type": "BatchCQ"}
    groups = read_config_file(str(root), SUBSCRIPTION_GROUPS)["subscriptionGroupTable"]
    assert groups[GROUP]["retryMaxTimes"] == 3
    with opened(root) as store:
        assert store.kept is None
        check_by_us(store, known)
        known += write(store, len(known), 80, now_ms())
        check_by_us(store, known)
        end = store.end_offset
    known = found_in_log(root, known)
    check_queue_files(root)
    check_index_files(root)

    with ApacheBroker(tmp_path, APACHE_SETTINGS) as broker:
        with BrokerClient(broker.port) as client:
            check_by_apache(client, known)
            known += send(client, len(known), 20)
            check_by_apache(client, known)
        broker.stop()
    check_claims_are_old(root, end)
    check_queue_files(root)
    check_index_files(root)
