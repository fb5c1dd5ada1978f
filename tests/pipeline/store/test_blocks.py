"""The checksums of sealed blocks, as a task compares them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.store.damaged_stores import write_small_store
from tests.store.records import HOST

from cometmq.pipeline.store import blocks, survey
from cometmq.pipeline.store.splits import look, parts
from cometmq.store.config import StoreConfig
from cometmq.store.disk.filesystem import RealFileSystem
from cometmq.store.log.turn import Origin
from cometmq.store.message_store import MessageStore
from cometmq.store.upkeep import integrity

SEGMENT: int = 1 << 20


def write_store(root: Path, messages: int) -> None:
    """Write a CometMQ store with some files of 1 MiB, and close it."""
    config = StoreConfig(segment_size=SEGMENT)
    store = MessageStore.open(str(root), config, now_ms=1, threads=False)
    for number in range(messages):
        store.put("T", 0, b"x" * 10_000, b"KEYS\x01k%d\x02" % number, Origin(1, 1, HOST))
        store.commit()
        store.run_jobs()
        store.advance()
        store.tick(1 + number)
    assert store.close(2)


def compared(root: Path, split_size: int = 64 << 20, sample: float = 1.0) -> blocks.Compared:
    found = [blocks.compare(part, sample) for part in parts(look(str(root)), split_size)]
    wrong = [each for one in found for each in one.wrong]
    return blocks.Compared(sum(one.blocks or 0 for one in found), sorted(wrong))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("split_size", [64 << 20, 300_000, 65_536, 10_000])
def test_a_changed_byte_is_found_however_the_log_is_cut(tmp_path: Path, split_size: int) -> None:
    write_store(tmp_path, 250)
    end = look(str(tmp_path)).end
    count = end // blocks.BLOCK_SIZE
    assert compared(tmp_path, split_size) == (count, [])
    assert end > 2 * SEGMENT
    for place in (0, SEGMENT - 1, SEGMENT + 100_000, end // blocks.BLOCK_SIZE * 65_536 - 1):
        path = tmp_path / "commitlog" / f"{place - place % SEGMENT:020d}"
        flip(path, place % SEGMENT)
        start = place - place % blocks.BLOCK_SIZE
        assert compared(tmp_path, split_size) == (count, [(start, start + 65_536)])
        flip(path, place % SEGMENT)


def test_a_sidecar_that_is_damaged_or_missing_covers_nothing(tmp_path: Path) -> None:
    write_store(tmp_path, 120)
    count = compared(tmp_path).blocks
    path = tmp_path / "integrity" / f"{0:020d}"
    flip(path, 64 + 3 * 8 + 5)  # The check of an entry.
    assert compared(tmp_path) == ((count or 0) - 1, [])
    flip(path, 20)  # The header.
    assert compared(tmp_path) == ((count or 0) - 16, [])
    path.unlink()
    assert compared(tmp_path) == ((count or 0) - 16, [])


def test_a_block_that_is_shorter_is_compared_too(tmp_path: Path) -> None:
    write_small_store(RealFileSystem(), str(tmp_path))  # Its files have 4096 bytes.
    assert compared(tmp_path) == (2, [])
    flip(tmp_path / "commitlog" / f"{4096:020d}", 4000)
    assert compared(tmp_path) == (2, [(4096, 8192)])


def test_a_sample_has_its_share(tmp_path: Path) -> None:
    write_store(tmp_path, 400)
    assert 15 <= (compared(tmp_path, sample=0.4).blocks or 0) <= 35


def test_where_nobody_can_reckon_them_none_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_small_store(RealFileSystem(), str(tmp_path))
    monkeypatch.setitem(sys.modules, "crc32c", None)
    (part, *_) = parts(look(str(tmp_path)))
    assert blocks.compare(part) == (None, [])


def test_a_survey_tells_of_blocks_if_asked(tmp_path: Path) -> None:
    write_small_store(RealFileSystem(), str(tmp_path))
    flip(tmp_path / "commitlog" / f"{0:020d}", 4090)
    rows = [
        row
        for asked in (False, True)
        for part in parts(look(str(tmp_path)))
        for batch in survey.survey_batches(
            part, tuple(survey.COLUMNS), checksums=False, runs=False, blocks=asked
        )
        for row in batch.to_pylist()
    ]
    assert [row["blocks"] for row in rows if row["kind"] == "part"] == [0, 0, 0, 1, 1, 0]
    (wrong,) = [row for row in rows if row["kind"] == "block"]
    assert (wrong["start"], wrong["end"]) == (0, 4096)
    assert wrong["file"] == str(tmp_path / "commitlog" / f"{0:020d}")


def test_the_format_is_the_one_that_a_store_writes() -> None:
    assert blocks.BLOCK_SIZE == integrity.BLOCK_SIZE
    assert blocks.VERSION == integrity.VERSION
