"""A config file that parses, but is not the table that it should be, is reported as damaged."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.broker.running import config_of
from tests.broker.wired import Wired
from tests.crash.disk import SimulatedFileSystem

from cometmq.store.errors import StoreFormatError
from cometmq.store.tables import CONSUMER_OFFSETS, DELAY_OFFSETS, SUBSCRIPTION_GROUPS, TOPICS

if TYPE_CHECKING:
    from cometmq.store.disk.filesystem import FileSystem

FOLDER = Path("/broker")
ROOT = str(FOLDER / "data")
WRONG = [
    (TOPICS, b'{"topicConfigTable":5}', "topic_config_table|topicConfigTable"),
    (TOPICS, b'{"topicConfigTable":{"T":5}}', "topicConfigTable"),
    (TOPICS, b'{"topicConfigTable":{"T":{"readQueueNums":"x"}}}', "topicConfigTable"),
    (TOPICS, b'{"dataVersion":[],"topicConfigTable":{}}', "dataVersion"),
    (TOPICS, b'{"topicConfigTable":{"T":{"topicName":"../../T"}}}', "is not the name of a topic"),
    (TOPICS, b"null", "not a JSON object"),
    (TOPICS, b"[]", "not a JSON object"),
    (SUBSCRIPTION_GROUPS, b'{"subscriptionGroupTable":[]}', "subscriptionGroupTable"),
    (SUBSCRIPTION_GROUPS, b'{"subscriptionGroupTable":{"g":{"groupName":[]}}}', "groupName"),
    (SUBSCRIPTION_GROUPS, b'{"forbiddenTable":{"g":7}}', "forbiddenTable"),
    (CONSUMER_OFFSETS, b'{"offsetTable":[1]}', "offsetTable: not an object"),
    (CONSUMER_OFFSETS, b'{"offsetTable":null}', "offsetTable: not an object"),
    (CONSUMER_OFFSETS, b'{"offsetTable":{"T@g":[0]}}', "offsetTable, T@g: not an object"),
    (
        CONSUMER_OFFSETS,
        b'{"offsetTable":{"T@g":{0:"x"}}}',
        "offsetTable, T@g, 0: 'x' is not a number",
    ),
    (CONSUMER_OFFSETS, b'{"offsetTable":{"T@g":{"q":1}}}', "offsetTable, T@g: 'q' is not a number"),
    (CONSUMER_OFFSETS, b'{"offsetTable":{"T@g":{0:null}}}', "None is not a number"),
    (DELAY_OFFSETS, b'{"offsetTable":5}', "offsetTable: not an object"),
    (DELAY_OFFSETS, b'{"offsetTable":{"1":"x"}}', "offsetTable, 1: 'x' is not a number"),
    (DELAY_OFFSETS, b'{"logOffset":[]}', "logOffset: .* is not a number"),
    (DELAY_OFFSETS, b'{"ahead":7}', "ahead: not a list"),
    (DELAY_OFFSETS, b'{"ahead":[[1,2]]}', "ahead: .* is not three numbers"),
    (DELAY_OFFSETS, b'{"ahead":[1]}', "ahead: .* is not three numbers"),
]


def opened(disk: SimulatedFileSystem) -> Wired:
    return Wired(config_of(FOLDER), disk, threads=False)


def stopped() -> SimulatedFileSystem:
    disk = SimulatedFileSystem()
    broker = opened(disk)
    for table in broker.broker.tables:
        table.set_member("dataVersion", {"counter": 1})
    broker.save_tables()
    broker.close()
    return disk


def write(disk: FileSystem, path: str, data: bytes) -> None:
    file = disk.open(path, create=True)
    file.resize(0)
    file.write(data, 0)
    file.close()


def contents(disk: FileSystem, root: str = ROOT) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for entry in disk.list(root):
        path = f"{root}/{entry.name}"
        if entry.is_directory:
            found |= contents(disk, path)
        else:
            file = disk.open(path, read_only=True)
            found[path] = file.read(file.size(), 0)
            file.close()
    return found


@pytest.mark.parametrize(("name", "text", "problem"), WRONG)
def test_a_table_of_a_wrong_shape_is_refused_with_its_name_and_what_to_do(
    name: str, text: bytes, problem: str
) -> None:
    disk, path = stopped(), f"{ROOT}/config/{name}"
    if disk.exists(f"{path}.bak"):
        disk.remove(f"{path}.bak")
    write(disk, path, text)
    disk.remove(f"{ROOT}/lock")  # A start makes it, and removes it in the end.
    before = contents(disk)
    with pytest.raises(StoreFormatError, match=problem) as refused:
        opened(disk)
    assert str(refused.value).startswith(f"{path}: ")
    assert "restore it from a copy, correct it by hand, or remove it, and its .bak" in str(
        refused.value
    )
    assert "\n" not in str(refused.value)
    assert contents(disk) == before


@pytest.mark.parametrize(("name", "text", "problem"), WRONG)
def test_a_table_of_a_wrong_shape_is_taken_from_its_backup_and_that_is_said(
    name: str, text: bytes, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    del problem
    disk, path = stopped(), f"{ROOT}/config/{name}"
    good = contents(disk)[path]
    write(disk, f"{path}.bak", good)
    write(disk, path, text)
    caplog.set_level(logging.WARNING)
    opened(disk).close()
    (message,) = (message for message in caplog.messages if ".bak" in message)
    assert f"{path} is missing or damaged" in message
    assert contents(disk)[f"{path}.bak"] != text  # A damaged table never becomes the backup.
