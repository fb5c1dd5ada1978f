"""Topics that another program deleted, and that were recreated after the part a rebuild takes.

Such a program notes nothing, so a rebuild takes the old messages of a topic that is in the table.
If the new ones are all left to the next start, it would find that they do not follow in their
queues: it would serve the old ones in their place, or take the new ones for a torn tail. But the
new ones show that the topic was recreated: their numbers begin before its queues would continue.
"""

from __future__ import annotations

from contextlib import closing, suppress
from typing import TYPE_CHECKING

from cometmq.proto.errors import MessageError
from cometmq.store.checking.known_ends import queue_keys
from cometmq.store.disk.names import is_folder_name
from cometmq.store.looking.queue_files import files_of
from cometmq.store.messages.dispatch import batch_entry, has_entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cometmq.proto.message import StoredMessage
    from cometmq.store.looking.inspection import Inspected
    from cometmq.store.mending.rebuilding import Rebuilt
    from cometmq.store.queues.consume_queues import ConsumeQueues
    from cometmq.store.queues.queue_ends import QueueKey


class MadeAgain:
    """Removes the old messages of such topics from the new queues."""

    def __init__(
        self,
        store: Inspected,
        queues: ConsumeQueues,
        is_batch: Callable[[str], bool],
        rebuilt: Rebuilt,
    ) -> None:
        """`queues` are the new ones, and `rebuilt` counts what is removed from them."""
        self._store = store
        self._queues = queues
        self._is_batch = is_batch
        self._rebuilt = rebuilt
        self._is_found = False

    def look_at(self, message: StoredMessage) -> None:
        """Look at a record that is left to the next start.

        A torn record may seem to show this of a topic that was not deleted. But such a topic's
        queues are in the list, or still have entries of its old messages.
        """
        with suppress(MessageError):  # A torn record may say anything.
            self._look_at(message)

    def _look_at(self, message: StoredMessage) -> None:
        store, topic = self._store, message.topic
        if topic in store.ended_topics or not (has_entry(message) and is_folder_name(topic)):
            return
        number, is_batch = message.queue_offset, self._is_batch(topic)
        if is_batch:
            number = batch_entry(message, store.delay_levels).base_offset
        table = self._queues.table(is_batch=is_batch)
        queue = table.find(topic, message.queue_id)
        if queue is None or number >= queue.max_offset:
            return
        if not any(map(self._has_old_entry, self._keys(topic))):
            self._drop(topic, is_batch=is_batch)

    def _keys(self, topic: str) -> Iterator[QueueKey]:
        return (key for key in queue_keys(self._store) if key.topic == topic)

    def _has_old_entry(self, key: QueueKey) -> bool:
        """Whether a queue of the store has an entry of a record that another program wrote."""
        with closing(files_of(self._store, key)) as files:
            entries = [entry for _, entry in files.entries_outside([]) if any(entry)]
        ours_from = self._store.start.ours_from
        return any(int.from_bytes(entry[:8], "big") < ours_from for entry in entries)

    def _drop(self, topic: str, *, is_batch: bool) -> None:
        """Remove all queues of a topic that only have old messages."""
        table, ours_from = self._queues.table(is_batch=is_batch), self._store.start.ours_from
        for queue_id in list(table.queues(topic)):
            queue = table.find(topic, queue_id)
            count = 0 if queue is None else queue.end - queue.start
            if queue is None or not count or queue.head(queue.end - 1)[0] >= ours_from:
                continue
            self._rebuilt.deleted_topics[topic] += count
            self._rebuilt.entries -= count
            table.destroy(topic, queue_id)
            self._store.deletions.note_made_again(topic, ours_from)
            self._is_found = True

    def mark(self) -> None:
        """Save the marks: a start that reads everything back would bring old messages back, too."""
        if self._is_found:
            self._store.deletions.save()
