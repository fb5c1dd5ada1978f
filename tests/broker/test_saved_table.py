"""A torn table is loaded from its backup, and the operator is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.broker.clocked import TOPIC, Clocked
from tests.crash.disk import SimulatedFileSystem
from tests.store.apache_stores import unpack

from cometmq.broker.saved_table import SavedTable
from cometmq.proto import fastjson
from cometmq.store.disk.filesystem import RealFileSystem
from cometmq.store.errors import StoreFormatError
from cometmq.store.tables import CONSUMER_OFFSETS, DELAY_OFFSETS, SUBSCRIPTION_GROUPS, TOPICS

if TYPE_CHECKING:
    from pathlib import Path

STEP = 61


@pytest.mark.parametrize("name", [TOPICS, SUBSCRIPTION_GROUPS, CONSUMER_OFFSETS, DELAY_OFFSETS])
def test_apaches_table_torn_anywhere_is_as_it_was_a_save_before_and_that_is_said(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = unpack("clean", tmp_path) / "config" / name
    whole = path.read_bytes()
    backup = path.with_name(f"{name}.bak")
    before = fastjson.loads(backup.read_bytes())
    table = SavedTable(RealFileSystem(), str(path.parent), name, on_change=lambda: None)
    assert table.load(dict) == fastjson.loads(whole)
    assert caplog.messages == []
    for length in range(0, len(whole) - 1, STEP):
        path.write_bytes(whole[:length])
        assert table.load(dict) == before
        (message,) = caplog.messages
        assert f"{path} is missing or damaged" in message
        assert str(backup) in message
        caplog.clear()
        backup.rename(tmp_path / "away")
        if length:
            with pytest.raises(StoreFormatError, match="restore it from a copy"):
                table.load(dict)
        (tmp_path / "away").rename(backup)
    path.unlink()
    assert table.load(dict) == before
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("backup", [None, b"\0\0"])
def test_one_that_has_no_content_and_no_backup_begins_empty_and_that_is_said(
    backup: bytes | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = SavedTable(RealFileSystem(), str(tmp_path), DELAY_OFFSETS, on_change=lambda: None)
    assert table.load(dict) == {}
    assert caplog.messages == []
    path = tmp_path / DELAY_OFFSETS
    path.write_bytes(bytes(40))
    if backup is not None:
        path.with_name(f"{DELAY_OFFSETS}.bak").write_bytes(backup)
    assert table.load(dict) == {}
    (message,) = caplog.messages
    assert message.startswith(f"{path} has no content, and there is no good {path}.bak")


def test_offsets_that_stay_as_they_are_are_in_each_file_that_is_saved() -> None:
    broker = Clocked(SimulatedFileSystem())
    for group, offset in [("first", 5), ("other", 6), ("first", 7)]:
        broker.wired.broker.state.offsets.commit(group, TOPIC, 0, offset)
        broker.wired.broker.flush_offsets()
        broker.wired.close()
        broker.start(broker.disk)
    offsets = broker.wired.broker.state.offsets
    assert [offsets.find(group, TOPIC, 0) for group in ("first", "other")] == [7, 6]
