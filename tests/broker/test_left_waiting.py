"""A start on a store of Apache's reports messages whose delivery time has not come."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from tests.archives import unpack
from tests.broker.running import config_of
from tests.broker.wired import Wired

from cometmq.store.disk.filesystem import RealFileSystem

VECTORS: Final = Path(__file__).parents[1] / "vectors/store"


def told(folder: Path, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what a start on the unpacked archive logs about waiting messages."""
    config = config_of(folder, store_path=str(folder / "store"))
    sizes = replace(
        config.store, index_slots=200, index_items=400, batch_consume_queue_file_size=4600
    )
    caplog.clear()
    Wired(replace(config, store=sizes), RealFileSystem(), threads=False).close()
    assert all(record.levelname == "WARNING" for record in caplog.records)
    return [text for text in caplog.messages if "rmq_sys_wheel_timer" in text]


def test_a_start_says_how_many_wait_and_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    unpack(VECTORS / "clean.tar.xz", tmp_path)
    (text,) = told(tmp_path, caplog)
    assert "by config/timermetrics 4 of S_delay may still wait there" in text
    assert "`cometmq tail rmq_sys_wheel_timer --no-follow` shows them" in text
    assert told(tmp_path, caplog) == [text]  # Each start says it while they are there.


@pytest.mark.parametrize("damaged", [False, True])
def test_without_a_count_any_of_them_may_wait(
    damaged: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    unpack(VECTORS / "clean.tar.xz", tmp_path)
    for name in ("timermetrics", "timermetrics.bak"):
        path = tmp_path / "store/config" / name
        if damaged:
            path.write_text('{"timingCount": 7}')
        else:
            path.unlink()
    (text,) = told(tmp_path, caplog)
    assert "any of its 10 messages may still wait there" in text


def test_where_none_waits_nothing_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    unpack(VECTORS / "clean.tar.xz", tmp_path)
    for name in ("timermetrics", "timermetrics.bak"):
        (tmp_path / "store/config" / name).write_text('{"timingCount":{"S_delay":{"count":0}}}')
    assert told(tmp_path, caplog) == []
