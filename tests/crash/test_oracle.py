"""The oracle of the crash tests agrees with stores that a live Apache broker wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.archives import unpack
from tests.crash.oracle import PRE_BLANK, Log, consume_queues, index_files, index_items, read_log

VECTORS = Path(__file__).parent.parent / "vectors" / "store"


class ApacheStore:
    def __init__(self, name: str, folder: Path) -> None:
        unpack(VECTORS / f"{name}.tar.xz", folder)
        self.root = folder / "store"
        self.manifest: dict[str, Any] = json.loads((VECTORS / f"{name}.manifest.json").read_text())
        self.log: Log = read_log(
            {int(path.name): path.read_bytes() for path in (self.root / "commitlog").iterdir()}
        )


@pytest.fixture(scope="module", params=["clean", "killed", "ext"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ApacheStore:
    return ApacheStore(request.param, tmp_path_factory.mktemp(request.param))


def test_it_reads_every_record(store: ApacheStore) -> None:
    offsets = {record.physical_offset for record in store.log.records}
    listed = {message["physicalOffset"] for message in store.manifest["messages"]}
    assert listed
    assert listed <= offsets
    assert not store.log.trailing.strip(b"\0")


def test_it_makes_the_consume_queues_that_apache_made(store: ApacheStore) -> None:
    queues = consume_queues(store.log)
    compared = 0
    for folder in sorted((store.root / "consumequeue").glob("*/*")):
        entries = queues[folder.parent.name, int(folder.name)]
        for path in sorted(folder.iterdir()):
            data = path.read_bytes()
            first = int(path.name) // 20
            for at in range(0, len(data), 20):
                entry = data[at : at + 20]
                if entry.strip(b"\0") and entry != PRE_BLANK:
                    expected = entries[first + at // 20]
                    is_address = int.from_bytes(entry[12:], "big", signed=True) <= -2147483649
                    assert entry[:12] == expected[:12]
                    assert is_address or entry == expected
                    compared += 1
    assert compared > 20


def test_it_makes_the_index_that_apache_made(store: ApacheStore) -> None:
    settings = store.manifest["settings"]
    slots, size = int(settings["maxHashSlotNum"]), int(settings["maxIndexNum"])
    made = index_files(index_items(store.log), slots, size)
    found = [path.read_bytes() for path in sorted((store.root / "index").iterdir())]
    assert len(made) == len(found)
    for ours, theirs in zip(made, found, strict=True):
        assert ours == theirs[: len(ours)]
        assert not theirs[len(ours) :].strip(b"\0")
