"""The config files of a store, written by our tables for a broker to find."""

from __future__ import annotations

from typing import Any

from tests.interop.store_content import INNER, PLAIN, TOPICS

from cometmq.proto.bodies.groups import SubscriptionGroupConfig
from cometmq.proto.bodies.topics import TopicConfig
from cometmq.store.disk.filesystem import RealFileSystem
from cometmq.store.tables import (
    CONSUMER_OFFSETS,
    SECTIONS,
    SUBSCRIPTION_GROUPS,
    TOPICS as TOPICS_FILE,
    Table,
    TableFile,
)

GROUP = "io_group"
COMMITTED = {0: 5, 1: 7, 2: 0, 3: 9}
"""The committed offsets, by queue of the plain topic."""
VERSION = {"counter": 3, "stateVersion": 0, "timestamp": 1700000000000}


def write_config_files(root: str) -> None:
    topics = _table(TOPICS_FILE)
    for topic, queues in TOPICS.items():
        attributes = {"queue.type": "BatchCQ"} if topic == INNER else {}
        config = TopicConfig(
            topic_name=topic,
            read_queue_nums=queues,
            write_queue_nums=queues,
            attributes=attributes,
        )
        topics.put("topicConfigTable", topic, config)
    groups = _table(SUBSCRIPTION_GROUPS)
    group = SubscriptionGroupConfig(group_name=GROUP, retry_max_times=3)
    groups.put("subscriptionGroupTable", GROUP, group)
    offsets = _table(CONSUMER_OFFSETS)
    offsets.put("offsetTable", f"{PLAIN}@{GROUP}", COMMITTED)
    for name, table in (
        (TOPICS_FILE, topics),
        (SUBSCRIPTION_GROUPS, groups),
        (CONSUMER_OFFSETS, offsets),
    ):
        _file(root, name).write(table.snapshot().chunks())


def read_config_file(root: str, name: str) -> dict[str, Any]:
    """Return the tree of a config file, which must not come from its backup."""
    loaded = _file(root, name).load()
    assert not loaded.from_backup
    return loaded.tree


def _table(name: str) -> Table:
    table = Table(SECTIONS[name])
    table.set_member("dataVersion", VERSION)
    return table


def _file(root: str, name: str) -> TableFile:
    return TableFile(RealFileSystem(), f"{root}/config", name)
