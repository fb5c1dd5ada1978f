"""A store that a live Apache 5.5.0 used with queue files, and then with RocksDB, is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.admin.test_store_commands import fingerprint
from tests.interop.apache_broker import ApacheBroker
from tests.interop.apache_client import BrokerClient
from tests.interop.store_checks import log_of
from tests.interop.store_content import APACHE_SETTINGS, PLAIN, sendable
from tests.interop.store_sessions import open_store, write_and_close

from cometmq.store.errors import StoreFormatError

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.mark.parametrize("is_killed", [False, True])
def test_no_start_takes_its_older_files_for_all_there_is(tmp_path: Path, is_killed: bool) -> None:
    root = tmp_path / "store"
    known = write_and_close(root, 0, 50, before_ms=60_000)
    end = log_of(root).end
    rocksdb = APACHE_SETTINGS | {"storeType": "defaultRocksDB"}
    with ApacheBroker(tmp_path, rocksdb) as broker, BrokerClient(broker.port) as client:
        for number in range(len(known), len(known) + 20):
            sent = sendable(number)
            client.send(PLAIN, 0, sent.body, sent.properties)
        (broker.kill if is_killed else broker.stop)()
    assert log_of(root).end > end
    assert (root / "consumequeue" / PLAIN).exists()
    before = fingerprint(str(root))
    with pytest.raises(StoreFormatError, match=r"/config: .* in RocksDB"):
        open_store(root)
    assert fingerprint(str(root)) == before
