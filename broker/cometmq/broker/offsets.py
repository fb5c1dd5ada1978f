"""How far each group has consumed each queue, and the file that keeps these offsets.

Commits change memory only: as with Apache, the file is written every `save_interval_ms` and at the
end. So after a kill the groups get the messages of the last few seconds again.

An operator's reset is pending until the group, told of it, pulls the queue from there: the answer
that tells of it may be lost, or come to a member that has just lost the queue. Until then, commits
by the group's members are from before the reset and are ignored. The offset of a reset is saved at
once. That it is pending, and up to where queues were pulled, does not survive the process.

A topic that is deleted may be created again while members still have their places in it, which are
then those of other messages. So to each group this is a reset to the begin, pending for a while.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cometmq.broker.errors import LimitError
from cometmq.broker.saved_table import SavedTable
from cometmq.proto.bodies import DataVersion
from cometmq.store.table_contents import SECTION, consumer_offsets
from cometmq.store.tables import CONSUMER_OFFSETS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from cometmq.broker.config import BrokerConfig
    from cometmq.store.disk.filesystem import FileSystem

DELETION_PENDING_MS: Final = 600_000
"""For how long a group is told that a topic was deleted since it read there."""


class _Deletion(NamedTuple):
    until_ms: int
    """Until when groups are told of it."""
    queue_count: int


class ConsumerOffsets:
    """The offsets of all groups."""

    def __init__(
        self, config: BrokerConfig, filesystem: FileSystem, *, on_unsaved: Callable[[], None]
    ) -> None:
        """Call `on_unsaved` when something should be saved at once."""
        self.file = SavedTable(
            filesystem, f"{config.store_path}/config", CONSUMER_OFFSETS, on_change=lambda: None
        )
        self.resets: dict[tuple[str, str, int], int] = {}
        """Pending resets by group, topic and queue; usually there are none."""
        self._told: set[tuple[str, str, int]] = set()  # Of these, a pull was told.
        self._deleted: dict[tuple[str, str], _Deletion] = {}
        """By group and topic: resets that are pending because the topic was deleted."""
        self._on_unsaved = on_unsaved
        self._offsets_max = config.offsets_max
        self._count = 0
        self._pulled_count = 0
        self._offsets: dict[tuple[str, str], dict[int, int]] = {}
        self._pulled: dict[tuple[str, str], dict[int, int]] = {}
        self._topics: dict[str, dict[str, None]] = {}
        self._groups: dict[str, dict[str, None]] = {}
        self._changed: set[tuple[str, str]] = set()

    def load(self) -> None:
        """Read the file; raise a `StoreFormatError` if it is damaged."""
        table = self.file.load(consumer_offsets)
        self.file.set_member("dataVersion", DataVersion())
        for name, kept in table.items():
            topic, _, group = name.partition("@")
            self._add(group, topic, kept)
            self.file.put(SECTION, name, kept)
        if self.file.is_found:  # Otherwise save an empty file: a missing one means a loss.
            self.file.loaded()

    # One queue of one group.

    def find(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the offset at which a group continues in a queue; None if it has none there."""
        if self.resets and (reset := self.resets.get((group, topic, queue_id))) is not None:
            return reset
        queues = self._offsets.get((group, topic))
        return None if queues is None else queues.get(queue_id)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Set the offset at which a group continues; return False while a reset is pending.

        Raises a `LimitError` for a new queue beyond `offsets_max`.
        """
        if self.resets and (group, topic, queue_id) in self.resets:
            return False
        key = (group, topic)
        queues = self._offsets.get(key)
        if queues is None or queue_id not in queues:
            if self._count >= self._offsets_max:
                raise LimitError("offsets_max", self._offsets_max, "consumer offsets")
            if queues is None:
                queues = self._add(group, topic, {})
            self._count += 1
        queues[queue_id] = offset
        self._changed.add(key)
        return True

    def pulled(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return up to where a group has pulled a queue; None if this process does not know."""
        queues = self._pulled.get((group, topic))
        return None if queues is None else queues.get(queue_id)

    def note_pull(self, group: str, topic: str, queue_id: int, offset: int) -> int:
        """Note up to where a group has pulled, and return the value before that, or 0.

        Beyond `offsets_max` nothing is noted for a new queue.
        """
        queues = self._pulled.get((group, topic))
        if queues is not None and (before := queues.get(queue_id)) is not None:
            queues[queue_id] = offset
            return before
        if self._pulled_count < self._offsets_max:
            self._pulled_count += 1
            self._pulled.setdefault((group, topic), {})[queue_id] = offset
        return 0

    # Many queues.

    def of(self, group: str, topic: str) -> Mapping[int, int]:
        """Return the offsets of a group in a topic, by queue."""
        return self._offsets.get((group, topic), {})

    def pairs(self) -> list[tuple[str, str]]:
        """Return all pairs of a group and a topic with offsets. This is fast."""
        return list(self._offsets)

    def topics_of(self, group: str) -> tuple[str, ...]:
        """Return the topics in which a group has offsets."""
        return tuple(self._topics.get(group, ()))

    def groups_of(self, topic: str) -> tuple[str, ...]:
        """Return the groups that have offsets in a topic."""
        return tuple(self._groups.get(topic, ()))

    def __iter__(self) -> Iterator[tuple[str, str, Mapping[int, int]]]:
        """Iterate over all offsets: group, topic, and the offsets by queue."""
        for (group, topic), queues in self._offsets.items():
            yield group, topic, queues

    # Called for operators.

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Have a group continue at another offset, from its next pull on."""
        key = (group, topic, queue_id)
        self._forget_reset(key)
        self._deleted.pop((group, topic), None)  # What an operator wants does not expire.
        self.commit(group, topic, queue_id, offset)
        if queue_id in self.of(group, topic):
            self.resets[key] = offset
            self.flush()
            self._on_unsaved()

    def take_reset(self, group: str, topic: str, queue_id: int, asked: int) -> int | None:
        """Return where a pull from an offset is told to continue instead, because of a reset."""
        self.end_reset(group, topic, queue_id, asked)
        key = (group, topic, queue_id)
        if (offset := self.resets.get(key)) is not None:
            self._told.add(key)
        return offset

    def end_reset(self, group: str, topic: str, queue_id: int, asked: int) -> None:
        """End a reset if this is a pull from where one was told to continue.

        Who begins at 0 in a topic that was deleted need not be told: nothing of it is in hand.
        """
        key = (group, topic, queue_id)
        if self.resets.get(key) == asked and (key in self._told or (group, topic) in self._deleted):
            self._forget_reset(key)

    def _forget_reset(self, key: tuple[str, str, int]) -> None:
        self.resets.pop(key, None)
        self._told.discard(key)

    def _forget_deletion(self, group: str, topic: str) -> None:
        deletion = self._deleted.pop((group, topic), None)
        for queue_id in range(0 if deletion is None else deletion.queue_count):
            self._forget_reset((group, topic, queue_id))

    def expire(self, elapsed_ms: int) -> None:
        """Give up resets of topics that were deleted long ago: whoever was there has gone on."""
        old = [key for key, deletion in self._deleted.items() if deletion.until_ms <= elapsed_ms]
        for key in old:
            self._forget_deletion(*key)

    def copy(self, source: str, target: str, topic: str) -> None:
        """Replace the offsets of one group in a topic by those of another."""
        offsets = dict(self.of(source, topic))
        if offsets and source != target:
            self._forget(target, topic)
            for queue_id, offset in offsets.items():
                self.commit(target, topic, queue_id, offset)

    def topic_deleted(
        self, topic: str, queue_count: int, subscribers: Collection[str], elapsed_ms: int
    ) -> None:
        """Forget all offsets of a topic, and have its groups begin anew in its queues.

        These are the groups that have read there, and the subscribers, which may yet have begun at
        the end.
        """
        groups = {
            key[0] for table in (self._offsets, self._pulled) for key in table if key[1] == topic
        }
        for group in groups:
            self._forget(group, topic)
        deletion = _Deletion(elapsed_ms + DELETION_PENDING_MS, queue_count)
        for group in filter(_is_group, groups.union(subscribers)):
            self._forget_deletion(group, topic)
            self._deleted[group, topic] = deletion
            for queue_id in range(queue_count):
                self.resets[group, topic, queue_id] = 0

    def forget_group(self, group: str) -> None:
        """Forget all offsets of a group."""
        topics = {key[1] for key in (*self._pulled, *self._deleted) if key[0] == group}
        topics.update(self.topics_of(group))
        for topic in topics:
            self._forget(group, topic)

    def _add(self, group: str, topic: str, queues: dict[int, int]) -> dict[int, int]:
        self._offsets[group, topic] = queues
        self._count += len(queues)
        if _is_group(group):
            self._topics.setdefault(group, {})[topic] = None
            self._groups.setdefault(topic, {})[group] = None
        return queues

    def _forget(self, group: str, topic: str) -> None:
        self._forget_deletion(group, topic)
        self._pulled_count -= len(self._pulled.pop((group, topic), ()))
        queues = self._offsets.pop((group, topic), None)
        if queues is None:
            return
        self._count -= len(queues)
        for table, first, second in ((self._topics, group, topic), (self._groups, topic, group)):
            names = table.get(first, {})
            names.pop(second, None)
            if not names:
                table.pop(first, None)
        for queue_id in queues:
            self._forget_reset((group, topic, queue_id))
        self._changed.discard((group, topic))
        self.file.discard(SECTION, f"{topic}@{group}")
        self._on_unsaved()

    def flush(self) -> None:
        """Put the changed offsets into the table that is saved."""
        for group, topic in self._changed:
            queues: dict[int, Any] = self._offsets.get((group, topic), {})
            self.file.put(SECTION, f"{topic}@{group}", dict(queues))
        self._changed.clear()


def _is_group(name: str) -> bool:
    """Whether it is one: under `g@broadcast` Apache only keeps offsets."""
    return "@" not in name
