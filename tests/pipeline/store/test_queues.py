"""The tables of queue entries and index items hold what the store's own readers find."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from tests.store.apache_stores import config, records, unpack

from cometmq.pipeline.columns import schema_of
from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.store import index, queues
from cometmq.pipeline.store.index import IndexPart, index_batches
from cometmq.pipeline.store.queues import QueuePart, queue_batches, queue_parts
from cometmq.store.index.index_format import ITEM, IndexHeader
from cometmq.store.looking.store_reader import StoreReader


def rows_of(parts: list[QueuePart]) -> list[dict[str, object]]:
    return [
        row
        for part in parts
        for batch in queue_batches(part, tuple(queues.COLUMNS))
        for row in batch.to_pylist()
    ]


@pytest.mark.parametrize("at_once", [3, 16_384])
@pytest.mark.parametrize("store", ["clean", "killed"])
def test_each_readable_message_has_an_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, at_once: int
) -> None:
    monkeypatch.setattr(queues, "_ROWS", at_once)
    root = unpack(store, tmp_path)
    rows = rows_of(queue_parts(str(root)))
    reader = StoreReader(str(root), config(store))
    places = {m.physical_offset: m for m in records(store)}
    found: dict[tuple[object, object], list[int]] = {}
    for row in rows:
        message = places[int(str(row["physical_offset"]))]
        assert (row["topic"], row["queue_id"]) == (message.topic, message.queue_id)
        assert row["size"] == message.size
        assert row["queue_offset"] == message.queue_offset
        assert row["is_batch"] == (row["store_time"] is not None)
        offsets = found.setdefault((row["topic"], row["queue_id"]), [])
        offsets += range(message.queue_offset, message.queue_offset + int(str(row["messages"])))
    for topic in reader.topics():
        for queue_id in reader.queues(topic):
            end = reader.max_offset(topic, queue_id)
            readable = found.get((topic, queue_id), [])
            assert readable[:end] == list(range(end))
    reader.close()


def test_only_the_topics_that_are_asked_for_are_listed(tmp_path: Path) -> None:
    root = str(unpack("clean", tmp_path))
    every = {part.topic for part in queue_parts(root)}
    some = sorted(every)[:2]
    assert {part.topic for part in queue_parts(root, some)} == set(some)
    assert queue_parts(root, ["nobody"]) == []


@pytest.mark.parametrize("name", ["\u0663", "99999999999", "9" * 30, "007", "1x"])
def test_a_folder_that_is_no_queues_has_no_entries(tmp_path: Path, name: str) -> None:
    root = unpack("clean", tmp_path)
    every = queue_parts(str(root))
    shutil.copytree(Path(every[0].path).parent, root / "consumequeue" / every[0].topic / name)
    assert queue_parts(str(root)) == every


def test_some_columns_come_in_their_order(tmp_path: Path) -> None:
    root = str(unpack("clean", tmp_path))
    (batch, *_) = queue_batches(queue_parts(root)[0], ("size", "topic"))
    assert batch.schema.equals(schema_of(queues.COLUMNS, ("size", "topic")))


def test_each_item_of_the_index_is_a_row(tmp_path: Path) -> None:
    root = unpack("clean", tmp_path)
    settings = config("clean")
    shape = settings.index_shape
    for path in sorted((root / "index").iterdir()):
        data = path.read_bytes()
        header = IndexHeader.unpack(data)
        parts = [
            IndexPart(str(root), str(path), path.name, shape.items_at, first, first + 150)
            for first in range(1, shape.items, 150)
        ]
        batches = [b for part in parts for b in index_batches(part, tuple(index.COLUMNS))]
        rows = pa.Table.from_batches(batches, schema_of(index.COLUMNS, index.COLUMNS)).to_pylist()
        assert [row["item"] for row in rows] == list(range(1, header.next_item))
        for row in rows:
            place = shape.items_at + row["item"] * ITEM.size
            key_hash, offset, seconds, previous = ITEM.unpack_from(data, place)
            assert (row["key_hash"], row["physical_offset"]) == (key_hash, offset)
            assert (row["file"], row["previous"]) == (path.name, previous)
            seconds = seconds if row["item"] > 1 else 0
            assert row["store_time"].timestamp() * 1000 == header.begin_time + seconds * 1000


@pytest.mark.parametrize("folder", ["consumequeue", "consumequeue_rocksdb"])
def test_entries_that_are_in_rocksdb_are_refused(tmp_path: Path, folder: str) -> None:
    root = unpack("clean", tmp_path)
    (root / folder / "CURRENT").mkdir(parents=True)
    assert queue_parts(str(root))  # A topic may have this name.
    (root / folder / "CURRENT").rmdir()
    (root / folder / "CURRENT").write_text("MANIFEST-000005\n")
    with pytest.raises(OptionError, match=f"/{folder}: .* in RocksDB"):
        queue_parts(str(root))
