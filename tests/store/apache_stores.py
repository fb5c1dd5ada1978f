"""The captured stores of Apache RocketMQ 5.5.0, unpacked, and the records of their logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests import archives
from tests.proto.apache_messages import VECTORS, commit_log, manifest

from cometmq.proto.errors import MessageError
from cometmq.proto.message import StoredMessage, read_message
from cometmq.store.config import StoreConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

DELETED_TOPICS = {"S_del"}
"""Their records are still in the log, but nothing else of them is left."""


def unpack(store: str, directory: Path) -> Path:
    """Unpack a captured store without its timer wheel, 38 MB of zeros; return its root."""
    archives.unpack(VECTORS / "store" / f"{store}.tar.xz", directory)
    return directory / "store"


def config(store: str) -> StoreConfig:
    """The settings that a captured store was written with."""
    settings = manifest(store)["settings"]
    return StoreConfig(
        segment_size=int(settings["mappedFileSizeCommitLog"]),
        consume_queue_file_size=int(settings["mappedFileSizeConsumeQueue"]),
        batch_consume_queue_file_size=int(settings["mapperFileSizeBatchConsumeQueue"]),
        index_slots=int(settings["maxHashSlotNum"]),
        index_items=int(settings["maxIndexNum"]),
    )


def records(store: str) -> Iterator[StoredMessage]:
    """Walk the log, record by record."""
    for content in commit_log(store).values():
        position = 0
        while position < len(content):
            try:
                message = read_message(content, position)
            except MessageError:
                break  # The filler at the file's end, or the end of the log.
            yield message
            position = message.end


def manifest_records(store: str) -> list[dict[str, Any]]:
    """The manifest's lines for all records; `killed` continues `clean`."""
    lines: list[dict[str, Any]] = list(manifest("clean")["messages"]) if store == "killed" else []
    lines += manifest(store)["messages"]
    return lines


def batch_topics(root: Path) -> set[str]:
    """The topics whose attribute makes their queues batch queues."""
    text = (root / "config" / "topics.json").read_text()
    table = json.loads(text)["topicConfigTable"]
    return {
        topic
        for topic, attributes in table.items()
        if attributes.get("attributes", {}).get("queue.type") == "BatchCQ"
    }
