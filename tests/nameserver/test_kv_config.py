from __future__ import annotations

import contextlib
import errno
from random import Random

import pytest
from tests.crash.disk import KillAt, Killed, Moment, Operation, SimulatedFileSystem

from cometmq.nameserver.config import NameServerConfig
from cometmq.nameserver.errors import RequestError
from cometmq.nameserver.kv_config import KvConfig
from cometmq.store.disk.filesystem import FileSystem
from cometmq.store.errors import StoreFormatError

PATH = "/ns/kvConfig.json"
CONFIG = NameServerConfig()


def written(filesystem: FileSystem, text: bytes) -> None:
    filesystem.make_directories("/ns")
    file = filesystem.open(PATH, create=True)
    file.write(text, 0)
    file.sync()
    file.close()
    filesystem.sync_directory("/ns")
    filesystem.sync_directory("/")


def content(filesystem: FileSystem) -> bytes:
    file = filesystem.open(PATH, read_only=True)
    try:
        return file.read(file.size(), 0)
    finally:
        file.close()


def test_texts_are_found_by_namespace_and_key() -> None:
    kv = KvConfig.load(SimulatedFileSystem(), PATH)
    kv.put("N", "k", "v", CONFIG)
    kv.put("N", "k2", "w", CONFIG)
    kv.put("N", "k", "v2", CONFIG)
    assert kv.get("N", "k") == "v2"
    assert kv.get("N", "no") is None
    assert kv.get("no", "k") is None
    assert kv.namespace("N") == {"k": "v2", "k2": "w"}
    assert kv.namespace("no") is None


def test_a_namespace_stays_when_its_last_text_goes() -> None:
    filesystem = SimulatedFileSystem()
    kv = KvConfig.load(filesystem, PATH)
    kv.put("N", "k", "v", CONFIG)
    kv.delete("N", "k")
    kv.delete("N", "k")
    kv.delete("no", "k")
    assert kv.namespace("N") == {}
    assert content(filesystem) == b'{"configTable":{"N":{}}}'


def test_the_file_is_apaches() -> None:
    filesystem = SimulatedFileSystem()
    kv = KvConfig.load(filesystem, PATH)
    kv.put("ORDER_TOPIC_CONFIG", "T_order", "broker-a:2", CONFIG)
    expected = b'{"configTable":{"ORDER_TOPIC_CONFIG":{"T_order":"broker-a:2"}}}'
    assert content(filesystem) == expected


@pytest.mark.parametrize(
    "text",
    [
        b'{"configTable":{"N":{"k":"v"}}}',
        b'{\n\t"configTable":{\n\t\t"N":{"k":"v",},\n\t}\n}',
        b'{"configTable":{"N":{"k":"v"}},"other":1}',
    ],
)
def test_a_file_that_apache_would_read_is_read(text: bytes) -> None:
    filesystem = SimulatedFileSystem()
    written(filesystem, text)
    assert KvConfig.load(filesystem, PATH).namespace("N") == {"k": "v"}


@pytest.mark.parametrize("text", [b"{}", b""])
def test_a_file_without_a_table_is_an_empty_one(text: bytes) -> None:
    filesystem = SimulatedFileSystem()
    written(filesystem, text)
    assert KvConfig.load(filesystem, PATH).namespace("N") is None


@pytest.mark.parametrize("text", [b'{"configTable":{"N":', b'{"configTable":[]}', b"[]"])
def test_a_damaged_file_is_never_taken_for_an_empty_table(text: bytes) -> None:
    filesystem = SimulatedFileSystem()
    written(filesystem, text)
    with pytest.raises(StoreFormatError, match="kvConfig"):
        KvConfig.load(filesystem, PATH)


def test_a_put_that_changes_nothing_writes_nothing() -> None:
    filesystem = SimulatedFileSystem()
    kv = KvConfig.load(filesystem, PATH)
    kv.put("N", "k", "v", CONFIG)
    before = filesystem.operations
    kv.put("N", "k", "v", CONFIG)
    assert filesystem.operations == before


def changed_at(number: int, moment: Moment, seed: int) -> tuple[dict[str, str] | None, bool]:
    """Cut the power at an operation of a change; return the table found, and whether it was hit."""
    filesystem = SimulatedFileSystem()
    KvConfig.load(filesystem, PATH).put("N", "k", "old", CONFIG)
    kill = KillAt(filesystem.operations + number, moment)
    filesystem.hook = kill
    with contextlib.suppress(Killed):
        KvConfig.load(filesystem, PATH).put("N", "k", "new", CONFIG)
    found = KvConfig.load(filesystem.power_cut(Random(seed)), PATH).namespace("N")
    return (None if found is None else dict(found)), kill.hit is not None


@pytest.mark.parametrize("moment", list(Moment))
@pytest.mark.parametrize("seed", range(5))
def test_a_power_cut_at_any_moment_leaves_the_old_or_the_new_table(
    moment: Moment, seed: int
) -> None:
    number = 1
    while True:
        found, is_hit = changed_at(number, moment, seed)
        assert found in ({"k": "old"}, {"k": "new"})
        if not is_hit:
            break
        number += 1
    assert number >= 4
    assert found == {"k": "new"}, "answered, so it survives"


def test_of_a_change_that_the_disk_refuses_nothing_remains() -> None:
    filesystem = SimulatedFileSystem()
    kv = KvConfig.load(filesystem, PATH)
    kv.put("N", "k", "old", CONFIG)

    def refuse(operation: Operation) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    filesystem.hook = refuse
    with pytest.raises(OSError, match="No space"):
        kv.put("N", "k", "new", CONFIG)
    with pytest.raises(OSError, match="No space"):
        kv.delete("N", "k")
    assert kv.get("N", "k") == "old"
    filesystem.hook = None
    kv.put("N", "k", "newer", CONFIG)
    assert KvConfig.load(filesystem, PATH).get("N", "k") == "newer"


def test_items_and_namespaces_are_limited_together() -> None:
    kv = KvConfig.load(SimulatedFileSystem(), PATH)
    config = NameServerConfig(kv_items_max=3)
    kv.put("N", "k", "v", config)
    kv.put("N", "k2", "v", config)
    kv.put("N", "k2", "w", config)
    with pytest.raises(RequestError, match="kv_items_max is 3"):
        kv.put("N", "k3", "v", config)
    kv.delete("N", "k")
    with pytest.raises(RequestError, match="kv_items_max is 3"):
        kv.put("M", "k", "v", config)
    assert kv.namespace("M") is None


def test_the_size_of_all_texts_is_limited() -> None:
    kv = KvConfig.load(SimulatedFileSystem(), PATH)
    config = NameServerConfig(kv_size_max=10)
    kv.put("N", "k", "ä" * 4, config)
    with pytest.raises(RequestError, match="kv_size_max is 10"):
        kv.put("N", "k", "ä" * 4 + "b", config)
    assert kv.get("N", "k") == "ä" * 4
