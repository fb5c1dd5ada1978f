"""The index made from Apache's logs equals Apache's: header counts, slots, items and chains."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.proto.apache_messages import STORES
from tests.store.apache_stores import config, manifest_records, records, unpack

from cometmq.store.config import StoreConfig
from cometmq.store.disk.filesystem import RealFileSystem
from cometmq.store.index.index import Index
from cometmq.store.index.index_format import HEADER_SIZE, IndexHeader
from cometmq.store.messages.dispatch import note_record

NOW_MS = 1_795_254_456_000


def rebuild(store: str, root: Path, settings: StoreConfig, batch: int) -> Index:
    """Rebuild the index of a captured store from its log."""
    index = Index(RealFileSystem(), str(root), settings, clean=True)
    for message in records(store):
        note_record(index, message)
        if index.waiting >= batch:
            index.build(batch, NOW_MS)
    assert index.finish(NOW_MS)
    return index


def contents(root: Path) -> list[tuple[IndexHeader, bytes]]:
    files = sorted((root / "index").iterdir())
    raw = [path.read_bytes() for path in files]
    return [(IndexHeader.unpack(each[:HEADER_SIZE]), each[HEADER_SIZE:]) for each in raw]


@pytest.mark.parametrize("batch", [1, 100, 4096])
@pytest.mark.parametrize("store", STORES)
def test_an_index_rebuilt_from_the_log_is_equal_byte_for_byte(
    tmp_path: Path, store: str, batch: int
) -> None:
    apache = unpack(store, tmp_path)
    rebuild(store, tmp_path / "ours", config(store), batch)
    found, expected = contents(tmp_path / "ours"), contents(apache)
    assert [header for header, _ in found] == [header for header, _ in expected]
    for (_, ours), (_, theirs) in zip(found, expected, strict=True):
        assert ours == theirs


@pytest.mark.parametrize("store", STORES)
def test_every_record_is_found_in_apaches_index_by_each_of_its_keys(
    tmp_path: Path, store: str
) -> None:
    apache = unpack(store, tmp_path)
    index = Index(RealFileSystem(), str(apache), config(store), clean=True)
    asked = 0
    for line in manifest_records(store):
        properties, offset, time = (
            line["properties"],
            line["physicalOffset"],
            line["storeTimestamp"],
        )
        if line["sysFlag"] & 0xC == 0xC:
            continue
        keys = [(key, "") for key in properties.get("KEYS", "").split(" ") if key]
        keys += [(properties["UNIQ_KEY"], "")] if "UNIQ_KEY" in properties else []
        keys += [(properties["TAGS"], "T")] if "TAGS" in properties else []
        for key, kind in keys:
            found = index.search(
                line["topic"],
                key,
                64,
                begin_ms=time,
                end_ms=time,
                kind=kind,
                accept={offset}.__contains__,
            ).run()
            assert found == [offset], (line["topic"], key, kind)
            asked += 1
    assert asked > 100


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("synced", [False, True])
def test_recovering_apaches_index_and_adding_the_rest_gives_it_back(
    tmp_path: Path, store: str, synced: bool
) -> None:
    apache = unpack(store, tmp_path)
    expected = contents(apache)
    log = list(records(store))
    for message in [*log[:: len(log) // 7], log[-1]]:
        index = Index(RealFileSystem(), str(apache), config(store), clean=False)
        resume = index.recover(message.physical_offset, synced=synced)
        assert resume <= message.physical_offset
        for each in log:
            note_record(index, each)
        assert index.finish(NOW_MS + 10**9)
        index.close()
        found = contents(apache)
        assert [body for _, body in found] == [body for _, body in expected]
        assert [header for header, _ in found] == [header for header, _ in expected]
