"""Of which kind the queues of each topic are, and those that are left of the other kind.

The settings of a topic say whether its batches stay one record. Of topics that they do not know the
folders tell: one that was deleted may have queues left. A store in which the two contradict one
another is refused. What a power cut brought back of a topic that was deleted, and that was made
again as one of the other kind, contradicts nothing, nor do files without an entry: they go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from cometmq.store.errors import StoreFormatError
from cometmq.store.queues.consume_queues import BATCH_FOLDER, SIMPLE_FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from cometmq.store.queues.consume_queues import ConsumeQueues
    from cometmq.store.queues.queue_table import QueueTable

    Leftover = tuple[QueueTable[Any], str]


class TopicKinds(NamedTuple):
    """What is found of the topics of a store."""

    is_batch: Callable[[str], bool]
    """Whether the queues of a topic are batch queues."""
    leftovers: list[Leftover]
    """Topics that are of the other kind now, with the table that has their queues of before."""


def topic_kinds(
    queues: ConsumeQueues, says_batch: Callable[[str], bool | None], marks: Mapping[bytes, int]
) -> TopicKinds:
    """Find out about all topics; `StoreFormatError` for one that contradicts its folder.

    `says_batch` says None of a topic that it does not know; of `marks` see `Deletions.offsets`.
    """
    in_folder = set[str]()
    leftovers: list[Leftover] = []
    listed = {(key.is_batch, key.topic) for key in queues.ends.known}
    for is_batch in (False, True):
        table = queues.table(is_batch=is_batch)
        for topic in table.topics():
            says, mark = says_batch(topic), marks.get(topic.encode())
            if says is None or says is is_batch:
                if is_batch and (says or _are_batches(queues, topic, mark)):
                    in_folder.add(topic)
            elif (is_batch, topic) in listed or table.holds(topic, mark):
                raise _contradiction(topic, is_batch=is_batch)
            elif mark is not None or table.has_files(topic):
                leftovers.append((table, topic))
    in_folder |= {topic for is_batch, topic in listed if is_batch}  # A lost one, too.

    def is_batch_topic(topic: str) -> bool:
        says = says_batch(topic)
        return topic in in_folder if says is None else says

    return TopicKinds(is_batch_topic, leftovers)


def _are_batches(queues: ConsumeQueues, topic: str, mark: int | None) -> bool:
    """Whether the folders say that a topic, which nobody knows, has batch queues."""
    if queues.batch.holds(topic, mark):
        return True
    # It may have just begun: its entries were not synced.
    return mark is None and queues.batch.has_files(topic) and not queues.simple.holds(topic, None)


def _contradiction(topic: str, *, is_batch: bool) -> StoreFormatError:
    kind = f"{'not ' if is_batch else ''}queue.type=BatchCQ"
    return StoreFormatError(
        f"topic {topic} is {kind}, but its queues lie in"
        f" {BATCH_FOLDER if is_batch else SIMPLE_FOLDER}/; give the topic back its queue.type in"
        " config/topics.json, or move its folder elsewhere and run `cometmq store rebuild`"
    )


def destroy_leftovers(leftovers: Iterable[Leftover]) -> None:
    """Remove queues of topics that are now of the other kind."""
    for table, topic in leftovers:
        table.doubt_names()
        table.destroy(topic)
