"""Records that are sound by themselves, but not the messages that they say they are.

No checksum of the body covers a record's topic, queue and number. Two witnesses can show that these
are wrong: the entry of another message that leads to the record, or the numbers of the messages
around it. If neither does, nothing can be said: see `rebuilding`, which refuses contradictions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.store.log.log_scan import NEVER
from cometmq.store.looking.log_check import Damage
from cometmq.store.looking.right_heads import Place, placed, said_place
from cometmq.store.queues.consume_queue import ENTRY
from cometmq.store.queues.record_check import read_record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cometmq.proto.message import StoredMessage
    from cometmq.store.checking.queue_track import QueueTrack
    from cometmq.store.looking.inspection import Inspected

Key = tuple[bytes, int]
"""Topic and queue id."""
NOTED_MAX: Final = 200_000
"""Limit for each kind of note; further ones are ignored."""
_SIZE_BYTES: Final = 4


class _Hole(NamedTuple):
    """A number of a queue that no record has, between two records that have its neighbours."""

    key: Key
    number: int
    low: int
    high: int


class WrongHeads:
    """Finds such records, while the records of a log and then its queues' entries are read."""

    def __init__(self, store: Inspected, read_from: int) -> None:
        """From `read_from` on no entry counts: a start rebuilds them."""
        self.found: dict[int, Damage] = {}
        """The records, by their offsets."""
        self._holes: list[_Hole] = []
        self._strays: dict[int, list[tuple[int, Key]]] = {}
        """By number, records without which their queue would have no jump: offset and queue."""
        self._truths: dict[int, Place] = {}
        """By a record's offset, what the first entry that leads to it says."""
        self._segments, self._is_kind_known = store.segments, store.is_kind_known
        self._promised_to = store.promised_to
        self._read_from = NEVER if store.checkpoint.is_of_others else read_from
        self._first_filler = NEVER

    def note_jump(self, track: QueueTrack, message: StoredMessage) -> None:
        """Note that a record does not follow in its queue.

        If the previous record did not either, and this one would follow if that had the number that
        was expected, the number of that one is wrong. Not if its topic is gone: nobody knows how
        often that was recreated, nor whether each of its records held one message.
        """
        if track.last < 0 and self._segments.first_offset:
            return  # Earlier records have expired.
        number, (jumped, expected) = message.queue_offset, track.jumped
        is_doubted = jumped == track.last >= 0 and number == expected + 1
        if is_doubted and track.gone_to <= jumped < self._promised_to:
            record = self._record_at(jumped)
            if record is not None:
                key = message.topic_raw, message.queue_id
                self._note_by_order(
                    record, f"the message after it is number {number}", key, expected
                )
        if len(track.jumps) < NOTED_MAX:
            track.jumps |= {track.last, message.physical_offset}
        key = message.topic_raw, message.queue_id
        if track.last >= 0 and number > track.next and message.physical_offset < self._promised_to:
            track.gap = track.next, number
        if number == (expected if jumped == track.last else track.next - 1):
            self._note_stray(track.last, track.next - 1, key)
        if number == track.next - 1:  # Either of the two may be the one too many.
            self._note_stray(message.physical_offset, number, key)
        if number == track.next + 1 and len(self._holes) < NOTED_MAX:
            self._holes.append(_Hole(key, track.next, track.last, message.physical_offset))
        track.jumped = message.physical_offset, track.next

    def _note_stray(self, offset: int, number: int, key: Key) -> None:
        if 0 <= offset < self._promised_to and len(self._strays) < NOTED_MAX:
            self._strays.setdefault(number, []).append((offset, key))

    def note_filler(self, physical_offset: int) -> None:
        """Note that a repair filled a place where unknown messages may have been."""
        self._first_filler = min(self._first_filler, physical_offset)

    def doubt_order(self) -> None:
        """Forget what only the order shows: what a queue lacks may be what is damaged."""
        self.found.clear()

    def fill_holes(self, tracks: dict[Key, QueueTrack]) -> None:
        """Count a record that is one too many in its queue as the one that another queue lacks.

        There must be exactly one at that place, with that number, and with either the same topic or
        the same queue id. A topic is left out if nobody knows whether it has batches.
        """
        known: dict[bytes, bool] = {}
        for key, track in tracks.items():
            if track.jumped[0] == track.last:
                self._note_stray(track.last, track.next - 1, key)
        for (topic, queue_id), number, low, high in self._holes:
            if topic not in known:
                known[topic] = self._is_kind_known(topic.decode("utf-8", "replace"))
            if not known[topic]:
                continue
            fitting = {
                offset
                for offset, said in self._strays.get(number, ())
                if low < offset < high and _may_be(said, (topic, queue_id))
            }
            record = self._record_at(fitting.pop()) if len(fitting) == 1 else None
            if record is not None:
                name = f"{topic.decode('utf-8', 'replace')} queue {queue_id}"
                problem = f"it does not follow there, and {name} is missing this number here"
                self._note_by_order(record, problem, (topic, queue_id), number)
        self._take_last(tracks)

    def _take_last(self, tracks: dict[Key, QueueTrack]) -> None:
        """Count a last record that is read back, and whose number is too high, as the expected one.

        No later message shows that, nor an entry: a start refuses the record for what the log lacks
        before it. But it may be the next one of another queue, with its topic or queue id wrong.
        """
        going_on: dict[int, list[Key]] = {}
        for key, track in tracks.items():
            going_on.setdefault(track.next, []).append(key)
        for key, track in tracks.items():
            (offset, expected), number = track.jumped, track.next - 1
            is_ahead = offset == track.last and track.gap == (expected, number)
            if not is_ahead or not self._read_from <= offset < self._first_filler:
                continue
            is_of_another = any(_may_be(key, each) for each in going_on.get(number, ()))
            record = None if is_of_another or offset in self.found else self._record_at(offset)
            if record is not None and self._is_kind_known(record.topic):
                problem = f"the message before it is number {expected - 1}, and it is the last"
                self._note_by_order(record, problem, key, expected)

    def is_wrong(
        self, track: QueueTrack, index: int, said: QueueTrack, record: StoredMessage
    ) -> bool:
        """Whether a record that an entry leads to is that message, though it says another.

        The caller knows that no other record is the message of this entry. Also, there must be no
        entry at the place that the record names, and the numbers must agree: one is missing here,
        or one does not follow there. Otherwise the entry may be what is wrong.
        """
        offset = record.physical_offset
        there: tuple[int, ...] = ENTRY.unpack(said.files.read(record.queue_offset, 1))
        said.files.close()
        if there[:2] == (offset, record.size):
            return False
        around = track.files.read(index - 1, 3)
        before, _, behind = (entry[0] for entry in ENTRY.iter_unpack(around))
        follows = is_in(track.matched, index - 1) and before < offset
        is_followed = is_in(track.matched, index + 1) and offset < behind
        is_first = index == 0 and not self._segments.first_offset
        if (follows or is_first) and is_followed:
            return True
        return offset in said.jumps and (follows or is_followed or index == 0)

    def note(self, record: StoredMessage, problem: str, truth: Place | None = None) -> None:
        """Note that a record is not what it says, and what it is, if its own entry shows it."""
        if len(self.found) < NOTED_MAX:
            start = record.physical_offset
            if truth is not None:
                told = self._truths.setdefault(start, truth)
                truth = truth if told == truth else None  # If two entries claim it, neither counts.
            end, said = start + record.size, said_place(record)
            problem = f"it says that it is {said}, but {problem}"
            self.found[start] = Damage(start, end, problem, is_last=False, said=said, truth=truth)

    def _note_by_order(self, record: StoredMessage, problem: str, key: Key, number: int) -> None:
        """Note which message a record is by the order alone; an entry may contradict that later."""
        start, known = record.physical_offset, self.found.get(record.physical_offset)
        self.note(record, problem)
        place = Place(key[0].decode("utf-8", "replace"), key[1], number)
        is_told_otherwise = known is not None and known.truth != place
        has_room = placed(record, place) is not None
        if start in self.found and has_room and not is_told_otherwise:
            self.found[start] = self.found[start]._replace(truth=place)

    def _record_at(self, physical_offset: int) -> StoredMessage | None:
        head = self._segments.read(physical_offset, _SIZE_BYTES)
        return read_record(self._segments, physical_offset, int.from_bytes(head, "big"))


def _may_be(said: Key, other: Key) -> bool:
    """Whether a record may be of another queue than it says: with another topic or another id."""
    return (said[0] == other[0]) is not (said[1] == other[1])


def is_in(ranges: Sequence[tuple[int, int]], index: int) -> bool:
    """Whether a number is in one of the ranges."""
    return any(start <= index < end for start, end in ranges)
