"""Whether a start would refuse the store after it has begun to write: found out before it does.

A record may be sound and still not be the next one of its queue: its number, its queue or its topic
was damaged, or the log lacks messages before it. That shows only when entries are made from the
records and added to the ends of the queues. So `Foresight` follows the numbers of the records that
are about to be read back, which a start sees anyway while it verifies them, and looks up with which
number each queue continues: in the journal, in the list of the queues' ends, or else in its files.
If all records follow, as they do except after damage, nothing can be refused later. If not, or if
that is uncertain, everything is rehearsed on files that stay in memory: see `overlay`.

If the index lacks more than the queues, a start reads the log from before the part that it
verifies. So that is read here first: a damaged record there is refused as early as any other.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

from cometmq.store.disk.names import is_offset_file
from cometmq.store.disk.overlay import Overlay
from cometmq.store.errors import StoreFormatError
from cometmq.store.index.index import Index
from cometmq.store.index.index_folder import INDEX_FOLDER
from cometmq.store.index.index_off import load_off
from cometmq.store.queues.consume_queue import ENTRY_SIZE
from cometmq.store.queues.consume_queues import BATCH_FOLDER, SIMPLE_FOLDER
from cometmq.store.queues.queue_ends import QueueKey
from cometmq.store.starting.catching_up import CatchUp, index_from
from cometmq.store.starting.folder import load_queues
from cometmq.store.starting.found import History
from cometmq.store.starting.lost_queues import forget_cut, refuse_cut_short
from cometmq.store.starting.recovery import records_up_to
from cometmq.store.starting.tail_check import Succession
from cometmq.store.starting.topic_kinds import topic_kinds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cometmq.proto.message import StoredMessage
    from cometmq.store.config import StoreConfig
    from cometmq.store.disk.filesystem import FileSystem
    from cometmq.store.log.log_stretch import Stretch
    from cometmq.store.queues.consume_queues import ConsumeQueues
    from cometmq.store.starting.found import Found


def forget_behind(
    filesystem: FileSystem, root: str, config: StoreConfig, found: Found, recover_from: int
) -> None:
    """Remove from the list what is about to be cut from the queues and rebuilt."""

    def look() -> ConsumeQueues:
        return _as_cut(filesystem, root, config, found, recover_from)

    has_front = recover_from > found.segments.first_offset  # Otherwise all before has expired.
    forget_cut(filesystem, root, found.queues, recover_from, look if has_front else None)


def _as_cut(
    filesystem: FileSystem, root: str, config: StoreConfig, found: Found, recover_from: int
) -> ConsumeQueues:
    """Return the queues as they will be after they are cut, if they are; change nothing."""
    is_cut = found.history is History.BROKEN_OFF
    queues = load_queues(
        filesystem, root, config, found.checkpoint, clean=not is_cut, read_only=True
    )
    queues.correct_min(found.segments.first_offset)
    if is_cut:
        queues.expect_records(found.segments)
        queues.truncate(recover_from)
    return queues


class Foresight:
    """Foresees what a start will make of one store that was found."""

    def __init__(
        self,
        filesystem: FileSystem,
        root: str,
        found: Found,
        *,
        says_batch: Callable[[str], bool | None],
        dispatched_to: int,
        read_back: Callable[[Iterable[StoredMessage | Stretch]], None],
        clean: bool,
    ) -> None:
        """`read_back` looks at records that are read back, but that no scan has visited.

        It learns nothing from those at or after `dispatched_to`.
        """
        self._filesystem = filesystem
        self._root = root
        self._config = found.config
        self._found = found
        self._says_batch = says_batch
        self._dispatched_to = dispatched_to
        self._read_back = read_back
        self._is_batch_topic = found.is_batch_topic
        self._clean = clean
        self._replay_from = found.start.replay_from
        """After this offset nothing in the queues counts, except what the journal has."""
        self._looked_at = ExitStack()
        self._in_journal = {
            QueueKey(each.is_batch, each.topic, each.queue_id): each.following
            for each in found.journal or ()
        }

    def check(self, replayed: Succession) -> None:
        """Refuse what would be refused later; `replayed` has seen what the log's scan visited."""
        found = self._found
        if found.history is History.COMPLETE:
            return
        to_learn_from = min(max(found.start.scan_from, replayed.start), self._dispatched_to)
        if (begin := self._index_from()) < max(found.complete_to, to_learn_from):
            self._read_back(records_up_to(found.segments, begin, found.start, found.end.offset))
        with self._looked_at:
            promised = self._promised(replayed)
            firsts = chain(promised.first_numbers(), found.succession.first_numbers())
            read_back = dict.fromkeys(queue for queue, _ in firsts)
            for queue in read_back:
                self._require_folder(*queue)
            if found.history is History.BROKEN_OFF and not found.queues.ends.is_whole:
                # Without a list nobody has checked yet whether the disk has them all.
                refuse_cut_short(self._on_disk, found.segments, self._replay_from, read_back)
            is_sure = self._follows(promised)
        if not is_sure:
            self._rehearse()

    def _index_from(self) -> int:
        """Return from where on records may be missing in the index, repairing it only in memory."""
        filesystem, root, found = self._filesystem, self._root, self._found
        if not self._config.index or found.complete_to <= found.segments.first_offset:
            return found.complete_to
        off = load_off(filesystem, root)
        is_broken_off = found.history is History.BROKEN_OFF
        is_there = off is None and filesystem.exists(f"{root}/{INDEX_FOLDER}")
        if is_broken_off and is_there and found.checkpoint.claims is not None:
            # The index was synced as far as the queues.
            damaged = found.damaged_item
            return found.complete_to if damaged is None else damaged.resume
        overlay = Overlay(filesystem)
        with closing(
            Index(overlay, root, self._config, clean=self._clean and off is None)
        ) as index:
            return index_from(overlay, root, found._replace(key_index=index))

    @cached_property
    def _on_disk(self) -> ConsumeQueues:
        """The queues on the disk; mostly nobody has to look at them."""
        queues = _as_cut(self._filesystem, self._root, self._config, self._found, self._replay_from)
        self._looked_at.callback(queues.close)
        return queues

    def _promised(self, replayed: Succession) -> Succession:
        """Return the numbers of the records that are read back and may no longer be cut."""
        found = self._found
        begin, end = found.complete_to, found.end.offset
        if begin >= end or found.start.scan_from <= begin == replayed.start:
            return replayed
        again = Succession(
            begin, found.deletions, self._is_batch_topic, until=found.succession.start
        )
        for each in records_up_to(found.segments, begin, found.start, end):
            again.look_at(each)
        return again

    def _follows(self, promised: Succession) -> bool:
        """Whether each record before the end is surely the next one of its queue."""
        found, later = self._found, self._found.succession
        if promised.has_gap or later.has_gap:
            return False
        first_offset = found.segments.first_offset
        if any(end.physical_offset >= first_offset for end in found.to_make.values()):
            return False  # These queues must get that record back.
        for queue, number in promised.first_numbers():
            if not self._is_next(*queue, number, may_begin_anywhere=True):
                return False
        for queue, number in later.first_numbers():
            following = promised.following.get(queue)
            if following is None:
                if not self._is_next(*queue, number, may_begin_anywhere=first_offset > 0):
                    return False
            elif following != number:
                return False
        return True

    def _is_next(
        self,
        topic_raw: bytes,
        queue_id: int,
        number: int,
        *,
        may_begin_anywhere: bool,
    ) -> bool:
        """Whether a queue surely continues with a number.

        If it `may_begin_anywhere`, a queue without files may begin with any number.
        """
        topic = topic_raw.decode()
        key = QueueKey(self._is_batch_topic(topic), topic, queue_id)
        following = self._in_journal.get(key)
        known = self._found.queues.ends.known.get(key)
        if following is not None:
            return number == following
        if known is None:
            if not number:
                return True
        elif known.lacks_from is not None:
            return number <= known.next_offset  # None of its records gets an entry.
        elif known.physical_offset < self._replay_from:
            return number == known.next_offset
        table = self._on_disk.table(is_batch=key.is_batch)
        queue = table.find_sound(topic, queue_id)
        if queue is not None:
            return number == queue.max_offset
        if (topic, queue_id) in table.problems:
            return known is None or number <= known.next_offset
        return may_begin_anywhere

    def _require_folder(self, topic_raw: bytes, queue_id: int) -> None:
        """Refuse a file in place of the folder of a queue that is about to be written.

        Also refuse, with the disk's `OSError`, a folder or a last file that this user may not
        write.
        """
        topic = topic_raw.decode()
        is_batch = self._is_batch_topic(topic)
        path = f"{self._root}/{BATCH_FOLDER if is_batch else SIMPLE_FOLDER}/{topic}/{queue_id}"
        self._filesystem.check_writable(path)
        known = self._found.queues.ends.known.get(QueueKey(is_batch, topic, queue_id))
        if known is not None and not is_batch:
            size = self._found.queues.simple.file_size  # To list 80,000 folders takes a second.
            for number in (max(known.next_offset - 1, 0), known.next_offset):
                start = number * ENTRY_SIZE // size * size
                self._filesystem.check_writable(f"{path}/{start:020d}")
            return
        try:
            files = [entry.name for entry in self._filesystem.list(path) if is_offset_file(entry)]
        except NotADirectoryError:
            raise StoreFormatError(
                f"{path}: a file is in place of this folder of a queue, or of its parent folder;"
                " move it elsewhere"
            ) from None
        for name in files[-2:]:
            self._filesystem.check_writable(f"{path}/{name}")

    def _rehearse(self) -> None:
        """Do to the queues what the start would do, and keep nothing of it."""
        overlay, root, config = Overlay(self._filesystem), self._root, self._config
        queues = load_queues(overlay, root, config, self._found.checkpoint, clean=self._clean)
        if self._found.queues.ends.is_whole:
            known = dict(self._found.queues.ends.known)
            queues.ends.begin_with(known, known)
        leftovers = topic_kinds(queues, self._says_batch, self._found.deletions.offsets).leftovers
        found = self._found._replace(queues=queues, leftovers=leftovers, key_index=None)
        first_offset = found.segments.first_offset

        def on_replay_all() -> None:
            end = found.end.offset
            self._read_back(records_up_to(found.segments, first_offset, found.start, end))
            forget_behind(overlay, root, config, found, first_offset)

        catch_up = CatchUp(
            found,
            unsynced_size_max=config.unsynced_size_max,
            on_replay_all=on_replay_all,
            now_ms=0,
        )
        with closing(queues):
            if found.history is History.BROKEN_OFF:
                forget_behind(overlay, root, config, found, self._replay_from)
            at, _ = catch_up.run(found.complete_to)
            catch_up.finish(at)
