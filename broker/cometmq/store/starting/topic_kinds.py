"""The kind of each topic's queues, and the queues that are left over of the other kind.

The settings of a topic say whether its batches stay one record. For topics without settings the
folders decide: a deleted topic may have queues left. If the settings are lost, and no entry was
written before a kill, the log decides: a batch is of a batch topic. A store whose settings and
folders contradict each other is refused. What a power cut brought back of a deleted topic, which
was then recreated with the other kind, is no contradiction, nor are files without an entry: both
are removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cometmq.proto.sysflag import SysFlag
from cometmq.store.errors import StoreFormatError
from cometmq.store.queues.consume_queues import BATCH_FOLDER, SIMPLE_FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from cometmq.proto.message import StoredMessage
    from cometmq.store.queues.consume_queues import ConsumeQueues
    from cometmq.store.queues.queue_table import QueueTable

    Leftover = tuple[QueueTable[Any], str]


class TopicKinds:
    """What is found out about the topics of a store."""

    def __init__(
        self,
        queues: ConsumeQueues,
        says_batch: Callable[[str], bool | None],
        marks: Mapping[bytes, int],
    ) -> None:
        """Use `topic_kinds`."""
        self.leftovers: list[Leftover] = []
        """Topics that are of the other kind now, each with the table of its earlier queues."""
        self._queues, self._says_batch, self._marks = queues, says_batch, marks
        self._listed = {(key.is_batch, key.topic) for key in queues.ends.known}
        self._batch_topics = {topic for is_batch, topic in self._listed if is_batch}

    def is_batch(self, topic: str) -> bool:
        """Whether the queues of a topic are batch queues."""
        says = self._says_batch(topic)
        return topic in self._batch_topics if says is None else says

    def take(self, topic: str, *, is_batch: bool) -> None:
        """Note a topic that has a folder for queues of a kind."""
        says, mark = self._says_batch(topic), self._marks.get(topic.encode())
        table = self._queues.table(is_batch=is_batch)
        if says is None or says is is_batch:
            if is_batch and (says or _are_batches(self._queues, topic, mark)):
                self._batch_topics.add(topic)
        elif (is_batch, topic) in self._listed or table.holds(topic, mark):
            raise _contradiction(topic, is_batch=is_batch)
        elif mark is not None or table.has_files(topic):
            self.leftovers.append((table, topic))

    def learn_from(self, message: StoredMessage) -> None:
        """Look at a record: a batch is of a batch topic, unless that was deleted after it.

        This counts only if nothing else decides. A queue of the other kind would count one message
        in the batch, and give out the numbers of the others again.
        """
        if not message.sys_flag & SysFlag.INNER_BATCH:
            return
        topic, mark = message.topic, self._marks.get(message.topic_raw)
        if mark is not None and message.physical_offset < mark:
            return
        if self._says_batch(topic) is not None or topic in self._batch_topics:
            return
        if (False, topic) not in self._listed and not self._queues.simple.holds(topic, mark):
            self._batch_topics.add(topic)


def topic_kinds(
    queues: ConsumeQueues, says_batch: Callable[[str], bool | None], marks: Mapping[bytes, int]
) -> TopicKinds:
    """Find out about all topics; raise `StoreFormatError` for one that contradicts its folder.

    `says_batch` returns None for an unknown topic; for `marks` see `Deletions.offsets`.
    """
    kinds = TopicKinds(queues, says_batch, marks)
    for is_batch in (False, True):
        for topic in queues.table(is_batch=is_batch).topics():
            kinds.take(topic, is_batch=is_batch)
    return kinds


def _are_batches(queues: ConsumeQueues, topic: str, mark: int | None) -> bool:
    """Whether the folders say that a topic without settings has batch queues."""
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
        table.doubt_removal([topic])
        table.destroy(topic)
