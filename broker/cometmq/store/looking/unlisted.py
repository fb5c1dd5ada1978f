"""Topics that have queues in a store, but no entry in `config/topics.json`.

This happens if `config/` was lost: the messages are all there, but nobody can read them, because to
a broker such a topic does not exist. If a send recreates the topic, it must not get fewer queues
than there are, or the messages in the others stay out of sight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cometmq.store.disk.names import some_of
from cometmq.store.queues.consume_queues import BATCH_FOLDER, SIMPLE_FOLDER
from cometmq.store.queues.record_check import LIGHT_QUEUE_PREFIX
from cometmq.store.starting.folder import queue_folders
from cometmq.store.tables import TOPICS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from cometmq.store.deletions import Deletions
    from cometmq.store.looking.inspection import Inspected
    from cometmq.store.queues.consume_queues import ConsumeQueues
    from cometmq.store.queues.queue_table import QueueTable

_OF_BROKERS: Final = frozenset(
    {
        *("SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT"),
        *("TRANS_CHECK_MAX_TIME_TOPIC", "TBW102", "CHECKPOINT_TOPIC"),
    }
)
_BEGIN_AS_BROKERS: Final = ("rmq_sys_", "RMQ_SYS_", LIGHT_QUEUE_PREFIX)
_ENDS_AS_BROKERS: Final = "_REPLY_TOPIC"


def _is_users(topic: str) -> bool:
    """Whether a topic is not one that brokers make for themselves, at each start or when needed."""
    return not (
        topic in _OF_BROKERS
        or topic.startswith(_BEGIN_AS_BROKERS)
        or topic.endswith(_ENDS_AS_BROKERS)
    )


def queue_count(queues: ConsumeQueues, topic: str, count_max: int) -> int:
    """Return how many queues a topic needs so that all existing ones are readable.

    Folders numbered beyond `count_max` are no broker's queues.
    """
    return max((each + 1 for each in queues.ids(topic) if each < count_max), default=0)


def unlisted_topics(
    queues: ConsumeQueues, listed: Collection[str], deletions: Deletions, count_max: int
) -> dict[str, int]:
    """Return the unlisted topics of an open store that have queues, and how many queues."""
    return {
        topic: count
        for topic in queues.topics()
        if topic not in listed
        and _is_users(topic)
        and kind_of_those_here(queues, topic, deletions) is not None
        and (count := queue_count(queues, topic, count_max))
    }


def kind_of_those_here(queues: ConsumeQueues, topic: str, deletions: Deletions) -> bool | None:
    """Return whether a topic's existing queues are batch queues; None if there are none."""
    mark = deletions.offsets.get(topic.encode())
    for is_batch in (True, False):
        if _has_queue(queues.table(is_batch=is_batch), topic, mark):
            return is_batch
    return None


def _has_queue(table: QueueTable[Any], topic: str, mark: int | None) -> bool:
    """Whether a topic has a queue of one kind, and not only a folder with foreign files."""
    return table.holds(topic, mark) or any(each.end for each in table.in_memory(topic).values())


def unlisted_of(store: Inspected) -> dict[str, int]:
    """Return the same for a store that is only looked at.

    Return nothing if the table is damaged: then nobody can say which topics there were.
    """
    found: dict[str, int] = {}
    if f"{store.root}/config/{TOPICS}" in store.damaged_tables.refused:
        return found
    listed = store.topics or frozenset()
    for folder in (SIMPLE_FOLDER, BATCH_FOLDER):
        for topic, queue_id, _ in queue_folders(store.filesystem, f"{store.root}/{folder}", listed):
            if _is_users(topic) and (topic in found or store.holds(folder, topic)):
                found[topic] = max(found.get(topic, 0), queue_id + 1)
    return found


def unlisted_text(topics: Mapping[str, int]) -> str:
    """Say which topics have no entry, and what to do about it."""
    counted = sorted(topics.items())
    names = some_of([f"{name} ({count} queue{'s' * (count > 1)})" for name, count in counted])
    return (
        f"config/topics.json has no entry for {names}: a broker does not know them, and nobody"
        " can read what is in them. Stop the broker and restore the file from a copy, or create"
        " each topic again, with as many queues, with `cometmq topic create NAME --queues N`"
    )
